// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package fixedip is the scheduler plugin FixedIP: it steers a pod to the node whose subnet owns
// its reserved address, and has the address written into that node's pool before the pod is bound.
//
// It is glue between the scheduler framework and the core (ipam/core) and store (ipam/store). It
// decides nothing about addresses itself, and the one thing that it writes to the API is a claim,
// in PreBind. What it knows it can learn again from the API: a scheduler may die at any point.
//
// The algorithm, in the order of a scheduling cycle:
//
//	PreFilter  finds the pod's reservation, in the pools (the arbiter) or in its FixedIP, and
//	           narrows the cycle to the node that owns it; or finds which addresses the pod asks
//	           for, and narrows to the nodes whose subnets have them. A pod whose name is not
//	           lasting takes over a slot of its workload: see slots.go.
//	Filter     decides: the owner node alone, or any node with room where nothing is reserved.
//	PostFilter where the owner node can't take the pod: has the next cycle look at all nodes, if the
//	           pod's failover policy says so and its predecessor surely does not run any more; or
//	           explains why it waits.
//	Score      fills the subnets evenly.
//	Reserve    decides the address, in the ledger, in memory.
//	PreBind    writes the claim and waits until the plugin's own watch shows it: the agent's watch
//	           is then close behind, and finds the entry when the pod's sandbox is made. For a pod that
//	           migrates it moves the address (see pool.Move).
//	Unreserve, PostBind  forget the decision. The entry, where it was written, stands.
package fixedip

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/plugins/apis/config"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
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

// Plugin is the plugin of one profile. Profiles share the world.
type Plugin struct {
	handle       framework.Handle
	world        *world
	waiting      *waiting
	silence      *silence
	kinds        identity.Kinds
	nodes        corelisters.NodeLister
	pods         corelisters.PodLister
	families     []address.Family
	claimTimeout time.Duration
	// failover is for pods whose workload says nothing, movable whether an address may live on another
	// node than its home.
	failover v1alpha1.Failover
	movable  bool
	// strict chooses the nodes on which every pod has an address of its own.
	strict labels.Selector
}

// Name is the name of the plugin.
func (p *Plugin) Name() string { return Name }

// Close returns when nothing of the plugin's is under way in the background. The framework calls it when the
// context of the scheduler has ended.
func (p *Plugin) Close() error {
	p.world.live.wait()
	return nil
}

// Factory makes the plugin's constructor. The framework calls it once for each profile; all of
// them see one world, since they claim from the same pools.
func Factory() frameworkruntime.PluginFactory { return FactoryOver(cache.New) }

// FactoryOver is Factory where something else than watches of the API server shows CiliumNodes and
// FixedIPs.
func FactoryOver(newCache cache.NewCacheFunc) frameworkruntime.PluginFactory {
	var mu sync.Mutex
	var shared *world
	return func(ctx context.Context, obj runtime.Object, h framework.Handle) (framework.Plugin, error) {
		args, ok := obj.(*config.FixedIPArgs)
		if !ok {
			return nil, fmt.Errorf("arguments are of type %T, want FixedIPArgs", obj)
		}
		if err := config.ValidateFixedIPArgs(field.NewPath("pluginConfig").Key(Name).Child("args"), args).ToAggregate(); err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		if shared == nil {
			w, err := newWorld(ctx, h.KubeConfig(), args, newCache)
			if err != nil {
				return nil, err
			}
			if err := w.followWorkloads(ctx, h.SharedInformerFactory()); err != nil {
				return nil, err
			}
			if err := w.followHolders(h.SharedInformerFactory().Core().V1().Pods().Informer()); err != nil {
				return nil, err
			}
			w.joinSync(h.SharedInformerFactory())
			metrics.Register(w)
			shared = w
		}
		if !slices.Equal(shared.kinds.All(), identity.NewKinds(args.Workloads...).All()) {
			return nil, errors.New("workloads: other than those of another profile; write the same in each")
		}
		return newPlugin(ctx, args, h, shared)
	}
}

func newPlugin(ctx context.Context, args *config.FixedIPArgs, h framework.Handle, w *world) (*Plugin, error) {
	p := &Plugin{
		handle:       h,
		world:        w,
		kinds:        w.kinds,
		claimTimeout: args.ClaimTimeout.Duration,
		failover:     v1alpha1.Failover(args.Failover),
		movable:      args.MovableAddresses,
		waiting: newWaiting(func(pods map[string]*corev1.Pod) {
			h.Activate(loggerFrom(ctx), pods)
		}),
	}
	for _, name := range args.IPFamilies {
		f, err := address.ParseFamily(name)
		if err != nil {
			return nil, fmt.Errorf("ipFamilies: %w", err)
		}
		p.families = append(p.families, f)
	}
	var err error
	if p.strict, err = parseStrict(args.StrictNodes); err != nil {
		return nil, err
	}
	w.subscribe(p.waiting)
	pods := h.SharedInformerFactory().Core().V1().Pods()
	p.pods = pods.Lister()
	w.departures.begin(time.Now(), args.AgentSilence.Duration)
	p.silence = newSilence(args.AgentSilence.Duration, p.pods)
	if err := p.waiting.follow(pods.Informer()); err != nil {
		return nil, err
	}
	if err := p.silence.follow(pods.Informer()); err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	nodes := h.SharedInformerFactory().Core().V1().Nodes()
	p.nodes = nodes.Lister()
	if err := p.waiting.followNodes(nodes.Informer()); err != nil {
		return nil, err
	}
	return p, nil
}
