// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

const (
	// enoughHeirs is how many nodes that can run a pod are compared. All pods of one node that is gone cost one search.
	enoughHeirs = 100
	// rememberedHeirs is how many nodes that are gone Plugin.heirs is for.
	rememberedHeirs = 1024
)

// heirEvents may let a node run a pod that no node could run.
var heirEvents = []fwk.ClusterEvent{
	{Resource: fwk.Node, ActionType: fwk.UpdateNodeAllocatable | fwk.UpdateNodeLabel | fwk.UpdateNodeTaint},
	{Resource: fwk.Pod, ActionType: fwk.Delete},
	{Resource: fwk.PersistentVolume, ActionType: fwk.Add | fwk.Update},
	{Resource: fwk.PersistentVolumeClaim, ActionType: fwk.Add | fwk.Update},
}

// heirMayFit wakes a pod that seeks an heir. The framework calls it for events of heirEvents.
func (p *Plugin) heirMayFit(_ klog.Logger, pod *corev1.Pod, _, _ any) (fwk.QueueingHint, error) {
	if p.binder.SeeksHeir(pod) {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

// nominate nominates a pod whose address has no node to a node that can run it, by all filters of the profile: that node
// may inherit the subnet of the address. The pod is refused all the same, until a node has the subnet.
func (p *Plugin) nominate(ctx context.Context, state fwk.CycleState, s *stateData, pod *corev1.Pod) (*framework.PostFilterResult, *fwk.Status) {
	infos := p.handle.SnapshotSharedLister().NodeInfos()
	// Filter reads the other plan from here.
	search := state.Clone()
	search.Write(stateKey, &stateData{Plan: s.ForHeir(), decided: s.decided})

	heir := ""
	known, _ := p.heirs.Get(s.Lost())
	remembered, _ := known.(string)
	for _, name := range []string{pod.Status.NominatedNodeName, remembered} {
		if info, err := infos.Get(name); heir == "" && name != "" && err == nil && p.handle.RunFilterPluginsWithNominatedPods(ctx, search, pod, info).IsSuccess() {
			heir = name
		}
	}
	refused := ""
	if heir == "" {
		all, err := infos.List()
		if err != nil {
			return nil, fwk.AsStatus(fmt.Errorf("list nodes from the snapshot: %w", err))
		}
		var fit []fwk.NodeInfo
		fit, refused = p.feasible(ctx, search, pod, all)
		if heir, err = p.best(ctx, search, pod, fit); err != nil {
			return nil, fwk.AsStatus(err)
		}
	}
	why := p.binder.ExplainHeir(s.Plan, heir, refused)
	p.queue.Add(pod, why.WakeOn, s.decided)
	if heir == "" {
		return framework.NewPostFilterResultWithNominatedNode(""), fwk.NewStatus(fwk.Unschedulable, why.Reason)
	}
	p.heirs.Add(s.Lost(), heir)
	klog.FromContext(ctx).V(3).Info("The node of the pod's address is gone, another node may inherit its subnet", "pod", klog.KObj(pod), "node", s.Lost(), "nominated", heir)
	return framework.NewPostFilterResultWithNominatedNode(heir), fwk.NewStatus(fwk.Success, why.Reason)
}

// feasible returns nodes that can run a pod, at most about enoughHeirs, and why the others cannot.
func (p *Plugin) feasible(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (fit []fwk.NodeInfo, refused string) {
	ctx, enough := context.WithCancel(ctx)
	defer enough()
	var mu sync.Mutex
	// reasons counts the nodes by why they cannot run the pod. Key: the reason.
	reasons := map[string]int{}
	p.handle.Parallelizer().Until(ctx, len(nodes), func(i int) {
		st := p.handle.RunFilterPluginsWithNominatedPods(ctx, state, pod, nodes[i])
		mu.Lock()
		defer mu.Unlock()
		if st.IsSuccess() {
			if fit = append(fit, nodes[i]); len(fit) == enoughHeirs {
				enough()
			}
			return
		}
		for _, r := range st.Reasons() {
			reasons[r]++
		}
	}, Name)
	var counts []string
	for reason, count := range reasons {
		counts = append(counts, fmt.Sprintf("%d %s", count, reason))
	}
	slices.Sort(counts)
	return fit, strings.Join(counts, ", ")
}

// best returns the node with the highest score of the profile's plugins, the first by name among equals; empty if there is
// no node.
func (p *Plugin) best(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (string, error) {
	if len(nodes) == 0 {
		return "", nil
	}
	if st := p.handle.RunPreScorePlugins(ctx, state, pod, nodes); !st.IsSuccess() {
		return "", fmt.Errorf("compare the nodes that could inherit a subnet: %w", st.AsError())
	}
	scores, st := p.handle.RunScorePlugins(ctx, state, pod, nodes)
	if !st.IsSuccess() {
		return "", fmt.Errorf("compare the nodes that could inherit a subnet: %w", st.AsError())
	}
	return slices.MinFunc(scores, func(x, y framework.NodePluginScores) int {
		return cmp.Or(cmp.Compare(y.TotalScore, x.TotalScore), strings.Compare(x.Name, y.Name))
	}).Name, nil
}
