// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/store/fixedips"
)

// unhomedIndex finds the FixedIPs whose condition Homed is False.
const unhomedIndex = "unhomed"

// view is what the caches show of all subnets at one moment.
type view struct {
	world plan.World
	// orphans are those whose node is not there either.
	orphans []plan.Orphan
	heirs   []plan.Heir
	// records are the FixedIPs that a condition is for.
	records map[types.NamespacedName]*v1alpha1.FixedIP
	// homed is the condition that each FixedIP should have which needs one.
	homed map[types.NamespacedName]metav1.Condition
}

func (r *subnetReconciler) view(ctx context.Context, now time.Time) (*view, error) {
	var nodes corev1.NodeList
	if err := r.cached.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Nodes from the cache: %w", err)
	}
	v := &view{records: map[types.NamespacedName]*v1alpha1.FixedIP{}, homed: map[types.NamespacedName]metav1.Condition{}}
	// with has the number of subnets of each node that has any.
	with := map[string]int{}
	var disputed []netip.Prefix
	for _, n := range r.ledger.Nodes() {
		v.world.Taken = append(v.world.Taken, n.Subnets...)
		if len(n.Subnets) > 0 {
			with[n.Name] = len(n.Subnets)
		}
		if _, overlap := r.ledger.Disputed(n.Name); overlap {
			disputed = append(disputed, n.Subnets...)
		}
	}
	v.world.Now = now
	v.world.Homed = func(node string) bool { return with[node] > 0 }
	present := map[string]bool{}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		present[n.Name] = true
		if with[n.Name] > 0 {
			v.heirs = append(v.heirs, plan.Heir{
				Name:        n.Name,
				Subnets:     with[n.Name],
				SuccessorOf: n.Labels[successorLabel],
				Ready:       nodeutil.IsSchedulable(n),
				Joined:      n.CreationTimestamp.Time,
			})
		}
	}
	if err := r.addRecords(ctx, v, disputed); err != nil {
		return nil, err
	}
	for _, o := range v.world.Orphans(r.cfg.ClusterPools) {
		if present[o.Node] {
			// It is there and about to have its subnets back.
			for _, k := range o.Kept {
				delete(v.homed, k.Record)
			}
			continue
		}
		v.orphans = append(v.orphans, o)
		for _, k := range o.Kept {
			v.homed[k.Record] = condition(metav1.ConditionFalse, v1alpha1.ReasonNodeGone, r.homeless(o, k))
		}
	}
	return v, nil
}

// addRecords adds the FixedIPs that have no home, whose subnet is disputed, or that say so and should not:
// all others need nothing.
func (r *subnetReconciler) addRecords(ctx context.Context, v *view, disputed []netip.Prefix) error {
	var said v1alpha1.FixedIPList
	if err := r.cached.List(ctx, &said, client.MatchingFields{unhomedIndex: "true"}); err != nil {
		return fmt.Errorf("list the FixedIPs that have no home from the cache: %w", err)
	}
	for i := range said.Items {
		key := client.ObjectKeyFromObject(&said.Items[i])
		v.records[key] = &said.Items[i]
		v.homed[key] = condition(metav1.ConditionTrue, v1alpha1.ReasonSubnetAssigned, "The subnet has a node")
	}
	inDispute, err := fixedips.Read(ctx, r.cached, r.ledger.KeepingsIn(disputed...))
	if err != nil {
		return err
	}
	for _, record := range inDispute {
		key := client.ObjectKeyFromObject(record)
		v.records[key] = record
		v.homed[key] = condition(metav1.ConditionFalse, v1alpha1.ReasonSubnetOverlap, fmt.Sprintf("The subnet of %v overlaps that of another node; nothing in it is handed out until one of the two is changed", record.Spec.IPs))
	}
	homeless, err := fixedips.Read(ctx, r.cached, r.ledger.Homeless())
	if err != nil {
		return err
	}
	for _, record := range homeless {
		v.records[client.ObjectKeyFromObject(record)] = record
	}
	v.world.Kept = plan.KeepsAll(homeless)
	return nil
}

// unhomed is the index function of unhomedIndex.
func unhomed(obj client.Object) []string {
	if meta.IsStatusConditionFalse(obj.(*v1alpha1.FixedIP).Status.Conditions, v1alpha1.ConditionHomed) {
		return []string{"true"}
	}
	return nil
}

// homeless says what an address without a home waits for.
func (r *subnetReconciler) homeless(o plan.Orphan, k plan.Kept) string {
	what := fmt.Sprintf("No node has a subnet with %s", k.Addr)
	if o.Node != "" {
		what = fmt.Sprintf("Node %s, whose subnet has %s, is gone", o.Node, k.Addr)
	}
	if len(o.Subnets) == 0 {
		return what + ", and no cluster pool has the address: it waits for a node that brings such a subnet"
	}
	switch r.cfg.SubnetPolicy {
	case plan.Inherit:
		what += fmt.Sprintf("; after %v the next node that joins has it", r.cfg.SubnetHold)
	case plan.Free:
		what += fmt.Sprintf("; after %v it is given up", r.cfg.SubnetHold)
	}
	if o.Node == "" {
		return what
	}
	return what + fmt.Sprintf("; at once has it a node of that name, or one with the label %s=%s", successorLabel, o.Node)
}

func condition(status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: v1alpha1.ConditionHomed, Status: status, Reason: reason, Message: message}
}

// nodeChanged lets pass what makes a difference here, and not the heartbeats.
var nodeChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, after := e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node)
	return nodeutil.IsSchedulable(before) != nodeutil.IsSchedulable(after) || before.Labels[successorLabel] != after.Labels[successorLabel] ||
		!slices.Equal(before.Spec.PodCIDRs, after.Spec.PodCIDRs)
}}
