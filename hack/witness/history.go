// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// place is an address on a node.
type place struct{ node, address string }

// tenure is a range of etcd revisions in which a pod had an address, or an entry had an owner. The range begins with
// the revision from and ends before the revision until. until is 0 if the range has not ended.
type tenure struct {
	// of is namespace/name of the pod, or the owner of the entry; empty for a dynamic entry.
	of          string
	from, until uint64
}

func (t tenure) overlaps(o tenure) bool {
	return (o.until == 0 || t.from < o.until) && (t.until == 0 || o.from < t.until)
}

func (t tenure) within(o tenure) bool {
	return o.from <= t.from && (o.until == 0 || t.until != 0 && t.until <= o.until)
}

// history contains, for each place, the pods that were seen with the address and the owners of its pool entry.
type history struct {
	// pods contains the tenure of each pod, from its first status with the address until the pod was terminal or deleted.
	// Keys: the place, and the UID of the pod.
	pods map[place]map[types.UID]*tenure
	// entries contains the tenures of the owners of the pool entry, in order. Key: the place.
	entries map[place][]*tenure
}

func newHistory() history {
	return history{pods: map[place]map[types.UID]*tenure{}, entries: map[place][]*tenure{}}
}

// seePod records a version of a pod; gone is true if the pod was deleted. It leaves out pods on the host network.
func (h history) seePod(pod *corev1.Pod, gone bool) {
	if pod.Spec.HostNetwork || pod.Spec.NodeName == "" {
		return
	}
	ended := gone || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	for _, ip := range pod.Status.PodIPs {
		at := place{pod.Spec.NodeName, ip.IP}
		had := h.pods[at][pod.UID]
		switch {
		case had == nil && !ended:
			if h.pods[at] == nil {
				h.pods[at] = map[types.UID]*tenure{}
			}
			h.pods[at][pod.UID] = &tenure{of: pod.Namespace + "/" + pod.Name, from: version(pod)}
		case had != nil && ended && had.until == 0:
			had.until = version(pod)
		}
	}
}

// seeNode compares a CiliumNode with its previous version before, which is nil if the CiliumNode is new; gone is true if the
// CiliumNode was deleted. If an entry was removed or has a new owner, its last tenure ends.
func (h history) seeNode(before, cn *ciliumv2.CiliumNode, gone bool) {
	if before != nil {
		for ip, e := range before.Spec.IPAM.Pool {
			if now, exists := cn.Spec.IPAM.Pool[ip]; gone || !exists || now.Owner != e.Owner {
				entries := h.entries[place{cn.Name, ip}]
				entries[len(entries)-1].until = version(cn)
			}
		}
	}
	if gone {
		return
	}
	for ip, e := range cn.Spec.IPAM.Pool {
		at := place{cn.Name, ip}
		if had := h.entries[at]; len(had) == 0 || had[len(had)-1].until != 0 {
			h.entries[at] = append(had, &tenure{of: e.Owner, from: version(cn)})
		}
	}
}

// named returns the tenure in which the pod owned the entry of a place at the given revision; nil if there is none.
func (h history) named(at place, pod string, revision uint64) *tenure {
	for _, e := range h.entries[at] {
		if e.of == pod && e.from < revision && (e.until == 0 || revision < e.until) {
			return e
		}
	}
	return nil
}

// joined reports whether the pod with this namespace/name got the address of a place while another pod had it. had is the
// tenure of that other pod.
func (h history) joined(at place, pod string, had tenure) bool {
	for _, t := range h.pods[at] {
		if t.of == pod && had.from < t.from && t.overlaps(had) {
			return true
		}
	}
	return false
}

// taken reports whether the pod lost a pool entry of a node after the revision from, and not after the revision by. The pod
// must have owned the entry at the revision from. It loses the entry if the entry is removed or gets another owner.
func (h history) taken(node, pod string, from, by uint64) bool {
	for at, entries := range h.entries {
		if at.node == node && slices.ContainsFunc(entries, func(e *tenure) bool {
			return e.of == pod && e.from < from && from < e.until && e.until <= by
		}) {
			return true
		}
	}
	return false
}

// WrongUse describes a pod that had an address, although the pool entry of its node was not owned by the pod for the whole
// time.
type WrongUse struct {
	Pod, Node, Address string
	// Others are the other pods that owned the entry while this pod had the address. A pod is listed if it became the
	// owner after this pod got the address, or if it also got the address while this pod had it. Other owners are left
	// out: an agent that has not yet seen their entry may give the address of a stopped pod to this pod.
	Others []string
}

func (s WrongUse) String() string {
	if len(s.Others) > 0 {
		return fmt.Sprintf("pod %s had %s on node %s while the pool entry was owned by %s", s.Pod, s.Address, s.Node, strings.Join(s.Others, " and "))
	}
	return fmt.Sprintf("pod %s had %s on node %s while the pool entry was not owned by the pod", s.Pod, s.Address, s.Node)
}

// WrongUses returns all wrong uses, one for each UID of a pod and address, sorted by pod and address.
func (w *Witness) WrongUses() []WrongUse {
	w.mu.Lock()
	defer w.mu.Unlock()
	var found []WrongUse
	for at, pods := range w.history.pods {
		for _, had := range pods {
			s, named := WrongUse{Pod: had.of, Node: at.node, Address: at.address}, false
			for _, e := range w.history.entries[at] {
				switch {
				case e.of == had.of:
					named = named || had.within(*e)
				case pod(e.of) && had.overlaps(*e) && (had.from < e.from || w.history.joined(at, e.of, *had)):
					s.Others = append(s.Others, e.of)
				}
			}
			if !named || len(s.Others) > 0 {
				found = append(found, s)
			}
		}
	}
	slices.SortFunc(found, func(x, y WrongUse) int {
		return cmp.Or(strings.Compare(x.Pod, y.Pod), strings.Compare(x.Address, y.Address))
	})
	return found
}

// Offered returns the addresses for which the pool of a node ever had a dynamic entry, sorted as text.
func (w *Witness) Offered(node string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var found []string
	for at, entries := range w.history.entries {
		if at.node == node && slices.ContainsFunc(entries, func(e *tenure) bool { return e.of == "" }) {
			found = append(found, at.address)
		}
	}
	slices.Sort(found)
	return found
}
