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
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/endpoint"
)

// nodeIndex finds the CiliumEndpoints of a node, by the IP of the node.
const nodeIndex = "endpointNode"

// Options are what a Keeper needs.
type Options struct {
	Cached client.Reader
	Live   client.Client
	Events events.EventRecorder
	Clock  clock.Clock
	Grace  endpoint.GracePeriods
	// Fixed reports whether anything is reserved for a pod.
	Fixed func(ctx context.Context, pod types.NamespacedName) bool
	// MissingFeed receives the requests for pods with a fixed IP whose CiliumEndpoint is missing, or is not any more.
	MissingFeed *source.Feed
}

// Keeper is the controller ciliumendpoint. A request names a pod, whose CiliumEndpoint has its name.
type Keeper struct {
	Options

	mu sync.Mutex
	// seen are the known issues. Key: the pod. In another replica that takes over their grace periods begin again.
	seen map[types.NamespacedName]issue
	// missing is how many issues are reported as missing CiliumEndpoints.
	missing int
	// paused is true while too many CiliumEndpoints are missing.
	paused bool
}

type issue struct {
	endpoint.Issue
	// cep and pod are the UIDs of the two: with another one the time begins again.
	cep, pod types.UID
	since    time.Time
	// missing is true if the CiliumEndpoint is missing for longer than the agent needs to make one, and that is reported.
	missing bool
}

// New returns the controller.
func New(o Options) *Keeper {
	return &Keeper{Options: o, seen: map[types.NamespacedName]issue{}}
}

// Setup adds the controller to a manager.
func (k *Keeper) Setup(ctx context.Context, mgr manager.Manager) error {
	err := mgr.GetFieldIndexer().IndexField(ctx, &ciliumv2.CiliumEndpoint{}, nodeIndex, byNode)
	if err != nil {
		return fmt.Errorf("index CiliumEndpoints by node: %w", err)
	}
	return builder.ControllerManagedBy(mgr).
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
func (k *Keeper) suspicious(ctx context.Context, obj client.Object) []reconcile.Request {
	key := client.ObjectKeyFromObject(obj)
	k.mu.Lock()
	_, known := k.seen[key]
	k.mu.Unlock()
	if !known {
		pod, cep, err := read(ctx, k.Cached, key)
		if err == nil && endpoint.Diagnose(decode(cep), pod) == endpoint.Healthy {
			return nil
		}
	}
	return []reconcile.Request{{NamespacedName: key}}
}

// Reconcile looks after the CiliumEndpoint of one pod.
func (k *Keeper) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	pod, cep, err := read(ctx, k.Cached, req.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	now := k.Clock.Now()
	known := k.note(req.NamespacedName, endpoint.Diagnose(decode(cep), pod), cep, pod, now)
	if known.Issue == endpoint.Healthy {
		return reconcile.Result{}, nil
	}
	if left := k.Grace.Due(known.Issue, decode(cep), known.since).Sub(now); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	if known.missing {
		return reconcile.Result{RequeueAfter: source.ResyncPeriod}, nil
	}
	if pod, cep, err = read(ctx, k.Live, req.NamespacedName); err != nil {
		return reconcile.Result{}, err
	}
	found := endpoint.Diagnose(decode(cep), pod)
	if found == endpoint.Healthy {
		// The watch will show it.
		return reconcile.Result{}, nil
	}
	if left := k.Grace.Due(found, decode(cep), known.since).Sub(now); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	if found == endpoint.Missing {
		return k.reportMissing(ctx, req.NamespacedName, pod)
	}
	err = k.treat(ctx, found, cep, pod)
	if apierrors.IsConflict(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err) {
		klog.FromContext(ctx).V(3).Info("CiliumEndpoint has changed meanwhile", "issue", found, "err", err)
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("CiliumEndpoint %s is %s: %w", req, found, err)
	}
	return reconcile.Result{RequeueAfter: source.ResyncPeriod}, nil
}

// read reads a pod and its CiliumEndpoint; nil: there is none.
func read(ctx context.Context, from client.Reader, key types.NamespacedName) (*corev1.Pod, *ciliumv2.CiliumEndpoint, error) {
	pod, err := index.Get[corev1.Pod](ctx, from, key)
	if err != nil {
		return nil, nil, err
	}
	cep, err := index.Get[ciliumv2.CiliumEndpoint](ctx, from, key)
	return pod, cep, err
}

// note records since when an issue is known.
func (k *Keeper) note(key types.NamespacedName, i endpoint.Issue, cep *ciliumv2.CiliumEndpoint, pod *corev1.Pod, now time.Time) issue {
	k.mu.Lock()
	defer k.mu.Unlock()
	is := issue{Issue: i, since: now}
	if cep != nil {
		is.cep = cep.UID
	}
	if pod != nil {
		is.pod = pod.UID
	}
	was, ok := k.seen[key]
	if ok && was.Issue == is.Issue && was.cep == is.cep && was.pod == is.pod {
		return was
	}
	if was.missing {
		k.missing--
		metrics.EndpointsMissingNow.Set(float64(k.missing))
		k.MissingFeed.Add(reconcile.Request{NamespacedName: key})
	}
	if i == endpoint.Healthy {
		delete(k.seen, key)
	} else {
		k.seen[key] = is
	}
	return is
}

// decode returns what a CiliumEndpoint is judged by; nil: there is none.
func decode(e *ciliumv2.CiliumEndpoint) *endpoint.Endpoint {
	if e == nil {
		return nil
	}
	out := &endpoint.Endpoint{UID: e.UID}
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
