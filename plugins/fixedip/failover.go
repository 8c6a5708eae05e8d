// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
)

// moves tells whether a pod that goes to the node takes its addresses along, or brings a move there
// to its end.
func (c *cycle) moves(node string) bool {
	r := c.reservation
	return r.node != "" && (r.transit && r.node == node || c.failover == v1alpha1.Migrate && r.node != node)
}

// belongs begins the sentence that says why the pod can't be placed.
func (c *cycle) belongs() string {
	return fmt.Sprintf("its address %s belongs to node %s, which ", address.Join(c.reservation.addrs), c.reservation.node)
}

// policyOf is what becomes of a pod whose node can't take it. A claim whose record is not written yet
// goes by the annotations that the record will get its policy from; where those can't be read, or
// nobody has seen the workload, the pod waits.
func (p *Plugin) policyOf(c *cycle) v1alpha1.Failover {
	if c.id.Slot {
		// What it has it has only just claimed, and not run with yet.
		return v1alpha1.Wait
	}
	policy := c.reservation.failover
	if !c.reservation.recorded {
		workload, err := p.world.workloads.Get(c.id.Owner.GroupKind(), c.id.Namespace, c.id.Owner.Name)
		if err != nil || workload == nil {
			return v1alpha1.Wait
		}
		if policy, err = identity.Failover(workload.Annotations, workload.Template); err != nil {
			return v1alpha1.Wait
		}
	}
	if policy == "" {
		return p.failover
	}
	return policy
}

// remains says why a pod whose node can't take it does not go to another, and what would help, as the
// end of a sentence that says why its node can't; empty where it does go. home is then the one node that it
// goes to; empty: any.
func (p *Plugin) remains(c *cycle, policy v1alpha1.Failover) (why, home string) {
	if policy == v1alpha1.Wait || policy == v1alpha1.Migrate && !p.movable {
		home = p.homeward(c.id, c.reservation)
	}
	switch {
	case home != "":
		return "", home
	case c.id.Slot:
		return "; delete the pod to have another in its place", ""
	case policy == v1alpha1.Wait && p.movable:
		return ", or set failover to Migrate", ""
	case policy == v1alpha1.Wait:
		return ", or set failover to Reassign, which gives the pod another address", ""
	case policy == v1alpha1.Migrate && !p.movable:
		return "; it may not migrate, although its failover says so: the scheduler's arguments have allowAddressMigration at false", ""
	}
	if why := p.mayRun(c, policy); why != "" {
		return "; its old pod may still run there: " + why, ""
	}
	if policy == v1alpha1.Migrate {
		if _, err := p.world.ledger.HomeOf(c.id.Key(), c.reservation.addrs); err != nil {
			return "; " + err.Error(), ""
		}
	}
	return "", ""
}

// homeward is the home of addresses that were moved to a node which does not exist any more; empty where they are at
// home, or their node or their home is another matter. They go back there even where they may not move: nothing runs on
// a node that was deleted, whoever comes under its name has no claim to them, and their subnet is at home.
func (p *Plugin) homeward(id identity.Identity, r reservation) string {
	if r.node == "" || id.Slot {
		return ""
	}
	if _, err := p.nodes.Get(r.node); !apierrors.IsNotFound(err) {
		return ""
	}
	home, err := p.world.ledger.HomeOf(id.Key(), r.addrs)
	if err != nil || home == r.node {
		return ""
	}
	if _, err := p.nodes.Get(home); err != nil {
		return ""
	}
	return home
}

// mayRun says why the pod's predecessor may still run on the node of the reservation; empty where it
// surely does not, or where its address stays there and the agent does not list that.
func (p *Plugin) mayRun(c *cycle, policy v1alpha1.Failover) string {
	r := c.reservation
	if r.transit && !p.takenFrom(c) {
		// The address has never been the pod's there.
		return ""
	}
	node, err := p.nodes.Get(r.node)
	if err != nil && !apierrors.IsNotFound(err) {
		return err.Error()
	}
	if apierrors.IsNotFound(err) {
		node = nil
	}
	fence := fenceOf(node)
	if fence == pool.Unfenced {
		return fmt.Sprintf("node %s is not ready; delete the node or taint it %s", r.node, corev1.TaintNodeOutOfService)
	}
	n, known := p.world.ledger.Node(r.node)
	if fence == pool.Reported && !known {
		return fmt.Sprintf("node %s has no CiliumNode to tell", r.node)
	}
	var at time.Time
	if fence == pool.Reported && policy == v1alpha1.Migrate {
		var unheard []netip.Addr
		at, unheard = p.silence.until(c.uid, c.made, r.node, r.addrs, time.Now())
		if slices.ContainsFunc(unheard, n.InUse) {
			p.askListed(c, unheard)
		}
	}
	for _, a := range r.addrs {
		if fence.Keeps(n, a) != nil {
			return fmt.Sprintf("the agent on node %s still lists %s as used", r.node, a)
		}
	}
	if at.IsZero() {
		return ""
	}
	return fmt.Sprintf("the agent on node %s has not listed %s since this pod was made, and may take until %s to do so", r.node, address.Join(r.addrs), at.UTC().Format(time.RFC3339))
}

// takenFrom tells whether an address on its way to the node of the reservation was the pod's there and rests: that was
// taken from a pod which may run on.
func (p *Plugin) takenFrom(c *cycle) bool {
	n, _ := p.world.ledger.Node(c.reservation.node)
	return slices.ContainsFunc(c.reservation.addrs, func(a netip.Addr) bool {
		return n.Entries[a].CoolsDownFrom(c.id.Key())
	})
}

// askListed has the API server say whether the agent on the node of the reservation lists addresses as used, and
// looks at the pod again where that makes a difference.
func (p *Plugin) askListed(c *cycle, addrs []netip.Addr) {
	p.world.live.ask(c.reservation.node, string(c.uid), func(n pool.Node) {
		if p.silence.note(c.podKey(), c.uid, n, addrs) {
			p.waiting.hear(news{node: n.Name})
		}
	})
}

// fenceOf is what a node tells about the pods that were deleted from it; nil: it does not exist.
// Who taints a node as out of service swears that nothing runs there.
func fenceOf(node *corev1.Node) pool.Fence {
	switch {
	case node == nil, slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService }):
		return pool.Down
	case nodeutil.IsReady(node):
		return pool.Reported
	}
	return pool.Unfenced
}

// stuck says why the node of the reservation can't take the pod whatever room it has, as the end of
// the sentence that belongs begins; empty where Filter has to look.
func (p *Plugin) stuck(c *cycle) string {
	r := c.reservation
	if _, err := p.handle.SnapshotSharedLister().NodeInfos().Get(r.node); err != nil {
		return "does not exist; it waits for that node to come back"
	}
	if r.transit {
		if err := p.world.ledger.Carries(r.node, c.id.Key(), r.addrs); err != nil {
			return "can't carry it now: " + err.Error()
		}
	}
	return ""
}

// open lets the cycle look at other nodes than that of the reservation: at the home of its addresses, or at all.
func (p *Plugin) open(state fwk.CycleState, pod *corev1.Pod, c *cycle, policy v1alpha1.Failover, home string) (*framework.PreFilterResult, *fwk.Status) {
	c.failover, c.home = policy, home
	switch {
	case home != "":
		c.failover = v1alpha1.Migrate
		metrics.Cycle(true)
		return &framework.PreFilterResult{NodeNames: sets.New(home)}, nil
	case policy == v1alpha1.Reassign:
		return p.preFilterAsked(state, pod, c)
	}
	metrics.Cycle(false)
	return nil, nil
}

// filterCarrier lets a node pass that can carry the pod's addresses.
func (p *Plugin) filterCarrier(c *cycle, node string) *fwk.Status {
	err := p.world.ledger.Carries(node, c.id.Key(), c.reservation.addrs)
	if err == nil {
		return nil
	}
	c.unable.Store(node, true)
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) couldn't carry the pod's address: "+err.Error())
}

// causeOfRemaining is what helps a pod that remains where it can't be: news of its reservation or of
// its node, and whatever lets it go elsewhere.
func (p *Plugin) causeOfRemaining(c *cycle, policy v1alpha1.Failover) cause {
	helps := cause{owner: c.id.Key()}
	if p.stuck(c) != "" {
		helps.node = c.reservation.node
	}
	helps.until = func(string) bool {
		why, _ := p.remains(c, policy)
		return why == ""
	}
	if policy == v1alpha1.Migrate {
		// Whatever keeps it here now, when that ends the agent may have been silent for too short a time.
		helps.at = p.silence.ends(c.made, time.Now())
	}
	return helps
}

// causeOfNowhere is what helps a pod that no node could take.
func (p *Plugin) causeOfNowhere(c *cycle) cause {
	if c.failover == v1alpha1.Reassign {
		helps := p.causeOf(c)
		helps.room = helps.room && c.lacked.Load()
		return helps
	}
	return cause{owner: c.id.Key(), until: func(node string) bool {
		_, refused := c.unable.Load(node)
		return refused && p.world.ledger.Carries(node, c.id.Key(), c.reservation.addrs) == nil
	}}
}

// followNodes tells of nodes that are gone, or whose word on what runs there has changed. The queueing
// hints of the framework do not: it asks none for a node that would not admit the pod.
func (w *waiting) followNodes(nodes toolscache.SharedIndexInformer) error {
	_, err := nodes.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, after any) {
			if a, b := before.(*corev1.Node), after.(*corev1.Node); fenceOf(a) != fenceOf(b) {
				w.hear(news{node: b.Name})
			}
		},
		DeleteFunc: func(obj any) { w.hear(news{node: deleted[*corev1.Node](obj).Name}) },
	})
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	return nil
}
