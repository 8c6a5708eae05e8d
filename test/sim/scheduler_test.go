// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumconfigmap"
	"fixedip.io/fixedip/ipam/store/serverversion"
	"fixedip.io/fixedip/plugins/apis/config"
	"fixedip.io/fixedip/plugins/fixedip"
)

// usedBy matches the part of a message that names a pod that uses an address. Messages of package binder contain "in use by
// db/a-0", those of package pool "in use by pod db/a-0".
var usedBy = regexp.MustCompile(`used? by (?:pod )?([^\s/"]+/[^\s;,)]+)(?:[;,)]|$)`)

// flushInterval is the time after which a pod is tried again if no event requeues it.
const flushInterval = 5 * time.Minute

// scheduler is one process of the scheduler: the real plugin, in a modelled queue and cycle.
type scheduler struct {
	*process
	// The embedded interface is nil: a method that the model does not implement panics.
	framework.Handle
	factory informers.SharedInformerFactory
	clients clients
	plugin  *fixedip.Plugin
	// pods are the pods to place. Key: the UID.
	pods map[types.UID]*pending
	// activated are the UIDs of the pods that goroutines of the plugin have activated. w.mu guards it.
	activated []types.UID
	// snapshot contains the nodes and pods that the scheduler knew when the last scheduling cycle began.
	snapshot []fwk.NodeInfo
}

// pending is a pod to place.
type pending struct {
	pod *corev1.Pod
	// due is the earliest time of the next try.
	due      time.Time
	attempts int
	// binding is true while the pod is in its binding cycle; requeued is true if an event has requeued the pod since its last
	// try began.
	binding, requeued bool
	// nominated is the node that PostFilter nominated; empty: none.
	nominated string
	// refused is true if the plugin refused the pod, or a node for the pod, in the last cycle, and the pod was not placed. A
	// new or changed node then requeues the pod only if a hint of the plugin asks for that. If refused is false, every new or
	// changed node requeues the pod.
	refused bool
	// starved is true if no event had requeued the pod when its last cycle ended, so that it waits for an event or for the
	// flush.
	starved bool
}

// clients are the clients of the scheduler that the plugin uses.
type clients struct {
	kubernetes.Interface
	core typedcorev1.CoreV1Interface
}

func (c clients) CoreV1() typedcorev1.CoreV1Interface { return c.core }

func (clients) Discovery() discovery.DiscoveryInterface { return discoveryClient{} }

// discoveryClient only serves the version of the API server.
type discoveryClient struct{ discovery.DiscoveryInterface }

func (discoveryClient) ServerVersion() (*version.Info, error) {
	return &version.Info{GitVersion: fmt.Sprintf("v1.%d.0", serverversion.Own)}, nil
}

func (w *world) startScheduler() *scheduler {
	s := &scheduler{process: w.newProcess("scheduler"), pods: map[types.UID]*pending{}}
	core, err := typedcorev1.NewForConfig(s.config())
	must(err)
	s.clients.core = core
	s.factory = informers.NewSharedInformerFactory(s.clients, 0)
	for _, k := range w.setup.schedulerKinds() {
		s.factory.InformerFor(k.make(), func(kubernetes.Interface, time.Duration) toolscache.SharedIndexInformer { return s.process.informer(k) })
	}
	args := &config.FixedIPArgs{
		Configuration: "of the run",
		CiliumConfig:  ciliumconfigmap.Default,
		ClaimTimeout:  &metav1.Duration{Duration: 10 * time.Second},
		ClaimQPS:      ptr.To[float32](100),
		ClaimBurst:    ptr.To[int32](200),
	}
	plugin, err := fixedip.FactoryOver(s.newCaches, func(string) ([]byte, error) { return yaml.Marshal(w.setup.settings()) })(klog.NewContext(s.ctx, klog.Logger{}), args, s)
	must(err)
	s.plugin = plugin.(*fixedip.Plugin)
	hints, err := s.plugin.EventsToRegister(s.ctx)
	must(err)
	_, err = s.process.informer(pods).AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { s.saw(o.(*corev1.Pod)) },
		UpdateFunc: func(_, o any) { s.saw(o.(*corev1.Pod)) },
		DeleteFunc: func(o any) { s.forget(o) },
	})
	must(err)
	_, err = s.process.informer(nodes).AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			for _, p := range s.pods {
				if hint, err := hints[0].QueueingHintFn(klog.Logger{}, p.pod, nil, o); !p.refused || err != nil || hint == fwk.Queue {
					s.requeue(p)
				}
			}
		},
		UpdateFunc: func(before, after any) {
			for _, p := range s.pods {
				if hint, err := hints[1].QueueingHintFn(klog.Logger{}, p.pod, before, after); !p.refused || err != nil || hint == fwk.Queue {
					s.requeue(p)
				}
			}
		},
	})
	must(err)
	w.schedulers = append(w.schedulers, s)
	w.waitIdle()
	return s
}

// String returns the name of the process.
func (s *scheduler) String() string { return s.name }

func (s *scheduler) ClientSet() kubernetes.Interface                        { return s.clients }
func (s *scheduler) KubeConfig() *rest.Config                               { return s.config() }
func (s *scheduler) SharedInformerFactory() informers.SharedInformerFactory { return s.factory }
func (s *scheduler) SnapshotSharedLister() framework.SharedLister           { return snapshot{s} }

// Activate stores the pods for requeueActivated.
func (s *scheduler) Activate(_ klog.Logger, activated map[string]*corev1.Pod) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	for _, pod := range activated {
		s.activated = append(s.activated, pod.UID)
	}
}

// requeueActivated requeues the pods that were activated since the last call.
func (s *scheduler) requeueActivated() {
	s.w.mu.Lock()
	activated := s.activated
	s.activated = nil
	s.w.mu.Unlock()
	for _, uid := range activated {
		if p := s.pods[uid]; p != nil {
			s.requeue(p)
		}
	}
}

func (s *scheduler) requeue(p *pending) {
	p.requeued = true
	if !p.binding && p.due.After(time.Now()) {
		p.due = time.Now()
	}
}

func (s *scheduler) saw(pod *corev1.Pod) {
	switch p := s.pods[pod.UID]; {
	case pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || ended(pod) || pod.Spec.SchedulerName != schedulerName:
		if p != nil && !p.binding {
			delete(s.pods, pod.UID)
		}
	case p == nil:
		s.pods[pod.UID] = &pending{pod: pod, due: time.Now()}
	default:
		p.pod = pod
	}
}

func (s *scheduler) forget(o any) {
	if t, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		o = t.Obj
	}
	if uid := o.(*corev1.Pod).UID; s.pods[uid] != nil && !s.pods[uid].binding {
		delete(s.pods, uid)
	}
}

// ready returns the pods that may be tried now, and the earliest time at which another pod may be tried; zero if there is
// none.
func (s *scheduler) ready(now time.Time) (ready []*pending, next time.Time) {
	for _, p := range s.pods {
		switch {
		case p.binding:
		case !p.due.After(now):
			ready = append(ready, p)
		case next.IsZero() || p.due.Before(next):
			next = p.due
		}
	}
	slices.SortFunc(ready, func(a, b *pending) int {
		if c := a.due.Compare(b.due); c != 0 {
			return c
		}
		return compareText(string(a.pod.UID), string(b.pod.UID))
	})
	return ready, next
}

// cycle runs the scheduling cycle of one pod. The binding cycle runs in its own goroutine.
func (s *scheduler) cycle(p *pending) {
	pod, state := p.pod.DeepCopy(), framework.NewCycleState()
	p.attempts++
	p.requeued, p.refused, p.starved, p.nominated = false, false, false, ""
	s.snapshot = s.takeSnapshot()
	node, st := s.choose(p, state, pod)
	if st.IsSuccess() {
		s.meanwhile("Reserve")
		st = s.plugin.Reserve(s.ctx, state, pod, node)
		p.refused = !st.IsSuccess()
		if st.IsSuccess() {
			// The scheduler's own plugins come before FixedIP in PreBind, and VolumeBinding is one of them.
			st = s.w.provision(pod, node)
		}
		if st.IsSuccess() {
			s.w.logf("%s places pod %s on %s", s, keyOf(pod), node)
			p.binding = true
			s.meanwhile("PreBind")
			go s.bind(p, pod, state, node)
			return
		}
		s.plugin.Unreserve(s.ctx, state, pod, node)
	}
	s.w.logf("%s can't place pod %s: %s", s, keyOf(pod), st.Message())
	for _, named := range usedBy.FindAllStringSubmatch(st.Message(), -1) {
		s.w.noteMisassigned(named[1])
	}
	s.condition(pod, st, p.nominated)
	s.again(p, st)
}

// condition writes the condition PodScheduled and the nominated node into the status of a pod that was not placed, as the
// scheduler does after such a cycle. If the cycle ended with an error, condition writes nothing.
func (s *scheduler) condition(pod *corev1.Pod, st *fwk.Status, nominated string) {
	if st.Code() == fwk.Error {
		return
	}
	change(s.w.server, pods, keyOf(pod), s.String(), func(now *corev1.Pod) {
		if now.UID == pod.UID && now.Spec.NodeName == "" {
			podutil.UpdatePodCondition(&now.Status, &corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable})
			now.Status.NominatedNodeName = nominated
		}
	})
}

// again sets the time of the next try of a pod whose last cycle ended with st.
func (s *scheduler) again(p *pending, st *fwk.Status) {
	backoff := min(time.Second<<min(p.attempts-1, 4), 10*time.Second)
	// Wait for the goroutines of the plugin that activate pods, so that the order is the same in each run.
	synctest.Wait()
	s.requeueActivated()
	switch {
	case p.requeued || st.Code() == fwk.Error:
		p.due = time.Now().Add(backoff)
	default:
		p.due, p.starved = time.Now().Add(flushInterval), true
	}
}

// choose runs the extension points up to the choice of a node. admits models the other plugins. choose returns the name of the
// node, or the status that refuses the pod. It also sets refused and nominated of p.
func (s *scheduler) choose(p *pending, state fwk.CycleState, pod *corev1.Pod) (string, *fwk.Status) {
	infos := s.snapshot
	s.meanwhile("PreFilter")
	narrowed, st := s.plugin.PreFilter(s.ctx, state, pod, infos)
	skip := st.IsSkip()
	if !st.IsSuccess() && !skip {
		p.refused = true
		return "", st
	}
	why := framework.NewDefaultNodeToStatus()
	var fit []fwk.NodeInfo
	for _, n := range infos {
		name := n.Node().Name
		if narrowed != nil && !narrowed.AllNodes() && !narrowed.NodeNames.Has(name) {
			continue
		}
		if st := s.admits(pod, n); !st.IsSuccess() {
			why.Set(name, st)
			continue
		}
		if !skip {
			s.meanwhile("Filter")
			if st := s.plugin.Filter(s.ctx, state, pod, n); !st.IsSuccess() {
				p.refused = true
				why.Set(name, st)
				continue
			}
		}
		fit = append(fit, n)
	}
	if len(fit) == 0 {
		result, st := s.plugin.PostFilter(s.ctx, state, pod, why)
		if result != nil {
			p.nominated = result.NominatedNodeName
		}
		return "", fwk.NewStatus(fwk.Unschedulable, st.Message())
	}
	best, most := fit[0], int64(-1)
	if st := s.plugin.PreScore(s.ctx, state, pod, fit); st.IsSkip() || skip {
		best = fit[s.w.choose(len(fit))]
	} else {
		for _, n := range fit {
			if score, _ := s.plugin.Score(s.ctx, state, pod, n); score > most {
				best, most = n, score
			}
		}
	}
	return best.Node().Name, nil
}

// bind runs the binding cycle.
func (s *scheduler) bind(p *pending, pod *corev1.Pod, state fwk.CycleState, node string) {
	st := s.plugin.PreBindPreFlight(s.ctx, state, pod, node)
	if !st.IsSkip() && st.IsSuccess() {
		st = s.plugin.PreBind(s.ctx, state, pod, node)
	}
	if st.IsSuccess() || st.IsSkip() {
		err := s.clients.core.Pods(pod.Namespace).Bind(s.ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: node},
		}, metav1.CreateOptions{})
		st = fwk.AsStatus(err)
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.bindingResults = append(s.w.bindingResults, bindingResult{s, p, pod, state, node, st})
}

// bindingResult is a binding cycle that has ended, with its status.
type bindingResult struct {
	s     *scheduler
	p     *pending
	pod   *corev1.Pod
	state fwk.CycleState
	node  string
	st    *fwk.Status
}

// finish processes the end of a binding cycle. The world calls it, because only the world may change the queue.
func (l bindingResult) finish() {
	if l.s.dead() {
		return
	}
	l.p.binding = false
	if l.st.IsSuccess() {
		l.s.plugin.PostBind(l.s.ctx, l.state, l.pod, l.node)
		delete(l.s.pods, l.pod.UID)
		return
	}
	l.s.w.logf("%s fails to bind pod %s: %s", l.s, keyOf(l.pod), l.st.Message())
	l.s.plugin.Unreserve(context.Background(), l.state, l.pod, l.node)
	o, exists, _ := l.s.process.informer(pods).indexer.GetByKey(keyOf(l.pod))
	if !exists || o.(*corev1.Pod).UID != l.pod.UID || o.(*corev1.Pod).Spec.NodeName != "" || o.(*corev1.Pod).DeletionTimestamp != nil {
		delete(l.s.pods, l.pod.UID)
		return
	}
	// After a failed binding cycle the pod is tried again when the backoff is over, even without an event.
	l.p.due = time.Now().Add(min(time.Second<<min(l.p.attempts-1, 4), 10*time.Second))
}

// TestUsedBy checks which pods usedBy finds in the messages of a scheduler about addresses in use.
func TestUsedBy(t *testing.T) {
	inUse := func(user string) *pool.Blocker {
		return &pool.Blocker{Addr: netip.MustParseAddr("10.1.0.6"), Node: "a", Reason: pool.InUseByPod, Who: user, Requester: "db/c-0"}
	}
	for name, c := range map[string]struct {
		message string
		want    []string
	}{
		"status of a pod":                     {"IP 10.1.0.6 on node a is still in use by db/job1; the pod can be placed there when that pod is deleted or has ended", []string{"db/job1"}},
		"report of an agent":                  {"the agent of node a reports IP 10.1.0.6 as used by db/job1; the pod can be placed there when the agent no longer reports that", []string{"db/job1"}},
		"two slots":                           {"10.1.0.6 on node a (the agent there still reports the address as used by db/job1), 10.1.0.7 on node a (the agent there still reports the address as used by db/job2)", []string{"db/job1", "db/job2"}},
		"blocker with advice":                 {"requests 10.1.0.6 (annotation): " + inUse("db/job1").Message(), []string{"db/job1"}},
		"blocker of a claim":                  {"node(s) couldn't give the pod an address: " + inUse("db/job1").Error(), []string{"db/job1"}},
		"blocker: the former pod":             {inUse("db/c-0").Message(), nil},
		"blocker: a pod of another namespace": {inUse("other/job1").Message(), nil},
		"blocker: an unknown pod":             {inUse(pool.UnknownUser).Message(), nil},
		"blocker: the node itself":            {inUse("router").Message(), nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, named := range usedBy.FindAllStringSubmatch(c.message, -1) {
				got = append(got, named[1])
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("message %q: got pods %q, want %q", c.message, got, c.want)
			}
		})
	}
}
