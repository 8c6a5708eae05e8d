// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pool_test

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"fixedip.io/fixedip/ipam/core/pool"
)

func TestForOwner(t *testing.T) {
	for owner, want := range map[string]pool.Kind{
		"":                      pool.Dynamic,
		"db/mysql-0":            pool.Owned,
		"router":                pool.NodeOwned,
		"health":                pool.NodeOwned,
		"ingress":               pool.NodeOwned,
		"operator":              pool.Foreign,
		"example.com/mark":      pool.Foreign,
		"a/b/c":                 pool.Foreign,
		"db/":                   pool.Foreign,
		"/mysql-0":              pool.Foreign,
		"db/mysql-0 [restored]": pool.Owned,
	} {
		got := pool.ForOwner(owner)
		if got.Owner() != owner {
			t.Errorf("ForOwner(%q) has owner %q, want %[1]q", owner, got.Owner())
		}
		// No other field is set.
		if got.Kind != want || got.Purpose != pool.UnknownPurpose || got.Leaving || got.Pod()+got.Workload()+got.Node() != "" || got.Since() != 0 {
			t.Errorf("ForOwner(%q) = %+v, want kind %s and no other field", owner, got, want)
		}
	}
}

func TestEntry(t *testing.T) {
	at := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	type facts struct {
		kind                                       pool.Kind
		ownedBy, cools, unreserved, bare, allocate bool
		names, workload                            string
	}
	for name, tc := range map[string]struct {
		entry pool.Entry
		want  facts
	}{
		"dynamic":                      {pool.Entry{}, facts{kind: pool.Dynamic, allocate: true}},
		"a workload":                   {pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"), facts{kind: pool.Owned, ownedBy: true, names: "db/mysql-0", workload: "StatefulSet/mysql", allocate: true}},
		"a bare pod":                   {pool.BarePodEntry("db", "mysql-0"), facts{kind: pool.Owned, ownedBy: true, names: "db/mysql-0", bare: true, allocate: true}},
		"unreserved":                   {pool.UnreservedEntry("db", "mysql-0"), facts{kind: pool.Owned, ownedBy: true, names: "db/mysql-0", workload: "Pod/mysql-0", unreserved: true, allocate: true}},
		"another pod":                  {pool.ForOwner("db/other-0"), facts{kind: pool.Owned, names: "db/other-0", allocate: true}},
		"router":                       {pool.ForOwner("router"), facts{kind: pool.NodeOwned, allocate: true}},
		"foreign":                      {pool.ForOwner("operator"), facts{kind: pool.Foreign, allocate: true}},
		"cooldown":                     {pool.CooldownEntry("db/mysql-0", at), facts{kind: pool.Cooldown, cools: true}},
		"cooldown of an unknown owner": {pool.CooldownEntry("", at), facts{kind: pool.Cooldown}},
		"moved":                        {pool.MovedEntry("node-2", "db/mysql-0"), facts{kind: pool.Moved, names: "db/mysql-0"}},
		"leaving":                      {pool.LeavingEntry("node-2", "db/mysql-0"), facts{kind: pool.Moved, names: "db/mysql-0"}},
		"move target":                  {pool.MoveTargetEntry("db/mysql-0"), facts{kind: pool.MoveTarget, names: "db/mysql-0"}},
	} {
		e := tc.entry
		got := facts{kind: e.Kind, ownedBy: e.OwnedBy("db/mysql-0"), cools: e.CoolsDownFrom("db/mysql-0"), unreserved: e.IsUnreserved(), bare: e.IsBarePod(), allocate: e.Allocatable(), names: e.NamesPod()}
		if kind, workload, ok := e.WorkloadRef(); ok {
			got.workload = kind + "/" + workload
		}
		if got != tc.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tc.want)
		}
	}
	if got := pool.CooldownEntry("", at).SinceTime(); !got.Equal(at) {
		t.Errorf("SinceTime = %v, want %v", got, at)
	}
	if got := (pool.Entry{}).SinceTime(); !got.IsZero() {
		t.Errorf("SinceTime of the zero Entry = %v, want the zero time", got)
	}
}

// FuzzOwnerKey checks that SplitOwnerKey is the inverse of OwnerKey, and that ForOwner returns an entry owned by the pod,
// for every namespace and pod name that Kubernetes accepts.
func FuzzOwnerKey(f *testing.F) {
	f.Add("db", "mysql-0")
	f.Add("db", "a.b")
	f.Add("leaving", "leaving")
	f.Fuzz(func(t *testing.T, namespace, name string) {
		if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
			return
		}
		owner := pool.OwnerKey(namespace, name)
		if ns, n, ok := pool.SplitOwnerKey(owner); !ok || ns != namespace || n != name {
			t.Errorf("SplitOwnerKey(%q) = %q, %q, %v, want %q, %q, true", owner, ns, n, ok, namespace, name)
		}
		if e := pool.ForOwner(owner); !e.OwnedBy(owner) {
			t.Errorf("ForOwner(%q) = %+v, want an entry that the pod owns", owner, e)
		}
	})
}
