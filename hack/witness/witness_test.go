// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// events creates objects with increasing revisions and passes them to the witness.
type events struct {
	w       *Witness
	version int
}

func (e *events) meta(name, uid string) metav1.ObjectMeta {
	e.version++
	return metav1.ObjectMeta{Namespace: "db", Name: name, UID: types.UID(uid), ResourceVersion: strconv.Itoa(e.version)}
}

// pod creates a version of a pod. It is bound if node is not empty, and runs if it has addresses.
func (e *events) pod(name, uid, node string, ips ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: e.meta(name, uid), Spec: corev1.PodSpec{NodeName: node}}
	for _, ip := range ips {
		p.Status.Phase = corev1.PodRunning
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	e.w.seePod(p, false)
	return p
}

// node creates a version of a CiliumNode; entries are the addresses of its pool, each followed by its owner.
func (e *events) node(name string, entries ...string) *ciliumv2.CiliumNode {
	cn := &ciliumv2.CiliumNode{ObjectMeta: e.meta(name, name)}
	cn.Spec.IPAM.Pool = ipamtypes.AllocationMap{}
	for pair := range slices.Chunk(entries, 2) {
		cn.Spec.IPAM.Pool[pair[0]] = ipamtypes.AllocationIP{Owner: pair[1]}
	}
	e.w.seeNode(cn, false)
	return cn
}

// record creates a version of a FixedIP.
func (e *events) record(name string, ips ...string) *v1alpha1.FixedIP {
	f := &v1alpha1.FixedIP{ObjectMeta: e.meta(name, "record-"+name), Spec: v1alpha1.FixedIPSpec{IPs: ips}}
	e.w.seeRecord(f, false)
	return f
}

// deleting passes a version of a FixedIP with a deletionTimestamp and the given revision to the witness.
func (e *events) deleting(record *v1alpha1.FixedIP, version int) {
	record = record.DeepCopy()
	record.DeletionTimestamp, record.ResourceVersion = &metav1.Time{Time: time.Unix(1, 0)}, strconv.Itoa(version)
	e.version = max(e.version, version)
	e.w.seeRecord(record, false)
}

// TestViolations checks for sequences of events which violation the witness reports, or that it reports none.
func TestViolations(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(e *events)
		// want is part of the violation; empty if there must be none.
		want string
	}{
		"claimed, bound, running, FixedIP created, replaced by the next pod": {func(e *events) {
			e.pod("web-0", "1", "")
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.pod("web-0", "1", "node-1")
			e.pod("web-0", "1", "node-1", "10.0.1.9")
			e.record("web-0", "10.0.1.9")
			e.w.seePod(e.pod("web-0", "1", "node-1", "10.0.1.9"), true)
			e.pod("web-0", "2", "")
			e.pod("web-0", "2", "node-1", "10.0.1.9")
		}, ""},
		"bound before the claim": {func(e *events) {
			e.pod("web-0", "1", "node-1")
			e.node("node-1", "10.0.1.9", "db/web-0")
		}, "pod db/web-0 was bound at revision 1, before its claim at 2"},
		"bound after a claim that is released and restored later": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.pod("web-0", "1", "node-1")
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown")
			e.node("node-1", "10.0.1.9", "db/web-0")
		}, ""},
		"bound between the release and the restore of the claim": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown")
			e.pod("web-0", "1", "node-1")
			e.node("node-1", "10.0.1.9", "db/web-0")
		}, "pod db/web-0 was bound at revision 3, before its claim at 4"},
		"bound to another node than that of the claim, which is released and restored": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.pod("web-0", "1", "node-2")
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown")
			e.node("node-1", "10.0.1.9", "db/web-0")
		}, "pod db/web-0 was bound at revision 2, before its claim at 4"},
		"bound after a claim that is released, then another address is claimed": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.pod("web-0", "1", "node-1")
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown")
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown", "10.0.1.8", "db/web-0")
		}, "pod db/web-0 was bound at revision 2, before its claim at 4"},
		"bound after its address was released, FixedIP being deleted": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.deleting(e.record("web-0", "10.0.1.9"), e.version+1)
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown")
			e.pod("web-0", "1", "node-1")
			e.pod("web-0", "1", "node-1", "10.0.1.8")
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown", "10.0.1.8", "db/web-0")
		}, ""},
		"bound just before its address is released, FixedIP being deleted": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.deleting(e.record("web-0", "10.0.1.9"), e.version+1)
			e.pod("web-0", "1", "node-1")
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown")
			e.pod("web-0", "1", "node-1", "10.0.1.8")
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown", "10.0.1.8", "db/web-0")
		}, ""},
		"bound after its address was released, the deletion of the FixedIP is seen late": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			record := e.record("web-0", "10.0.1.9")
			revision := e.version + 1
			e.version++
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown")
			e.pod("web-0", "1", "node-1")
			e.pod("web-0", "1", "node-1", "10.0.1.8")
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown", "10.0.1.8", "db/web-0")
			e.deleting(record, revision)
		}, ""},
		"bound after its address was released, FixedIP not deleted": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.record("web-0", "10.0.1.9")
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown")
			e.pod("web-0", "1", "node-1")
			e.node("node-1", "10.0.1.9", "db/web-0")
		}, "pod db/web-0 was bound at revision 4, before its claim at 5"},
		"another address before the deletion of the FixedIP": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.pod("web-0", "1", "node-1")
			record := e.record("web-0", "10.0.1.9")
			e.pod("web-0", "1", "node-1", "10.0.1.8")
			e.deleting(record, e.version+1)
		}, "pod db/web-0 runs with 10.0.1.8, but its FixedIP reserves 10.0.1.9"},
		"another address, FixedIP being deleted, the entry is not released": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.deleting(e.record("web-0", "10.0.1.9"), e.version+1)
			e.pod("web-0", "1", "node-1")
			e.pod("web-0", "1", "node-1", "10.0.1.8")
		}, "pod db/web-0 runs with 10.0.1.8, but its FixedIP reserves 10.0.1.9"},
		"another address, FixedIP being deleted, the entry is released later": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.deleting(e.record("web-0", "10.0.1.9"), e.version+1)
			e.pod("web-0", "1", "node-1")
			e.pod("web-0", "1", "node-1", "10.0.1.8")
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown")
		}, "pod db/web-0 runs with 10.0.1.8, but its FixedIP reserves 10.0.1.9"},
		"bound before its claim, the entry of another node was released": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.deleting(e.record("web-0", "10.0.1.9"), e.version+1)
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown")
			e.pod("web-0", "1", "node-2")
			e.node("node-2", "10.0.2.9", "db/web-0")
		}, "pod db/web-0 was bound at revision 5, before its claim at 6"},
		"bound before its claim, the entry was released before the deletion of the FixedIP": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown")
			e.deleting(e.record("web-0", "10.0.1.9"), e.version+1)
			e.pod("web-0", "1", "node-1")
			e.node("node-1", "10.0.1.9", "db/web-0")
		}, "pod db/web-0 was bound at revision 5, before its claim at 6"},
		"two pods with one address": {func(e *events) {
			e.pod("web-0", "1", "node-1", "10.0.1.9")
			e.pod("web-1", "2", "node-1", "10.0.1.9")
		}, "pods db/web-1 and db/web-0 share the address 10.0.1.9"},
		"an address of a deleted pod that another pod gets": {func(e *events) {
			e.w.seePod(e.pod("web-0", "1", "node-1", "10.0.1.9"), true)
			e.pod("web-1", "2", "node-1", "10.0.1.9")
		}, ""},
		"a pod that changes its address": {func(e *events) {
			e.pod("web-0", "1", "node-1", "10.0.1.9")
			e.pod("web-0", "1", "node-1", "10.0.1.8")
		}, "pod db/web-0 changed its address while it ran: 10.0.1.9, then 10.0.1.8"},
		"the next pod with the same name has another address": {func(e *events) {
			e.pod("web-0", "1", "node-1", "10.0.1.9")
			e.record("web-0", "10.0.1.9")
			e.pod("web-0", "2", "node-1", "10.0.1.8")
		}, "pod db/web-0 runs with 10.0.1.8, but its FixedIP reserves 10.0.1.9"},
		"another address, the FixedIP was deleted before": {func(e *events) {
			record := e.record("web-0", "10.0.1.9")
			record.ResourceVersion = "2"
			e.version = 2
			e.pod("web-0", "2", "node-1", "10.0.1.8")
			e.w.seeRecord(record, true)
		}, ""},
		"an address in two pools": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.node("node-2", "10.0.1.9", "db/web-1")
		}, "the address 10.0.1.9 is in the pools of node-2 and node-1"},
		"an address that is moved": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.pod("web-0", "1", "node-1", "10.0.1.9")
			e.record("web-0", "10.0.1.9")
			e.node("node-2", "10.0.1.9", "fixedip.io/move-target")
			e.w.seePod(e.pod("web-0", "1", "node-1", "10.0.1.9"), true)
			e.pod("web-0", "2", "")
			e.node("node-1", "10.0.1.9", "fixedip.io/moved")
			e.node("node-2", "10.0.1.9", "db/web-0")
			e.pod("web-0", "2", "node-2", "10.0.1.9")
		}, ""},
		"an address in two pools, the second entry is dynamic": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.node("node-2", "10.0.1.9", "")
		}, "the address 10.0.1.9 is in the pools of node-2 and node-1"},
		"an address in two pools, the second entry is node-owned": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.node("node-2", "10.0.2.9", "")
			e.node("node-2", "10.0.2.9", "", "10.0.1.9", "router")
		}, "the address 10.0.1.9 is in the pools of node-2 and node-1"},
		"a cooldown entry that becomes dynamic although another pool has the address": {func(e *events) {
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown")
			e.node("node-2", "10.0.1.9", "db/web-0")
			e.node("node-1", "10.0.1.9", "")
		}, "the address 10.0.1.9 is in the pools of node-1 and node-2"},
		"an address that moves, is released, and is offered by its home node": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0", "10.0.1.1", "router")
			e.node("node-2", "10.0.1.9", "fixedip.io/move-target")
			e.node("node-1", "10.0.1.9", "fixedip.io/moved", "10.0.1.1", "router")
			e.node("node-2", "10.0.1.9", "db/web-0")
			e.node("node-2", "10.0.1.9", "fixedip.io/cooldown")
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown", "10.0.1.1", "router")
			e.node("node-1", "10.0.1.9", "", "10.0.1.1", "router")
		}, ""},
		"a node inherits a subnet": {func(e *events) {
			lost := e.node("node-1", "10.0.1.1", "router", "10.0.1.5", "", "10.0.1.9", "db/web-0")
			e.version++
			lost.ResourceVersion = strconv.Itoa(e.version)
			e.w.seeNode(lost, true)
			e.node("node-2", "10.0.1.1", "", "10.0.1.5", "", "10.0.1.9", "db/web-0")
		}, ""},
		"a moved address that gets an owner in the pool of its home node": {func(e *events) {
			e.node("node-1", "10.0.1.9", "fixedip.io/moved")
			e.node("node-2", "10.0.1.9", "db/web-0")
			e.node("node-1", "10.0.1.9", "db/web-1")
		}, "the address 10.0.1.9 is in the pools of node-1 and node-2"},
		"another address on another node, failover policy Reassign": {func(e *events) {
			e.pod("web-0", "1", "node-1", "10.0.1.9")
			r := e.record("web-0", "10.0.1.9")
			r.Spec.NodeName, r.Spec.Failover = "node-1", v1alpha1.Reassign
			e.pod("web-0", "2", "node-2", "10.0.2.9")
		}, ""},
		"another address on the same node, failover policy Reassign": {func(e *events) {
			e.pod("web-0", "1", "node-1", "10.0.1.9")
			r := e.record("web-0", "10.0.1.9")
			r.Spec.NodeName, r.Spec.Failover = "node-1", v1alpha1.Reassign
			e.pod("web-0", "2", "node-1", "10.0.1.8")
		}, "pod db/web-0 runs with 10.0.1.8, but its FixedIP reserves 10.0.1.9"},
		"an address in two FixedIPs": {func(e *events) {
			e.record("web-0", "10.0.1.9")
			e.record("web-1", "10.0.1.9")
		}, "FixedIPs db/web-1 and db/web-0 have the same address 10.0.1.9"},
	} {
		t.Run(name, func(t *testing.T) {
			e := &events{w: blank()}
			c.happens(e)
			got := fmt.Sprint(e.w.Violations())
			if c.want == "" && got != "[]" || !strings.Contains(got, c.want) {
				t.Errorf("got violations %s, want %q (empty: none)", got, c.want)
			}
		})
	}
}

// TestAnyOrder checks that AnyOrder allows claims after the bind only for pods of the given schedulers.
func TestAnyOrder(t *testing.T) {
	for scheduler, want := range map[string]string{
		"default-scheduler": "[]",
		"fixedip-scheduler": "[pod db/web-0 was bound at revision 1, before its claim at 2]",
	} {
		e := &events{w: blank()}
		e.w.AnyOrder("default-scheduler", "other")
		p := &corev1.Pod{ObjectMeta: e.meta("web-0", "1"), Spec: corev1.PodSpec{NodeName: "node-1", SchedulerName: scheduler}}
		e.w.seePod(p, false)
		e.node("node-1", "10.0.1.9", "db/web-0")
		if got := fmt.Sprint(e.w.Violations()); got != want {
			t.Errorf("%s: got violations %s, want %s", scheduler, got, want)
		}
	}
}

// TestWrongUses checks which pods WrongUses returns, depending on the owners of the entry at each revision.
func TestWrongUses(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(e *events)
		want    string
	}{
		"its own address the whole time, later the address of another pod": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.w.seePod(e.pod("web-0", "1", "node-1", "10.0.1.9"), true)
			e.node("node-1", "10.0.1.9", "db/web-1")
			e.pod("web-1", "2", "node-1", "10.0.1.9")
		}, "[]"},
		"the entry gets another owner while the pod has the address": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			running := e.pod("web-0", "1", "node-1", "10.0.1.9")
			e.node("node-1", "10.0.1.9", "db/web-1")
			running.ResourceVersion = "9"
			e.w.seePod(running, true)
		}, "[pod db/web-0 had 10.0.1.9 on node node-1 while the pool entry was owned by db/web-1]"},
		"the entry is owned by a pod that does not exist": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-1")
			e.pod("web-0", "1", "node-1", "10.0.1.9")
		}, "[pod db/web-0 had 10.0.1.9 on node node-1 while the pool entry was not owned by the pod]"},
		"the owner of the entry gets the address, too": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-1")
			e.pod("web-0", "1", "node-1", "10.0.1.9")
			e.pod("web-1", "2", "node-1", "10.0.1.9")
		}, "[pod db/web-0 had 10.0.1.9 on node node-1 while the pool entry was owned by db/web-1]"},
		"the owner of the entry gets the address after the pod": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-1")
			e.w.seePod(e.pod("web-0", "1", "node-1", "10.0.1.9"), true)
			e.pod("web-1", "2", "node-1", "10.0.1.9")
		}, "[pod db/web-0 had 10.0.1.9 on node node-1 while the pool entry was not owned by the pod]"},
		"the address of a dynamic entry": {func(e *events) {
			e.node("node-1", "10.0.1.1", "", "10.0.1.9", "db/web-0")
			e.pod("web-0", "1", "node-1", "10.0.1.1")
		}, "[pod db/web-0 had 10.0.1.1 on node node-1 while the pool entry was not owned by the pod]"},
		"a dynamic entry that becomes owned by the pod": {func(e *events) {
			e.node("node-1", "10.0.1.1", "")
			e.pod("web-0", "1", "node-1", "10.0.1.1")
			e.node("node-1", "10.0.1.1", "db/web-0")
		}, "[pod db/web-0 had 10.0.1.1 on node node-1 while the pool entry was not owned by the pod]"},
		"two pods of one name": {func(e *events) {
			for _, uid := range []string{"1", "2"} {
				e.w.seePod(e.pod("web-0", uid, "node-1", "10.0.1.1"), true)
			}
		}, "[pod db/web-0 had 10.0.1.1 on node node-1 while the pool entry was not owned by the pod pod db/web-0 had 10.0.1.1 on node node-1 while the pool entry was not owned by the pod]"},
		"its own address, a list shows the next pod with its name on another node": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			first := e.pod("web-0", "1", "node-1", "10.0.1.9")
			e.node("node-1", "10.0.1.9", "db/web-1")
			next := &corev1.Pod{ObjectMeta: e.meta("web-0", "2"), Spec: corev1.PodSpec{NodeName: "node-2"}}
			handler(func(obj any, gone bool) { e.w.seePod(obj.(*corev1.Pod), gone) }).OnUpdate(first, next)
		}, "[]"},
		"its own address, the CiliumNode is deleted later": {func(e *events) {
			cn := e.node("node-1", "10.0.1.9", "db/web-0")
			e.w.seePod(e.pod("web-0", "1", "node-1", "10.0.1.9"), true)
			cn.ResourceVersion = "9"
			e.w.seeNode(cn, true)
		}, "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			e := &events{w: blank()}
			c.happens(e)
			if got := fmt.Sprint(e.w.WrongUses()); got != c.want {
				t.Errorf("got wrong uses %s, want %s", got, c.want)
			}
		})
	}
}

// TestFree checks the number of addresses without an entry of a node with one entry.
func TestFree(t *testing.T) {
	for name, c := range map[string]struct {
		subnets []string
		want    int64
	}{
		"no subnet":                     {nil, -1},
		"IPv4":                          {[]string{"10.0.1.0/24"}, 253},
		"two addresses":                 {[]string{"10.0.1.0/31"}, -1},
		"IPv6, too many for an int64":   {[]string{"fd00::/64"}, 1<<48 - 3},
		"two subnets that are too many": {[]string{"fd00::/64", "fd01::/16"}, 1<<49 - 5},
	} {
		cn := &ciliumv2.CiliumNode{}
		cn.Spec.IPAM.PodCIDRs, cn.Spec.IPAM.Pool = c.subnets, ipamtypes.AllocationMap{"10.0.1.1": {}}
		if got := poolOf(cn).Free; got != c.want {
			t.Errorf("%s: got %d free addresses, want %d", name, got, c.want)
		}
	}
}

// TestOffered checks that Offered returns only addresses that have or had a dynamic entry in the pool of the given node.
func TestOffered(t *testing.T) {
	e := &events{w: blank()}
	e.node("node-1", "10.0.1.1", "", "10.0.1.2", "health")
	e.node("node-1", "10.0.1.1", "db/web-0", "10.0.1.2", "health")
	e.node("node-2", "10.0.2.1", "")
	if got := fmt.Sprint(e.w.Offered("node-1")); got != "[10.0.1.1]" {
		t.Errorf("got offered addresses %s of node-1, want [10.0.1.1]", got)
	}
}
