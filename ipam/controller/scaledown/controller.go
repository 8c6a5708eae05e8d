// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package scaledown

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/configuration"
	"fixedip.io/fixedip/ipam/core/ledger"
)

// Annotations contains the annotation that keeps each autoscaler from removing a node, if its value is "true". Key: the
// autoscaler, one of configuration.Autoscalers.
//
// cluster-autoscaler: FAQ, "How can I prevent Cluster Autoscaler from scaling down a particular node?". Karpenter: Concepts,
// Disruption, "Node-Level Controls".
var Annotations = map[string]string{
	configuration.ClusterAutoscaler: "cluster-autoscaler.kubernetes.io/scale-down-disabled",
	configuration.Karpenter:         "karpenter.sh/do-not-disrupt",
}

// ListOfOurs is the annotation that lists the annotations that fixedip has set, separated by commas.
const ListOfOurs = "fixedip.io/scale-down-annotations"

// Controller is the controller "scale-down". A request names a node.
type Controller struct {
	Ledger *ledger.Ledger
	Cached client.Reader
	Live   client.Client
	// Autoscalers are the autoscalers that must not remove the nodes: keys of Annotations. If there are none, the controller
	// removes the annotations that it has set.
	Autoscalers []string
	// Requests receives the nodes whose subnets or reservations have changed.
	Requests *source.Requests
	// Ready reports whether the ledger has all nodes and reservations that existed at the start.
	Ready func() bool
}

// Setup adds the controller to a manager.
func (c *Controller) Setup(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("scale-down").
		Watches(&corev1.Node{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(predicate.AnnotationChangedPredicate{}, source.AfterStart)).
		WatchesRawSource(c.Requests.Source(c.Ready, func() (all []ctrl.Request) {
			for _, n := range c.Ledger.Nodes() {
				all = append(all, source.ForName(n.Name))
			}
			return all
		})).
		WithOptions(source.Workers(1)).
		Complete(c)
	if err != nil {
		return fmt.Errorf("set up the controller of scale-down annotations: %w", err)
	}
	return nil
}

// Reconcile sets and removes the annotations of one Node, in one patch.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if !c.Ready() {
		return ctrl.Result{RequeueAfter: source.AfterConflict}, nil
	}
	node, err := index.Node(ctx, c.Cached, req.Name)
	if err != nil || node == nil {
		return ctrl.Result{}, err
	}
	n, ok := c.Ledger.Node(req.Name)
	if len(c.Autoscalers) > 0 && (!ok || len(n.Subnets) == 0) {
		// The CiliumNode may be created again with the subnets that the node had before. Do not remove annotations until then.
		return ctrl.Result{}, nil
	}
	var wanted []string
	if len(c.Ledger.ReservationsIn(n.Subnets...)) > 0 {
		for _, name := range c.Autoscalers {
			wanted = append(wanted, Annotations[name])
		}
	}
	annotated := node.DeepCopy()
	annotated.Annotations = annotate(node.Annotations, wanted)
	if maps.Equal(annotated.Annotations, node.Annotations) {
		return ctrl.Result{}, nil
	}
	err = c.Live.Patch(ctx, annotated, client.MergeFromWithOptions(node, client.MergeFromWithOptimisticLock{}))
	switch {
	case apierrors.IsConflict(err):
		// The cache was behind. Try again when it may show the current Node.
		return ctrl.Result{RequeueAfter: source.AfterConflict}, nil
	case apierrors.IsForbidden(err):
		return ctrl.Result{}, fmt.Errorf("patch the scale-down annotations of node %s: the API server refuses the patch; if the controller may not patch Nodes, apply manifests/controller-scale-down-rbac.yaml, and keep it until protectNodesFrom is removed from the configuration and no Node has the annotation %s: %w", node.Name, ListOfOurs, err)
	case client.IgnoreNotFound(err) != nil:
		return ctrl.Result{}, fmt.Errorf("patch the scale-down annotations of node %s: %w", node.Name, err)
	}
	klog.FromContext(ctx).V(2).Info("Scale-down annotations of the node updated", "annotations", wanted)
	return ctrl.Result{}, nil
}

// annotate returns the annotations of a Node: those in have, with the annotations in wanted added, and without those that fixedip
// has set and that are not in wanted. It does not change an annotation that a user has set.
func annotate(have map[string]string, wanted []string) map[string]string {
	annotations := maps.Clone(have)
	var ours []string
	for _, a := range strings.FieldsFunc(have[ListOfOurs], func(r rune) bool { return r == ',' }) {
		switch {
		case have[a] != "true":
			// A user has changed or removed the annotation.
		case slices.Contains(wanted, a):
			ours = append(ours, a)
		default:
			delete(annotations, a)
		}
	}
	for _, a := range wanted {
		if _, exists := have[a]; !exists {
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations[a], ours = "true", append(ours, a)
		}
	}
	delete(annotations, ListOfOurs)
	if len(ours) > 0 {
		slices.Sort(ours)
		annotations[ListOfOurs] = strings.Join(ours, ",")
	}
	return annotations
}
