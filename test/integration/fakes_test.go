// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// fakesScheduler is the schedulerName of pods that the fakes place.
const fakesScheduler = "fakes"

// fakes are nodes without an agent and a kubelet, for tests with many nodes, and for tests that decide when a terminating
// pod is deleted. They do the work of scheduler, agent and kubelet that the controller sees: they write the claim, bind the
// pod, run it and delete it.
type fakes struct {
	e      *env
	api    kubernetes.Interface
	writer *ciliumpool.Writer
	queue  workqueue.TypedDelayingInterface[types.NamespacedName]
	pods   toolscache.SharedIndexInformer

	mu sync.Mutex
	// nodes are the names of the fake nodes on which the scheduler places pods.
	nodes map[string]bool
	// agents are the names of the fake nodes whose agents answer probes.
	agents map[string]bool
	// addrs contains the address that bind claimed or found for each pod. Key: the UID of the pod. A pod that the scheduler
	// bound is not in addrs; run gives it the address of its entry.
	addrs map[types.UID]string
	// place chooses the node of a new pod that the fakes bind.
	place func(pod string) string
	// keepTerminating is true while terminating pods keep running.
	keepTerminating bool
	// gone contains the last time at which the watch showed that a pod was deleted. Key: the name of the pod.
	gone map[string]time.Time
}

// fakeSubnet returns the subnet of the n-th fake node.
func fakeSubnet(n int) string { return fmt.Sprintf("10.77.%d.0/24", n) }

func fakeName(n int) string { return fmt.Sprintf("fake-%d", n) }

// keepNodesReady are flags of the control plane with which nodes without a kubelet stay ready for longer than any test
// lasts. On a node that is not ready, no cooldown ends and no entry is withdrawn.
var keepNodesReady = []string{"--node-monitor-grace-period=1h"}

// fakeNodes creates the given number of ready nodes, fake-0, fake-1 and so on, and starts to serve pods (see serves). place
// chooses the node of each pod that the fakes bind. The cluster has to be started with keepNodesReady.
func (e *env) fakeNodes(nodes int, place func(pod string) string) *fakes {
	e.t.Helper()
	cfg, err := e.RESTConfig(cluster.Admin)
	e.must(err)
	cfg.QPS, cfg.Burst = 5000, 10000
	ctx, cancel := context.WithCancel(context.Background())
	fast, err := client.NewWithWatch(cfg, client.Options{Scheme: e.api.Scheme()})
	e.must(err)
	f := &fakes{
		e: e, api: kubernetes.NewForConfigOrDie(cfg), place: place,
		writer: ciliumpool.NewWriter(ctx, ciliumpool.New(fast), unknown),
		queue:  workqueue.NewTypedDelayingQueue[types.NamespacedName](),
		nodes:  map[string]bool{}, agents: map[string]bool{}, addrs: map[types.UID]string{}, gone: map[string]time.Time{},
	}
	for n := range nodes {
		name := fakeName(n)
		cn := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
		cn.Spec.IPAM.PodCIDRs = []string{fakeSubnet(n)}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
		e.create(node, cn)
		e.must(f.report(within(e.t), name))
	}
	f.pods = informers.NewSharedInformerFactory(f.api, 0).Core().V1().Pods().Informer()
	add := func(obj any) {
		if p := obj.(*corev1.Pod); f.serves(p) {
			f.queue.Add(types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
		}
	}
	_, err = f.pods.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    add,
		UpdateFunc: func(_, obj any) { add(obj) },
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			f.mu.Lock()
			f.gone[obj.(*corev1.Pod).Name] = time.Now()
			f.mu.Unlock()
		},
	})
	e.must(err)
	var running sync.WaitGroup
	running.Go(func() { f.pods.Run(ctx.Done()) })
	running.Go(func() {
		for ctx.Err() == nil {
			f.answer(ctx, fast)
		}
	})
	for range 40 {
		running.Go(func() {
			for {
				key, shutdown := f.queue.Get()
				if shutdown {
					return
				}
				f.serve(ctx, key)
				f.queue.Done(key)
			}
		})
	}
	e.t.Cleanup(func() {
		f.queue.ShutDown()
		cancel()
		running.Wait()
		f.writer.Wait()
	})
	return f
}

// serves reports whether the fakes serve a pod: the fakes place the pod, or it is bound to a node that addNode created.
func (f *fakes) serves(p *corev1.Pod) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return p.Spec.SchedulerName == fakesScheduler || f.nodes[p.Spec.NodeName]
}

// addNode creates a fake node on which the scheduler can place pods. The controller assigns a subnet to it.
func (f *fakes) addNode(ctx context.Context, node *corev1.Node) error {
	f.mu.Lock()
	f.nodes[node.Name] = true
	f.mu.Unlock()
	created, err := f.api.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create node %s: %w", node.Name, err)
	}
	created.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("8Gi")}
	created.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
	// Controllers of Kubernetes update the node at once. Without a version, this write does not conflict with theirs.
	created.ResourceVersion = ""
	if _, err := f.api.CoreV1().Nodes().UpdateStatus(ctx, created, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update the status of node %s: %w", node.Name, err)
	}
	if err := f.e.api.Create(ctx, &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}); err != nil {
		return fmt.Errorf("create CiliumNode %s: %w", node.Name, err)
	}
	return f.report(ctx, node.Name)
}

// report writes the first report of the agent of a node. From then on, the fakes answer the probes of that CiliumNode.
func (f *fakes) report(ctx context.Context, node string) error {
	f.mu.Lock()
	f.agents[node] = true
	f.mu.Unlock()
	return report(ctx, f.e.api, node)
}

// answer removes probes from the status of the CiliumNodes in f.agents, as the reports of their agents do. It returns when
// the watch cannot be started or ends, or when a write fails with an error other than a conflict or NotFound. The caller
// calls it again.
func (f *fakes) answer(ctx context.Context, api client.WithWatch) {
	watching, err := api.Watch(ctx, &ciliumv2.CiliumNodeList{})
	if err != nil {
		// The API server may be restarting.
		time.Sleep(100 * time.Millisecond)
		return
	}
	defer watching.Stop()
	for event := range watching.ResultChan() {
		cn, ok := event.Object.(*ciliumv2.CiliumNode)
		if !ok || event.Type == watch.Deleted {
			continue
		}
		f.mu.Lock()
		answers := f.agents[cn.Name]
		f.mu.Unlock()
		probes := ciliumpool.FromCiliumNode(cn).Probes
		if !answers || len(probes) == 0 {
			continue
		}
		for _, probe := range probes {
			delete(cn.Status.IPAM.Used, probe.String())
			delete(cn.Status.IPAM.ReleaseIPs, probe.String())
		}
		// After a conflict the next event has the newer version.
		if err := api.Status().Update(ctx, cn); err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return
		}
	}
}

// report writes the first agent report of a node on which no agent runs. The only used address in the report is one of the
// node itself, outside all subnets. Without a report, the use of the addresses of the node is unknown.
func report(ctx context.Context, api client.Client, node string) error {
	patch := client.RawPatch(types.MergePatchType, []byte(`{"status":{"ipam":{"used":{"192.0.2.1":{"owner":"router"}}}}}`))
	if err := api.Status().Patch(ctx, &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: node}}, patch); err != nil {
		return fmt.Errorf("write the first report of node %s: %w", node, err)
	}
	return nil
}

// serve does the next step for a pod: it ends, binds or runs the pod. It retries after all errors except conflicts and
// missing objects.
func (f *fakes) serve(ctx context.Context, key types.NamespacedName) {
	obj, exists, err := f.pods.GetStore().GetByKey(key.String())
	if err != nil || !exists || !f.serves(obj.(*corev1.Pod)) {
		return
	}
	pod := obj.(*corev1.Pod)
	switch {
	case pod.DeletionTimestamp != nil:
		f.mu.Lock()
		keep := f.keepTerminating
		f.mu.Unlock()
		if keep && pod.Spec.NodeName != "" {
			return
		}
		err = f.end(ctx, pod)
	case pod.Spec.NodeName == "":
		err = f.bind(ctx, pod)
	case pod.Status.Phase != corev1.PodRunning:
		err = f.run(ctx, pod)
	}
	if err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		f.queue.AddAfter(key, 50*time.Millisecond)
	}
}

func (f *fakes) end(ctx context.Context, pod *corev1.Pod) error {
	now := metav1.NewDeleteOptions(0)
	now.Preconditions = metav1.NewUIDPreconditions(string(pod.UID))
	return f.api.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, *now)
}

// errReleasing means that a pod is not bound yet, because its FixedIP is being deleted.
var errReleasing = errors.New("the former address is being released")

// errNoEntry means that a pod was bound to a node whose pool has no entry for it.
var errNoEntry = errors.New("the pool has no entry for the pod")

func (f *fakes) bind(ctx context.Context, pod *corev1.Pod) error {
	if r := f.e.witness.Record(pod.Namespace, pod.Name); r != nil && r.DeletionTimestamp != nil {
		return errReleasing
	}
	f.mu.Lock()
	node := f.place(pod.Name)
	f.mu.Unlock()
	owner := metav1.GetControllerOfNoCopy(pod)
	entry := pool.OwnedEntry(pod.Namespace, pod.Name, owner.Kind, owner.Name)
	var chosen netip.Addr
	err := f.writer.Write(ctx, ciliumpool.WriteRequest{Node: node, Decide: func(n pool.NodePool) ([]pool.EntryChange, error) {
		for a, e := range n.Entries {
			if e.Owner() == entry.Owner() {
				chosen = a
				return nil, nil
			}
		}
		for _, a := range slices.Backward(slices.Collect(address.Up(n.Subnets[0]))) {
			if _, exists := n.Entries[a]; !exists {
				chosen = a
				break
			}
		}
		return n.Claim([]netip.Addr{chosen}, entry)
	}})
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.addrs[pod.UID] = chosen.String()
	f.mu.Unlock()
	return f.api.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{})
}

// run does the work of agent and kubelet: the pod gets the address of its entry.
func (f *fakes) run(ctx context.Context, pod *corev1.Pod) error {
	f.mu.Lock()
	addr := f.addrs[pod.UID]
	f.mu.Unlock()
	if addr == "" {
		var cn ciliumv2.CiliumNode
		if err := f.e.api.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, &cn); err != nil {
			return err
		}
		for ip, e := range cn.Spec.IPAM.Pool {
			if e.Owner == pool.OwnerKey(pod.Namespace, pod.Name) {
				addr = ip
			}
		}
		if addr == "" {
			return errNoEntry
		}
	}
	pod = pod.DeepCopy()
	pod.Status.Phase = corev1.PodRunning
	pod.Status.PodIP = addr
	pod.Status.PodIPs = []corev1.PodIP{{IP: addr}}
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
	_, err := f.api.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}

// placing sets the function that chooses the nodes of new pods, and returns the previous one.
func (f *fakes) placing(place func(pod string) string) (before func(pod string) string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, f.place = f.place, place
	return before
}

// keepPods sets whether terminating pods keep running. If keep is false, it also deletes the terminating pods that the fakes
// placed.
func (f *fakes) keepPods(keep bool) {
	f.mu.Lock()
	f.keepTerminating = keep
	f.mu.Unlock()
	if keep {
		return
	}
	for _, obj := range f.pods.GetStore().List() {
		if p := obj.(*corev1.Pod); p.Spec.SchedulerName == fakesScheduler && p.DeletionTimestamp != nil {
			f.queue.Add(types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
		}
	}
}

// endByNode deletes all terminating pods, one node after the other, and all pods of a node at once.
func (f *fakes) endByNode(t *testing.T) {
	byNode := map[string][]*corev1.Pod{}
	for _, obj := range f.pods.GetStore().List() {
		if p := obj.(*corev1.Pod); p.DeletionTimestamp != nil {
			byNode[p.Spec.NodeName] = append(byNode[p.Spec.NodeName], p)
		}
	}
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		var ending sync.WaitGroup
		for _, p := range byNode[node] {
			ending.Go(func() {
				if err := f.end(t.Context(), p); err != nil {
					t.Errorf("end pod %s on node %s: %v", p.Name, node, err)
				}
			})
		}
		ending.Wait()
	}
}

// goneAt returns the last time at which the watch showed that a pod with this name was deleted; false if the watch
// has shown no such deletion.
func (f *fakes) goneAt(pod string) (time.Time, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, ok := f.gone[pod]
	return at, ok
}

// placedByFakes lets the fakes place the pods of a StatefulSet.
func placedByFakes(s *appsv1.StatefulSet) { s.Spec.Template.Spec.SchedulerName = fakesScheduler }

// onFake returns a function that places all pods on the n-th fake node.
func onFake(n int) func(string) string { return func(string) string { return fakeName(n) } }

// startFakes starts a cluster with a controller and fake nodes only.
func startFakes(t *testing.T, nodes int, place func(string) string, args ...string) (*env, *fakes) {
	t.Helper()
	e := start(t, options{noScheduler: true, controlPlaneArgs: keepNodesReady, controllerArgs: append([]string{"--cluster-pool-ipv4-cidr=10.77.0.0/16", "--address-cooldown=1s", "--enable-leader-election=false"}, args...)})
	return e, e.fakeNodes(nodes, place)
}
