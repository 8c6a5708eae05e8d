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

// What the model lets pass of an entry that a pod gets just as it goes: no more than nobody can help.
func TestAdoptedAsItWent(t *testing.T) {
	const ip, owner = "10.0.0.19", "db/a-2"
	for name, c := range map[string]struct {
		// dynamic: the entry was one for anybody.
		dynamic bool
		// went is how long after the reconcile began the pod let go of the address; left: it never had it.
		went time.Duration
		left bool
		// other is the node on which another pod runs with it when the write is carried out; back: it is taken back.
		other string
		back  bool
		// then and atRest are how many violations there are as it is written, and in the end.
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
