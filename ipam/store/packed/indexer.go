// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package packed

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/client-go/tools/cache"
)

const (
	// fieldIndex is the prefix of the names of the indexes that IndexField of controller-runtime adds. Without smaller, such
	// an index would contain a namespaced object twice: under the namespace and the value, and under allNamespaces and the
	// value.
	fieldIndex    = "field:"
	allNamespaces = "__all_namespaces/"
)

// smaller returns indexers that unpack a record before they compute its values. The indexers of fields return only the
// values for lists over all namespaces, because the values for one namespace would need a set with one element for most
// pods. If packs is true, there is no index by namespace (see indexer.ByIndex).
func smaller(packs bool, indexers cache.Indexers) cache.Indexers {
	all := cache.Indexers{}
	for name, values := range indexers {
		if packs && name == cache.NamespaceIndex {
			continue
		}
		all[name] = func(obj any) ([]string, error) {
			found, err := values(unpack(obj))
			if strings.HasPrefix(name, fieldIndex) {
				found = slices.DeleteFunc(found, func(value string) bool { return !strings.HasPrefix(value, allNamespaces) })
			}
			return found, err
		}
	}
	return all
}

// indexer reads objects from a store, which contains records if packs is true. The writing methods are for client-go, which
// calls them with records.
type indexer struct {
	cache.Indexer
	packs bool
}

func (i indexer) List() []any { return unpackAll(i.Indexer.List()) }

func (i indexer) Get(obj any) (any, bool, error) {
	found, exists, err := i.Indexer.Get(obj)
	return unpack(found), exists, err
}

func (i indexer) GetByKey(key string) (any, bool, error) {
	found, exists, err := i.Indexer.GetByKey(key)
	return unpack(found), exists, err
}

func (i indexer) Index(name string, obj any) ([]any, error) {
	found, err := i.Indexer.Index(name, obj)
	return unpackAll(found), err
}

// ByIndex implements cache.Indexer. It returns an error for a field value in one namespace, because the index contains no
// such values. If packs is true, ByIndex searches the keys of all objects for those of a namespace.
func (i indexer) ByIndex(name, value string) ([]any, error) {
	if i.packs && name == cache.NamespaceIndex {
		return i.inNamespace(value)
	}
	if strings.HasPrefix(name, fieldIndex) && !strings.HasPrefix(value, allNamespaces) {
		return nil, fmt.Errorf("index %s has no value %s: list by a field only over all namespaces", name, value)
	}
	found, err := i.Indexer.ByIndex(name, value)
	return unpackAll(found), err
}

// inNamespace returns the objects of a namespace.
func (i indexer) inNamespace(namespace string) (found []any, err error) {
	for _, key := range i.ListKeys() {
		if !strings.HasPrefix(key, namespace+"/") {
			continue
		}
		obj, exists, err := i.GetByKey(key)
		if err != nil {
			return nil, fmt.Errorf("read %s from the cache: %w", key, err)
		}
		if exists {
			found = append(found, obj)
		}
	}
	return found, nil
}

// unpackAll unpacks records in place: the list belongs to the caller.
func unpackAll(list []any) []any {
	for i, obj := range list {
		list[i] = unpack(obj)
	}
	return list
}
