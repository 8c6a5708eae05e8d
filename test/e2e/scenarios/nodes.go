// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/realcluster"
)

// Scenarios about nodes. They use the third node, or the fourth node after it has replaced the third.

// onlyOwned returns when the pool of a strict node has no dynamic entry.
func (s *scene) onlyOwned(ctx context.Context, node string) error {
	return eventually(ctx, func() error {
		var cn ciliumv2.CiliumNode
		if err := s.api.Get(ctx, client.ObjectKey{Name: node}, &cn); err != nil {
			return err
		}
		for ip, e := range cn.Spec.IPAM.Pool {
			if e.Owner == "" {
				return fmt.Errorf("the pool of the strict node %s still has the dynamic entry %s", node, ip)
			}
		}
		return nil
	})
}

func nodeDrained(ctx context.Context, s *scene) error {
	before, err := s.placed(ctx, workload{name: "web", replicas: 2, nodes: []string{victimNode, otherNode}})
	if err != nil {
		return err
	}
	var evicted []string
	for name, i := range before {
		if i.node == victimNode {
			evicted = append(evicted, name)
		}
	}
	if len(evicted) == 0 {
		return fmt.Errorf("no pod is on node %s: %v", victimNode, before)
	}
	if err := s.cordon(ctx, victimNode); err != nil {
		return err
	}
	for _, name := range evicted {
		if err := s.evict(ctx, name); err != nil {
			return err
		}
	}
	for _, name := range evicted {
		message, err := s.waiting(ctx, name)
		if err != nil {
			return err
		}
		if !strings.Contains(message, victimNode) {
			return fmt.Errorf("pod %s: the condition PodScheduled has the message %q, want it to contain %q", name, message, victimNode)
		}
	}
	if err := s.uncordon(ctx, victimNode); err != nil {
		return err
	}
	_, err = s.awaitReplaced(ctx, before, evicted...)
	return err
}

func migratedAndBack(ctx context.Context, s *scene) error {
	nodes := []string{victimNode, otherNode}
	w := workload{name: "web", replicas: 1, nodes: nodes, annotations: map[string]string{"fixedip.io/failover": "Migrate"}}
	before, err := s.placed(ctx, w)
	if err != nil {
		return err
	}
	home := before["web-0"].node
	for range 2 {
		from := before["web-0"].node
		if err := s.cordon(ctx, from); err != nil {
			return err
		}
		if err := s.evict(ctx, "web-0"); err != nil {
			return err
		}
		after, err := s.awaitReplaced(ctx, before, "web-0")
		if err != nil {
			return err
		}
		if after["web-0"].node == from {
			return fmt.Errorf("pod web-0 is on the cordoned node %s again", from)
		}
		if err := s.uncordon(ctx, from); err != nil {
			return err
		}
		before = after
	}
	if before["web-0"].node != home {
		return fmt.Errorf("pod web-0 is on node %s after two moves, want node %s", before["web-0"].node, home)
	}
	s.note = fmt.Sprintf("from %s and back to it", home)
	return nil
}

func kubeletStopped(ctx context.Context, s *scene) error {
	before, err := s.placed(ctx, workload{name: "web", replicas: 1, nodes: []string{victimNode}, evictAtOnce: true})
	if err != nil {
		return err
	}
	node := s.cluster.Node(victimNode)
	if err := node.Kill(realcluster.Kubelet); err != nil {
		return err
	}
	err = errors.Join(s.nodeReady(ctx, victimNode, false), s.checkNotReplaced(ctx, before["web-0"]))
	if err := errors.Join(err, node.Start(ctx, realcluster.Kubelet), s.nodeReady(ctx, victimNode, true)); err != nil {
		return err
	}
	_, err = s.awaitReplaced(ctx, before, "web-0")
	return err
}

// checkNotReplaced checks that a deleted pod whose kubelet is dead is not replaced, and that the addresses of the pod stay
// reserved, because no evidence shows that the pod has stopped.
func (s *scene) checkNotReplaced(ctx context.Context, i identity) error {
	if err := eventually(ctx, func() error {
		if pod := s.witness.Pod(s.namespace, "web-0"); pod == nil || pod.DeletionTimestamp == nil {
			return errors.New("pod web-0 does not exist or has no deletionTimestamp, want it to be terminating because its node is not ready")
		}
		return nil
	}); err != nil {
		return err
	}
	return stays(ctx, func() error {
		if pod := s.witness.Pod(s.namespace, "web-0"); pod == nil || string(pod.UID) != i.uid {
			return errors.New("pod web-0 does not exist or was replaced, although its kubelet has not reported that the pod stopped")
		}
		return s.checkEntries("web-0", i)
	})
}

func nodeRebooted(ctx context.Context, s *scene) error { return s.reboot(ctx, true) }

func nodeReinstalled(ctx context.Context, s *scene) error { return s.reboot(ctx, false) }

// reboot kills all processes of a node at once and starts the node again, with an empty disk if keepDisk is false. The kubelet
// then starts the containers of the same pods again.
func (s *scene) reboot(ctx context.Context, keepDisk bool) error {
	before, err := s.placed(ctx, workload{name: "web", replicas: 3, nodes: []string{victimNode}})
	if err != nil {
		return err
	}
	if err := s.cluster.Node(victimNode).Reboot(ctx, keepDisk); err != nil {
		return err
	}
	if err := s.nodeReady(ctx, victimNode, true); err != nil {
		return err
	}
	_, err = s.awaitReplaced(ctx, before)
	return err
}

// drainedWithBudget drains a node as an upgrade does. With failover policy Wait, the pod that waits for the node uses up the
// budget. The message of the pod names the node, and an event of the Node names the pod.
func drainedWithBudget(ctx context.Context, s *scene) error {
	before, err := s.drainBegun(ctx, workload{name: "waits"})
	if err != nil {
		return err
	}
	first, second := before.names()[0], before.names()[1]
	message, err := s.waiting(ctx, first)
	if err != nil {
		return err
	}
	if want := "to node " + victimNode + ", which is cordoned"; !strings.Contains(message, want) {
		return fmt.Errorf("pod %s: the condition PodScheduled has the message %q, want it to contain %q", first, message, want)
	}
	if err := s.nodeEvent(ctx, victimNode, "PodsWaitForNode", s.namespace+"/"+first); err != nil {
		return err
	}
	switch err := s.evict(ctx, second); {
	case err == nil:
		return fmt.Errorf("pod %s was evicted although pod %s waits and uses up the budget", second, first)
	case !apierrors.IsTooManyRequests(err):
		return fmt.Errorf("while pod %s waits and uses up the budget, the eviction of pod %s failed, want TooManyRequests: %w", first, second, err)
	}
	if err := s.uncordon(ctx, victimNode); err != nil {
		return err
	}
	_, err = s.awaitReplaced(ctx, before, first)
	return err
}

// drainedWithBudgetAndMoved drains the third node while the failover policy of its pods is Migrate.
func drainedWithBudgetAndMoved(ctx context.Context, s *scene) error {
	before, err := s.drainBegun(ctx, workload{name: "moves", annotations: map[string]string{"fixedip.io/failover": "Migrate"}})
	if err != nil {
		return err
	}
	first, second := before.names()[0], before.names()[1]
	if err := eventually(ctx, func() error { return s.evict(ctx, second) }); err != nil {
		return fmt.Errorf("the drain does not end: %w", err)
	}
	after, err := s.awaitReplaced(ctx, before, first, second)
	if err != nil {
		return err
	}
	for _, i := range after {
		if i.node != otherNode {
			return fmt.Errorf("after the drain of node %s: got the pods %v, want all on node %s", victimNode, after, otherNode)
		}
	}
	return s.uncordon(ctx, victimNode)
}

// drainBegun places two pods of a workload on the third node, with a PodDisruptionBudget that allows one of them to be
// unavailable. It then cordons the node and evicts the first pod.
func (s *scene) drainBegun(ctx context.Context, w workload) (identities, error) {
	w.replicas, w.nodes = 2, []string{victimNode, otherNode}
	before, err := s.placedOn(ctx, victimNode, w)
	if err != nil {
		return nil, err
	}
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: s.meta(w.name), Spec: policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable: ptr.To(intstr.FromInt32(1)), Selector: w.selector(),
	}}
	if err := s.create(ctx, budget); err != nil {
		return nil, err
	}
	if err := s.cordon(ctx, victimNode); err != nil {
		return nil, err
	}
	// The disruption controller may not have counted the pods of the budget yet.
	return before, eventually(ctx, func() error { return s.evict(ctx, before.names()[0]) })
}

// nodeRemoved removes a node, and no new node joins: a node that joined at the start inherits the subnet of the removed
// node. At the end, the removed node is reinstalled and joins again under its name.
func nodeRemoved(ctx context.Context, s *scene) error {
	old, _, err := s.joinedNode(ctx)
	if err != nil {
		return err
	}
	before, err := s.placedOn(ctx, old, workload{name: "web", replicas: 2, nodes: []string{old, otherNode}})
	if err != nil {
		return err
	}
	if err := s.deleteNode(ctx, old); err != nil {
		return err
	}
	after, err := s.awaitReplaced(ctx, before, before.names()...)
	for name, i := range after {
		if i.node != otherNode {
			err = errors.Join(err, fmt.Errorf("pod %s is on node %s, want node %s", name, i.node, otherNode))
		}
	}
	node := s.cluster.Node(old)
	return errors.Join(err, node.Reboot(ctx, false), node.WaitReady(ctx))
}

// joinedNode returns victimNode and spareNode. The result node is victimNode if it is in the cluster, and otherwise spareNode:
// an earlier scenario has replaced victimNode by spareNode.
func (s *scene) joinedNode(ctx context.Context) (node, other string, err error) {
	switch err := s.api.Get(ctx, client.ObjectKey{Name: victimNode}, &corev1.Node{}); {
	case err == nil:
		return victimNode, spareNode, nil
	case apierrors.IsNotFound(err):
		return spareNode, victimNode, nil
	default:
		return "", "", fmt.Errorf("read node %s: %w", victimNode, err)
	}
}

// deleteNode powers a node off and deletes its Node.
func (s *scene) deleteNode(ctx context.Context, name string) error {
	if err := s.cluster.Node(name).PowerOff(); err != nil {
		return err
	}
	return s.remove(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
}

// nodeReplaced removes a node permanently. Another node joins after the removal and inherits the subnet: the spare
// node or, if the spare node is the removed one, the reinstalled victimNode.
func nodeReplaced(ctx context.Context, s *scene) error { return s.replaceNode(ctx, false) }

// nodeSurged does the same as nodeReplaced, but the other node joins more than the grace period before the removal.
func nodeSurged(ctx context.Context, s *scene) error { return s.replaceNode(ctx, true) }

func (s *scene) replaceNode(ctx context.Context, surge bool) error {
	old, next, err := s.joinedNode(ctx)
	if err != nil {
		return err
	}
	before, err := s.placed(ctx, workload{name: "web", replicas: 2, nodes: []string{victimNode, spareNode}})
	if err != nil {
		return err
	}
	join := func() error {
		if node := s.cluster.Node(next); node != nil {
			return errors.Join(node.Reboot(ctx, false), node.WaitReady(ctx))
		}
		return s.cluster.AddNode(ctx, next)
	}
	if surge {
		if err := join(); err != nil {
			return err
		}
		if err := s.joinedBefore(ctx, next, gracePeriod); err != nil {
			return err
		}
	}
	if err := s.deleteNode(ctx, old); err != nil {
		return err
	}
	if !surge {
		if err := join(); err != nil {
			return err
		}
	}
	after, err := s.awaitReplaced(ctx, before, before.names()...)
	if err != nil {
		return err
	}
	for name, i := range after {
		if i.node != next {
			return fmt.Errorf("pod %s is on node %s, want node %s", name, i.node, next)
		}
	}
	return nil
}

// joinedBefore returns when the age of a Node exceeds ago.
func (s *scene) joinedBefore(ctx context.Context, name string, ago time.Duration) error {
	return eventually(ctx, func() error {
		var node corev1.Node
		if err := s.api.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
			return err
		}
		if since := time.Since(node.CreationTimestamp.Time); since <= ago {
			return fmt.Errorf("node %s joined %v ago, want more than %v", name, since, ago)
		}
		return nil
	})
}
