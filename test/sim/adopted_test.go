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

// TestAdoptedAsItWent checks how many violations the model reports if an entry becomes the pod's own at about the time at
// which the pod releases the address. There is none only if the entry was dynamic, the pod released the address after the
// reconcile had begun, the other pod with the address runs on the same node, and the write is undone.
func TestAdoptedAsItWent(t *testing.T) {
	const ip, owner = "10.0.0.19", "db/a-2"
	for name, c := range map[string]struct {
		// dynamic is true if the entry was dynamic before the write.
		dynamic bool
		// went is how long after the start of the reconcile the pod releases the address; negative: before the start.
		went time.Duration
		// left is true if the checks do not see that the pod releases the address.
		left bool
		// other is the node on which another pod runs with the address when the write is carried out.
		other string
		// back is true if the write is undone.
		back bool
		// then is the number of violations after the write, and atRest the number of further violations at the end.
		then, atRest int
	}{
		"it went meanwhile, and the entry is taken back": {dynamic: true, went: time.Second, other: "n1", back: true},
		"it went meanwhile, and keeps the entry":         {dynamic: true, went: time.Second, other: "n1", atRest: 1},
		"it had gone before":                             {dynamic: true, went: -time.Second, other: "n1", back: true, then: 1},
		"it never had the address":                       {dynamic: true, left: true, other: "n1", back: true, then: 1},
		"the other one runs on another node":             {dynamic: true, went: time.Second, other: "n2", back: true, then: 1},
		"the entry was not for anybody":                  {went: time.Second, other: "n1", back: true, then: 1},
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
				sent := &call{begun: time.Now().Add(-c.went)}
				if delete(w.machines[0].sandboxes, old.uid); !c.left {
					w.letGo(w.machines[0], old)
				}
				w.machine(c.other).sandboxes["new"] = &sandbox{uid: "new", key: "db/job4", ips: []string{ip}}

				w.server.serving = sent
				write(owner)
				w.checkOwner("n1", ip, owner, c.dynamic)
				w.server.serving = nil
				then := len(w.violations)
				if c.back {
					write("")
				}
				w.takenBack()
				if then != c.then || len(w.violations)-then != c.atRest {
					t.Errorf("%d violations, then %d; want %d and %d: %v", then, len(w.violations)-then, c.then, c.atRest, w.violations)
				}
			})
		})
	}
}
