// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/util"
	"k8s.io/utils/lru"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"

	"fixedip.io/fixedip/ipam/core/configuration"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/store/ciliumconfigmap"
	"fixedip.io/fixedip/ipam/store/serverversion"
	"fixedip.io/fixedip/plugins/apis/config"
	"fixedip.io/fixedip/plugins/fixedip/binder"
	"fixedip.io/fixedip/plugins/fixedip/cache"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// Name is the name of the plugin in a KubeSchedulerConfiguration.
const Name = "FixedIP"

var (
	_ framework.PreFilterPlugin   = &Plugin{}
	_ framework.FilterPlugin      = &Plugin{}
	_ framework.PostFilterPlugin  = &Plugin{}
	_ framework.PreScorePlugin    = &Plugin{}
	_ framework.ScorePlugin       = &Plugin{}
	_ framework.ReservePlugin     = &Plugin{}
	_ framework.PreBindPlugin     = &Plugin{}
	_ framework.PostBindPlugin    = &Plugin{}
	_ framework.EnqueueExtensions = &Plugin{}
	_ io.Closer                   = &Plugin{}
)

// Plugin is the plugin of one profile.
type Plugin struct {
	handle framework.Handle
	binder *binder.Binder
	queue  *requeue.Queue
	// nominations contains, for each deleted node, the node to which one of its orphaned pods was last nominated. Key:
	// the name of the deleted node. Value: the name of the nominated node, a string. The content is only a hint:
	// without it, nominate searches all nodes.
	nominations *lru.Cache
}

// Name returns the name of the plugin.
func (p *Plugin) Name() string { return Name }

// Close waits until the goroutine of the queue has ended. The framework calls Close when the context of the scheduler has
// ended.
func (p *Plugin) Close() error {
	p.queue.Wait()
	return nil
}

// Factory returns the constructor of the plugin. The framework calls the constructor once for each profile.
func Factory() frameworkruntime.PluginFactory { return FactoryOver(ctrlcache.New, os.ReadFile) }

// FactoryOver is like Factory, but creates the cache of CiliumNodes and FixedIPs with newCache, and reads the file that the
// arguments name with readFile.
func FactoryOver(newCache ctrlcache.NewCacheFunc, readFile func(string) ([]byte, error)) frameworkruntime.PluginFactory {
	var mu sync.Mutex
	// shared is the state that all profiles share. first contains the arguments of the profile that created the shared
	// state. settings are those in the file that these arguments name, adapted to Cilium (see readSettings).
	var shared *binder.Shared
	var first *config.FixedIPArgs
	var settings configuration.Configuration
	return func(ctx context.Context, obj runtime.Object, h framework.Handle) (framework.Plugin, error) {
		args, ok := obj.(*config.FixedIPArgs)
		if !ok {
			return nil, fmt.Errorf("arguments are of type %T, want FixedIPArgs", obj)
		}
		if err := config.ValidateFixedIPArgs(field.NewPath("pluginConfig").Key(Name).Child("args"), args).ToAggregate(); err != nil {
			return nil, err
		}
		ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName(Name))
		mu.Lock()
		defer mu.Unlock()
		if shared == nil {
			var err error
			if settings, err = readSettings(ctx, args, readFile, ciliumconfigmap.FromClientset(h.ClientSet())); err != nil {
				return nil, err
			}
		}
		if f, ok := h.(framework.Framework); ok {
			if err := checkProfile(f.ProfileName(), settings); err != nil {
				return nil, err
			}
		}
		if shared == nil {
			hash, err := settings.Hash()
			if err != nil {
				return nil, err
			}
			if err := serverversion.Check(ctx, h.ClientSet().Discovery(), serverversion.Own, "a scheduler must not be newer than the API server"); err != nil {
				return nil, err
			}
			c, err := cache.Start(ctx, h.KubeConfig(), h.SharedInformerFactory(), args, identity.NewKinds(settings.Workloads...), newCache)
			if err != nil {
				return nil, err
			}
			metrics.Register(c)
			metrics.Configured(hash)
			core := h.SharedInformerFactory().Core().V1()
			shared, first = &binder.Shared{Cache: c, Client: h.ClientSet(), Nodes: core.Nodes().Lister(), Pods: core.Pods().Lister(), Quotas: core.ResourceQuotas().Lister()}, args
		}
		if err := sameArgs(first, args); err != nil {
			return nil, err
		}
		return newPlugin(ctx, shared, args, settings, h)
	}
}

// readSettings returns the settings in the file that the arguments name, adapted to those of Cilium. An error about a
// setting names the file, the field and the value. If the file has every setting that depends on Cilium, readSettings does
// not read the ConfigMap of Cilium.
func readSettings(ctx context.Context, args *config.FixedIPArgs, readFile func(string) ([]byte, error), get ciliumconfigmap.Getter) (configuration.Configuration, error) {
	path := field.NewPath("pluginConfig").Key(Name).Child("args", "configuration")
	data, err := readFile(args.Configuration)
	if err != nil {
		return configuration.Configuration{}, fmt.Errorf("%s: %w", path, err)
	}
	settings, err := configuration.Parse(data, nil)
	if err == nil && settings.AllowAddressMigration == nil {
		var cilium configuration.CiliumSettings
		if cilium, err = readCilium(ctx, args, get); err != nil {
			return settings, err
		}
		settings, err = configuration.Parse(data, &cilium)
	}
	if err != nil {
		return settings, fmt.Errorf("%s: %s: %w", path, args.Configuration, err)
	}
	return settings, nil
}

// readCilium returns the settings of Cilium in the ConfigMap that the arguments name.
func readCilium(ctx context.Context, args *config.FixedIPArgs, get ciliumconfigmap.Getter) (configuration.CiliumSettings, error) {
	name, err := ciliumconfigmap.ParseName(args.CiliumConfig)
	if err != nil {
		return configuration.CiliumSettings{}, err
	}
	return ciliumconfigmap.Read(ctx, get, name)
}

// checkProfile returns an error if a profile that enables the plugin is not in schedulerNames: the controller would take its
// pods for pods of another scheduler.
func checkProfile(profile string, settings configuration.Configuration) error {
	if slices.Contains(settings.SchedulerNames, profile) {
		return nil
	}
	return fmt.Errorf("profile %s enables plugin %s, but schedulerNames in the configuration is [%s]; add %s to schedulerNames, or disable the plugin in that profile", profile, Name, strings.Join(settings.SchedulerNames, ", "), profile)
}

// sameArgs returns an error if two profiles have different values of an argument that configures their shared state.
func sameArgs(first, args *config.FixedIPArgs) error {
	var differ []string
	for name, same := range map[string]bool{
		"claimQPS":      *args.ClaimQPS == *first.ClaimQPS,
		"claimBurst":    *args.ClaimBurst == *first.ClaimBurst,
		"configuration": args.Configuration == first.Configuration,
		"ciliumConfig":  args.CiliumConfig == first.CiliumConfig,
	} {
		if !same {
			differ = append(differ, name)
		}
	}
	if len(differ) == 0 {
		return nil
	}
	slices.Sort(differ)
	return fmt.Errorf("FixedIPArgs of two profiles differ in %s, which the profiles share; write the same values in each", strings.Join(differ, ", "))
}

func newPlugin(ctx context.Context, shared *binder.Shared, args *config.FixedIPArgs, settings configuration.Configuration, h framework.Handle) (*Plugin, error) {
	snapshot := func(node string) fwk.NodeInfo {
		info, err := h.SnapshotSharedLister().NodeInfos().Get(node)
		if err != nil {
			return nil
		}
		return info
	}
	b, err := binder.New(shared, args, settings, snapshot, h.SharedInformerFactory())
	if err != nil {
		return nil, err
	}
	q, err := requeue.New(ctx, h.SharedInformerFactory().Core().V1().Pods().Informer(), b, func(pods map[string]*corev1.Pod) {
		h.Activate(klog.FromContext(ctx), pods)
	})
	if err != nil {
		return nil, err
	}
	shared.Cache.Subscribe(q.Notify)
	metrics.AddQueue(q.Unplaced)
	return &Plugin{handle: h, binder: b, queue: q, nominations: lru.New(rememberedNominations)}, nil
}

// checkOrder returns an error if the profile does not enable PostFilter of the plugin, or enables it before that of
// DefaultPreemption. It returns nil if h does not list the plugins of the profile. If PostFilter of DefaultPreemption
// succeeds, the framework calls no further PostFilter: the preempted pods get the time to terminate before the pod may
// leave its node.
func checkOrder(h framework.Handle) error {
	f, ok := h.(framework.Framework)
	if !ok {
		return nil
	}
	enabled := f.ListPlugins().PostFilter.Enabled
	at := func(name string) int {
		return slices.IndexFunc(enabled, func(p schedconfig.Plugin) bool { return p.Name == name })
	}
	switch own := at(Name); {
	case own < 0:
		return fmt.Errorf("profile %s: plugin FixedIP is not enabled at postFilter; enable it at multiPoint", f.ProfileName())
	case own < at("DefaultPreemption"):
		return fmt.Errorf("profile %s: plugin FixedIP comes before DefaultPreemption at postFilter; enable FixedIP only at multiPoint, after DefaultPreemption, or list both at postFilter, DefaultPreemption first", f.ProfileName())
	}
	return nil
}

// stateKey is the key of the plugin's state in the CycleState of a scheduling cycle.
const stateKey fwk.StateKey = Name

// stateData is the plugin's state of one scheduling cycle.
type stateData struct {
	*binder.Plan
	// decided is the result of requeue.Queue.Now before Find read the cache.
	decided uint64
}

// Clone returns s itself: parallel calls may share a Plan.
func (s *stateData) Clone() fwk.StateData { return s }

func read(state fwk.CycleState) (*stateData, error) {
	data, err := state.Read(stateKey)
	if s, ok := data.(*stateData); ok {
		return s, nil
	}
	return nil, fmt.Errorf("read the state of plugin %s in the cycle: got %T: %w", Name, data, err)
}

// refuse returns the status for an error of the binder. If the error is a *binder.Refusal, refuse also adds the pod to
// the queue of waiting pods, and the status excludes preemption, which would not help (see binder.Binder.Fits).
func (p *Plugin) refuse(pod *corev1.Pod, decided uint64, err error) *fwk.Status {
	var refusal *binder.Refusal
	if errors.As(err, &refusal) {
		p.queue.Add(pod, refusal.WakeOn, decided)
	}
	return statusOf(err)
}

// statusOf returns the status for an error of the binder; nil, which means success, for a nil error.
func statusOf(err error) *fwk.Status {
	if err == nil {
		// Return before the variables below are allocated: errors.As needs them on the heap.
		return nil
	}
	var refusal *binder.Refusal
	var lost *binder.LostError
	switch {
	case errors.As(err, &refusal):
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, refusal.Reason)
	case errors.As(err, &lost):
		return fwk.NewStatus(fwk.Unschedulable, lost.Reason)
	}
	return fwk.AsStatus(err)
}

// EventsToRegister returns the framework events that the plugin needs: the creation and changes of Nodes, and
// candidateEvents, which may allow a node to run an orphaned pod. The plugin watches all other changes itself. The scheduler
// calls EventsToRegister when its profiles are complete, so EventsToRegister also returns an error if the order of the
// plugins of the profile is wrong (see checkOrder).
func (p *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	if err := checkOrder(p.handle); err != nil {
		return nil, err
	}
	hints := []fwk.ClusterEventWithHint{{
		Event:          fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add},
		QueueingHintFn: p.nodeAdded,
	}, {
		Event:          fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.UpdateNodeAllocatable | fwk.UpdateNodeLabel | fwk.UpdateNodeTaint | fwk.UpdateNodeCondition},
		QueueingHintFn: p.nodeChanged,
	}}
	for _, e := range candidateEvents {
		hints = append(hints, fwk.ClusterEventWithHint{Event: e, QueueingHintFn: p.candidateChanged})
	}
	return hints, nil
}

func (p *Plugin) nodeAdded(logger klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	_, node, err := util.As[*corev1.Node](before, after)
	if err != nil {
		return fwk.Queue, err
	}
	if !p.binder.MayUse(pod, node.Name) {
		return fwk.QueueSkip, nil
	}
	metrics.Requeued(metrics.Node)
	logger.V(5).Info("A node that may take the pod was created", "pod", klog.KObj(pod), "node", node.Name)
	return fwk.Queue, nil
}

// nodeChanged is the queueing hint for changes of Nodes. It queues orphaned pods, and pods that may use the node now because
// the node was uncordoned or its labels changed.
func (p *Plugin) nodeChanged(logger klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	old, node, err := util.As[*corev1.Node](before, after)
	switch {
	case err != nil:
		return fwk.Queue, err
	case p.binder.IsOrphaned(pod):
		metrics.Requeued(metrics.Node)
		return fwk.Queue, nil
	case old == nil || node == nil || !p.binder.MayUseAfter(pod, old, node):
		return fwk.QueueSkip, nil
	}
	metrics.Requeued(metrics.Node)
	logger.V(5).Info("A change of a node may allow the pod to run there", "pod", klog.KObj(pod), "node", node.Name)
	return fwk.Queue, nil
}

// PreFilter plans for the pod and restricts the cycle to the nodes of the plan. The restriction is only an optimization:
// for a nominated node, the framework calls Filter even if the restriction leaves that node out.
func (p *Plugin) PreFilter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) (*framework.PreFilterResult, *fwk.Status) {
	decided := p.queue.Now()
	plan, err := p.binder.Find(ctx, pod)
	if err != nil {
		return nil, p.refuse(pod, decided, err)
	}
	state.Write(stateKey, &stateData{Plan: plan, decided: decided})
	if p.binder.Skip(plan) {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	if !plan.Unreserved {
		metrics.PreFiltered(plan.Nodes != nil)
	}
	if plan.Nodes == nil {
		return nil, nil
	}
	return &framework.PreFilterResult{NodeNames: plan.Nodes}, nil
}

// PreFilterExtensions returns nil: Filter does not depend on the other pods of a node, which preemption adds and
// removes in its simulation.
func (p *Plugin) PreFilterExtensions() framework.PreFilterExtensions { return nil }

// Filter decides whether a node can take the pod.
func (p *Plugin) Filter(_ context.Context, state fwk.CycleState, _ *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	s, err := read(state)
	if err != nil {
		return fwk.AsStatus(err)
	}
	return statusOf(p.binder.Fits(s.Plan, node.Node()))
}

// PostFilter nominates an orphaned pod to a node (see nominate). For any other pod it returns the reason why no node can
// take the pod. The reason is empty if the reasons of the filters suffice. PostFilter adds the pod to the queue with the causes
// that may help the pod, or activates the pod at once if the next plan has other nodes.
//
// PostFilter neither adds nor activates a pod if only other plugins have refused the nodes, and the pod has no reservation and
// does not search for a slot. It then returns a status without a reason. If the pod was requeued for a free address or slot,
// PostFilter passes that offer on.
//
// The framework calls PostFilter of this plugin after that of DefaultPreemption, and only if DefaultPreemption has not
// nominated a node. After such a nomination, the pod waits until the preempted pods have terminated.
func (p *Plugin) PostFilter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes framework.NodeToStatusReader) (*framework.PostFilterResult, *fwk.Status) {
	s, err := read(state)
	if err != nil {
		// There is no state if PreFilter of this plugin has refused the pod, or did not run because another plugin had
		// refused the pod.
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	if s.Orphaned() {
		return p.nominate(ctx, state, s, pod)
	}
	why, retry := p.binder.Explain(s.Plan, pod, func(node string) []string { return nodes.Get(node).Reasons() })
	switch {
	case why == nil:
		p.queue.PassOn(pod.UID)
		return nil, fwk.NewStatus(fwk.Unschedulable)
	case retry:
		p.queue.Retry(pod)
	default:
		p.queue.Add(pod, why.WakeOn, s.decided)
	}
	if why.Reason == "" {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	return nil, fwk.NewStatus(fwk.Unschedulable, why.Reason)
}

// PreScore skips Score for pods for which the free addresses of a node do not matter.
func (p *Plugin) PreScore(_ context.Context, state fwk.CycleState, _ *corev1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	s, err := read(state)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if !p.binder.Scores(s.Plan) {
		return fwk.NewStatus(fwk.Skip)
	}
	return nil
}

// Score prefers nodes with a larger share of free addresses, so that subnets fill evenly.
func (p *Plugin) Score(_ context.Context, state fwk.CycleState, _ *corev1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	s, err := read(state)
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	return int64(p.binder.Score(s.Plan, node.Node().Name) * float64(framework.MaxNodeScore)), nil
}

// ScoreExtensions returns nil: the scores are in the framework's range already, and need no normalization.
func (p *Plugin) ScoreExtensions() framework.ScoreExtensions { return nil }

// Reserve assumes the addresses of the pod on the node, in memory only.
func (p *Plugin) Reserve(_ context.Context, state fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	s, err := read(state)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if err := p.binder.Assume(s.Plan, pod, node); err != nil {
		return p.refuse(pod, s.decided, err)
	}
	p.queue.Remove(pod.UID)
	return nil
}

// Unreserve drops the claim that Reserve made in memory. It does not remove the pod from the queue, because the
// framework also calls Unreserve after Reserve has refused the pod and added the pod to the queue.
func (p *Plugin) Unreserve(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ string) {
	p.binder.Forget(pod)
}

// PreBindPreFlight returns Skip if PreBind has nothing to do; see binder.Binder.Claimed.
func (p *Plugin) PreBindPreFlight(_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ string) *fwk.Status {
	s, err := read(state)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if p.binder.Claimed(s.Plan, pod) {
		return fwk.NewStatus(fwk.Skip)
	}
	return nil
}

// PreBind writes the claim into the node's pool, or moves the addresses there. After a binder.LostError the scheduler
// tries the pod again when its backoff is over, without waiting for an event.
func (p *Plugin) PreBind(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	s, err := read(state)
	if err != nil {
		return fwk.AsStatus(err)
	}
	return statusOf(p.binder.Bind(ctx, s.Plan, pod, node))
}

// PostBind drops the claim that Reserve made in memory, and all other state of the pod: the pool entry counts now.
func (p *Plugin) PostBind(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ string) {
	p.binder.Forget(pod)
	p.binder.Remove(pod)
	p.queue.Remove(pod.UID)
}
