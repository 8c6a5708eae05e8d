// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumendpoint

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
)

// nodeIndex is the index of CiliumEndpoints by the IP of their node.
const nodeIndex = "endpointNode"

// Keeper is the controller "ciliumendpoint". A request names a pod and its CiliumEndpoint, which have the same name.
type Keeper struct {
	Cached client.Reader
	Live   client.Client
	// CiliumConfig is the ConfigMap of Cilium.
	CiliumConfig types.NamespacedName
	Events       events.EventRecorder
	Clock        clock.Clock
	Grace        GracePeriods
	// MissingRequests receives a request for a pod when its CiliumEndpoint begins or ceases to count as missing.
	MissingRequests *source.Requests

	mu sync.Mutex
	// seen contains the known issues. Key: the pod. A replica that takes over starts their grace periods again.
	seen map[client.ObjectKey]issue
	// missing is the number of known issues that are reported as missing CiliumEndpoints.
	missing int
	// paused is true while evictions are paused because too many CiliumEndpoints are missing: see pause and remember.
	paused bool
}

type issue struct {
	Issue
	// cep and pod are the UIDs of the CiliumEndpoint and of the pod. If one of them changes, since starts again.
	cep, pod types.UID
	since    time.Time
	// missing is true if the CiliumEndpoint has been missing for longer than its grace period and that was reported.
	missing bool
}

// Setup adds the controller to a manager.
func (k *Keeper) Setup(ctx context.Context, mgr ctrl.Manager) error {
	err := mgr.GetFieldIndexer().IndexField(ctx, &ciliumv2.CiliumEndpoint{}, nodeIndex, byNode)
	if err != nil {
		return fmt.Errorf("index CiliumEndpoints by node: %w", err)
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("ciliumendpoint").
		Watches(&ciliumv2.CiliumEndpoint{}, handler.EnqueueRequestsFromMapFunc(k.suspicious)).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(k.suspicious)).
		WithOptions(source.Workers(4)).
		Complete(k)
}

func byNode(obj client.Object) []string {
	if n := obj.(*ciliumv2.CiliumEndpoint).Status.Networking; n != nil && n.NodeIP != "" {
		return []string{n.NodeIP}
	}
	return nil
}

// suspicious returns the request for a pod, unless the caches show no issue of its CiliumEndpoint and seen has none. Requests
// for all pods, as after each start, would fill a queue that never frees its memory. Controllers start after the caches are
// filled, so that the caches have every object that existed at the start.
func (k *Keeper) suspicious(ctx context.Context, obj client.Object) []ctrl.Request {
	key := client.ObjectKeyFromObject(obj)
	k.mu.Lock()
	_, known := k.seen[key]
	k.mu.Unlock()
	if !known {
		if i, _, _, err := readIssue(ctx, k.Cached, key); err == nil && i == Healthy {
			return nil
		}
	}
	return []ctrl.Request{{NamespacedName: key}}
}

// Reconcile resolves the issue of the CiliumEndpoint of one pod. When an issue in the caches has lasted for its grace
// period, Reconcile confirms it at the API server before it acts.
func (k *Keeper) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	found, cep, pod, err := readIssue(ctx, k.Cached, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	now := k.Clock.Now()
	known := k.remember(req.NamespacedName, found, cep, pod, now)
	left := k.Grace.Due(found, cep, known.since).Sub(now)
	if found != Healthy && left <= 0 && !known.missing {
		if found, cep, pod, err = readIssue(ctx, k.Live, req.NamespacedName); err != nil {
			return ctrl.Result{}, err
		}
		left = k.Grace.Due(found, cep, known.since).Sub(now)
	}
	switch {
	case found == Healthy:
		// If only the caches show an issue, the watch will show its end.
		return ctrl.Result{}, nil
	case left > 0:
		return ctrl.Result{RequeueAfter: left}, nil
	case found == Missing && !known.missing:
		return k.reportMissing(ctx, req.NamespacedName, pod)
	case found != Missing:
		err = k.treat(ctx, found, cep, pod)
	}
	if apierrors.IsConflict(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err) {
		klog.FromContext(ctx).V(3).Info("The CiliumEndpoint has changed since it was read; retrying", "issue", found, "err", err)
		return ctrl.Result{RequeueAfter: time.Second}, nil
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("repair CiliumEndpoint %s with issue %s: %w", req, found, err)
	}
	return ctrl.Result{RequeueAfter: source.ResyncPeriod}, nil
}

// readIssue reads a pod and its CiliumEndpoint, and returns the issue and both objects; an object that does not exist is nil.
// It reads the pod last. Otherwise, if the pod were replaced between the two reads, the CiliumEndpoint of the next pod would
// be compared with the former pod.
func readIssue(ctx context.Context, from client.Reader, key client.ObjectKey) (Issue, *ciliumv2.CiliumEndpoint, *corev1.Pod, error) {
	cep, err := index.Get[ciliumv2.CiliumEndpoint](ctx, from, key)
	if err != nil {
		return Healthy, nil, nil, err
	}
	pod, err := index.Get[corev1.Pod](ctx, from, key)
	if err != nil {
		return Healthy, nil, nil, err
	}
	return Diagnose(cep, pod), cep, pod, nil
}

// remember stores the issue of a pod and returns it, with the time at which the issue was first seen. If a CiliumEndpoint no
// longer counts as missing, remember adds the pod to MissingRequests.
func (k *Keeper) remember(key client.ObjectKey, i Issue, cep *ciliumv2.CiliumEndpoint, pod *corev1.Pod, now time.Time) issue {
	k.mu.Lock()
	defer k.mu.Unlock()
	is := issue{Issue: i, since: now}
	if cep != nil {
		is.cep = cep.UID
	}
	if pod != nil {
		is.pod = pod.UID
	}
	if k.seen == nil {
		k.seen = map[client.ObjectKey]issue{}
	}
	was := k.seen[key]
	if was.Issue == is.Issue && was.cep == is.cep && was.pod == is.pod {
		return was
	}
	if was.missing {
		k.missing--
		metrics.EndpointsMissingNow.Dec()
		if k.missing <= fewMissing {
			// Confirm also ends the pause, but is called only when package conformance is about to act on one of the remaining
			// pods.
			k.paused = false
			metrics.EndpointEvictionsPaused.Set(0)
		}
		k.MissingRequests.Add(ctrl.Request{NamespacedName: key})
	}
	if i == Healthy {
		delete(k.seen, key)
	} else {
		k.seen[key] = is
	}
	return is
}

// treat corrects the owner reference (MisOwned), removes the finalizers (Stuck), or deletes the CiliumEndpoint (every other
// issue). The write requires the version that was read, and otherwise fails with a conflict.
func (k *Keeper) treat(ctx context.Context, i Issue, cep *ciliumv2.CiliumEndpoint, pod *corev1.Pod) error {
	logger, after := klog.FromContext(ctx), cep.DeepCopy()
	patch := client.MergeFromWithOptions(cep, client.MergeFromWithOptimisticLock{})
	switch i {
	case MisOwned:
		for o := range after.OwnerReferences {
			after.OwnerReferences[o].UID = pod.UID
		}
		if err := k.Live.Patch(ctx, after, patch); err != nil {
			return fmt.Errorf("change the owner reference to the pod with UID %s: %w", pod.UID, err)
		}
		logger.Info("Owner reference of the CiliumEndpoint corrected", "uid", cep.UID)
		metrics.EndpointOwnerRefFixes.Inc()
		return nil
	case Stuck:
		if len(cep.Finalizers) == 0 {
			return nil
		}
		after.Finalizers = nil
		if err := k.Live.Patch(ctx, after, patch); err != nil {
			return fmt.Errorf("remove the finalizers %s: %w", strings.Join(cep.Finalizers, ", "), err)
		}
		logger.Info("Finalizers of a stuck CiliumEndpoint removed", "uid", cep.UID, "finalizers", cep.Finalizers)
	default:
		err := k.Live.Delete(ctx, cep, client.Preconditions{UID: &cep.UID, ResourceVersion: &cep.ResourceVersion})
		if err != nil {
			return fmt.Errorf("delete the CiliumEndpoint: %w", err)
		}
		logger.Info("CiliumEndpoint removed", "cause", i, "uid", cep.UID)
	}
	metrics.EndpointsRemoved.WithLabelValues(string(i)).Inc()
	if pod != nil {
		k.Events.Eventf(pod, nil, corev1.EventTypeNormal, "CiliumEndpointRemoved", "KeepEndpoints", "The CiliumEndpoint of the pod was removed, because %s (%s); the Cilium agent can create a new one now", explanations[i], i)
	}
	return nil
}
