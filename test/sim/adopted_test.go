// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"
	"testing/synctest"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestReleaseDuringAdoption checks how many violations the model reports if an entry gets a pod as its owner at about the time
// at which the pod releases the address. There is none only if the entry was dynamic, the pod released the address after the
// start of the reconcile, the other pod with the address runs on the same node, and the write is undone.
func TestReleaseDuringAdoption(t *testing.T) {
	const ip, owner = "10.0.0.19", "db/a-2"
	for name, c := range map[string]struct {
		// dynamic is true if the entry was dynamic before the write.
		dynamic bool
		// releasedAfter is the time from the start of the reconcile until the pod releases the address; negative if the pod
		// releases it before the start.
		releasedAfter time.Duration
		// neverHad is true if the pod never had the address.
		neverHad bool
		// other is the node on which another pod runs with the address when the write is carried out.
		other string
		// undone is true if the write is undone.
		undone bool
		// atWrite is the number of violations after the write, and atRest the number of further violations at the end.
		atWrite, atRest int
	}{
		"released during the reconcile, write undone":     {dynamic: true, releasedAfter: time.Second, other: "n1", undone: true},
		"released during the reconcile, write not undone": {dynamic: true, releasedAfter: time.Second, other: "n1", atRest: 1},
		"released before the reconcile":                   {dynamic: true, releasedAfter: -time.Second, other: "n1", undone: true, atWrite: 1},
		"the pod never had the address":                   {dynamic: true, neverHad: true, other: "n1", undone: true, atWrite: 1},
		"the other pod runs on another node":              {dynamic: true, releasedAfter: time.Second, other: "n2", undone: true, atWrite: 1},
		"the entry was not dynamic":                       {releasedAfter: time.Second, other: "n1", undone: true, atWrite: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{began: time.Now(), stats: map[string]int{}}
				w.server = newServer(func() metav1.Time { return metav1.Now().Rfc3339Copy() })
				w.server.wrote = func(*kind, event, string) {}
				w.checks = newChecks(w)
				for _, name := range []string{"n1", "n2"} {
					w.machines = append(w.machines, &machine{w: w, name: name, sandboxes: map[types.UID]*sandbox{}})
				}
				write := func(owner string) {
					entries := ipamtypes.AllocationMap{ip: {Owner: owner}}
					change(w.server, ciliumNodes, "n1", "user", func(cn *ciliumv2.CiliumNode) { cn.Spec.IPAM.Pool = entries })
				}
				if _, err := w.server.create(ciliumNodes, &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, "user"); err != nil {
					t.Fatal(err)
				}
				old := &sandbox{uid: "old", key: owner, ips: []string{ip}}
				w.machines[0].sandboxes[old.uid] = old
				time.Sleep(10 * time.Second)
				sent := &call{begun: time.Now().Add(-c.releasedAfter)}
				if delete(w.machines[0].sandboxes, old.uid); !c.neverHad {
					w.noteLastUse(w.machines[0], old)
				}
				w.machine(c.other).sandboxes["new"] = &sandbox{uid: "new", key: "db/job4", ips: []string{ip}}

				w.server.serving = sent
				write(owner)
				w.checkOwner("n1", ip, owner, c.dynamic)
				w.server.serving = nil
				atWrite := len(w.violations)
				if c.undone {
					write("")
				}
				w.checkUndone()
				if atWrite != c.atWrite || len(w.violations)-atWrite != c.atRest {
					t.Errorf("got %d violations at the write and %d at rest, want %d and %d: %v", atWrite, len(w.violations)-atWrite, c.atWrite, c.atRest, w.violations)
				}
			})
		})
	}
}
