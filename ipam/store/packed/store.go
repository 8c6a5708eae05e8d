// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package packed

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
)

// store contains the objects of an informer, or their records, with their indexes. The store of client-go has a set of keys
// for each value of an index. Most values, such as the address of a pod, have one object, and a set with one key needs
// more memory than a packed object.
//
// A key may refer to the memory of its record. So that the store does not retain the memory of a former record, put replaces
// the key as well, in the items and in the indexes.
type store struct {
	mu sync.RWMutex
	// items contains the objects or records. Key: as keyOf returns it.
	items map[string]any
	// indexers contains the function that computes the values of an object, by the name of the index.
	indexers cache.Indexers
	// indexes contains the keys of the objects with a value. Keys: the name of the index, and the value. Invariant: each index
	// of indexers is in indexes, and no keys are empty.
	indexes map[string]map[string]keys
}

func newStore(indexers cache.Indexers) *store {
	s := &store{items: map[string]any{}, indexers: cache.Indexers{}, indexes: map[string]map[string]keys{}}
	_ = s.addIndexers(indexers) // An empty store has no index, and no object for which an index function could fail.
	return s
}

// addIndexers adds indexes, and the objects of the store to them. It returns an error if the name of an index exists, or if an
// index function fails.
func (s *store) addIndexers(indexers cache.Indexers) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range indexers {
		if _, exists := s.indexers[name]; exists {
			return fmt.Errorf("add index %s: it exists already", name)
		}
	}
	for name, values := range indexers {
		index := map[string]keys{}
		for key, item := range s.items {
			if err := change(index, name, values, key, nil, unpack(item)); err != nil {
				return err
			}
		}
		s.indexers[name], s.indexes[name] = values, index
	}
	return nil
}

// fill replaces all objects. Key of items: the key of the object.
func (s *store) fill(items map[string]any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.items = items
	for name := range s.indexers {
		s.indexes[name] = map[string]keys{}
	}
	for key, item := range items {
		if err := s.index(key, nil, unpack(item)); err != nil {
			return err
		}
	}
	return nil
}

// put stores item, which is after or its record. before is the object that the store contains for the key; nil: there is none.
func (s *store) put(key string, item, before, after any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.items, key)
	s.items[key] = item
	return s.index(key, before, after)
}

// remove removes before, the object that the store contains for the key.
func (s *store) remove(key string, before any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.items, key)
	return s.index(key, before, nil)
}

// index changes all indexes from the values of before to those of after; nil: there is no object.
func (s *store) index(key string, before, after any) error {
	for name, values := range s.indexers {
		if err := change(s.indexes[name], name, values, key, before, after); err != nil {
			return err
		}
	}
	return nil
}

// change changes one index from the values of before to those of after; nil: there is no object.
func change(index map[string]keys, name string, values cache.IndexFunc, key string, before, after any) error {
	var old, now []string
	var err error
	if before != nil {
		if old, err = values(before); err != nil {
			return fmt.Errorf("compute the values of index %s for the former version of %s: %w", name, key, err)
		}
	}
	if after != nil {
		if now, err = values(after); err != nil {
			return fmt.Errorf("compute the values of index %s for %s: %w", name, key, err)
		}
	}
	for _, value := range old {
		k := index[value]
		if k.remove(key); k.empty() {
			delete(index, value)
		}
	}
	for _, value := range now {
		k := index[value]
		k.remove(key) // An index function may return a value twice.
		k.add(key)
		index[value] = k
	}
	return nil
}

// get returns the object or record of a key.
func (s *store) get(key string) (any, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	item, exists := s.items[key]
	return item, exists
}

// list returns the objects or records.
func (s *store) list() []any {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.AppendSeq(make([]any, 0, len(s.items)), maps.Values(s.items))
}

// ListKeys returns the keys of all objects.
func (s *store) ListKeys() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.AppendSeq(make([]string, 0, len(s.items)), maps.Keys(s.items))
}

// GetByKey is get for the queue of client-go.
func (s *store) GetByKey(key string) (item any, exists bool, err error) {
	item, exists = s.get(key)
	return item, exists, nil
}

// keysWith returns the keys of the objects that have one of the values in an index.
func (s *store) keysWith(name string, values ...string) ([]string, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.find(name, values)
}

// itemsWith returns the objects or records that have one of the values in an index.
func (s *store) itemsWith(name string, values ...string) ([]any, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	found, err := s.find(name, values)
	items := make([]any, len(found))
	for i, key := range found {
		items[i] = s.items[key]
	}
	return items, err
}

// find returns the keys of the objects that have one of the values in an index. If there is no index by namespace, it looks at
// the keys of all objects. The caller holds mu.
func (s *store) find(name string, values []string) (found []string, err error) {
	index, ok := s.indexes[name]
	switch {
	case !ok && name == cache.NamespaceIndex:
		for key := range s.items {
			if namespace, _, namespaced := strings.Cut(key, "/"); namespaced && slices.Contains(values, namespace) {
				found = append(found, key)
			}
		}
		return found, nil
	case !ok:
		return nil, fmt.Errorf("there is no index %s", name)
	case len(values) == 1:
		return all(index, values[0]), nil
	}
	// An object may have several of the values.
	union := sets.New[string]()
	for _, value := range values {
		union.Insert(all(index, value)...)
	}
	return union.UnsortedList(), nil
}

// all returns the keys of a value of an index.
func all(index map[string]keys, value string) []string {
	k := index[value]
	return k.all()
}

// values returns the values of an object in an index.
func (s *store) values(name string, obj any) ([]string, error) {
	s.mu.RLock()
	values, ok := s.indexers[name]
	s.mu.RUnlock()
	if !ok {
		return nil, fmt.Errorf("there is no index %s", name)
	}
	return values(obj)
}

// indexersCopy returns the index functions by the names of their indexes.
func (s *store) indexersCopy() cache.Indexers {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return maps.Clone(s.indexers)
}

// indexed returns the values in an index, and nil if there is no such index.
func (s *store) indexed(name string) []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Collect(maps.Keys(s.indexes[name]))
}

// keys is a set of keys of objects, which needs no memory of its own for one key and little for some tens, such as the pods of a
// node. After add, store the keys again, like a slice after append.
type keys struct {
	// one is the only key; empty: the keys are in many.
	one string
	// many contains the keys if there were two or more at some time; nil: there were not.
	many *manyKeys
}

// maxListed is the largest number of keys in a list, in which add and remove look at every key.
const maxListed = 64

// manyKeys is a set of keys in a list or, after it had more than maxListed keys, in a map.
type manyKeys struct {
	list []string
	set  sets.Set[string]
}

func (k *keys) empty() bool {
	return k.one == "" && (k.many == nil || len(k.many.list) == 0 && len(k.many.set) == 0)
}

// add adds a key that is not in the set.
func (k *keys) add(key string) {
	if k.many == nil {
		if k.one == "" {
			k.one = key
			return
		}
		k.many = &manyKeys{list: []string{k.one}}
		k.one = ""
	}
	m := k.many
	switch {
	case m.set != nil:
		m.set.Insert(key)
	case len(m.list) < maxListed:
		m.list = append(m.list, key)
	default:
		m.set = sets.New(m.list...).Insert(key)
		m.list = nil
	}
}

// remove removes a key, which may be missing.
func (k *keys) remove(key string) {
	if k.many == nil {
		if k.one == key {
			k.one = ""
		}
		return
	}
	k.many.set.Delete(key)
	if at := slices.Index(k.many.list, key); at >= 0 {
		k.many.list = slices.Delete(k.many.list, at, at+1)
	}
}

// all returns the keys.
func (k *keys) all() []string {
	switch {
	case k.one != "":
		return []string{k.one}
	case k.many == nil:
		return nil
	case k.many.set != nil:
		return k.many.set.UnsortedList()
	}
	return slices.Clone(k.many.list)
}
