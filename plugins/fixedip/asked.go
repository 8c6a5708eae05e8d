// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/request"
	"fixedip.io/fixedip/ipam/store/workloads"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
)

// asks tells whether the pod asks for addresses. It is asked only on a first placement: what an
// identity has comes before what it asks for.
func (c *cycle) asks() bool { return len(c.asked.Families()) > 0 }

// askedBy is what a pod asks for; the zero Asked where it asks for nothing. Errors are written for
// people. The workload has to be known: it may carry the annotation, and says where ordinals start.
func (p *Plugin) askedBy(pod *corev1.Pod, id identity.Identity) (request.Asked, error) {
	workload, err := p.owner(id)
	if err != nil {
		return request.Asked{}, err
	}
	asked, _, err := request.Of(pod, *workload, id.Slot || id.Itself())
	return asked, err
}

// owner is the workload of an identity: it and no other of its name. Errors are written for people.
func (p *Plugin) owner(id identity.Identity) (*identity.Workload, error) {
	if id.Itself() {
		return &identity.Workload{GroupKind: id.Owner.GroupKind(), Namespace: id.Namespace, Name: id.Owner.Name, UID: id.Owner.UID}, nil
	}
	workload, err := p.world.workloads.Get(id.Owner.GroupKind(), id.Namespace, id.Owner.Name)
	switch {
	case errors.Is(err, workloads.ErrUnknown):
		return nil, fmt.Errorf("its %s %s/%s, which may ask for addresses, has not been seen by the scheduler yet; see whether it may list and watch all of that kind", id.Owner.Kind, id.Namespace, id.Owner.Name)
	case err != nil:
		return nil, fmt.Errorf("read %s %s/%s from the cache: %w", id.Owner.Kind, id.Namespace, id.Owner.Name, err)
	case workload == nil || workload.UID != id.Owner.UID:
		return nil, fmt.Errorf("its %s %s/%s, which may ask for addresses, has not been seen by the scheduler yet; it waits for that", id.Owner.Kind, id.Namespace, id.Owner.Name)
	}
	return workload, nil
}

// preFilterAsked narrows a first placement to the nodes whose subnets have what the pod asks for.
// Where it asks for nothing any node will do.
func (p *Plugin) preFilterAsked(state fwk.CycleState, pod *corev1.Pod, c *cycle) (*framework.PreFilterResult, *fwk.Status) {
	asked, err := p.askedBy(pod, c.id)
	if err != nil {
		return nil, p.refuse(pod, cause{owner: c.id.Key(), workload: c.id.Resource()}, c.decided, err.Error())
	}
	c.asked = asked
	state.Write(stateKey, c)
	if !c.asks() {
		metrics.Cycle(false)
		return nil, nil
	}
	for _, f := range asked.Families() {
		if !slices.Contains(p.families, f) {
			// No news of a node helps here.
			return nil, p.refuse(pod, cause{owner: c.id.Key(), workload: c.id.Resource()}, c.decided,
				fmt.Sprintf("asks for %s, but the scheduler gives pods no %s addresses; leave them out or add %s to its ipFamilies", asked, f, f))
		}
	}
	reach := p.world.ledger.Reach(asked.Addresses)
	if reason := p.unmet(c, reach); reason != "" {
		return nil, p.refuse(pod, p.causeOf(c), c.decided, reason)
	}
	there := slices.DeleteFunc(slices.Clone(reach), func(name string) bool {
		_, err := p.handle.SnapshotSharedLister().NodeInfos().Get(name)
		return err != nil
	})
	if len(there) == 0 {
		// nodeAdded wakes it.
		return nil, p.refuse(pod, cause{owner: c.id.Key(), workload: c.id.Resource()}, c.decided,
			fmt.Sprintf("asks for %s, which is in the subnets of node %s, which does not exist; it waits for that node to come back", asked, reach[0]))
	}
	metrics.Cycle(true)
	return &framework.PreFilterResult{NodeNames: sets.New(there...)}, nil
}

// unmet says why no node can give the pod what it asks for, as far as that can be said of all
// nodes at once; empty where Filter has to look at each of those in reach.
func (p *Plugin) unmet(c *cycle, reach []string) string {
	for _, f := range c.asked.Families() {
		if a, single := c.asked.Single(f); single {
			if b := p.world.ledger.Blocker(c.id.Key(), a); b != nil {
				return fmt.Sprintf("asks for %s (%s): %s", a, c.asked.Source, b.Message())
			}
		}
	}
	if len(reach) > 0 {
		return ""
	}
	if len(c.asked.Families()) > 1 {
		return fmt.Sprintf("asks for %s, but no node has addresses of each family among them in its subnets; ask for addresses of one node", c.asked)
	}
	return fmt.Sprintf("asks for %s, which is in no node's subnet; ask for addresses that are", c.asked)
}

// filterAsked lets a node pass that has an address free in each family, in those asked for one of
// the asked-for.
func (p *Plugin) filterAsked(pod *corev1.Pod, c *cycle, node string) *fwk.Status {
	for _, f := range p.families {
		if p.world.ledger.Offers(node, []address.Family{f}, c.asked.Addresses) {
			continue
		}
		if c.lacked.CompareAndSwap(false, true) {
			p.waiting.refuse(pod, p.causeOf(c), c.decided)
		}
		if len(c.asked.Ranges(f)) == 0 {
			return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, noRoom(f))
		}
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("node(s) had none of the addresses free that the pod asks for: %s", c.asked))
	}
	return nil
}

// causeOf is what helps a pod of which no address is reserved: what it asks for becomes free on a
// node, or is asked for otherwise. Without a wish of its own, any room does.
//
// A pod of a workload with slots is helped by a free one too, and by that alone where it looks for
// one.
func (p *Plugin) causeOf(c *cycle) cause {
	switch {
	case c.seeks:
		return cause{owner: c.id.Key(), workload: c.id.Resource(), at: c.due, until: func(node string) bool { return p.slotHelps(c, node) }}
	case !c.asks() && c.id.Slot:
		return cause{owner: c.id.Key(), room: true, until: func(node string) bool { return p.slotHelps(c, node) }}
	case !c.asks():
		return cause{owner: c.id.Key(), room: true}
	}
	return cause{
		owner:    c.id.Key(),
		workload: c.id.Resource(),
		// The families of asked are among those of the plugin: preFilterAsked refuses others.
		until: func(node string) bool {
			return p.world.ledger.Offers(node, p.families, c.asked.Addresses) || c.id.Slot && p.slotHelps(c, node)
		},
	}
}

// reaches tells whether the node's subnets have what a pod without a reservation asks for.
func (p *Plugin) reaches(pod *corev1.Pod, id identity.Identity, node string) bool {
	asked, err := p.askedBy(pod, id)
	return err == nil && len(asked.Families()) > 0 && slices.Contains(p.world.ledger.Reach(asked.Addresses), node)
}
