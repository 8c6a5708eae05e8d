// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package packed

import (
	"errors"
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

// smaller returns indexers whose indexes need less memory. The indexers of fields return only the values for lists over all
// namespaces. If packs is true, there is no index by namespace (see store.find).
func smaller(packs bool, indexers cache.Indexers) cache.Indexers {
	all := cache.Indexers{}
	for name, values := range indexers {
		if packs && name == cache.NamespaceIndex {
			continue
		}
		all[name] = func(obj any) ([]string, error) {
			found, err := values(obj)
			if strings.HasPrefix(name, fieldIndex) {
				found = slices.DeleteFunc(found, func(value string) bool { return !strings.HasPrefix(value, allNamespaces) })
			}
			return found, err
		}
	}
	return all
}

// indexer reads objects from a store, which contains records if packs is true.
type indexer struct {
	store *store
	packs bool
}

var _ cache.Indexer = indexer{}

// errReadOnly is the error of the writing methods, which are those of cache.Store.
var errReadOnly = errors.New("only the informer may change its store")

func (indexer) Add(any) error               { return errReadOnly }
func (indexer) Update(any) error            { return errReadOnly }
func (indexer) Delete(any) error            { return errReadOnly }
func (indexer) Replace([]any, string) error { return errReadOnly }
func (indexer) Resync() error               { return nil }

func (i indexer) List() []any        { return unpackAll(i.store.list()) }
func (i indexer) ListKeys() []string { return i.store.ListKeys() }

func (i indexer) Get(obj any) (item any, exists bool, err error) {
	key, err := keyOf(obj)
	if err != nil {
		return nil, false, err
	}
	return i.GetByKey(key)
}

func (i indexer) GetByKey(key string) (item any, exists bool, err error) {
	item, exists = i.store.get(key)
	return unpack(item), exists, nil
}

func (i indexer) AddIndexers(indexers cache.Indexers) error {
	return i.store.addIndexers(smaller(i.packs, indexers))
}

func (i indexer) GetIndexers() cache.Indexers { return i.store.indexersCopy() }

func (i indexer) ListIndexFuncValues(name string) []string { return i.store.indexed(name) }

func (i indexer) IndexKeys(name, value string) ([]string, error) {
	if err := checkValue(name, value); err != nil {
		return nil, err
	}
	return i.store.keysWith(name, value)
}

// Index returns the objects that have a value of obj in an index.
func (i indexer) Index(name string, obj any) ([]any, error) {
	values, err := i.store.values(name, obj)
	if err != nil {
		return nil, err
	}
	found, err := i.store.itemsWith(name, values...)
	return unpackAll(found), err
}

// ByIndex returns the objects that have a value in an index.
func (i indexer) ByIndex(name, value string) ([]any, error) {
	if err := checkValue(name, value); err != nil {
		return nil, err
	}
	found, err := i.store.itemsWith(name, value)
	return unpackAll(found), err
}

// checkValue returns an error for a field value in one namespace, because an index contains no such values.
func checkValue(name, value string) error {
	if strings.HasPrefix(name, fieldIndex) && !strings.HasPrefix(value, allNamespaces) {
		return fmt.Errorf("index %s has no value %s: list by a field only over all namespaces", name, value)
	}
	return nil
}

// unpackAll unpacks records in place: the list belongs to the caller.
func unpackAll(list []any) []any {
	for i, obj := range list {
		list[i] = unpack(obj)
	}
	return list
}
