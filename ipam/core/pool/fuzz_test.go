package pool_test

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"fixedip.io/fixedip/ipam/core/pool"
)

// Whoever wrote an entry, it means one thing: it is free for all, a pod's, the node's own, or a mark.
// An agent that would hand it to a pod by its owner finds that we say the same.
func FuzzEntry(f *testing.F) {
	for _, s := range [][2]string{
		{"", ""}, {"db/mysql-0", "db/StatefulSet/mysql"}, {"db/mysql-0", "db/Pod/mysql-0"}, {"router", ""}, {"fixedip.io/released", "2026-11-21T10:00:00Z"},
		{"fixedip.io/released", "2026-11-21T10:00:00Z unlisted"}, {"fixedip.io/released", "soon"}, {"fixedip.io/away", "node-1/db/mysql-0"}, {"fixedip.io/away", "node-1/db/mysql-0/leaving"},
		{"fixedip.io/away", "node-1/db/leaving"}, {"fixedip.io/away", "/leaving"}, {"fixedip.io/arriving", "db/mysql-0"}, {"fixedip.io/arriving", "fixedip.io/away"},
		{"db/", ""}, {"/mysql-0", ""}, {"a/b/c", ""}, {"db/mysql-0 [restored]", "x"}, {"db/mysql-0", "//"},
		{"db/mysql-0", "db/StatefulSet/mysql since 2026-11-24T08:00:00Z"}, {"db/mysql-0", " since 2026-11-24T09:00:00+01:00"}, {"db/mysql-0", "since since 1970-01-01T00:00:00Z"},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, owner, resource string) {
		e := pool.Spelled(owner, resource)
		if e.Owner != owner || e.Spelling() != resource {
			t.Errorf("%q of %q is read as %+v, which is spelled %q", resource, owner, e, e.Spelling())
		}
		namespace, name, pod := e.Pod()
		at, released := e.ReleasedAt()
		node, awayFor, away := e.AwayAt()
		arrivingFor, arriving := e.ArrivingFor()
		meanings := 0
		for _, is := range []bool{e.Dynamic(), pod, e.Node(), released, away, arriving} {
			if is {
				meanings++
			}
		}
		if e.Since != 0 && !pod {
			t.Errorf("%+v is nobody's since a time", e)
		}
		if meanings > 1 || e.Offers() == (released || away || arriving) {
			t.Errorf("%+v: dynamic %v, a pod's %v, the node's %v, released %v, away %v, arriving %v, offered %v", e, e.Dynamic(), pod, e.Node(), released, away, arriving, e.Offers())
		}
		if pod && pool.OwnerKey(namespace, name) != owner {
			t.Errorf("%q is the owner %s/%s", owner, namespace, name)
		}
		if e.Ordinary() && !pod || e.Leaves() && !away || e.Reusable() && !released {
			t.Errorf("%+v: ordinary %v, leaves %v, reusable %v", e, e.Ordinary(), e.Leaves(), e.Reusable())
		}
		for _, key := range []string{awayFor, arrivingFor} {
			if _, _, ok := pool.SplitOwnerKey(key); key != "" && !ok {
				t.Errorf("%+v is a mark of %q, which is no pod", e, key)
			}
		}
		if awayFor != "" && pool.Away(node, awayFor) != e && pool.Leaving(node, awayFor) != e {
			t.Errorf("%+v is away on %q for %q", e, node, awayFor)
		}
		if released && !at.IsZero() && pool.Released(at).Owner != owner {
			t.Errorf("%+v was released at %v", e, at)
		}
	})
}

// Marks say what was put into them, whatever the pod and the node are called.
func FuzzMarks(f *testing.F) {
	for _, s := range [][3]string{{"db", "mysql-0", "node-1"}, {"db", "leaving", "node-1"}, {"leaving", "leaving", "leaving"}, {"unlisted", "released", "fixedip.io"}, {"db", "a.b", "node.example.com"}} {
		f.Add(s[0], s[1], s[2], int64(1795600000))
	}
	f.Fuzz(func(t *testing.T, namespace, name, node string, seconds int64) {
		if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 || len(validation.IsDNS1123Subdomain(node)) > 0 {
			return
		}
		owner := pool.OwnerKey(namespace, name)
		if ns, n, ok := pool.SplitOwnerKey(owner); !ok || ns != namespace || n != name {
			t.Fatalf("the owner %q is %s/%s: %v", owner, ns, n, ok)
		}
		for e, leaves := range map[pool.Entry]bool{pool.Away(node, owner): false, pool.Leaving(node, owner): true} {
			if gotNode, gotOwner, ok := e.AwayAt(); !ok || gotNode != node || gotOwner != owner || e.Leaves() != leaves {
				t.Errorf("%+v is away on %q for %q, and leaves: %v", e, gotNode, gotOwner, e.Leaves())
			}
		}
		if got, ok := pool.Arriving(owner).ArrivingFor(); !ok || got != owner {
			t.Errorf("%q arrives for %q", owner, got)
		}
		if e := pool.Ordinary(namespace, name); !e.Ordinary() || e.Owner != owner {
			t.Errorf("%+v is no ordinary entry of %s", e, owner)
		}
		at := time.Unix(seconds, 0)
		if at.UTC().Year() < 0 || at.UTC().Year() > 9999 {
			return
		}
		for e, reusable := range map[pool.Entry]bool{pool.Released(at): true, pool.Released(at).Unlisted(): false} {
			if got, ok := e.ReleasedAt(); !ok || !got.Equal(at) || e.Reusable() != reusable || strings.Contains(e.Owner, " ") {
				t.Errorf("%+v was released at %v, want %v; reusable: %v", e, got, at, e.Reusable())
			}
		}
	})
}
