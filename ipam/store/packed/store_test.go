// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package packed

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// byIPs is an index function that returns the addresses of a pod.
func byIPs(obj any) (ips []string, err error) {
	for _, ip := range obj.(*corev1.Pod).Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	return ips, nil
}

// TestStoreLikeClientGo applies random changes to a store and to one of client-go, and checks that all reads have the same
// results.
func TestStoreLikeClientGo(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	indexers := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc, "node": byNode, "ip": byIPs}
	want := cache.NewIndexer(cache.MetaNamespaceKeyFunc, indexers)
	s := newStore(smaller(true, indexers))
	got := indexer{s, true}

	names := func(pods []any, err error) (names []string) {
		if err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		for _, obj := range pods {
			p := obj.(*corev1.Pod)
			names = append(names, fmt.Sprintf("%s/%s on %s with %v", p.Namespace, p.Name, p.Spec.NodeName, p.Status.PodIPs))
		}
		slices.Sort(names)
		return names
	}
	sorted := func(texts []string) []string { slices.Sort(texts); return texts }
	diff := func(a, b []string) string { return cmp.Diff(a, b, cmpopts.EquateEmpty()) }
	for step := range 400 {
		p := pod(fmt.Sprintf("web-%d", random.IntN(20)), fmt.Sprintf("node-%d", random.IntN(4)))
		p.Namespace = []string{"shop", "shopping"}[random.IntN(2)]
		for range random.IntN(3) {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: fmt.Sprintf("10.0.0.%d", random.IntN(5))})
		}
		record, err := pack(p)
		if err != nil {
			t.Fatal(err)
		}
		key, err := keyOf(record)
		if err != nil {
			t.Fatal(err)
		}
		before, exists, _ := got.GetByKey(key)
		switch {
		case random.IntN(3) > 0:
			if !exists {
				before = nil
			}
			err = errors.Join(want.Add(p), s.put(key, record, before, p))
		case exists:
			err = errors.Join(want.Delete(p), s.remove(key, before))
		}
		if step == 200 {
			// A new index contains the objects of the store.
			byName := cache.Indexers{"name": func(obj any) ([]string, error) { return []string{obj.(*corev1.Pod).Name}, nil }}
			err = errors.Join(err, want.AddIndexers(byName), got.AddIndexers(byName))
		}
		if err != nil {
			t.Fatalf("seed %d, step %d: %v", seed, step, err)
		}
		diffs := []string{
			diff(names(want.List(), nil), names(got.List(), nil)),
			diff(sorted(want.ListKeys()), sorted(got.ListKeys())),
			diff(names(want.ByIndex(cache.NamespaceIndex, "shop")), names(got.ByIndex(cache.NamespaceIndex, "shop"))),
			diff(names(want.Index(cache.NamespaceIndex, p)), names(got.ByIndex(cache.NamespaceIndex, p.Namespace))),
		}
		for name := range got.GetIndexers() {
			diffs = append(diffs, diff(sorted(want.ListIndexFuncValues(name)), sorted(got.ListIndexFuncValues(name))))
			diffs = append(diffs, diff(names(want.Index(name, p)), names(got.Index(name, p))))
			for _, value := range append(want.ListIndexFuncValues(name), "no such value") {
				wantKeys, _ := want.IndexKeys(name, value)
				gotKeys, _ := got.IndexKeys(name, value)
				diffs = append(diffs, diff(sorted(wantKeys), sorted(gotKeys)), diff(names(want.ByIndex(name, value)), names(got.ByIndex(name, value))))
			}
		}
		if all := strings.Join(diffs, ""); all != "" {
			t.Fatalf("seed %d, step %d (-client-go +store):\n%s", seed, step, all)
		}
	}
}

// TestStoreErrors checks the errors of calls with an index that does not exist or cannot be computed, and of writes.
func TestStoreErrors(t *testing.T) {
	s := newStore(cache.Indexers{"node": byNode})
	i := indexer{s, false}
	web := pod("web-0", "node-1")
	if err := s.put("shop/web-0", web, nil, web); err != nil {
		t.Fatal(err)
	}
	broken := cache.Indexers{"broken": func(any) ([]string, error) { return nil, errors.New("no value") }}
	_, byIndex := i.ByIndex("zone", "a")
	_, index := i.Index("zone", web)
	_, keys := i.IndexKeys("zone", "a")
	for want, errs := range map[string][]error{
		"there is no index zone":                                      {byIndex, index, keys},
		"add index node: it exists already":                           {i.AddIndexers(cache.Indexers{"node": byNode})},
		"compute the values of index broken for shop/web-0: no value": {i.AddIndexers(broken)},
		"only the informer may change its store":                      {i.Add(web), i.Update(web), i.Delete(web), i.Replace(nil, "")},
	} {
		for _, err := range errs {
			if err == nil || err.Error() != want {
				t.Errorf("got error %v, want %s", err, want)
			}
		}
	}
	// The key of an object without a namespace is its name, which is no namespace.
	cluster := newStore(cache.Indexers{})
	if err := cluster.put("node-1", web, nil, web); err != nil {
		t.Fatal(err)
	}
	if found, err := (indexer{cluster, true}).ByIndex(cache.NamespaceIndex, "node-1"); err != nil || len(found) > 0 {
		t.Errorf("got %v, error %v for a namespace with the name of a node; want nothing", found, err)
	}
	if found, exists, err := i.Get(web); err != nil || !exists || found != any(web) {
		t.Errorf("got %v, exists %v, error %v after the errors; want the pod", found, exists, err)
	}
}

// TestKeys checks a set of keys of each size, from no key to more than a list contains, and back.
func TestKeys(t *testing.T) {
	var k keys
	var want []string
	check := func() {
		t.Helper()
		got := k.all()
		slices.Sort(got)
		if !slices.Equal(got, want) || k.empty() != (len(want) == 0) {
			t.Fatalf("got %v, empty %v; want %v", got, k.empty(), want)
		}
	}
	for n := range 3 * maxListed {
		key := fmt.Sprintf("shop/web-%04d", n)
		k.add(key)
		want = append(want, key)
		check()
	}
	for len(want) > 0 {
		k.remove("no such key")
		k.remove(want[0])
		want = want[1:]
		check()
	}
	k.add("shop/web-0")
	want = []string{"shop/web-0"}
	check()
}
