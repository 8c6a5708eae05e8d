// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
)

// occupied says why the pod can't have the addresses of its reservation yet where another pod has one of them, and what
// would help; empty where none has.
//
// An agent that has not seen an entry gives its address to anybody as soon as the owner has gone. And once it has
// seen it, it gives the address to its owner, whoever has it by then: it does not look. Who has it in its owner's place
// is restarted by the controller. So the pod also waits where that may happen yet: until the agent is known to have
// seen the entry, or would have said who has the address.
func (p *Plugin) occupied(c *cycle) (why string, helps cause) {
	if c.reservation.transit {
		// It is not there yet. Who brings it looks.
		return "", cause{}
	}
	return p.occupiedOn(c.reservation.node, c.reservation.addrs, c.id.Key(), c.uid, c.made)
}

// occupiedOn is occupied for what the pool of a node gives to a pod, which was made at a time.
func (p *Plugin) occupiedOn(on string, addrs []netip.Addr, owner string, uid types.UID, made time.Time) (why string, helps cause) {
	helps = cause{owner: owner}
	if node, err := p.handle.SnapshotSharedLister().NodeInfos().Get(on); err == nil {
		for _, other := range node.GetPods() {
			// The snapshot may be behind of what a refused pod is woken by.
			o, err := p.pods.Pods(other.GetPod().Namespace).Get(other.GetPod().Name)
			if err != nil || o.UID == uid || !occupies(o, addrs) {
				continue
			}
			helps.occupant = o
			return fmt.Sprintf("its address %s on node %s is still in use by %s, which had it from an agent that was behind; it is placed when that pod is gone",
				sharedWith(o, addrs), on, pool.RedactOwner(pool.OwnerKey(o.Namespace, o.Name), owner)), helps
		}
	}
	n, _ := p.world.ledger.Node(on)
	for _, a := range addrs {
		if user := n.Used[a]; user != "" && user != owner {
			helps.node = on
			return fmt.Sprintf("the agent of node %s lists its address %s as used by %s; it is placed when that has ended", on, a, pool.RedactOwner(user, owner)), helps
		}
	}
	if why, at := p.unheard(on, addrs, made); why != "" {
		helps.node, helps.at = on, at
		return why, helps
	}
	return "", cause{}
}

// unheard says why a pod that was made at a time can't have addresses on a node yet, since the agent there may not know
// that they are its own, and until when at the latest; empty where it can.
//
// An agent knows of an entry after patience, and tells after patience again whom it gave the address meanwhile. Both
// are counted anew on a node that comes to be ready: until then it heard nothing. An entry that does not say since when
// it is its owner's a person has written; the pod before this one had it then already.
func (p *Plugin) unheard(node string, addrs []netip.Addr, made time.Time) (why string, at time.Time) {
	since, unheard := p.world.ledger.Unheard(node, addrs)
	if !unheard {
		return "", time.Time{}
	}
	at = made.Add(p.silence.patience)
	if !since.IsZero() {
		if ready := p.readySince(node); ready.After(since) {
			since = ready
		}
		at = since.Add(2 * p.silence.patience)
	}
	if !time.Now().Before(at) {
		return "", time.Time{}
	}
	return fmt.Sprintf("the agent of node %s has not reported since %s, which was for anybody, was given to this name, and may not know it; the pod is placed when it has, and at %s at the latest",
		node, address.Join(addrs), at.UTC().Format(time.RFC3339)), at
}

// readySince is when a node came to be ready; the zero Time where it is not, or is not known.
func (p *Plugin) readySince(name string) time.Time {
	node, err := p.nodes.Get(name)
	if err != nil {
		return time.Time{}
	}
	since, ready := nodeutil.ReadySince(node)
	if !ready {
		return time.Time{}
	}
	return since
}

// occupies tells whether a pod has any of the addresses, as far as its status says.
func occupies(pod *corev1.Pod, addrs []netip.Addr) bool {
	return podutil.HoldsIPs(pod) && sharedWith(pod, addrs).IsValid()
}

// sharedWith is the first of the addresses that is among a pod's; the zero Addr: none is.
func sharedWith(pod *corev1.Pod, addrs []netip.Addr) netip.Addr {
	i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return slices.Contains(pod.Status.PodIPs, corev1.PodIP{IP: a.String()}) })
	if i < 0 {
		return netip.Addr{}
	}
	return addrs[i]
}
