// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
)

// endpointNodeIndex finds the CiliumEndpoints of a node, by the address of the node.
const endpointNodeIndex = "endpointNode"

// endpointReconciler removes CiliumEndpoints that can't be right, and puts the owner reference of
// others right; it owns no field of them and makes none. A request names a pod, whose CiliumEndpoint
// has its name.
//
// What helps against which ailment was read from the agent (pkg/endpointmanager,
// endpointsynchronizer.go), v1.15 to v1.19. An agent makes the CiliumEndpoint of an endpoint once,
// remembers its UID, and from then on writes to it only when what it has to say changes.
//
//   - Stale: the agent of the pod that runs takes such a CiliumEndpoint over where it has made none
//     yet, and refuses it for ever where it has (the UIDs differ). Refusing, it tries again and
//     again, and makes its own as soon as there is none: deleting helps, in all versions. The
//     deletion names the version that was looked at, so that one that is taken over just then stays.
//   - MisAddressed: the same refusal, of one that a former sandbox of the same pod made. Deleting
//     helps; where the agent did not refuse but somebody else wrote, agents up to v1.18 leave the
//     pod without one, which is better than with one that gives its identity to another address.
//   - MisOwned: taken over together with the owner reference of the former pod (Cilium #43635), for
//     which the garbage collector deletes it. Only the reference is changed: agents never look at it,
//     and agents up to v1.18 would not make it again.
//   - Missing: agents from v1.19 on look every 10 s whether theirs is still there, and make it again
//     in 10-20 s. Earlier ones do so only when the status of the endpoint changes, and nothing that
//     may be written to a pod changes it but labels that count for its identity, which are not ours to
//     touch: a changed annotation has the endpoint regenerated, which its status does not show. One
//     made in the agent's place would be refused by it, and never be brought up to date. So what
//     is left is to start the pod again: verifyReconciler does so for pods with a fixed address, within
//     its bounds; of others it is told.
//   - Stuck: finalizers are nobody's of Cilium's own; after a time they are taken off.
//   - Podless: agents, Cilium's operator and the garbage collector all remove them. What is still
//     there then goes.
type endpointReconciler struct {
	ledger *ledger.Ledger
	cached client.Reader
	live   client.Client
	events events.EventRecorder
	clock  clock.Clock
	cfg    VerifyConfig

	mu sync.Mutex
	// seen are the ailments that wait for their time. Key: the pod. A replica that takes over starts
	// the time again.
	seen map[types.NamespacedName]ailing
}

type ailing struct {
	ailment plan.Ailment
	// endpoint and pod are the UIDs of the two: another one starts anew.
	endpoint, pod types.UID
	since         time.Time
	told          bool
}

func newEndpointReconciler(l *ledger.Ledger, mgr manager.Manager, live client.Client, cfg VerifyConfig) *endpointReconciler {
	return &endpointReconciler{
		ledger: l, cached: mgr.GetClient(), live: live, events: mgr.GetEventRecorder("fixedip-controller"), clock: clock.RealClock{}, cfg: cfg,
		seen: map[types.NamespacedName]ailing{},
	}
}

func (r *endpointReconciler) setup(ctx context.Context, mgr manager.Manager) error {
	err := mgr.GetFieldIndexer().IndexField(ctx, &ciliumv2.CiliumEndpoint{}, endpointNodeIndex, func(obj client.Object) []string {
		if n := obj.(*ciliumv2.CiliumEndpoint).Status.Networking; n != nil && n.NodeIP != "" {
			return []string{n.NodeIP}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("index CiliumEndpoints by node: %w", err)
	}
	return builder.ControllerManagedBy(mgr).
		Named("ciliumendpoint").
		Watches(&ciliumv2.CiliumEndpoint{}, handler.EnqueueRequestsFromMapFunc(r.suspicious)).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(r.suspicious)).
		WithOptions(source.Workers(4)).
		Complete(r)
}

// suspicious asks for a pod whose CiliumEndpoint is ill, or was. A queue with every pod of the cluster in
// it, as it would be at each start, never gives its memory back. Controllers start when the caches have
// been filled: what is not there then does not come a moment later.
func (r *endpointReconciler) suspicious(ctx context.Context, obj client.Object) []reconcile.Request {
	key := client.ObjectKeyFromObject(obj)
	r.mu.Lock()
	_, known := r.seen[key]
	r.mu.Unlock()
	if !known {
		pod, cep, err := r.read(ctx, r.cached, key)
		if err == nil && plan.Diagnose(endpointOf(cep), pod) == plan.Healthy {
			return nil
		}
	}
	return []reconcile.Request{{NamespacedName: key}}
}

// readEndpoint reads what a CiliumEndpoint is judged by.
func readEndpoint(e *ciliumv2.CiliumEndpoint) *plan.Endpoint {
	out := &plan.Endpoint{UID: e.UID}
	for _, o := range e.OwnerReferences {
		if o.Kind == "Pod" && o.Name == e.Name {
			out.OwnerUID = o.UID
		} else {
			out.Foreign = true
		}
	}
	if e.DeletionTimestamp != nil {
		out.Deleting = e.DeletionTimestamp.Time
	}
	if n := e.Status.Networking; n != nil {
		out.NodeIP = n.NodeIP
		for _, pair := range n.Addressing {
			if pair == nil {
				continue
			}
			for _, ip := range []string{pair.IPV4, pair.IPV6} {
				if a, err := address.Parse(ip); err == nil {
					out.Addrs = append(out.Addrs, a)
				}
			}
		}
	}
	return out
}

// endpointsOn tells whether there is any CiliumEndpoint of a node with the given address.
func endpointsOn(ctx context.Context, cached client.Reader, nodeIP string) (bool, error) {
	var list ciliumv2.CiliumEndpointList
	if err := cached.List(ctx, &list, client.MatchingFields{endpointNodeIndex: nodeIP}, client.Limit(1), client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("list CiliumEndpoints of node %s: %w", nodeIP, err)
	}
	return len(list.Items) > 0, nil
}

// youth is the time until which a pod is too young to be missed by anybody.
func youth(pod *corev1.Pod, patience time.Duration) time.Time {
	if pod.Status.StartTime == nil {
		return pod.CreationTimestamp.Add(patience)
	}
	return pod.Status.StartTime.Add(patience)
}

// Reconcile looks after the CiliumEndpoint of one pod.
func (r *endpointReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	pod, cep, err := r.read(ctx, r.cached, req.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	ailment := plan.Diagnose(endpointOf(cep), pod)
	now := r.clock.Now()
	known := r.note(req.NamespacedName, ailment, cep, pod, now)
	if ailment == plan.Healthy {
		return reconcile.Result{}, nil
	}
	patience := plan.EndpointPatience{Termination: r.cfg.EndpointTermination, Agent: r.cfg.EndpointPatience}
	if left := patience.Due(ailment, endpointOf(cep), known.since).Sub(now); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	if ailment == plan.Missing {
		if left, err := r.missable(ctx, pod, known); left > 0 || err != nil {
			return reconcile.Result{RequeueAfter: left}, err
		}
	}
	if pod, cep, err = r.read(ctx, r.live, req.NamespacedName); err != nil {
		return reconcile.Result{}, err
	}
	if ailment = plan.Diagnose(endpointOf(cep), pod); ailment == plan.Healthy {
		// The watch will show it.
		return reconcile.Result{}, nil
	}
	if left := patience.Due(ailment, endpointOf(cep), known.since).Sub(now); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	err = r.treat(ctx, req.NamespacedName, ailment, cep, pod)
	if apierrors.IsConflict(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err) {
		klog.FromContext(ctx).V(3).Info("CiliumEndpoint has changed meanwhile", "ailment", ailment, "err", err)
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("CiliumEndpoint %s is %s: %w", req, ailment, err)
	}
	return reconcile.Result{RequeueAfter: source.ResyncPeriod}, nil
}

func endpointOf(cep *ciliumv2.CiliumEndpoint) *plan.Endpoint {
	if cep == nil {
		return nil
	}
	return readEndpoint(cep)
}

func (r *endpointReconciler) read(ctx context.Context, from client.Reader, key types.NamespacedName) (*corev1.Pod, *ciliumv2.CiliumEndpoint, error) {
	pod, cep := &corev1.Pod{}, &ciliumv2.CiliumEndpoint{}
	switch err := from.Get(ctx, key, pod); {
	case apierrors.IsNotFound(err):
		pod = nil
	case err != nil:
		return nil, nil, fmt.Errorf("read pod %s: %w", key, err)
	}
	switch err := from.Get(ctx, key, cep); {
	case apierrors.IsNotFound(err):
		cep = nil
	case err != nil:
		return nil, nil, fmt.Errorf("read CiliumEndpoint %s: %w", key, err)
	}
	return pod, cep, nil
}

// note keeps since when an ailment is known.
func (r *endpointReconciler) note(key types.NamespacedName, a plan.Ailment, cep *ciliumv2.CiliumEndpoint, pod *corev1.Pod, now time.Time) ailing {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a == plan.Healthy {
		delete(r.seen, key)
		return ailing{}
	}
	is := ailing{ailment: a, since: now}
	if cep != nil {
		is.endpoint = cep.UID
	}
	if pod != nil {
		is.pod = pod.UID
	}
	if was, ok := r.seen[key]; ok && was.ailment == is.ailment && was.endpoint == is.endpoint && was.pod == is.pod {
		return was
	}
	r.seen[key] = is
	return is
}

// treat does what helps. Everything that it writes or deletes is what was looked at, and nothing
// else.
func (r *endpointReconciler) treat(ctx context.Context, key types.NamespacedName, a plan.Ailment, cep *ciliumv2.CiliumEndpoint, pod *corev1.Pod) error {
	logger := klog.FromContext(ctx)
	switch a {
	case plan.Missing:
		r.miss(ctx, key, pod)
		return nil
	case plan.MisOwned:
		if err := r.reown(ctx, cep, pod); err != nil {
			return err
		}
		logger.Info("Owner of the CiliumEndpoint put right", "uid", cep.UID)
		metrics.EndpointReowned()
		return nil
	case plan.Stuck:
		if len(cep.Finalizers) == 0 {
			return nil
		}
		finalizers := cep.Finalizers
		err := r.patch(ctx, cep,
			operation{"test", "/metadata/uid", cep.UID},
			operation{"test", "/metadata/finalizers", finalizers},
			operation{Op: "remove", Path: "/metadata/finalizers"})
		if err != nil {
			return fmt.Errorf("take off the finalizers %v: %w", finalizers, err)
		}
		logger.Info("Stuck CiliumEndpoint let go of", "uid", cep.UID, "finalizers", finalizers)
	default:
		err := r.live.Delete(ctx, cep, client.Preconditions{UID: &cep.UID, ResourceVersion: &cep.ResourceVersion})
		if err != nil {
			return fmt.Errorf("delete it: %w", err)
		}
		logger.Info("CiliumEndpoint removed", "cause", a, "uid", cep.UID)
	}
	metrics.EndpointRemoved(string(a))
	if pod != nil {
		r.events.Eventf(pod, nil, corev1.EventTypeNormal, "CiliumEndpointRemoved", "KeepEndpoints", "Its CiliumEndpoint was removed for its agent to make it anew: %s", a)
	}
	return nil
}

type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

func (r *endpointReconciler) patch(ctx context.Context, cep *ciliumv2.CiliumEndpoint, operations ...operation) error {
	data, err := json.Marshal(operations)
	if err != nil {
		return err
	}
	return r.live.Patch(ctx, cep, client.RawPatch(types.JSONPatchType, data))
}

// reown names the pod that runs in the owner reference.
func (r *endpointReconciler) reown(ctx context.Context, cep *ciliumv2.CiliumEndpoint, pod *corev1.Pod) error {
	owners := make([]metav1.OwnerReference, len(cep.OwnerReferences))
	for i, o := range cep.OwnerReferences {
		o.UID = pod.UID
		owners[i] = o
	}
	err := r.patch(ctx, cep,
		operation{"test", "/metadata/uid", cep.UID},
		operation{"test", "/metadata/ownerReferences", cep.OwnerReferences},
		operation{"replace", "/metadata/ownerReferences", owners})
	if err != nil {
		return fmt.Errorf("name pod %s as its owner: %w", pod.UID, err)
	}
	return nil
}

// missable tells whether the absence of a CiliumEndpoint is worth a look at the API server: left is when
// to ask again where it is not. An agent that makes none for others is set up so, or has just come.
func (r *endpointReconciler) missable(ctx context.Context, pod *corev1.Pod, known ailing) (left time.Duration, err error) {
	if known.told {
		return source.ResyncPeriod, nil
	}
	made, err := endpointsOn(ctx, r.cached, pod.Status.HostIP)
	if err != nil || !made {
		return source.ResyncPeriod, err
	}
	return 0, nil
}

// miss tells that a pod without a fixed address has no CiliumEndpoint. Of the others verifyReconciler
// tells.
func (r *endpointReconciler) miss(ctx context.Context, key types.NamespacedName, pod *corev1.Pod) {
	r.mu.Lock()
	if now, ok := r.seen[key]; ok {
		now.told = true
		r.seen[key] = now
	}
	r.mu.Unlock()
	metrics.EndpointMissing()
	var record v1alpha1.FixedIP
	if r.cached.Get(ctx, key, &record, client.UnsafeDisableDeepCopy) == nil || len(r.ledger.Held(pool.OwnerKey(key.Namespace, key.Name))) > 0 {
		return
	}
	r.events.Eventf(pod, nil, corev1.EventTypeWarning, plan.ReasonNoCiliumEndpoint, "KeepEndpoints", "It has had no CiliumEndpoint for %s, so that other nodes know nothing of it; agents before v1.19 do not make it again by themselves: restart the pod, or the agent of node %s", r.cfg.EndpointPatience, pod.Spec.NodeName)
}
