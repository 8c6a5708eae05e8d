package fixedip

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
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
	r := c.reservation
	if r.transit {
		// It is not there yet. Who brings it looks.
		return "", cause{}
	}
	helps = cause{owner: c.id.Key()}
	if node, err := p.handle.SnapshotSharedLister().NodeInfos().Get(r.node); err == nil {
		for _, other := range node.GetPods() {
			// The snapshot may be behind of what a refused pod is woken by.
			o, err := p.pods.Pods(other.GetPod().Namespace).Get(other.GetPod().Name)
			if err != nil || o.UID == c.uid || !occupies(o, r.addrs) {
				continue
			}
			helps.occupant = o
			return fmt.Sprintf("its address %s on node %s is still in use by %s, which had it from an agent that was behind; it is placed when that pod is gone",
				sharedWith(o, r.addrs), r.node, pool.Told(pool.OwnerKey(o.Namespace, o.Name), c.id.Key())), helps
		}
	}
	n, _ := p.world.ledger.Node(r.node)
	for _, a := range r.addrs {
		if user := n.Used[a]; user != "" && user != c.id.Key() {
			helps.node = r.node
			return fmt.Sprintf("the agent of node %s lists its address %s as used by %s; it is placed when that has ended", r.node, a, pool.Told(user, c.id.Key())), helps
		}
	}
	at := p.silence.ends(c.made, time.Now())
	if at.IsZero() || !p.world.ledger.Unheard(r.node, r.addrs) {
		return "", cause{}
	}
	helps.node, helps.at = r.node, at
	return fmt.Sprintf("the agent of node %s has not reported since %s, which was for anybody, was given to this name, and may not know it; the pod is placed when it has, and at %s at the latest",
		r.node, address.Join(r.addrs), at.UTC().Format(time.RFC3339)), helps
}

// occupies tells whether a pod has any of the addresses, as far as its status says.
func occupies(pod *corev1.Pod, addrs []netip.Addr) bool {
	return !identity.Ended(pod) && !pod.Spec.HostNetwork && sharedWith(pod, addrs).IsValid()
}

// sharedWith is the first of the addresses that is among a pod's; the zero Addr: none is.
func sharedWith(pod *corev1.Pod, addrs []netip.Addr) netip.Addr {
	i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return slices.Contains(pod.Status.PodIPs, corev1.PodIP{IP: a.String()}) })
	if i < 0 {
		return netip.Addr{}
	}
	return addrs[i]
}
