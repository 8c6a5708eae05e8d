// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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

// PreBindPreFlight skips PreBind where the pools give the pod its addresses for certain: a pod that comes back to its node
// costs no write, unless it wants its MAC address.
func (p *Plugin) PreBindPreFlight(_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ string) *fwk.Status {
	claim, claimed := p.world.ledger.Claimed(pod.UID)
	c, err := read(state)
	switch {
	case err == nil && c.bystander && c.optsOut:
		return nil
	case !claimed:
		return fwk.NewStatus(fwk.Skip)
	case err != nil:
		return fwk.AsStatus(err)
	}
	if wanted, err := identity.WantsMAC(pod); wanted || err != nil {
		return nil
	}
	if p.world.ledger.Stands(claim) && (c.bystander || p.world.certain(claim, c.reservation.named)) {
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
		switch why, helps, err := p.stillFree(ctx, pod, c, nodeName); {
		case err != nil:
			return fwk.AsStatus(err)
		case why != "":
			return p.refuse(pod, helps, c.decided, why)
		}
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
		if err = p.world.observedClaim(ctx, claim, c.id.Entry(), c.reservation.named); err == nil {
			err = p.world.alone(claim, c.reservation.holders)
		}
		if err == nil {
			// What the watch has shown since the pod was looked at.
			err = p.heard(claim, c.made)
		}
	}
	switch {
	case errors.Is(err, pool.ErrTaken), errors.Is(err, pool.ErrUnfenced), errors.Is(err, pool.ErrUndecided):
		// Somebody was faster, which the ledger will have learned by the next cycle.
		return fwk.NewStatus(fwk.Unschedulable, "the address decided for the pod was lost: "+err.Error()+"; it is tried again")
	case errors.Is(err, errUnheard):
		return fwk.NewStatus(fwk.Unschedulable, err.Error())
	case err != nil:
		return fwk.AsStatus(fmt.Errorf("claim address %s of node %s for pod %s/%s: %w", address.Join(claim.Addrs), nodeName, pod.Namespace, pod.Name, err))
	}
	if err := p.setMAC(ctx, pod, c.id, claim.Addrs); err != nil {
		return fwk.AsStatus(err)
	}
	loggerFrom(ctx).V(2).Info("Address claimed", "pod", klog.KObj(pod), "node", nodeName, "ips", claim.Addrs)
	return nil
}

// errUnheard: an agent may not know yet whose the addresses of a claim are.
var errUnheard = errors.New("its agent may be behind")

// heard refuses a claim that stands while the agent may not know of its entries.
func (p *Plugin) heard(claim ledger.Claim, made time.Time) error {
	if why, _ := p.unheard(claim.Node, claim.Addrs, made); why != "" {
		return fmt.Errorf("%w: %s", errUnheard, why)
	}
	return nil
}

// certain tells whether a claim that stands needs no look at the API server. It does while no FixedIP names its
// addresses: the pod before this one may have come to keep others than were claimed for it, and the watch be behind. And
// it does while the agent may not know of its entries, and may have said to whom it gave an address.
func (w *world) certain(c ledger.Claim, named bool) bool {
	_, unheard := w.ledger.Unheard(c.Node, c.Addrs)
	return named && !unheard
}

// claim writes a claim into the pool of its node, unless it stands there for certain, and waits until the
// plugin's own watch shows it.
func (w *world) claim(ctx context.Context, c ledger.Claim, entry pool.Entry, named bool) error {
	stands := w.ledger.Stands(c)
	if stands && w.certain(c, named) {
		return nil
	}
	err := w.pools.Write(ctx, ciliumpool.Request{
		Node: c.Node,
		Decide: func(n pool.Node) ([]pool.Edit, error) {
			if stands {
				return nil, w.confirm(n, c)
			}
			if c.From != "" {
				return n.TakeOver(c.Addrs, c.From, entry)
			}
			return n.Claim(c.Addrs, entry)
		},
		// What the agent lists as used decides whether an address can be taken over.
		Live: c.From != "" || stands,
		// Another scheduler may have claimed another address for the same pod.
		Whole: true,
	})
	if err != nil {
		return err
	}
	return w.await(ctx, c)
}

// confirm refuses a claim where the pool of its node, as the API server has it, gives the pod anything else than the watch
// shows, or the agent lists another for it.
func (w *world) confirm(n pool.Node, c ledger.Claim) error {
	has := n.Owns(c.Owner)
	shown := slices.IndexFunc(w.ledger.Held(c.Owner), func(h ledger.Holding) bool { return h.Node == n.Name && slices.Equal(h.Addrs, has) })
	if shown < 0 {
		return fmt.Errorf("the pool of node %s has %s for it, which the watch has yet to show: %w", n.Name, cmp.Or(address.Join(has), "nothing"), pool.ErrTaken)
	}
	for _, a := range has {
		if user := n.Used[a]; user != "" && user != c.Owner {
			return fmt.Errorf("%s on node %s is used by %s: %w", a, n.Name, pool.RedactOwner(user, c.Owner), pool.ErrTaken)
		}
	}
	return nil
}
