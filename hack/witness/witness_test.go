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

// asked passes a version of a FixedIP with a deletionTimestamp and the given revision to the witness.
func (e *events) asked(record *v1alpha1.FixedIP, version int) {
	record = record.DeepCopy()
	record.DeletionTimestamp, record.ResourceVersion = &metav1.Time{Time: time.Unix(1, 0)}, strconv.Itoa(version)
	e.version = max(e.version, version)
	e.w.seeRecord(record, false)
}

// TestViolations checks that the witness detects each kind of violation.
func TestViolations(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(e *events)
		// want is part of the violation; empty if there must be none.
		want string
	}{
		"claimed, bound, running, recorded, and again": {func(e *events) {
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
		"bound by a claim that is taken away and given back": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.pod("web-0", "1", "node-1")
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown")
			e.node("node-1", "10.0.1.9", "db/web-0")
		}, ""},
		"bound after its claim was taken away, before it is given back": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown")
			e.pod("web-0", "1", "node-1")
			e.node("node-1", "10.0.1.9", "db/web-0")
		}, "pod db/web-0 was bound at revision 3, before its claim at 4"},
		"bound to one node by the claim of another that is taken away and given back": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.pod("web-0", "1", "node-2")
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown")
			e.node("node-1", "10.0.1.9", "db/web-0")
		}, "pod db/web-0 was bound at revision 2, before its claim at 4"},
		"bound by a claim that is taken away, and claimed with another address": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.pod("web-0", "1", "node-1")
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown")
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown", "10.0.1.8", "db/web-0")
		}, "pod db/web-0 was bound at revision 2, before its claim at 4"},
		"bound while its address is being taken back": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.asked(e.record("web-0", "10.0.1.9"), e.version+1)
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown")
			e.pod("web-0", "1", "node-1")
			e.pod("web-0", "1", "node-1", "10.0.1.8")
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown", "10.0.1.8", "db/web-0")
		}, ""},
		"bound just before its address is taken back": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.asked(e.record("web-0", "10.0.1.9"), e.version+1)
			e.pod("web-0", "1", "node-1")
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown")
			e.pod("web-0", "1", "node-1", "10.0.1.8")
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown", "10.0.1.8", "db/web-0")
		}, ""},
		"bound while its address is being taken back, of which the watch tells late": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			record := e.record("web-0", "10.0.1.9")
			asked := e.version + 1
			e.version++
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown")
			e.pod("web-0", "1", "node-1")
			e.pod("web-0", "1", "node-1", "10.0.1.8")
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown", "10.0.1.8", "db/web-0")
			e.asked(record, asked)
		}, ""},
		"bound after its address was released without a reason": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.record("web-0", "10.0.1.9")
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown")
			e.pod("web-0", "1", "node-1")
			e.node("node-1", "10.0.1.9", "db/web-0")
		}, "pod db/web-0 was bound at revision 4, before its claim at 5"},
		"another address without a reason": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.pod("web-0", "1", "node-1")
			record := e.record("web-0", "10.0.1.9")
			e.pod("web-0", "1", "node-1", "10.0.1.8")
			e.asked(record, e.version+1)
		}, "pod db/web-0 runs with 10.0.1.8, and 10.0.1.9 is kept for it"},
		"another address, while the entry stands of a record that was asked to go": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.asked(e.record("web-0", "10.0.1.9"), e.version+1)
			e.pod("web-0", "1", "node-1")
			e.pod("web-0", "1", "node-1", "10.0.1.8")
		}, "pod db/web-0 runs with 10.0.1.8, and 10.0.1.9 is kept for it"},
		"another address, and the entry is taken only then": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.asked(e.record("web-0", "10.0.1.9"), e.version+1)
			e.pod("web-0", "1", "node-1")
			e.pod("web-0", "1", "node-1", "10.0.1.8")
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown")
		}, "pod db/web-0 runs with 10.0.1.8, and 10.0.1.9 is kept for it"},
		"bound before its claim, on a node that took nothing back": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.asked(e.record("web-0", "10.0.1.9"), e.version+1)
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown")
			e.pod("web-0", "1", "node-2")
			e.node("node-2", "10.0.2.9", "db/web-0")
		}, "pod db/web-0 was bound at revision 5, before its claim at 6"},
		"bound before its claim, by an entry that was taken back long ago": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.node("node-1", "10.0.1.9", "fixedip.io/cooldown")
			e.asked(e.record("web-0", "10.0.1.9"), e.version+1)
			e.pod("web-0", "1", "node-1")
			e.node("node-1", "10.0.1.9", "db/web-0")
		}, "pod db/web-0 was bound at revision 5, before its claim at 6"},
		"two pods with one address": {func(e *events) {
			e.pod("web-0", "1", "node-1", "10.0.1.9")
			e.pod("web-1", "2", "node-1", "10.0.1.9")
		}, "pods db/web-1 and db/web-0 share the address 10.0.1.9"},
		"an address that is had again after its pod is gone": {func(e *events) {
			e.w.seePod(e.pod("web-0", "1", "node-1", "10.0.1.9"), true)
			e.pod("web-1", "2", "node-1", "10.0.1.9")
		}, ""},
		"a pod that changes its address": {func(e *events) {
			e.pod("web-0", "1", "node-1", "10.0.1.9")
			e.pod("web-0", "1", "node-1", "10.0.1.8")
		}, "pod db/web-0 changed its address while it ran: 10.0.1.9, then 10.0.1.8"},
		"a pod that comes back with another address": {func(e *events) {
			e.pod("web-0", "1", "node-1", "10.0.1.9")
			e.record("web-0", "10.0.1.9")
			e.pod("web-0", "2", "node-1", "10.0.1.8")
		}, "pod db/web-0 runs with 10.0.1.8, and 10.0.1.9 is kept for it"},
		"a pod with another address whose record was deleted before": {func(e *events) {
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
		"an address that moves": {func(e *events) {
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
		"an address that its home offers while it is elsewhere": {func(e *events) {
			e.node("node-1", "10.0.1.9", "fixedip.io/moved")
			e.node("node-2", "10.0.1.9", "db/web-0")
			e.node("node-1", "10.0.1.9", "db/web-1")
		}, "the address 10.0.1.9 is in the pools of node-1 and node-2"},
		"another address on another node, where the record lets it": {func(e *events) {
			e.pod("web-0", "1", "node-1", "10.0.1.9")
			r := e.record("web-0", "10.0.1.9")
			r.Spec.NodeName, r.Spec.Failover = "node-1", v1alpha1.Reassign
			e.pod("web-0", "2", "node-2", "10.0.2.9")
		}, ""},
		"another address on the same node, although the record lets it elsewhere": {func(e *events) {
			e.pod("web-0", "1", "node-1", "10.0.1.9")
			r := e.record("web-0", "10.0.1.9")
			r.Spec.NodeName, r.Spec.Failover = "node-1", v1alpha1.Reassign
			e.pod("web-0", "2", "node-1", "10.0.1.8")
		}, "pod db/web-0 runs with 10.0.1.8, and 10.0.1.9 is kept for it"},
		"an address in two records": {func(e *events) {
			e.record("web-0", "10.0.1.9")
			e.record("web-1", "10.0.1.9")
		}, "FixedIPs db/web-1 and db/web-0 hold the same address 10.0.1.9"},
	} {
		t.Run(name, func(t *testing.T) {
			e := &events{w: blank()}
			c.happens(e)
			got := fmt.Sprint(e.w.Violations())
			if c.want == "" && got != "[]" || !strings.Contains(got, c.want) {
				t.Errorf("%s, want %q", got, c.want)
			}
		})
	}
}

// TestStrays checks which pods count as strays, by the owners of the entry at each revision.
func TestStrays(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(e *events)
		want    string
	}{
		"its own from first to last, which another has now": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			e.w.seePod(e.pod("web-0", "1", "node-1", "10.0.1.9"), true)
			e.node("node-1", "10.0.1.9", "db/web-1")
			e.pod("web-1", "2", "node-1", "10.0.1.9")
		}, "[]"},
		"given to another while its pod has it": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-0")
			running := e.pod("web-0", "1", "node-1", "10.0.1.9")
			e.node("node-1", "10.0.1.9", "db/web-1")
			running.ResourceVersion = "9"
			e.w.seePod(running, true)
		}, "[pod db/web-0 had 10.0.1.9 on node node-1 while that was db/web-1's]"},
		"another's who is gone": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-1")
			e.pod("web-0", "1", "node-1", "10.0.1.9")
		}, "[pod db/web-0 had 10.0.1.9 on node node-1, whose entry did not name it]"},
		"another's who is back": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-1")
			e.pod("web-0", "1", "node-1", "10.0.1.9")
			e.pod("web-1", "2", "node-1", "10.0.1.9")
		}, "[pod db/web-0 had 10.0.1.9 on node node-1 while that was db/web-1's]"},
		"another's who is back, and waited for it": {func(e *events) {
			e.node("node-1", "10.0.1.9", "db/web-1")
			e.w.seePod(e.pod("web-0", "1", "node-1", "10.0.1.9"), true)
			e.pod("web-1", "2", "node-1", "10.0.1.9")
		}, "[pod db/web-0 had 10.0.1.9 on node node-1, whose entry did not name it]"},
		"a dynamic entry": {func(e *events) {
			e.node("node-1", "10.0.1.1", "", "10.0.1.9", "db/web-0")
			e.pod("web-0", "1", "node-1", "10.0.1.1")
		}, "[pod db/web-0 had 10.0.1.1 on node node-1, whose entry did not name it]"},
		"that became its own": {func(e *events) {
			e.node("node-1", "10.0.1.1", "")
			e.pod("web-0", "1", "node-1", "10.0.1.1")
			e.node("node-1", "10.0.1.1", "db/web-0")
		}, "[pod db/web-0 had 10.0.1.1 on node node-1, whose entry did not name it]"},
		"one tenure each time": {func(e *events) {
			for _, uid := range []string{"1", "2"} {
				e.w.seePod(e.pod("web-0", uid, "node-1", "10.0.1.1"), true)
			}
		}, "[pod db/web-0 had 10.0.1.1 on node node-1, whose entry did not name it pod db/web-0 had 10.0.1.1 on node node-1, whose entry did not name it]"},
		"on a node that is gone since": {func(e *events) {
			cn := e.node("node-1", "10.0.1.9", "db/web-0")
			e.w.seePod(e.pod("web-0", "1", "node-1", "10.0.1.9"), true)
			cn.ResourceVersion = "9"
			e.w.seeNode(cn, true)
		}, "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			e := &events{w: blank()}
			c.happens(e)
			if got := fmt.Sprint(e.w.Strays()); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestOffered checks that Offered returns only addresses of dynamic entries, including former ones, of the given node.
func TestOffered(t *testing.T) {
	e := &events{w: blank()}
	e.node("node-1", "10.0.1.1", "", "10.0.1.2", "health")
	e.node("node-1", "10.0.1.1", "db/web-0", "10.0.1.2", "health")
	e.node("node-2", "10.0.2.1", "")
	if got := fmt.Sprint(e.w.Offered("node-1")); got != "[10.0.1.1]" {
		t.Errorf("%s was a dynamic entry on node-1", got)
	}
}
