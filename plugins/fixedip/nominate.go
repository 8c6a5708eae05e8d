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

	"fixedip.io/fixedip/plugins/fixedip/metrics"
)

const (
	// enoughCandidates is the number of feasible nodes at which the search for more ends.
	enoughCandidates = 100
	// rememberedNominations is the capacity of Plugin.nominations.
	rememberedNominations = 1024
)

// candidateEvents are the events after which a node may be able to run an orphaned pod that no node could run. Changes of
// Nodes are not among them: see nodeChanged.
var candidateEvents = []fwk.ClusterEvent{
	{Resource: fwk.Pod, ActionType: fwk.Delete},
	{Resource: fwk.PersistentVolume, ActionType: fwk.Add | fwk.Update},
	{Resource: fwk.PersistentVolumeClaim, ActionType: fwk.Add | fwk.Update},
}

// candidateChanged is the queueing hint of candidateEvents: it queues orphaned pods.
func (p *Plugin) candidateChanged(_ klog.Logger, pod *corev1.Pod, _, _ any) (fwk.QueueingHint, error) {
	if !p.binder.IsOrphaned(pod) {
		return fwk.QueueSkip, nil
	}
	metrics.Requeued(metrics.Node)
	return fwk.Queue, nil
}

// nominate nominates an orphaned pod to a node that passes all filters of the profile and may inherit the subnet of the
// pod's address. The scheduler then reserves resources for the pod on that node, but the pod waits until a node has the
// subnet.
//
// nominate first tries the node that the pod is nominated to already, and then the node that another pod of the same
// deleted node was nominated to. One node inherits the whole subnet, so usually one search over all nodes is enough for
// all pods of the deleted node. If no node passes the filters, nominate removes an earlier nomination of the pod.
func (p *Plugin) nominate(ctx context.Context, state fwk.CycleState, s *stateData, pod *corev1.Pod) (*framework.PostFilterResult, *fwk.Status) {
	nodes := p.handle.SnapshotSharedLister().NodeInfos()
	// The plugin's own Filter reads the plan from this state.
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
	// An empty name removes an earlier nomination.
	result := framework.NewPostFilterResultWithNominatedNode(nominated)
	if nominated == "" {
		return result, fwk.NewStatus(fwk.Unschedulable, why.Reason)
	}
	p.nominations.Add(s.Lost(), nominated)
	klog.FromContext(ctx).V(3).Info("Nominated an orphaned pod", "pod", klog.KObj(pod), "lost", s.Lost(), "node", nominated)
	return result, fwk.NewStatus(fwk.Success, why.Reason)
}

// feasible returns nodes that pass all filters for the pod. It stops soon after it has found enoughCandidates nodes.
// refused lists the reasons why other nodes were refused, each with the number of nodes.
func (p *Plugin) feasible(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (feasible []fwk.NodeInfo, refused string) {
	ctx, enough := context.WithCancel(ctx)
	defer enough()
	var mu sync.Mutex
	// counts contains the number of refused nodes. Key: the reason.
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

// best returns the node with the fewest nominated pods, so that pods of different deleted nodes are nominated to
// different nodes. Among nodes with the same number of such pods, it returns the node with the highest score, and then
// the first by name. It returns "" if nodes is empty.
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
	// nominated contains the number of pods nominated to each node, which no score considers. Key: the name of the node.
	nominated := map[string]int{}
	for _, s := range scores {
		nominated[s.Name] = len(p.handle.NominatedPodsForNode(s.Name))
	}
	return slices.MinFunc(scores, func(x, y framework.NodePluginScores) int {
		return cmp.Or(cmp.Compare(nominated[x.Name], nominated[y.Name]), cmp.Compare(y.TotalScore, x.TotalScore), strings.Compare(x.Name, y.Name))
	}).Name, nil
}
