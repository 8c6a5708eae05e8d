// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"

	"fixedip.io/fixedip/ipam/core/identity"
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
}

// Name returns the name of the plugin.
func (p *Plugin) Name() string { return Name }

// Close returns when nothing of the plugin runs in the background. The framework calls it when the context of the
// scheduler has ended.
func (p *Plugin) Close() error {
	p.queue.Wait()
	return nil
}

// Factory returns the constructor of the plugin. The framework calls it once for each profile.
func Factory() frameworkruntime.PluginFactory { return FactoryOver(ctrlcache.New) }

// FactoryOver is Factory for a given way of watching CiliumNodes and FixedIPs.
func FactoryOver(newCache ctrlcache.NewCacheFunc) frameworkruntime.PluginFactory {
	var mu sync.Mutex
	// shared is what all profiles share, and first are the arguments of the first profile.
	var shared *binder.Shared
	var first *config.FixedIPArgs
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
			c, err := cache.Start(ctx, h.KubeConfig(), h.SharedInformerFactory(), args, newCache)
			if err != nil {
				return nil, err
			}
			metrics.Register(c)
			core := h.SharedInformerFactory().Core().V1()
			shared, first = &binder.Shared{Cache: c, Client: h.ClientSet(), Nodes: core.Nodes().Lister(), Pods: core.Pods().Lister()}, args
		}
		if err := sameArgs(first, args); err != nil {
			return nil, err
		}
		return newPlugin(ctx, shared, args, h)
	}
}

// sameArgs returns an error if the arguments of two profiles differ in what the profiles share.
func sameArgs(first, args *config.FixedIPArgs) error {
	var differ []string
	for name, same := range map[string]bool{
		"claimQPS":   *args.ClaimQPS == *first.ClaimQPS,
		"claimBurst": *args.ClaimBurst == *first.ClaimBurst,
		"workloads":  slices.Equal(identity.NewKinds(args.Workloads...).All(), identity.NewKinds(first.Workloads...).All()),
	} {
		if !same {
			differ = append(differ, name)
		}
	}
	if len(differ) == 0 {
		return nil
	}
	slices.Sort(differ)
	return fmt.Errorf("FixedIPArgs of two profiles differ in %v, which the profiles share; write the same values in each", differ)
}

func newPlugin(ctx context.Context, shared *binder.Shared, args *config.FixedIPArgs, h framework.Handle) (*Plugin, error) {
	snapshot := func(node string) fwk.NodeInfo {
		info, err := h.SnapshotSharedLister().NodeInfos().Get(node)
		if err != nil {
			return nil
		}
		return info
	}
	b, err := binder.New(shared, args, snapshot, h.SharedInformerFactory())
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
	return &Plugin{handle: h, binder: b, queue: q}, nil
}

// checkOrder returns an error unless the profile calls PostFilter of DefaultPreemption first: its success ends the calls
// of PostFilter, and pods that were preempted for a pod have to be given the time to terminate before the pod leaves its
// node.
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
		return errors.New("plugin FixedIP is not enabled at postFilter; enable it at multiPoint")
	case own < at("DefaultPreemption"):
		return errors.New("plugin FixedIP comes before DefaultPreemption at postFilter; enable FixedIP at multiPoint, or after DefaultPreemption at postFilter")
	}
	return nil
}
