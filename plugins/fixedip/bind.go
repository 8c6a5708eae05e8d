package fixedip

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
)

// PreBindPreFlight skips PreBind where the pools give the pod its addresses already: a pod that
// comes back to its node costs no write, unless it wants its MAC address.
func (p *Plugin) PreBindPreFlight(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ string) *fwk.Status {
	claim, ok := p.world.ledger.Claimed(pod.UID)
	if !ok {
		return fwk.NewStatus(fwk.Skip)
	}
	if wanted, err := identity.WantsMAC(pod); wanted || err != nil {
		return nil
	}
	if p.world.ledger.Stands(claim) {
		metrics.ClaimEnded(metrics.Standing, 0) // PreBind, which counts the others, is skipped.
		return fwk.NewStatus(fwk.Skip)
	}
	return nil
}

// PreBind writes the claim into the node's pool and waits until the plugin's own watch shows it.
func (p *Plugin) PreBind(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodeName string) *fwk.Status {
	c, err := read(state)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if c.bystander {
		return p.bindStrict(ctx, pod, c, nodeName)
	}
	claim, ok := p.world.ledger.Claimed(pod.UID)
	if !ok {
		return fwk.AsStatus(fmt.Errorf("pod %s/%s has no address decided for it on node %s", pod.Namespace, pod.Name, nodeName))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.claimTimeout, fmt.Errorf("not done within claimTimeout %v", p.claimTimeout))
	defer cancel()
	if claim.From != "" && claim.From != claim.Owner {
		err = p.stillGone(ctx, c, claim)
	}
	switch {
	case err != nil:
	case c.moves(nodeName):
		err = p.observedMove(ctx, pod, c, claim)
	default:
		if err = p.world.observedClaim(ctx, claim, c.id.Entry()); err == nil {
			err = p.world.alone(claim, c.reservation.holders)
		}
	}
	switch {
	case errors.Is(err, pool.ErrTaken), errors.Is(err, pool.ErrUnfenced), errors.Is(err, pool.ErrUndecided):
		// Somebody was faster, which the ledger will have learned by the next cycle.
		return fwk.NewStatus(fwk.Unschedulable, "the address decided for the pod was lost: "+err.Error()+"; it is tried again")
	case err != nil:
		return fwk.AsStatus(fmt.Errorf("claim address %s of node %s for pod %s/%s: %w", address.Join(claim.Addrs), nodeName, pod.Namespace, pod.Name, err))
	}
	if err := p.setMAC(ctx, pod, c.id, claim.Addrs); err != nil {
		return fwk.AsStatus(err)
	}
	loggerFrom(ctx).V(2).Info("Address claimed", "pod", klog.KObj(pod), "node", nodeName, "ips", claim.Addrs)
	return nil
}

// claim writes a claim into the pool of its node, unless it stands there, and waits until the
// plugin's own watch shows it.
func (w *world) claim(ctx context.Context, c ledger.Claim, entry pool.Entry) error {
	if w.ledger.Stands(c) {
		return nil
	}
	err := w.pools.Write(ctx, ciliumpool.Request{
		Node: c.Node,
		Decide: func(n pool.Node) ([]pool.Edit, error) {
			if c.From != "" {
				return n.TakeOver(c.Addrs, c.From, entry)
			}
			return n.Claim(c.Addrs, entry)
		},
		// What the agent lists as used decides whether an address can be taken over.
		Live: c.From != "",
		// Another scheduler may have claimed another address for the same pod.
		Whole: true,
	})
	if err != nil {
		return err
	}
	return w.await(ctx, c)
}
