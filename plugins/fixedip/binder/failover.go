// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// policyOf returns the failover policy of a pod: that of its FixedIP or, before the FixedIP exists, that of the
// annotations of its workload, or of the pod itself if it has no workload. If that object defines no policy, policyOf
// returns the scheduler's default. It returns Wait if the annotations are invalid, the workload is not known, or the pod
// has a slot.
func (b *Binder) policyOf(pod *corev1.Pod, p *Plan) v1alpha1.Failover {
	if p.id.Slot {
		// The pod has claimed its slot, but has never run with it.
		return v1alpha1.Wait
	}
	policy := p.reservation.failover
	if !p.reservation.hasFixedIP {
		source := &identity.Workload{Annotations: pod.Annotations}
		var err error
		if !p.id.IsBarePod() {
			source, err = b.Cache.Workloads.Get(p.id.Owner.GroupKind(), p.id.Namespace, p.id.Owner.Name)
		}
		if err != nil || source == nil {
			return v1alpha1.Wait
		}
		if policy, err = identity.Failover(source.Annotations, source.Template); err != nil {
			return v1alpha1.Wait
		}
	}
	if policy == "" {
		return b.failover
	}
	return policy
}

// whyNotElsewhere returns the reason why a pod may not leave the node of its reservation, and the advice for the user, as the
// end of a sentence. The beginning of the sentence says why that node cannot take the pod. If why is empty, the pod may go to
// the node home, or to any node if home is empty too.
func (b *Binder) whyNotElsewhere(p *Plan, policy v1alpha1.Failover) (why, home string) {
	if policy == v1alpha1.Wait || policy == v1alpha1.Migrate && !b.movable {
		home = b.homeNodeIfMoved(p.id, p.reservation)
	}
	switch {
	case home != "":
		return "", home
	case p.id.Slot:
		return fmt.Sprintf("; to place a pod of its %s on another node, delete this pod and the FixedIP with this address", p.id.Owner.Kind), ""
	case policy == v1alpha1.Wait && b.movable:
		return fmt.Sprintf("; to place the pod on another node, annotate %s with %s: Migrate", annotated(p.id), identity.AnnotationFailover), ""
	case policy == v1alpha1.Wait:
		return fmt.Sprintf("; to place the pod on another node with another address, annotate %s with %s: Reassign", annotated(p.id), identity.AnnotationFailover), ""
	case policy == v1alpha1.Migrate && !b.movable:
		return "; the pod's failover policy is Migrate, but allowAddressMigration is false; set it to true in the configuration of fixedip if the routing of the cluster carries single addresses", ""
	}
	node, err := orNil(b.Nodes.Get(p.reservation.node))
	if err != nil {
		return "; " + err.Error(), ""
	}
	if why := b.formerPod(p, node, policy == v1alpha1.Migrate); why != "" {
		return "; the former pod may still run there: " + why, ""
	}
	if policy == v1alpha1.Migrate {
		if _, err := b.Cache.Ledger.HomeOf(p.id.Key(), p.reservation.addrs); err != nil {
			return "; the pod can't take its address to another node: " + err.Error(), ""
		}
	}
	return "", ""
}

// annotated returns the text for the object whose annotations define the policies of an identity.
func annotated(id identity.Identity) string {
	if id.IsBarePod() {
		return "the pod"
	}
	return "its " + id.Owner.Kind
}

// homeNodeIfMoved returns the home node of addresses that were moved to a node that does not exist any more. It returns
// "" for a slot, if the addresses were not moved or can't be moved now (see ledger.Ledger.HomeOf), if the node that they were
// moved to exists, or if the home node does not exist. The addresses may return home even if migration is not allowed: no pod
// runs on a deleted node, and the home node has their subnet.
func (b *Binder) homeNodeIfMoved(id identity.Identity, r reservation) string {
	if r.node == "" || id.Slot {
		return ""
	}
	if _, err := b.Nodes.Get(r.node); !apierrors.IsNotFound(err) {
		return ""
	}
	home, err := b.Cache.Ledger.HomeOf(id.Key(), r.addrs)
	if err != nil || home == r.node {
		return ""
	}
	if _, err := b.Nodes.Get(home); err != nil {
		return ""
	}
	return home
}

// nodeUnavailable returns why the node of the reservation cannot take the pod, whatever resources it has free, as the
// end of the sentence that ownedByPrefix begins. reason is empty if only the filters decide about the node. remedy is the
// event that helps a pod that may not leave its node. remedy is empty if the node exists.
func (b *Binder) nodeUnavailable(p *Plan) (reason, remedy string) {
	r := p.reservation
	if b.node(r.node) == nil {
		return "does not exist", "; the pod waits until that node exists again, or until another node has the subnet of the address"
	}
	if r.moving {
		if err := b.Cache.Ledger.Carries(r.node, p.id.Key(), r.addrs); err != nil {
			return "can't carry the address now: " + err.Error(), ""
		}
	}
	return "", ""
}

// widens reports whether Find should plan with nodes other than node, which has the pod's addresses, even if node is
// available. That is the case once after Explain has added the pod to widenNext. It is also the case if the pod is in
// widened and is nominated to another node, where the pod may have preempted other pods.
func (b *Binder) widens(pod *corev1.Pod, node string) bool {
	_, next := b.widenNext.LoadAndDelete(pod.UID)
	_, before := b.widened.Load(pod.UID)
	nominated := pod.Status.NominatedNodeName
	return next || before && nominated != "" && nominated != node
}

// widenSearch changes the plan so that the pod may leave the node of the reservation. If home is not empty, home is the
// only node of the plan. If the policy is Reassign and the pod requests addresses, the plan has the nodes whose subnets
// contain these addresses. Otherwise the plan has all nodes.
func (b *Binder) widenSearch(p *Plan, pod *corev1.Pod, policy v1alpha1.Failover, home string) (*Plan, error) {
	b.remember(&b.widened, pod)
	p.failover, p.home, p.Nodes = policy, home, nil
	switch {
	case home != "":
		p.failover, p.Nodes = v1alpha1.Migrate, sets.New(home)
	case policy == v1alpha1.Reassign:
		return b.findRequested(p, pod)
	}
	return p, nil
}

// wakeOnOwnNode returns the causes for which a pod that waits for the node of its reservation is requeued: a change of
// the reservation, the workload, that node or the home node of the addresses, and a change that makes another node their
// home node.
func (b *Binder) wakeOnOwnNode(p *Plan) requeue.WakeOn {
	wake := p.wakeOn().And(metrics.Workload, p.id.Resource()).And(metrics.Node, p.reservation.node).AndHome(p.reservation.addrs...)
	for _, a := range p.reservation.addrs {
		if home, ok := b.Cache.Ledger.Home(a); ok {
			wake = wake.And(metrics.Node, home)
		}
	}
	return wake
}

// wakeOnOtherNodes returns the causes that help a pod that may leave the node of its reservation, but that no node could
// take.
func (b *Binder) wakeOnOtherNodes(p *Plan) requeue.WakeOn {
	wake := p.wakeOn()
	switch {
	case p.failover == v1alpha1.Reassign:
		wake = b.wakeOnFreeAddress(p)
		if !p.lacked.Load() && !p.requests() {
			wake.FreeAddress = nil
		}
	case p.lacked.Load():
		wake.FreeAddress = &requeue.FreeAddress{Carried: p.reservation.addrs}
	}
	return wake
}

// Explain returns why no node could take the pod, and the causes that may help the pod. For a pod that neither has a
// reservation nor searches for a slot, it returns nil if this plugin did not refuse the pod on any node. refused returns the
// reasons for which filters refused one node. The scheduler reports these reasons with the number of nodes; Explain adds
// which node has the pod's address, and why that node cannot take the pod.
//
// retry is true if the pod may leave the node of its reservation and the plan had only that node: the next plan has other
// nodes, and the caller should try the pod again at once. retry is false while pods that the pod preempted on its node are
// still terminating. After a plan with other nodes, the pod waits for an event.
func (b *Binder) Explain(p *Plan, pod *corev1.Pod, refused func(node string) []string) (why *Refusal, retry bool) {
	switch {
	case p.Unreserved:
		return b.explainUnreserved(p, pod), false
	case p.searching:
		return &Refusal{Reason: b.explainSlots(p, pod, refused), WakeOn: b.wakeOnFreeAddress(p)}, false
	case p.reservation.node == "" && p.lacked.Load():
		return &Refusal{WakeOn: b.wakeOnFreeAddress(p)}, false
	case p.reservation.node == "":
		return nil, false
	}
	unavailable, _ := b.nodeUnavailable(p)
	switch {
	case unavailable != "" && p.failover == "":
		// The node has become unavailable since Find.
		return &Refusal{WakeOn: b.wakeOnOwnNode(p)}, false
	case unavailable != "":
		return &Refusal{Reason: p.ownedByPrefix() + b.unavailableReason(p, pod, unavailable, refused), WakeOn: b.wakeOnOtherNodes(p)}, false
	}
	node := b.node(p.reservation.node)
	reason, remedy := hindrance(pod, node, refused(node.Name))
	if p.failover != "" {
		return &Refusal{Reason: p.ownedByPrefix() + reason + remedy + "; no other node can take the pod now", WakeOn: b.wakeOnOtherNodes(p)}, false
	}
	policy := b.policyOf(pod, p)
	whyNot, _ := b.whyNotElsewhere(p, policy)
	if whyNot == "" && !b.preempting(pod, node.Name) {
		b.remember(&b.widenNext, pod)
		return &Refusal{Reason: p.ownedByPrefix() + reason + "; other nodes are tried"}, true
	}
	if policy == v1alpha1.Wait && remedy == "" {
		whyNot = ""
	}
	return &Refusal{Reason: p.ownedByPrefix() + reason + remedy + whyNot, WakeOn: b.wakeOnOwnNode(p)}, false
}

// unavailableReason returns why neither the node of the reservation nor another node of the plan can take the pod, as the
// end of the sentence that ownedByPrefix begins. unavailable is the reason that nodeUnavailable returns.
func (b *Binder) unavailableReason(p *Plan, pod *corev1.Pod, unavailable string, refused func(string) []string) string {
	home := b.node(p.home)
	if home == nil {
		return unavailable + "; no other node can take the pod now"
	}
	reason, remedy := hindrance(pod, home, refused(home.Name))
	return fmt.Sprintf("does not exist; the address was migrated to that node and returns to its home node %s, which %s%s", p.home, reason, remedy)
}

// hindrance returns why a node cannot take a pod. refused contains the reasons of the filters. remedy is the action or
// event that helps; empty if the reasons of the filters suggest none.
func hindrance(pod *corev1.Pod, node *corev1.Node, refused []string) (reason, remedy string) {
	switch {
	case !nodeutil.IsReady(node):
		return "is not ready", "; the pod can be placed there when that node is ready"
	case isCordonedFor(pod, node):
		return "is cordoned", "; uncordon that node"
	case slices.ContainsFunc(refused, aboutVolume):
		return "can't take the pod: " + strings.Join(refused, ", "), "; delete the FixedIP to release the address, or provide the volume on that node"
	case len(refused) > 0:
		return "can't take the pod: " + strings.Join(refused, ", "), ""
	}
	return "can't take the pod now", ""
}

// aboutVolume reports whether reason, the text of a filter of the scheduler, says that a volume of the pod cannot be used or
// provided on the node. It returns false for other reasons that concern volumes, which no longer apply when another pod ends: the
// number of volumes of a node, and a ReadWriteOncePod claim that another pod uses.
func aboutVolume(reason string) bool {
	return strings.Contains(reason, "persistent volumes") || strings.Contains(reason, "PersistentVolume's") || strings.Contains(reason, "volume zone")
}

// preempting reports whether the pod is nominated to the node and a pod of lower priority is still terminating there.
func (b *Binder) preempting(pod *corev1.Pod, node string) bool {
	return pod.Status.NominatedNodeName == node && slices.ContainsFunc(b.podsOn(node), func(other *corev1.Pod) bool {
		return other.DeletionTimestamp != nil && corev1helpers.PodPriority(other) < corev1helpers.PodPriority(pod)
	})
}
