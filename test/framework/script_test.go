// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/watch"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	internalqueue "k8s.io/kubernetes/pkg/scheduler/backend/queue"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/profile"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/configuration"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/store/ciliumconfigmap"
	"fixedip.io/fixedip/plugins/apis/config"
	"fixedip.io/fixedip/plugins/fixedip"
)

// row is one test.
type row struct {
	// families is ipFamilies of the scheduler; IPv4 only if nil.
	families []string
	// failover is the failover policy of the scheduler, Wait if empty, and movable its allowAddressMigration.
	failover string
	movable  bool
	// preFlight is true if the scheduler calls PreBindPreFlight, which is behind a feature gate in Kubernetes v1.34.
	preFlight bool
	// world creates the cluster before the scheduler starts.
	world func(*scene)
	steps []step
}

// step is a call of an extension point (at), a wait until the pods have certain outcomes (rest), or, with neither, a
// change of the cluster (before).
//
// The steps of a row happen in their order. A call that the next step does not name passes, and must not change any stored
// object.
type step struct {
	// at is the extension point that is called, for the pod named pod, or web-0 if pod is empty.
	at  point
	pod string
	// before changes the cluster before the point runs, or after the wait.
	before func(*scene)
	// sabotage applies to the points of the saboteur.
	sabotage
	// answer is the expected status of the point as show formats it; "Success" if empty. See player.matches. It is ignored if
	// the step sabotages the point.
	answer string
	// then changes want to the objects that should be stored after the point.
	then func(s *scene, want *stored)

	// rest waits until the row's scheduler has exactly these pods with these outcomes, and then compares the stored objects.
	// Key: the name of the pod. Value: its outcome; see matches.
	rest map[string]string
	// when delays the end of rest until it returns true. Calls of extension points pass meanwhile.
	when func(*scene) bool
}

// show formats a status as the tables do: its code and its message.
func show(s *fwk.Status) string {
	if s.Message() == "" {
		return s.Code().String()
	}
	return s.Code().String() + ": " + s.Message()
}

// outcome returns the node of a scheduled pod as "on NODE", or the reason and message of the condition PodScheduled; empty
// if the pod does not have that condition.
func outcome(p *corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		switch {
		case c.Type != corev1.PodScheduled:
		case c.Status == corev1.ConditionTrue:
			return "on " + p.Spec.NodeName
		default:
			return c.Reason + ": " + c.Message
		}
	}
	return ""
}

// play runs the rows one after the other, each in its own namespace with its own scheduler and nodes.
func play(t *testing.T, rows map[string]row) {
	for name, r := range rows {
		t.Run(name, func(t *testing.T) {
			if r.preFlight {
				featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.NominatedNodeNameForExpectation, true)
			}
			s := newScene(t, "row-"+string(uuid.NewUUID())[:8])
			r.world(s)
			p := &player{scene: s, steps: r.steps, pods: map[string]*corev1.Pod{}}
			p.play(p.start(r))
		})
	}
}

// player runs one row.
type player struct {
	*scene
	gate  *gate
	steps []step
	// pods contains the pods of the row's scheduler, as a watch shows them. Key: the name.
	pods map[string]*corev1.Pod
	// log contains the calls of extension points. It is printed if the row fails.
	log []string
}

// start starts the scheduler of a row, which stops with the test, and returns the events of the namespace's pods.
func (p *player) start(r row) <-chan watch.Event {
	p.t.Helper()
	pods, err := p.api.Watch(p.t.Context(), &corev1.PodList{}, client.InNamespace(p.ns))
	p.must(err)

	opened, open := context.WithCancel(context.Background())
	p.gate = &gate{calls: make(chan *call), opened: opened}
	ctx, cancel := context.WithCancel(context.Background())
	cfg := rest.CopyConfig(schedulerUser)
	cfg.WrapTransport = p.line.over
	clients, err := kubernetes.NewForConfig(cfg)
	p.must(err)
	dynamicClients, err := dynamic.NewForConfig(cfg)
	p.must(err)
	informers := scheduler.NewInformerFactory(clients, 0)
	core := informers.Core().V1()
	p.cached, p.cachedNodes, p.cachedQuotas = core.Pods().Lister(), core.Nodes().Lister(), core.ResourceQuotas().Lister()
	dynamicInformers := dynamicinformer.NewFilteredDynamicSharedInformerFactory(dynamicClients, 0, metav1.NamespaceAll, nil)
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: clients.EventsV1()})
	cfg = rest.CopyConfig(cfg)
	// The scheduler program configures this content type, too.
	cfg.ContentType, cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf", ""
	sched, err := scheduler.New(ctx, clients, informers, dynamicInformers, profile.NewRecorderFactory(broadcaster),
		scheduler.WithKubeConfig(cfg),
		scheduler.WithProfiles(p.profile(r)),
		scheduler.WithPodInitialBackoffSeconds(1), scheduler.WithPodMaxBackoffSeconds(1),
		scheduler.WithFrameworkOutOfTreeRegistry(frameworkruntime.Registry{
			fixedip.Name: watchedFactory(p.gate, func(made *fixedip.Plugin) { p.plugin = made }),
			saboteurName: func(_ context.Context, _ runtime.Object, h framework.Handle) (framework.Plugin, error) {
				return &saboteur{gate: p.gate, handle: h}, nil
			},
		}))
	p.must(err)
	queue := &ownedQueue{sched.SchedulingQueue}
	sched.SchedulingQueue, sched.NextPod = queue, queue.Pop
	p.must(broadcaster.StartRecordingToSinkWithContext(ctx))
	informers.Start(ctx.Done())
	dynamicInformers.Start(ctx.Done())
	informers.WaitForCacheSync(ctx.Done())
	p.must(sched.WaitForHandlersSync(ctx))
	done := make(chan struct{})
	p.t.Cleanup(func() {
		pods.Stop()
		open()
		p.line.release()
		cancel()
		<-done
		broadcaster.Shutdown()
		informers.Shutdown()
		dynamicInformers.Shutdown()
	})
	// Until the cache of the plugin is complete, the plugin refuses every pod with a fixed address, which no row expects.
	p.until("the cache of the plugin is complete", func() bool {
		_, status := p.plugin.PreFilter(ctx, framework.NewCycleState(), p.probe("probe-0"), nil)
		return status.IsSuccess()
	})
	go func() {
		defer close(done)
		sched.Run(ctx)
	}()
	return pods.ResultChan()
}

// profile returns the default profile with the plugin, and with the saboteur in place of the default binder.
func (p *player) profile(r row) schedulerconfig.KubeSchedulerProfile {
	p.t.Helper()
	c, err := latest.Default()
	p.must(err)
	prof := c.Profiles[0]
	prof.SchedulerName = p.ns
	prof.Plugins.MultiPoint.Enabled = append(prof.Plugins.MultiPoint.Enabled,
		schedulerconfig.Plugin{Name: fixedip.Name}, schedulerconfig.Plugin{Name: saboteurName})
	prof.Plugins.Bind.Disabled = []schedulerconfig.Plugin{{Name: "DefaultBinder"}}
	if r.families == nil {
		r.families = []string{"IPv4"}
	}
	prof.PluginConfig = append(prof.PluginConfig, schedulerconfig.PluginConfig{Name: fixedip.Name, Args: &config.FixedIPArgs{
		Configuration: p.settings(configuration.Configuration{
			TypeMeta:   metav1.TypeMeta{APIVersion: configuration.Version, Kind: configuration.Kind},
			IPFamilies: r.families,
			// Nothing in these tests reads the settings of subnets.
			Subnets:               configuration.Subnets{Source: configuration.FromNode},
			Failover:              v1alpha1.Failover(r.failover),
			AllowAddressMigration: &r.movable,
			SchedulerNames:        []string{p.ns},
			Workloads:             []identity.Kind{{APIGroup: "example.com", Kind: "Flock", Identity: identity.Slot}},
		}),
		CiliumConfig: ciliumconfigmap.Default,
		ClaimTimeout: &metav1.Duration{Duration: stepTimeout},
		ClaimQPS:     ptr.To[float32](100),
		ClaimBurst:   ptr.To[int32](200),
	}})
	return prof
}

// settings writes the settings into a file and returns its path.
func (p *player) settings(c configuration.Configuration) string {
	p.t.Helper()
	data, err := yaml.Marshal(c)
	p.must(err)
	path := filepath.Join(p.t.TempDir(), "config.yaml")
	p.must(os.WriteFile(path, data, 0o600))
	return path
}

// ownedQueue copies pods on their way into and out of the scheduling queue, because of a data race of Kubernetes v1.34
// that concerns every pod that cannot be placed (kubernetes/kubernetes#139340).
type ownedQueue struct{ internalqueue.SchedulingQueue }

func (q *ownedQueue) Pop(logger klog.Logger) (*framework.QueuedPodInfo, error) {
	pod, err := q.SchedulingQueue.Pop(logger)
	if pod == nil || err != nil {
		return pod, err
	}
	return pod.DeepCopy(), nil
}

func (q *ownedQueue) AddUnschedulableIfNotPresent(logger klog.Logger, pod *framework.QueuedPodInfo, cycle int64) error {
	return q.SchedulingQueue.AddUnschedulableIfNotPresent(logger, pod.DeepCopy(), cycle)
}

// play runs the steps. events are the events of the pods.
func (p *player) play(events <-chan watch.Event) {
	ctx := within(p.t)
	defer func() {
		if p.t.Failed() {
			p.t.Logf("calls of extension points:\n%s", strings.Join(p.log, "\n"))
		}
	}()
	// The condition when of a step is polled, because no event reports that it has become true.
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		for len(p.steps) > 0 && p.steps[0].at == "" && p.rested() {
			if before := p.steps[0].before; before != nil {
				before(p.scene)
			}
			p.steps = p.steps[1:]
			ctx = within(p.t)
		}
		if len(p.steps) == 0 {
			return
		}
		select {
		case c := <-p.gate.calls:
			p.call(c)
		case e, ok := <-events:
			if !ok {
				p.t.Fatal("the watch of pods ended before the row")
			}
			p.follow(e)
		case <-again.C:
		case <-ctx.Done():
			p.t.Fatalf("while waiting for %s: %v; got pods %v", p.steps[0].describe(), context.Cause(ctx), p.outcomes())
		}
	}
}

func (s step) describe() string {
	if s.rest != nil && s.when != nil {
		return fmt.Sprintf("pods %v and the condition when of the step", s.rest)
	}
	if s.rest != nil {
		return fmt.Sprintf("pods %v", s.rest)
	}
	return fmt.Sprintf("a call of %s for pod %s", s.at, s.of())
}

func (s step) of() string {
	if s.pod == "" {
		return "web-0"
	}
	return s.pod
}

// call lets one call pass, and compares the stored objects after it.
func (p *player) call(c *call) {
	p.t.Helper()
	k := key(c.pod.Name, c.point)
	p.passed[k]++
	how := sabotage{fails: p.failing[k]}
	var planned *step
	if len(p.steps) > 0 && p.steps[0].at == c.point && p.steps[0].of() == c.pod.Name {
		planned, p.steps = &p.steps[0], p.steps[1:]
		if planned.before != nil {
			planned.before(p.scene)
		}
		if planned.fails != "" {
			how = planned.sabotage
		}
	}
	c.how <- how
	status := <-c.status
	p.log = append(p.log, k+" "+show(status))
	if planned != nil {
		want := planned.answer
		if want == "" {
			want = "Success"
		}
		if planned.fails == "" && !p.matches(show(status), want) {
			p.t.Errorf("%s: got status\n%s\nwant\n%s", k, show(status), want)
		}
		if planned.then != nil {
			planned.then(p.scene, &p.want)
		}
	}
	p.compare("after " + k)
	close(c.looked)
}

// matches reports whether got matches want. In want, NS/ stands for the row's namespace and a slash, and * for any text.
func (p *player) matches(got, want string) bool {
	parts := strings.Split(strings.ReplaceAll(want, "NS/", p.ns+"/"), "*")
	last := len(parts) - 1
	if last == 0 {
		return got == parts[0]
	}
	for _, part := range parts[:last] {
		i := strings.Index(got, part)
		if i < 0 || i > 0 && part == parts[0] {
			return false
		}
		got = got[i+len(part):]
	}
	return strings.HasSuffix(got, parts[last])
}

func (p *player) follow(e watch.Event) {
	pod, ok := e.Object.(*corev1.Pod)
	switch {
	case !ok:
		p.t.Fatalf("the watch of pods delivered %v, want a pod", e.Object)
	case pod.Spec.SchedulerName != p.ns:
	case e.Type == watch.Deleted:
		delete(p.pods, pod.Name)
	default:
		p.pods[pod.Name] = pod
	}
}

func (p *player) outcomes() map[string]string {
	out := map[string]string{}
	for name, pod := range p.pods {
		out[name] = outcome(pod)
	}
	return out
}

// rested reports whether the pods have the outcomes that the next step requires. If they have, it compares the stored
// objects.
func (p *player) rested() bool {
	p.t.Helper()
	if want := p.steps[0].rest; want != nil {
		if !maps.EqualFunc(want, p.outcomes(), func(w, got string) bool { return p.matches(got, w) }) {
			return false
		}
		if when := p.steps[0].when; when != nil && !when(p.scene) {
			return false
		}
		p.compare("at rest")
	}
	return true
}
