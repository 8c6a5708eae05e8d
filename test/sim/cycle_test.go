// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/parallelize"
)

// maxMeanwhile is the maximum number of steps of informers before an extension point of a scheduling cycle.
const maxMeanwhile = 4

// meanwhile lets the watches of the scheduler deliver writes before an extension point is called, with probability 1/4. It
// does nothing if the scheduler is cut off, and after the end of all faults. In kube-scheduler the handlers of informers run
// in goroutines of their own, at any point of a cycle. Only the snapshot of nodes and pods stays the same.
func (s *scheduler) meanwhile(before string) {
	if s.cut || s.w.faultsEnded || s.w.choose(4) != 0 {
		return
	}
	for range 1 + s.w.choose(maxMeanwhile) {
		var behind []*informer
		for _, i := range s.informers {
			if !i.stalled && i.behind() {
				behind = append(behind, i)
			}
		}
		if len(behind) == 0 {
			return
		}
		s.w.stats["watch before "+before]++
		s.w.logf("before %s: %s", before, behind[s.w.choose(len(behind))].step(0))
	}
}

// snapshot serves the nodes and pods that the scheduler knew when its last scheduling cycle began.
type snapshot struct{ s *scheduler }

func (n snapshot) NodeInfos() framework.NodeInfoLister       { return n }
func (n snapshot) StorageInfos() framework.StorageInfoLister { return nil }

func (n snapshot) List() ([]fwk.NodeInfo, error)                                 { return n.s.snapshot, nil }
func (n snapshot) HavePodsWithAffinityList() ([]fwk.NodeInfo, error)             { return nil, nil }
func (n snapshot) HavePodsWithRequiredAntiAffinityList() ([]fwk.NodeInfo, error) { return nil, nil }

func (n snapshot) Get(name string) (fwk.NodeInfo, error) {
	for _, info := range n.s.snapshot {
		if info.Node().Name == name {
			return info, nil
		}
	}
	return nil, fmt.Errorf("nodeinfo not found for node name %q", name)
}

// admits models the Filter plugins other than FixedIP: it refuses a node that is cordoned, has taints, or is in another zone
// than the volume of the pod.
func (s *scheduler) admits(pod *corev1.Pod, n fwk.NodeInfo) *fwk.Status {
	if s.w.outsideZone(keyOf(pod), n.Node().Labels[corev1.LabelTopologyZone]) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) didn't match PersistentVolume's node affinity")
	}
	if n.Node().Spec.Unschedulable || len(n.Node().Spec.Taints) > 0 {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) were unschedulable")
	}
	return nil
}

func (s *scheduler) Parallelizer() parallelize.Parallelizer { return parallelize.NewParallelizer(1) }

func (s *scheduler) RunFilterPluginsWithNominatedPods(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, n fwk.NodeInfo) *fwk.Status {
	if st := s.admits(pod, n); !st.IsSuccess() {
		return st
	}
	return s.plugin.Filter(ctx, state, pod, n)
}

func (s *scheduler) NominatedPodsForNode(string) []fwk.PodInfo { return nil }

func (s *scheduler) RunPreScorePlugins(context.Context, fwk.CycleState, *corev1.Pod, []fwk.NodeInfo) *fwk.Status {
	return nil
}

func (s *scheduler) RunScorePlugins(_ context.Context, _ fwk.CycleState, _ *corev1.Pod, nodes []fwk.NodeInfo) (scores []framework.NodePluginScores, _ *fwk.Status) {
	for _, n := range nodes {
		scores = append(scores, framework.NodePluginScores{Name: n.Node().Name, TotalScore: int64(s.w.choose(10))})
	}
	return scores, nil
}

// takeSnapshot returns the nodes that the watch has shown and the pods on them.
func (s *scheduler) takeSnapshot() []fwk.NodeInfo {
	var list []fwk.NodeInfo
	for _, o := range sorted(s.process.informer(nodes).indexer.List()) {
		node := o.(*corev1.Node)
		info := framework.NewNodeInfo()
		info.SetNode(node)
		for _, o := range sorted(s.process.informer(pods).indexer.List()) {
			pod := o.(*corev1.Pod)
			if pod.Spec.NodeName != node.Name {
				continue
			}
			podInfo, err := framework.NewPodInfo(pod)
			must(err)
			info.AddPodInfo(podInfo)
		}
		list = append(list, info)
	}
	return list
}
