// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/request"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
)

// errNotReady: the world is not known yet. Nothing is decided from a part of it.
var errNotReady = errors.New("not all CiliumNodes and FixedIPs have been listed since the scheduler started; are their CRDs installed, and may it watch them?")

// stateKey is where the plugin keeps its state in the cycle.
const stateKey fwk.StateKey = Name

// cycle is what PreFilter found out about a pod. Nothing but lacked changes afterwards, so that
// parallel Filters and clones share it.
type cycle struct {
	// bystander: the pod has no fixed address. It needs an entry of its own on strict nodes alone.
	bystander bool
	// keptFrom are nodes whose pools keep an address for the bystander's name, for a workload that
	// it does not belong to: there the agent would give it that address.
	keptFrom []string
	// barred are nodes that can't take the bystander yet for what their pools keep for its name: see bars.
	barred []bar
	// optsOut: it had a fixed address, or could have had one, and opted out.
	optsOut bool
	id      identity.Identity
	uid     types.UID
	// made is when the pod was made: its predecessor was gone by then.
	made        time.Time
	reservation reservation
	// failover is Migrate or Reassign in a cycle that looks at all nodes although something is
	// reserved: the node of the reservation can't take the pod.
	failover v1alpha1.Failover
	// home is the one node that such a cycle looks at; empty: all.
	home string
	// seeks: the pod has no slot, and is to take one over. free are those that it can take over, and due is
	// when it may be able to take over one more; zero: no time is known.
	seeks bool
	free  []freeSlot
	due   time.Time
	// asked is what the pod asks for where nothing is reserved; the zero value where it does not.
	asked request.Asked
	// decided is the moment at which the world was looked at.
	decided uint64
	// lacked is set by the first Filter that found no room on a node, which notes it for all.
	lacked atomic.Bool
	// unable are nodes that could not carry the pod's address. Key: the node. They are set by Filter
	// and read when something about one of them is news.
	unable sync.Map
}

// Clone shares the state.
func (c *cycle) Clone() fwk.StateData { return c }

// podKey is the name of the pod.
func (c *cycle) podKey() types.NamespacedName {
	return types.NamespacedName{Namespace: c.id.Namespace, Name: c.id.PodName}
}

// PreFilter finds the pod's reservation and narrows the cycle to the node that owns it. Narrowing
// saves work and decides nothing: a nominated node is tried through Filter alone.
func (p *Plugin) PreFilter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (*framework.PreFilterResult, *fwk.Status) {
	decided := p.waiting.now()
	id, fixed, helps, err := p.identityOf(pod)
	if err != nil {
		return nil, p.refuse(pod, helps, decided, err.Error())
	}
	if !fixed {
		if reason := p.world.optsOut(ctx, pod); reason != "" {
			if bars := p.bars(pod); len(bars) > 0 {
				reason += "; " + bars[0].why
			}
			return nil, p.refuse(pod, cause{owner: pool.OwnerKey(pod.Namespace, pod.Name), workload: resourceOf(pod)}, decided, reason)
		}
		c := &cycle{bystander: true, uid: pod.UID, made: pod.CreationTimestamp.Time, decided: decided,
			keptFrom: p.world.keptFrom(pod), barred: p.bars(pod), optsOut: identity.OptsOut(pod.Annotations) && !pod.Spec.HostNetwork}
		state.Write(stateKey, c)
		if len(c.keptFrom)+len(c.barred) == 0 && !p.meetsStrict(pod, nodes) {
			return nil, fwk.NewStatus(fwk.Skip)
		}
		return nil, nil
	}
	if _, err := identity.WantsMAC(pod); err != nil {
		return nil, p.refuse(pod, cause{}, decided, err.Error())
	}
	if !p.world.ready() {
		return nil, fwk.AsStatus(errNotReady)
	}
	r, err := p.world.reservationOf(ctx, id)
	var no *unreservable
	switch {
	case errors.As(err, &no):
		return nil, p.refuse(pod, cause{owner: id.Key(), room: no.until == nil, until: no.until}, decided, no.reason)
	case err != nil:
		return nil, fwk.AsStatus(err)
	}
	c := &cycle{id: id, uid: pod.UID, made: pod.CreationTimestamp.Time, reservation: r, decided: decided}
	if r.node == "" {
		if id.Slot {
			return p.preFilterSlot(state, pod, c)
		}
		return p.preFilterAsked(state, pod, c)
	}
	if len(r.beside) > 0 && p.policyOf(c) != v1alpha1.Reassign {
		return nil, p.refuse(pod, cause{owner: id.Key()}, decided, fmt.Sprintf("the pool of node %s has %s for its name, which is not what its FixedIP names and is being taken back; it is placed when that is done", r.node, address.Join(r.beside)))
	}
	if why, helps := p.occupied(c); why != "" {
		return nil, p.refuse(pod, helps, decided, why)
	}
	state.Write(stateKey, c)
	stuck := p.stuck(c)
	nominated := pod.Status.NominatedNodeName
	if p.waiting.leaves(pod.UID) || stuck != "" || nominated != "" && nominated != r.node {
		policy := p.policyOf(c)
		remains, home := p.remains(c, policy)
		if remains == "" {
			return p.open(state, pod, c, policy, home)
		}
		if stuck != "" {
			return nil, p.refuse(pod, p.causeOfRemaining(c, policy), decided, c.belongs()+stuck+remains)
		}
	}
	metrics.Cycle(true)
	return &framework.PreFilterResult{NodeNames: sets.New(r.node)}, nil
}

// PreFilterExtensions is nil: other pods on a node change nothing about its addresses.
func (p *Plugin) PreFilterExtensions() framework.PreFilterExtensions { return nil }

// Filter lets the owner node pass, or the nodes that the pod's address could be moved to, or, where
// nothing is reserved, the nodes with room in each family. What it refuses can't be resolved by
// preemption: an evicted pod keeps its address.
func (p *Plugin) Filter(_ context.Context, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	c, err := read(state)
	if err != nil {
		return fwk.AsStatus(err)
	}
	name := node.Node().Name
	if c.bystander {
		if slices.Contains(c.keptFrom, name) {
			return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) kept an address for the pod's name, for a workload that it does not belong to")
		}
		if i := slices.IndexFunc(c.barred, func(b bar) bool { return b.node == name }); i >= 0 {
			return p.refuse(pod, c.barred[i].helps, c.decided, "node(s) couldn't take a pod of this name: "+c.barred[i].why)
		}
		return p.filterStrict(pod, c, node.Node())
	}
	switch r := c.reservation; {
	case r.node == "", c.failover == v1alpha1.Reassign && r.node != name:
		if slices.Contains(r.holders, name) {
			// What an earlier try has claimed there.
			return nil
		}
	case r.node == name && !r.transit:
		return nil
	case r.node == name, c.failover == v1alpha1.Migrate && (c.home == "" || c.home == name):
		return p.filterCarrier(c, name)
	default:
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable,
			fmt.Sprintf("node(s) didn't own the pod's address %s, which belongs to node %s", address.Join(r.addrs), r.node))
	}
	if c.seeks {
		return c.filterSlot(name)
	}
	if c.asks() {
		return p.filterAsked(pod, c, name)
	}
	for _, f := range p.families {
		if p.world.ledger.Room(name, f) == 0 {
			if c.lacked.CompareAndSwap(false, true) {
				p.waiting.refuse(pod, p.causeOf(c), c.decided)
			}
			return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, noRoom(f))
		}
	}
	return nil
}

// Reserve decides the pod's address in the ledger.
func (p *Plugin) Reserve(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodeName string) *fwk.Status {
	c, err := read(state)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if c.bystander {
		return p.reserveStrict(ctx, pod, c, nodeName)
	}
	if h, ok := p.world.heldElsewhere(c.id.Key(), nodeName, c.reservation.holders); ok {
		return p.refuse(pod, cause{owner: c.id.Key()}, c.decided,
			fmt.Sprintf("node(s) didn't own the pod's address %s, which has appeared on node %s since; it is tried again there", address.Join(h.Addrs), h.Node))
	}
	if at, ok := p.world.overtakes(pod.UID, c.id.Key(), nodeName); ok {
		return p.refuse(pod, cause{owner: c.id.Key()}, c.decided,
			fmt.Sprintf("node(s) may be losing the pod's address, which is being claimed on node %s for the pod before it; it is tried again when that has ended", at))
	}
	var claim ledger.Claim
	helps := p.causeOf(c)
	switch {
	case c.seeks:
		claim, err = p.assumeSlot(pod, c, nodeName)
	case c.moves(nodeName):
		helps = cause{owner: c.id.Key()}
		claim, err = p.world.ledger.AssumeMoved(pod.UID, c.id.Key(), nodeName, c.reservation.addrs)
	case c.reservation.projected && c.reservation.node == nodeName:
		helps = cause{owner: c.id.Key()}
		claim, err = p.world.ledger.AssumeExact(pod.UID, c.id.Key(), nodeName, p.families, c.reservation.addrs)
	case c.failover == v1alpha1.Reassign && c.reservation.node != nodeName:
		claim, err = p.world.ledger.AssumeAnew(pod.UID, c.id.Key(), nodeName, p.families, c.asked.Addresses)
	default:
		claim, err = p.world.ledger.AssumeFrom(pod.UID, c.id.Key(), nodeName, p.families, c.asked.Addresses)
	}
	if err != nil {
		helps.node = nodeName
		// The framework counts the nodes with a reason before it: "1 node(s) …".
		return p.refuse(pod, helps, c.decided, "node(s) couldn't give the pod its address: "+err.Error())
	}
	p.waiting.settle(pod.UID)
	p.world.seekers.leave(pod.UID)
	loggerFrom(ctx).V(4).Info("Address decided", "pod", klog.KObj(pod), "node", nodeName, "ips", claim.Addrs)
	return nil
}

// Unreserve forgets the decision. It touches memory alone: a bind that reported failure may have
// happened, and then the entry in the pool is the pod's. What a refused pod waits for is kept: the
// framework calls this after a Reserve that refused, too.
func (p *Plugin) Unreserve(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ string) {
	p.forget(pod)
}

// PostBind forgets the decision: the entry in the pool says it now.
func (p *Plugin) PostBind(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ string) {
	p.forget(pod)
	p.waiting.settle(pod.UID)
}

func (p *Plugin) forget(pod *corev1.Pod) {
	claim, _ := p.world.ledger.Claimed(pod.UID)
	if node, grew := p.world.ledger.Forget(pod.UID); grew {
		p.world.tell(news{node: node, room: true})
	}
	if claim.From != "" {
		p.world.tell(news{freed: claim.Node})
	}
	if p.world.overtaken.ended(claim.Owner) {
		p.world.tell(news{owners: []string{claim.Owner}})
	}
}

// noRoom is why a node can't take a fixed pod that asks for no address of the family.
func noRoom(f address.Family) string {
	return fmt.Sprintf("node(s) had no free %s address for a fixed pod in their subnets", f)
}

// refuse turns the pod away with a reason and notes what would help it.
func (p *Plugin) refuse(pod *corev1.Pod, c cause, decided uint64, reason string) *fwk.Status {
	p.waiting.refuse(pod, c, decided)
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reason)
}

func read(state fwk.CycleState) (*cycle, error) {
	data, err := state.Read(stateKey)
	if err != nil {
		return nil, fmt.Errorf("no state of plugin %s in the cycle: %w", Name, err)
	}
	c, ok := data.(*cycle)
	if !ok {
		return nil, fmt.Errorf("state of plugin %s in the cycle is of type %T", Name, data)
	}
	return c, nil
}
