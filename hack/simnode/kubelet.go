// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	statusutil "k8s.io/kubernetes/pkg/util/pod"
)

const (
	kubeletWorkers = 8
	// minGracePeriod is the shortest time that a kubelet gives containers to stop. It applies even if the pod object
	// has a grace period of 0 (calculateEffectiveGracePeriod).
	minGracePeriod = time.Second
)

// errStopped is the error of a wait that ended because the process stops.
var errStopped = errors.New("the node is stopping")

// podKey identifies a pod by name and UID. Two pods with the same name have different sandboxes, and as on a real node
// the new pod may start while the old pod is still stopping (Cilium fact 13).
type podKey struct {
	types.NamespacedName
	uid types.UID
}

func keyOf(pod *corev1.Pod) podKey {
	return podKey{NamespacedName: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, uid: pod.UID}
}

// sandbox is the network of one pod.
type sandbox struct {
	ips []net.IP
	// held contains the addresses of ips that are allocated in the allocator. It leaves out the addresses of a pod on the host
	// network, and addresses whose restore failed.
	held []net.IP
	// started is the time at which the containers started.
	started metav1.Time
	// stopAt is the time at which the containers will have stopped; zero if they are not stopping.
	stopAt time.Time
}

// network allocates and releases the addresses of sandboxes. The agent implements it.
type network interface {
	add(namespace, name string) ([]net.IP, error)
	del(ctx context.Context, ips []net.IP)
}

// kubelet starts and stops the pods that are bound to the node.
type kubelet struct {
	client   kubernetes.Interface
	opts     *options
	informer cache.SharedIndexInformer
	queue    workqueue.TypedRateLimitingInterface[podKey]
	// endpoints writes the CiliumEndpoints of the sandboxes, as the agent of a real node does.
	endpoints *endpoints
	recorder  record.EventRecorder
	events    record.EventBroadcaster

	mu sync.Mutex
	// network is nil until the agent has started. Until then, pods wait unless they are on the host network.
	network network
	// sandboxes contains the sandbox of each running or stopping pod, from its CNI ADD to its CNI DEL. Key: the pod.
	// Only attachNetwork and the worker that holds a key change its entry; mu guards the map.
	sandboxes map[podKey]*sandbox
	// addAt contains the earliest time of the next CNI ADD of a pod without a sandbox. Key: the pod. A real kubelet
	// needs time to create the sandbox of a new pod, and does not retry a failed ADD at once. This node must not be
	// faster, even if an event of the watch queues the pod earlier.
	addAt map[podKey]time.Time
}

func newKubelet(c *clients, o *options) *kubelet {
	client := c.kube
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(l *metav1.ListOptions) {
		l.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", o.nodeName).String()
	}))
	events := record.NewBroadcaster()
	k := &kubelet{
		client:   client,
		opts:     o,
		informer: factory.Core().V1().Pods().Informer(),
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[podKey](50*time.Millisecond, 10*time.Second)),
		events:    events,
		recorder:  events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelet", Host: o.nodeName}),
		sandboxes: map[podKey]*sandbox{},
		addAt:     map[podKey]time.Time{},
	}
	k.endpoints = newEndpoints(c.cilium.CiliumV2(), o, k.pod)
	return k
}

// run starts and stops pods until ctx ends. It does not stop the pods that run then.
func (k *kubelet) run(ctx context.Context) error {
	k.events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: k.client.CoreV1().Events("")})
	defer k.events.Shutdown()
	_, err := k.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: k.enqueue,
		UpdateFunc: func(before, after any) {
			// A pod that was replaced while the watch was down shows up as an update.
			if b, ok := before.(*corev1.Pod); ok && b.UID != after.(*corev1.Pod).UID {
				k.enqueue(before)
			}
			k.enqueue(after)
		},
		DeleteFunc: func(obj any) {
			if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = unknown.Obj
			}
			k.enqueue(obj)
		},
	})
	if err != nil {
		return fmt.Errorf("add an event handler for the pods of node %s: %w", k.opts.nodeName, err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { k.informer.RunWithContext(ctx) })
	wg.Go(func() { k.endpoints.run(ctx) })
	for range kubeletWorkers {
		wg.Go(func() {
			for k.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	k.queue.ShutDown()
	wg.Wait()
	return nil
}

// waitForPods returns when the informer has listed the existing pods, or with errStopped when ctx ends.
func (k *kubelet) waitForPods(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), k.informer.HasSynced) {
		return errStopped
	}
	return nil
}

// runningPods returns the pods in the informer that run with addresses of the allocator. An earlier process started them.
func (k *kubelet) runningPods() []*corev1.Pod {
	var pods []*corev1.Pod
	for _, obj := range k.informer.GetStore().List() {
		pod := obj.(*corev1.Pod)
		if !pod.Spec.HostNetwork && pod.Status.Phase == corev1.PodRunning && len(pod.Status.PodIPs) > 0 {
			pods = append(pods, pod)
		}
	}
	return pods
}

// attachNetwork sets the network, so that pods that are not on the host network can start. Restored pods keep their
// sandboxes.
func (k *kubelet) attachNetwork(n network, restored []restoredPod) {
	k.mu.Lock()
	k.network = n
	keys := make([]podKey, 0, len(restored))
	for _, r := range restored {
		key := keyOf(r.pod)
		k.endpoints.begin(r.pod, podAddresses(r.pod))
		k.sandboxes[key] = &sandbox{ips: podAddresses(r.pod), held: r.held, started: startedAt(r.pod)}
		keys = append(keys, key)
	}
	k.mu.Unlock()
	// Queue the restored pods separately, because the informer does not have those that were deleted meanwhile.
	for _, key := range keys {
		k.queue.Add(key)
	}
	for _, obj := range k.informer.GetStore().List() {
		k.enqueue(obj)
	}
}

func (k *kubelet) enqueue(obj any) {
	if pod, ok := obj.(*corev1.Pod); ok {
		k.queue.Add(keyOf(pod))
	}
}

func (k *kubelet) next(ctx context.Context) bool {
	key, stop := k.queue.Get()
	if stop {
		return false
	}
	defer k.queue.Done(key)
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "pod", key.NamespacedName, "uid", key.uid)
	again, err := k.sync(klog.NewContext(ctx, logger), key)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		logger.Info("Cannot bring the pod to its desired state, trying again", "err", err)
		k.queue.AddRateLimited(key)
	default:
		k.queue.Forget(key)
		if again > 0 {
			k.queue.AddAfter(key, again)
		}
	}
	return true
}

// sync brings one pod to the state that its object requires. It returns the time until the next sync; zero if sync need not
// run again before the next event.
func (k *kubelet) sync(ctx context.Context, key podKey) (time.Duration, error) {
	pod, err := k.pod(key)
	if err != nil {
		return 0, err
	}
	k.mu.Lock()
	network, box := k.network, k.sandboxes[key]
	k.mu.Unlock()
	if pod != nil && !pod.Spec.HostNetwork && network == nil {
		return 0, nil // attachNetwork queues the pod again
	}
	switch {
	case pod == nil: // the object was deleted, for example by force
		return k.stop(ctx, key, box, k.opts.stopDelay), nil
	case pod.DeletionTimestamp != nil:
		return k.terminate(ctx, key, pod, box)
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return k.stop(ctx, key, box, 0), nil
	case box == nil:
		return k.create(ctx, key, pod, network)
	default:
		return 0, k.patchStatus(ctx, pod, runningStatus(pod, box, k.opts.nodeIPs))
	}
}

// pod returns the object of the pod from the informer; nil if it does not exist or has another UID.
func (k *kubelet) pod(key podKey) (*corev1.Pod, error) {
	obj, exists, err := k.informer.GetStore().GetByKey(key.NamespacedName.String())
	if err != nil {
		return nil, fmt.Errorf("look up pod %s: %w", key.NamespacedName, err)
	}
	if !exists {
		return nil, nil
	}
	if pod := obj.(*corev1.Pod); pod.UID == key.uid {
		return pod, nil
	}
	return nil, nil
}

// create creates the sandbox and starts the containers. If the CNI ADD is not due yet, create only returns the time until
// then. If the allocator returns an error, the pod waits in ContainerCreating with an event that contains the error, and
// create returns the time until the next attempt.
func (k *kubelet) create(ctx context.Context, key podKey, pod *corev1.Pod, network network) (time.Duration, error) {
	box := &sandbox{}
	if pod.Spec.HostNetwork {
		for _, s := range k.opts.nodeIPs {
			box.ips = append(box.ips, net.ParseIP(s))
		}
	} else {
		if left := k.addIn(key); left > 0 {
			return left, nil
		}
		ips, err := network.add(pod.Namespace, pod.Name)
		if err != nil {
			k.mu.Lock()
			k.addAt[key] = time.Now().Add(k.opts.sandboxRetry)
			k.mu.Unlock()
			k.recorder.Eventf(pod, corev1.EventTypeWarning, "FailedCreatePodSandBox",
				"Failed to create pod sandbox: plugin type=\"cilium-cni\" failed (add): unable to allocate IP via local cilium agent: %v", err)
			if err := k.patchStatus(ctx, pod, waitingStatus(pod, k.opts.nodeIPs)); err != nil {
				return 0, err
			}
			return k.opts.sandboxRetry, nil
		}
		box.ips, box.held = ips, ips
		k.endpoints.begin(pod, ips)
	}
	box.started = startedAt(pod)
	k.mu.Lock()
	k.sandboxes[key] = box
	delete(k.addAt, key)
	k.mu.Unlock()
	klog.FromContext(ctx).Info("Started the pod", "ips", box.ips)
	return 0, k.patchStatus(ctx, pod, runningStatus(pod, box, k.opts.nodeIPs))
}

// addIn returns the time until the CNI ADD of a pod. The first call for a pod starts the delay.
func (k *kubelet) addIn(key podKey) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, started := k.addAt[key]; !started {
		k.addAt[key] = time.Now().Add(k.opts.sandboxDelay)
	}
	return time.Until(k.addAt[key])
}

// stop stops the containers and, when they have stopped, removes the sandbox. It returns the remaining time; zero if
// the pod has no sandbox any more.
func (k *kubelet) stop(ctx context.Context, key podKey, box *sandbox, delay time.Duration) time.Duration {
	if box == nil {
		k.mu.Lock()
		delete(k.addAt, key)
		k.mu.Unlock()
		return 0
	}
	if box.stopAt.IsZero() {
		box.stopAt = time.Now().Add(delay)
	}
	if left := time.Until(box.stopAt); left > 0 {
		return left
	}
	k.mu.Lock()
	network := k.network
	delete(k.sandboxes, key)
	k.mu.Unlock()
	if len(box.held) > 0 {
		network.del(ctx, box.held)
	}
	k.endpoints.end(key)
	klog.FromContext(ctx).Info("Stopped the pod", "ips", box.ips)
	return 0
}

// terminate stops a pod, writes its final status and then deletes its object. The sandbox is therefore removed before the
// object.
func (k *kubelet) terminate(ctx context.Context, key podKey, pod *corev1.Pod, box *sandbox) (time.Duration, error) {
	delay := k.opts.stopDelay
	if grace := pod.DeletionGracePeriodSeconds; grace != nil {
		delay = min(delay, max(minGracePeriod, time.Duration(*grace)*time.Second))
	}
	if left := k.stop(ctx, key, box, delay); left > 0 {
		return left, nil
	}
	if err := k.patchStatus(ctx, pod, endedStatus(pod)); err != nil {
		return 0, err
	}
	if grace := pod.DeletionGracePeriodSeconds; grace != nil && *grace == 0 && len(pod.Finalizers) > 0 {
		return 0, nil // the object exists only because of its finalizers
	}
	err := k.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64),
		Preconditions:      metav1.NewUIDPreconditions(string(pod.UID)),
	})
	// A conflict means that the object with this name has another UID.
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return 0, fmt.Errorf("delete the object of the ended pod %s: %w", key.NamespacedName, err)
	}
	return 0, nil
}

// patchStatus writes the status of a pod if it differs. It does not write the status of a pod with another UID.
func (k *kubelet) patchStatus(ctx context.Context, pod *corev1.Pod, status corev1.PodStatus) error {
	_, _, _, err := statusutil.PatchPodStatus(ctx, k.client, pod.Namespace, pod.Name, pod.UID, pod.Status, status)
	if err == nil {
		return nil
	}
	// PatchPodStatus hides the type of the error, so read the pod. If it was deleted or replaced, no status must be
	// written.
	live, getErr := k.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(getErr) || (getErr == nil && live.UID != pod.UID) {
		return nil
	}
	return fmt.Errorf("write the pod's status: %w", err)
}
