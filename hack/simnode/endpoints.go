// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/cilium/cilium/api/v1/models"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	typedciliumv2 "github.com/cilium/cilium/pkg/k8s/client/clientset/versioned/typed/cilium.io/v2"
)

const (
	endpointWorkers = 4
	// endpointRetry is the delay before the first retry of a failed write. The delay doubles with each retry, up to
	// endpointRetryMax.
	endpointRetry    = time.Second
	endpointRetryMax = 30 * time.Second
)

// endpoints writes the CiliumEndpoints of the node's pods by the rules of the agent (Cilium fact 14). An endpoint
// creates its CiliumEndpoint, remembers the UID, and creates the CiliumEndpoint again if another program deleted it, but not
// with the option oldAgent. An endpoint takes over an existing CiliumEndpoint only while it remembers no UID, and only if the
// pod is on this node. It writes only changes, and it deletes by UID. Security identities and other state of the datapath are
// left out.
type endpoints struct {
	client typedciliumv2.CiliumV2Interface
	opts   *options
	// pod returns the pod of a key from the informer of the kubelet; nil if it does not exist.
	pod   func(podKey) (*corev1.Pod, error)
	queue workqueue.TypedRateLimitingInterface[podKey]

	mu sync.Mutex
	// all contains the endpoints of the node. Key: the pod. Only the worker that holds a key changes the endpoint, except
	// for the field ended; mu guards the map and that field.
	all map[podKey]*endpoint
}

// endpoint is the state of one endpoint in the agent.
type endpoint struct {
	owner  metav1.OwnerReference
	labels map[string]string
	status ciliumv2.EndpointStatus
	// uid is the UID of the CiliumEndpoint; empty until it was created or taken over.
	uid types.UID
	// syncedAt is the time of the last write or comparison after which the CiliumEndpoint was up to date; zero if there was
	// none or if a later check found that the CiliumEndpoint was deleted.
	syncedAt time.Time
	// ended is true if the sandbox of the pod was removed.
	ended bool
}

func newEndpoints(client typedciliumv2.CiliumV2Interface, o *options, pod func(podKey) (*corev1.Pod, error)) *endpoints {
	return &endpoints{
		client: client, opts: o, pod: pod,
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[podKey](endpointRetry, endpointRetryMax)),
		all:   map[podKey]*endpoint{},
	}
}

// run writes CiliumEndpoints until ctx ends. It does not delete the CiliumEndpoints that exist then.
func (e *endpoints) run(ctx context.Context) {
	var wg sync.WaitGroup
	for range endpointWorkers {
		wg.Go(func() {
			for e.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	e.queue.ShutDown()
	wg.Wait()
}

// begin creates the endpoint of a pod with a new or restored sandbox. Like an endpoint that an agent restores, it does not
// know the UID of its CiliumEndpoint.
func (e *endpoints) begin(pod *corev1.Pod, ips []net.IP) {
	key := keyOf(pod)
	e.mu.Lock()
	e.all[key] = &endpoint{
		owner:  metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
		labels: pod.Labels,
		status: e.status(pod, ips),
	}
	e.mu.Unlock()
	e.queue.Add(key)
}

// end marks the endpoint of a pod whose sandbox was removed, so that a worker removes the endpoint and its CiliumEndpoint.
func (e *endpoints) end(key podKey) {
	e.mu.Lock()
	if ep := e.all[key]; ep != nil {
		ep.ended = true
	}
	e.mu.Unlock()
	e.queue.Add(key)
}

func (e *endpoints) status(pod *corev1.Pod, ips []net.IP) ciliumv2.EndpointStatus {
	pair := &ciliumv2.AddressPair{}
	for _, ip := range ips {
		if ip.To4() != nil {
			pair.IPV4 = ip.String()
		} else {
			pair.IPV6 = ip.String()
		}
	}
	return ciliumv2.EndpointStatus{
		State: string(models.EndpointStateReady),
		ExternalIdentifiers: &models.EndpointIdentifiers{
			ContainerID: string(pod.UID), PodName: pod.Namespace + "/" + pod.Name, K8sNamespace: pod.Namespace, K8sPodName: pod.Name,
		},
		Networking: &ciliumv2.EndpointNetworking{Addressing: ciliumv2.AddressPairList{pair}, NodeIP: e.opts.nodeIPs[0]},
	}
}

func (e *endpoints) next(ctx context.Context) bool {
	key, stop := e.queue.Get()
	if stop {
		return false
	}
	defer e.queue.Done(key)
	e.mu.Lock()
	ep := e.all[key]
	ended := ep != nil && ep.ended
	if ended {
		delete(e.all, key)
	}
	e.mu.Unlock()
	if ep == nil {
		return true
	}
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "pod", key.NamespacedName, "uid", key.uid)
	if ended {
		e.queue.Forget(key)
		e.delete(klog.NewContext(ctx, logger), key, ep)
		return true
	}
	if err := e.sync(ctx, key, ep); err != nil {
		if ctx.Err() == nil {
			logger.Info("Cannot bring the CiliumEndpoint up to date, trying again", "err", err)
		}
		e.queue.AddRateLimited(key)
		return true
	}
	e.queue.Forget(key)
	e.queue.AddAfter(key, e.opts.endpointInterval)
	return true
}

// sync creates the CiliumEndpoint of an endpoint, or takes over and updates an existing one. Later calls only check
// that the CiliumEndpoint still exists. If it was deleted, sync returns an error and the next call creates it again.
// With the option oldAgent, later calls do nothing.
func (e *endpoints) sync(ctx context.Context, key podKey, ep *endpoint) error {
	client := e.client.CiliumEndpoints(key.Namespace)
	if !ep.syncedAt.IsZero() {
		if e.opts.oldAgent {
			return nil
		}
		// A real agent reads its informer, which may be as old as the cache of the API server.
		_, err := client.Get(ctx, key.Name, metav1.GetOptions{ResourceVersion: "0"})
		if apierrors.IsNotFound(err) {
			ep.syncedAt = time.Time{}
			return fmt.Errorf("the CiliumEndpoint was deleted by another program: %w", err)
		}
		return err
	}
	cep, err := client.Get(ctx, key.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		cep, err = client.Create(ctx, &ciliumv2.CiliumEndpoint{
			ObjectMeta: metav1.ObjectMeta{Name: key.Name, OwnerReferences: []metav1.OwnerReference{ep.owner}, Labels: ep.labels},
			Status:     ep.status,
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("create the CiliumEndpoint: %w", err)
		}
		ep.uid, ep.syncedAt = cep.UID, time.Now()
		return nil
	case err != nil:
		return fmt.Errorf("read the CiliumEndpoint: %w", err)
	}
	if err := e.takeOver(key, ep, cep); err != nil {
		return err
	}
	if !cep.Status.DeepEqual(&ep.status) {
		patch, err := json.Marshal([]map[string]any{
			{"op": "test", "path": "/metadata/uid", "value": ep.uid},
			{"op": "replace", "path": "/status", "value": ep.status},
		})
		if err != nil {
			return err
		}
		if _, err := client.Patch(ctx, key.Name, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("patch the status of the CiliumEndpoint: %w", err)
		}
	}
	ep.syncedAt = time.Now()
	return nil
}

// takeOver takes over a CiliumEndpoint that the endpoint did not create, if the rules of the agent allow that
// (updateCEPUID). It does not change the owner reference.
func (e *endpoints) takeOver(key podKey, ep *endpoint, cep *ciliumv2.CiliumEndpoint) error {
	if ep.uid == cep.UID {
		return nil
	}
	pod, err := e.pod(key)
	switch {
	case err != nil:
		return err
	case pod == nil:
		return fmt.Errorf("cannot take ownership of CiliumEndpoint %s/%s: the pod does not exist", cep.Namespace, cep.Name)
	case !slices.Contains(e.opts.nodeIPs, pod.Status.HostIP):
		return fmt.Errorf("cannot take ownership of CiliumEndpoint %s/%s: its pod runs on host %s", cep.Namespace, cep.Name, pod.Status.HostIP)
	case ep.uid != "":
		return fmt.Errorf("cannot take ownership of the CiliumEndpoint: the endpoint remembers UID %q, but the CiliumEndpoint has UID %q", ep.uid, cep.UID)
	}
	ep.uid = cep.UID
	return nil
}

func (e *endpoints) delete(ctx context.Context, key podKey, ep *endpoint) {
	if ep.uid == "" {
		return
	}
	err := e.client.CiliumEndpoints(key.Namespace).Delete(ctx, key.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &ep.uid}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil {
		klog.FromContext(ctx).Info("Cannot delete the CiliumEndpoint", "err", err)
	}
}
