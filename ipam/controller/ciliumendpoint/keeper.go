// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumendpoint

import (
	"context"
	"fmt"
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

// nodeIndex finds the CiliumEndpoints of a node, by the IP of the node.
const nodeIndex = "endpointNode"

// Keeper is the controller ciliumendpoint. A request names a pod, whose CiliumEndpoint has its name.
type Keeper struct {
	Cached client.Reader
	Live   client.Client
	Events events.EventRecorder
	Clock  clock.Clock
	Grace  GracePeriods
	// MissingRequests receives the requests for pods whose CiliumEndpoint is missing, or is not any more.
	MissingRequests *source.Requests

	mu sync.Mutex
	// seen are the known issues. Key: the pod. In another replica that takes over their grace periods begin again.
	seen map[client.ObjectKey]issue
	// missing is how many issues are reported as missing CiliumEndpoints.
	missing int
	// paused is true while too many CiliumEndpoints are missing.
	paused bool
}

type issue struct {
	Issue
	// cep and pod are the UIDs of the two: with another one the time begins again.
	cep, pod types.UID
	since    time.Time
	// missing is true if the CiliumEndpoint is missing for longer than the agent needs to make one, and that is reported.
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

// suspicious returns the request for a pod whose CiliumEndpoint has an issue, or had one. A queue with every pod of the
// cluster in it, as after each start, never gives its memory back. Controllers start when the caches are filled: what is
// missing then is not about to come.
func (k *Keeper) suspicious(ctx context.Context, obj client.Object) []ctrl.Request {
	key := client.ObjectKeyFromObject(obj)
	k.mu.Lock()
	_, known := k.seen[key]
	k.mu.Unlock()
	if !known {
		if i, _, _, err := look(ctx, k.Cached, key); err == nil && i == Healthy {
			return nil
		}
	}
	return []ctrl.Request{{NamespacedName: key}}
}

// Reconcile looks after the CiliumEndpoint of one pod: an issue that the caches show for long enough is looked at again at
// the API server, and then treated.
func (k *Keeper) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	found, cep, pod, err := look(ctx, k.Cached, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	now := k.Clock.Now()
	known := k.remember(req.NamespacedName, found, cep, pod, now)
	left := k.Grace.Due(found, cep, known.since).Sub(now)
	if found != Healthy && left <= 0 && !known.missing {
		if found, cep, pod, err = look(ctx, k.Live, req.NamespacedName); err != nil {
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
		klog.FromContext(ctx).V(3).Info("CiliumEndpoint has changed meanwhile", "issue", found, "err", err)
		return ctrl.Result{RequeueAfter: time.Second}, nil
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("CiliumEndpoint %s is %s: %w", req, found, err)
	}
	return ctrl.Result{RequeueAfter: source.ResyncPeriod}, nil
}

// look reads a pod and its CiliumEndpoint (nil: there is none), and compares them. It reads the pod last: the CiliumEndpoint
// of the next pod of the name would look like one of a former pod.
func look(ctx context.Context, from client.Reader, key client.ObjectKey) (Issue, *ciliumv2.CiliumEndpoint, *corev1.Pod, error) {
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

// remember records since when an issue is known.
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
		k.MissingRequests.Add(ctrl.Request{NamespacedName: key})
	}
	if i == Healthy {
		delete(k.seen, key)
	} else {
		k.seen[key] = is
	}
	return is
}

// treat does what helps. It writes or deletes exactly the version that was read, and otherwise fails with a conflict.
func (k *Keeper) treat(ctx context.Context, i Issue, cep *ciliumv2.CiliumEndpoint, pod *corev1.Pod) error {
	logger, after := klog.FromContext(ctx), cep.DeepCopy()
	patch := client.MergeFromWithOptions(cep, client.MergeFromWithOptimisticLock{})
	switch i {
	case MisOwned:
		for o := range after.OwnerReferences {
			after.OwnerReferences[o].UID = pod.UID
		}
		if err := k.Live.Patch(ctx, after, patch); err != nil {
			return fmt.Errorf("set pod %s as its owner: %w", pod.UID, err)
		}
		logger.Info("Owner reference of the CiliumEndpoint corrected", "uid", cep.UID)
		metrics.EndpointsReowned.Inc()
		return nil
	case Stuck:
		if len(cep.Finalizers) == 0 {
			return nil
		}
		after.Finalizers = nil
		if err := k.Live.Patch(ctx, after, patch); err != nil {
			return fmt.Errorf("remove the finalizers %v: %w", cep.Finalizers, err)
		}
		logger.Info("Finalizers of a stuck CiliumEndpoint removed", "uid", cep.UID, "finalizers", cep.Finalizers)
	default:
		err := k.Live.Delete(ctx, cep, client.Preconditions{UID: &cep.UID, ResourceVersion: &cep.ResourceVersion})
		if err != nil {
			return fmt.Errorf("delete it: %w", err)
		}
		logger.Info("CiliumEndpoint removed", "cause", i, "uid", cep.UID)
	}
	metrics.EndpointsRemoved.WithLabelValues(string(i)).Inc()
	if pod != nil {
		k.Events.Eventf(pod, nil, corev1.EventTypeNormal, "CiliumEndpointRemoved", "KeepEndpoints", "Its CiliumEndpoint was removed, so that its agent makes it again: %s", i)
	}
	return nil
}
