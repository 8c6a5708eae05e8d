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
	// enoughCandidates is how many nodes that can run a pod are compared.
	enoughCandidates = 100
	// rememberedNominations is how many nodes that are gone Plugin.nominations has.
	rememberedNominations = 1024
)

// candidateEvents may let a node run a pod that no node could run.
var candidateEvents = []fwk.ClusterEvent{
	{Resource: fwk.Node, ActionType: fwk.UpdateNodeAllocatable | fwk.UpdateNodeLabel | fwk.UpdateNodeTaint | fwk.UpdateNodeCondition},
	{Resource: fwk.Pod, ActionType: fwk.Delete},
	{Resource: fwk.PersistentVolume, ActionType: fwk.Add | fwk.Update},
	{Resource: fwk.PersistentVolumeClaim, ActionType: fwk.Add | fwk.Update},
}

// candidateChanged wakes orphaned pods. The framework calls it for candidateEvents.
func (p *Plugin) candidateChanged(_ klog.Logger, pod *corev1.Pod, _, _ any) (fwk.QueueingHint, error) {
	if p.binder.IsOrphaned(pod) {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

// nominate nominates an orphaned pod to a node that passes all filters of the profile and may inherit the subnet of the
// pod's address. The nomination keeps room for the pod there. The pod waits all the same, until a node has the subnet.
//
// The node that another pod of the same lost node was nominated to is tried first, since one node inherits the whole
// subnet: so all pods of a lost node cost one look at all nodes.
func (p *Plugin) nominate(ctx context.Context, state fwk.CycleState, s *stateData, pod *corev1.Pod) (*framework.PostFilterResult, *fwk.Status) {
	nodes := p.handle.SnapshotSharedLister().NodeInfos()
	// Filter reads its plan from here.
	candidates := state.Clone()
	candidates.Write(stateKey, &stateData{Plan: s.ForCandidates(), decided: s.decided})

	nominated, refused := "", ""
	last, _ := p.nominations.Get(s.Lost())
	sibling, _ := last.(string)
	for _, name := range []string{pod.Status.NominatedNodeName, sibling} {
		node, err := nodes.Get(name)
		if nominated == "" && err == nil && p.handle.RunFilterPluginsWithNominatedPods(ctx, candidates, pod, node).IsSuccess() {
			nominated = name
		}
	}
	if nominated == "" {
		all, err := nodes.List()
		if err != nil {
			return nil, fwk.AsStatus(fmt.Errorf("list nodes from the snapshot: %w", err))
		}
		var feasible []fwk.NodeInfo
		feasible, refused = p.feasible(ctx, candidates, pod, all)
		if nominated, err = p.best(ctx, candidates, pod, feasible); err != nil {
			return nil, fwk.AsStatus(err)
		}
	}
	why := p.binder.ExplainOrphaned(s.Plan, nominated, refused)
	p.queue.Add(pod, why.WakeOn, s.decided)
	// An empty name ends an earlier nomination.
	result := framework.NewPostFilterResultWithNominatedNode(nominated)
	if nominated == "" {
		return result, fwk.NewStatus(fwk.Unschedulable, why.Reason)
	}
	p.nominations.Add(s.Lost(), nominated)
	klog.FromContext(ctx).V(3).Info("Nominated a pod whose node is gone", "pod", klog.KObj(pod), "lost", s.Lost(), "node", nominated)
	return result, fwk.NewStatus(fwk.Success, why.Reason)
}

// feasible returns the nodes that can run a pod, not many more than enoughCandidates, and how many cannot for which
// reason.
func (p *Plugin) feasible(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (feasible []fwk.NodeInfo, refused string) {
	ctx, enough := context.WithCancel(ctx)
	defer enough()
	var mu sync.Mutex
	// counts has the number of nodes that cannot run the pod. Key: the reason.
	counts := map[string]int{}
	p.handle.Parallelizer().Until(ctx, len(nodes), func(i int) {
		st := p.handle.RunFilterPluginsWithNominatedPods(ctx, state, pod, nodes[i])
		mu.Lock()
		defer mu.Unlock()
		if st.IsSuccess() {
			if feasible = append(feasible, nodes[i]); len(feasible) == enoughCandidates {
				enough()
			}
			return
		}
		for _, reason := range st.Reasons() {
			counts[reason]++
		}
	}, Name)
	var reasons []string
	for reason, count := range counts {
		reasons = append(reasons, fmt.Sprintf("%d %s", count, reason))
	}
	slices.Sort(reasons)
	return feasible, strings.Join(reasons, ", ")
}

// best returns the node with the fewest nominated pods, so that each of several lost nodes has another one; among equals
// that with the highest score, and then the first by name. It is empty if there is no node.
func (p *Plugin) best(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (string, error) {
	if len(nodes) == 0 {
		return "", nil
	}
	if st := p.handle.RunPreScorePlugins(ctx, state, pod, nodes); !st.IsSuccess() {
		return "", fmt.Errorf("prepare to score the nodes that may inherit a subnet: %w", st.AsError())
	}
	scores, st := p.handle.RunScorePlugins(ctx, state, pod, nodes)
	if !st.IsSuccess() {
		return "", fmt.Errorf("score the nodes that may inherit a subnet: %w", st.AsError())
	}
	// nominated counts the pods that are nominated to each node, which no score does. Key: the name of the node.
	nominated := map[string]int{}
	for _, s := range scores {
		nominated[s.Name] = len(p.handle.NominatedPodsForNode(s.Name))
	}
	return slices.MinFunc(scores, func(x, y framework.NodePluginScores) int {
		return cmp.Or(cmp.Compare(nominated[x.Name], nominated[y.Name]), cmp.Compare(y.TotalScore, x.TotalScore), strings.Compare(x.Name, y.Name))
	}).Name, nil
}
