// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumpool

import (
	"testing"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"fixedip.io/fixedip/ipam/core/pool"
)

// TestEntrySpelling checks the text of entries. It must not change, because other tools and other versions read it.
func TestEntrySpelling(t *testing.T) {
	at := time.Date(2026, 11, 24, 8, 0, 0, 0, time.UTC)
	for text, want := range map[[2]string]pool.Entry{
		{"", ""}:                               {},
		{"router", ""}:                         pool.ForOwner("router"),
		{"db/mysql-0", ""}:                     pool.ForOwner("db/mysql-0"),
		{"db/mysql-0", "db/StatefulSet/mysql"}: pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"),
		{"db/mysql-0", "db/StatefulSet.apps.kruise.io/mysql"}:                  pool.OwnedEntry("db", "mysql-0", "StatefulSet.apps.kruise.io", "mysql"),
		{"db/web", "bare-pod"}:                                                 pool.BarePodEntry("db", "web"),
		{"db/web", "db/Pod/web"}:                                               pool.UnreservedEntry("db", "web"),
		{"fixedip.io/cooldown", "since=2026-11-24T08:00:00Z"}:                  pool.CooldownEntry("", at),
		{"fixedip.io/cooldown", "since=2026-11-24T08:00:00Z;owner=db/mysql-0"}: pool.CooldownEntry("db/mysql-0", at),
		{"fixedip.io/cooldown", "since=2026-11-24T08:00:00Z;withdrawn"}:        pool.WithdrawnEntry(at),
		{"fixedip.io/moved", "node=node-1;pod=db/mysql-0"}:                     pool.MovedEntry("node-1", "db/mysql-0"),
		{"fixedip.io/moved", "node=node-1;pod=db/mysql-0;leaving"}:             pool.LeavingEntry("node-1", "db/mysql-0"),
		{"fixedip.io/move-target", "pod=db/mysql-0"}:                           pool.MoveTargetEntry("db/mysql-0"),
		{"fixedip.io/cooldown", ""}:                                            {Kind: pool.Cooldown},
		{"fixedip.io/moved", ""}:                                               pool.MovedEntry("", ""),
		{"fixedip.io/moved", "node=node-1"}:                                    pool.MovedEntry("node-1", ""),
		{"fixedip.io/moved", "pod=db/mysql-0"}:                                 pool.MovedEntry("", "db/mysql-0"),
		{"fixedip.io/move-target", ""}:                                         pool.MoveTargetEntry(""),
		{"other-tool", ""}:                                                     pool.ForOwner("other-tool"),
	} {
		raw := ipamtypes.AllocationIP{Owner: text[0], Resource: text[1]}
		if got, canonical := DecodeEntry(raw); got != want || !canonical {
			t.Errorf("DecodeEntry(%+v) = %+v, %v, want %+v, true", raw, got, canonical, want)
		}
		if got := EncodeEntry(want); got != raw {
			t.Errorf("EncodeEntry(%+v) = %+v, want %+v", want, got, raw)
		}
	}
}

// TestEntryDecodedLeniently checks that entries of users, other tools and later versions are decoded as far as possible.
func TestEntryDecodedLeniently(t *testing.T) {
	at := time.Date(2026, 11, 24, 8, 0, 0, 0, time.UTC)
	for text, want := range map[[2]string]pool.Entry{
		{"", "x"}:       {},
		{"router", "x"}: pool.ForOwner("router"),
		{"db/mysql-0", "reserved by the db team"}:                                             pool.ForOwner("db/mysql-0"),
		{"db/mysql-0", "///"}:                                                                 pool.ForOwner("db/mysql-0"),
		{"db/mysql-0", "db/StatefulSet/mysql;since=yesterday"}:                                pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"),
		{"db/mysql-0", "db/StatefulSet/mysql;new=field"}:                                      pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"),
		{"db/mysql-0", "other/StatefulSet/mysql"}:                                             pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"),
		{"db/web", "db/Pod/other"}:                                                            pool.UnreservedEntry("db", "web"),
		{"fixedip.io/cooldown", "since=soon"}:                                                 {Kind: pool.Cooldown},
		{"fixedip.io/cooldown", "owner=db/mysql-0;new=field;since=2026-11-24T09:00:00+01:00"}: pool.CooldownEntry("db/mysql-0", at),
		{"fixedip.io/cooldown", "since=2026-11-24T08:00:00Z;owner=router"}:                    pool.CooldownEntry("", at),
		{"fixedip.io/cooldown", "since=2026-11-24T08:00:00Z;since=2020-01-01T00:00:00Z"}:      pool.CooldownEntry("", at),
		{"fixedip.io/moved", "node=node-1;pod=mysql-0;leaving"}:                               pool.LeavingEntry("node-1", ""),
		{"fixedip.io/moved", "leaving;pod=db/leaving;node=leaving"}:                           pool.LeavingEntry("leaving", "db/leaving"),
		{"fixedip.io/move-target", "pod=fixedip.io/moved"}:                                    pool.MoveTargetEntry(""),
		{"other-tool", "since=2026-11-24T08:00:00Z"}:                                          pool.ForOwner("other-tool"),
		{"fixedip.io/unknown", "since=2026-11-24T08:00:00Z"}:                                  pool.ForOwner("fixedip.io/unknown"),
	} {
		raw := ipamtypes.AllocationIP{Owner: text[0], Resource: text[1]}
		if got, canonical := DecodeEntry(raw); got != want || canonical {
			t.Errorf("DecodeEntry(%+v) = %+v, %v, want %+v, false", raw, got, canonical, want)
		}
	}
}

// FuzzEntry checks that decoding and encoding any entry preserves its owner, and that decoding the encoded entry gives the
// same result.
func FuzzEntry(f *testing.F) {
	for _, s := range [][2]string{
		{"", ""}, {"", "x"}, {"db/mysql-0", "db/StatefulSet/mysql"}, {"db/mysql-0", "db/Pod/mysql-0"}, {"db/mysql-0", "bare-pod;since=2026-11-24T08:00:00Z"}, {"router", ""},
		{"fixedip.io/cooldown", "since=2026-11-21T10:00:00Z"}, {"fixedip.io/cooldown", "owner=db/mysql-0"}, {"fixedip.io/cooldown", "soon"},
		{"fixedip.io/moved", "node=node-1;pod=db/mysql-0"}, {"fixedip.io/moved", "node=node-1;pod=db/mysql-0;leaving"}, {"fixedip.io/moved", "leaving"},
		{"fixedip.io/move-target", "pod=db/mysql-0"}, {"fixedip.io/move-target", "fixedip.io/moved"},
		{"db/", ""}, {"/mysql-0", ""}, {"a/b/c", ""}, {"db/mysql-0 [restored]", "x"}, {"db/mysql-0", "//"}, {"db/mysql-0", ";;since=1970-01-01T00:00:00Z"}, {";/0", ";/0/0"}, {"db/a;b", "db/Pod/a;b"},
		{"fixedip.io/cooldown", "withdrawn"},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, owner, resource string) {
		raw := ipamtypes.AllocationIP{Owner: owner, Resource: resource}
		e, canonical := DecodeEntry(raw)
		written := EncodeEntry(e)
		if written.Owner != owner || canonical != (written == raw) {
			t.Errorf("%+v is decoded as %+v (canonical: %v) and encoded as %+v; want the same owner, and canonical only if both are equal", raw, e, canonical, written)
		}
		if again, canonical := DecodeEntry(written); again != e || !canonical {
			t.Errorf("%+v is encoded as %+v, which is decoded as %+v (canonical: %v); want the same entry, canonical", e, written, again, canonical)
		}
		if e.Owner() != "" && e.Owner() != owner || e.Pod() != "" && !pool.IsPodKey(e.Pod()) || e.Kind != pool.Owned && (e.Purpose != 0 || e.Workload() != "") || e.Kind != pool.Moved && e.Node() != "" || e.Leaving && e.Kind != pool.Moved && e.Kind != pool.Cooldown {
			t.Errorf("%+v is decoded as %+v, which has a wrong owner or fields of another kind", raw, e)
		}
		if pod := pool.IsPodKey(owner); pod != (e.Kind == pool.Owned) {
			t.Errorf("%+v is decoded as %+v; want kind Owned if and only if the owner is a pod", raw, e)
		}
	})
}

// FuzzEntryRoundTrip checks that every entry that fixedip writes is equal after encoding and decoding, for all valid names
// of pods, nodes and workloads.
func FuzzEntryRoundTrip(f *testing.F) {
	for _, s := range [][4]string{{"db", "mysql-0", "node-1", "mysql"}, {"db", "leaving", "node-1", "w"}, {"leaving", "leaving", "leaving", "leaving"}, {"since", "owner", "fixedip.io", "pod"}, {"db", "a.b", "node.example.com", "c.d"}} {
		f.Add(s[0], s[1], s[2], s[3], int64(1795600000))
	}
	f.Fuzz(func(t *testing.T, namespace, name, node, workload string, seconds int64) {
		if len(validation.IsDNS1123Label(namespace)) > 0 {
			return
		}
		for _, n := range []string{name, node, workload} {
			if len(validation.IsDNS1123Subdomain(n)) > 0 {
				return
			}
		}
		at := time.Unix(seconds, 0)
		if year := at.UTC().Year(); year < 0 || year > 9999 {
			return
		}
		owner := pool.OwnerKey(namespace, name)
		for _, e := range []pool.Entry{
			{}, pool.ForOwner(owner), pool.BarePodEntry(namespace, name), pool.UnreservedEntry(namespace, name),
			pool.OwnedEntry(namespace, name, "StatefulSet.apps.kruise.io", workload),
			pool.OwnedEntry(namespace, name, "StatefulSet", workload), pool.CooldownEntry("", at), pool.CooldownEntry(owner, at), pool.WithdrawnEntry(at),
			pool.MovedEntry(node, owner), pool.LeavingEntry(node, owner), pool.MoveTargetEntry(owner),
		} {
			if got, canonical := DecodeEntry(EncodeEntry(e)); got != e || !canonical {
				t.Errorf("%+v is %+v (canonical: %v) after encoding and decoding; want the same entry, canonical", e, got, canonical)
			}
		}
	})
}
