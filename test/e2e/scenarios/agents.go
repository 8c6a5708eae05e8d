// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/cilium/cilium/pkg/node/addressing"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/realcluster"
	"fixedip.io/fixedip/ipam/core/agentview"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// Scenarios about agents and their connection to the API server.

// agentRestarted kills the agents of both calm nodes, deletes the pods there, and starts the agents again. Then it deletes
// the replacements and restarts the agents.
func agentRestarted(ctx context.Context, s *scene) error {
	before, err := s.placed(ctx, workload{name: "web", replicas: 4})
	if err != nil {
		return err
	}
	for _, name := range calmNodes {
		if err := s.cluster.Node(name).Kill(realcluster.Agent); err != nil {
			return err
		}
	}
	if err := s.deletePods(ctx, false, before.names()...); err != nil {
		return errors.Join(err, s.startAgents(ctx))
	}
	if err := s.startAgents(ctx); err != nil {
		return err
	}
	after, err := s.awaitReplaced(ctx, before, before.names()...)
	if err != nil {
		return err
	}
	// Repeat with pods that start while the agents restart.
	if err := s.deletePods(ctx, false, before.names()...); err != nil {
		return err
	}
	if err := s.startAgents(ctx); err != nil {
		return err
	}
	_, err = s.awaitReplaced(ctx, after, before.names()...)
	return err
}

// agentRestartedOften restarts the agent of a node ten times. After each restart, the addresses of the node itself must be the
// same. In CRD mode, an agent that does not find the address of its router in the pool takes another one (cilium #17691,
// #20879).
func agentRestartedOften(ctx context.Context, s *scene) error {
	name := calmNodes[0]
	node := s.cluster.Node(name)
	before, err := s.nodeAddresses(ctx, name)
	if err != nil {
		return err
	}
	for n := 1; n <= 10; n++ {
		if err := node.Start(ctx, realcluster.Agent); err != nil {
			return err
		}
		// If an agent is killed while it regenerates the eBPF programs of a pod, the pod has no network until the agent has
		// started again and has regenerated them.
		if err := errors.Join(node.WaitReady(ctx), node.WaitEndpoints(ctx)); err != nil {
			return err
		}
		after, err := s.nodeAddresses(ctx, name)
		if err != nil {
			return err
		}
		if !slices.Equal(before, after) {
			return fmt.Errorf("node %s has the addresses %v after %d restarts of its agent, want %v", name, after, n, before)
		}
	}
	return nil
}

// ciliumNodeDeleted deletes the CiliumNode of a node on which pods run, and restarts its agent, which creates the CiliumNode
// again. This replaces no pod and changes no address, and pods that start after that share no address with another pod. At the
// end, pods with fixed addresses are deleted, and their replacements have the same addresses. The control pods on the node are
// pinged throughout.
func ciliumNodeDeleted(ctx context.Context, s *scene) error {
	before, err := s.placed(ctx, workload{name: "web", replicas: 3, nodes: []string{calmNode}})
	if err != nil {
		return err
	}
	const pods = 5
	crowd := s.deployment(workload{name: "crowd", replicas: pods, nodes: []string{calmNode}, scheduler: stockScheduler})
	if err := s.create(ctx, crowd); err != nil {
		return err
	}
	unreserved, err := s.awaitCrowd(ctx, pods)
	if err != nil {
		return err
	}
	var cn, made ciliumv2.CiliumNode
	if err := s.api.Get(ctx, client.ObjectKey{Name: calmNode}, &cn); err != nil {
		return fmt.Errorf("read CiliumNode %s: %w", calmNode, err)
	}
	if err := s.api.Delete(ctx, &cn); err != nil {
		return fmt.Errorf("delete CiliumNode %s: %w", calmNode, err)
	}
	node := s.cluster.Node(calmNode)
	if err := node.Start(ctx, realcluster.Agent); err != nil {
		return err
	}
	if err := errors.Join(node.WaitReady(ctx), node.WaitEndpoints(ctx)); err != nil {
		return err
	}
	// Wait for an agent barrier, so that the report of the agent is about the new pool.
	if _, err := s.nodeAddresses(ctx, calmNode); err != nil {
		return err
	}
	if err := s.api.Get(ctx, client.ObjectKey{Name: calmNode}, &made); err != nil {
		return fmt.Errorf("read CiliumNode %s: %w", calmNode, err)
	}
	if made.UID == cn.UID {
		return fmt.Errorf("CiliumNode %s has the UID that it had before its deletion, want it to be created again", calmNode)
	}
	if before, err = s.awaitReplaced(ctx, before); err != nil {
		return err
	}
	if err := change(ctx, s, crowd, func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](2 * pods) }); err != nil {
		return err
	}
	after, err := s.awaitCrowd(ctx, 2*pods)
	if err != nil {
		return err
	}
	for name, addresses := range unreserved {
		if !slices.Equal(after[name], addresses) {
			return fmt.Errorf("the unreserved pod %s has %v, want %v as before; an empty list means that the pod was replaced", name, after[name], addresses)
		}
	}
	if err := s.deletePods(ctx, false, before.names()...); err != nil {
		return err
	}
	_, err = s.awaitReplaced(ctx, before, before.names()...)
	return err
}

// nodeAddresses returns, sorted, the addresses that the agent of a node uses for the node itself, each after its owner, and
// the addresses of type CiliumInternalIP of the CiliumNode. An agent barrier makes sure that they are current.
func (s *scene) nodeAddresses(ctx context.Context, name string) (found []string, err error) {
	pools := ciliumpool.New(s.api)
	var probe netip.Addr
	if err := eventually(ctx, func() error {
		n, err := pools.Get(ctx, name)
		if err == nil {
			probe = agentview.NewProbe(n)
			_, err = pools.WriteProbe(ctx, n, probe)
		}
		return err
	}); err != nil {
		return nil, err
	}
	err = eventually(ctx, func() error {
		var cn ciliumv2.CiliumNode
		if err := s.api.Get(ctx, client.ObjectKey{Name: name}, &cn); err != nil {
			return err
		}
		n := ciliumpool.FromCiliumNode(&cn)
		if slices.Contains(n.Probes, probe) || n.Unreported {
			return fmt.Errorf("the agent of node %s has not answered the barrier", name)
		}
		found = nil
		for a, owner := range n.Used {
			if slices.Contains(pool.NodeOwners[:], owner) {
				found = append(found, owner+" "+a.String())
			}
		}
		for _, a := range cn.Spec.Addresses {
			if a.Type == addressing.NodeCiliumInternalIP {
				found = append(found, "CiliumInternalIP "+a.IP)
			}
		}
		slices.Sort(found)
		return nil
	})
	return found, err
}

// startAgents starts or restarts the agents of the calm nodes.
func (s *scene) startAgents(ctx context.Context) error {
	var errs []error
	for _, name := range calmNodes {
		errs = append(errs, s.cluster.Node(name).Start(ctx, realcluster.Agent))
	}
	return errors.Join(errs...)
}

func apiServerRestarted(ctx context.Context, s *scene) error {
	before, err := s.placed(ctx, workload{name: "web", replicas: 4})
	if err != nil {
		return err
	}
	if err := s.deletePods(ctx, false, before.names()...); err != nil {
		return err
	}
	if err := s.cluster.ControlPlane().Kill(); err != nil {
		return err
	}
	if err := s.cluster.ControlPlane().Restart(ctx); err != nil {
		return err
	}
	_, err = s.awaitReplaced(ctx, before, before.names()...)
	return err
}

// cutAgent drops the packets that the agent of a node sends over its present connections to the API server. The agent notices
// only after a timeout of 30 s or more, and then opens new connections, whose packets are not dropped; until then it works with
// its last state. The kubelet of the node is not affected. heal ends the partition.
func (s *scene) cutAgent(ctx context.Context, name string) (heal func() error, err error) {
	node := s.cluster.Node(name)
	out, err := node.Run(ctx, "ss", "--tcp", "--numeric", "--processes", "--no-header", "state", "established")
	if err != nil {
		return nil, err
	}
	ports := agentPorts(out)
	if len(ports) == 0 {
		return nil, fmt.Errorf("the agent of node %s has no connection to the API server:\n%s", name, out)
	}
	rule := func(ctx context.Context, operation, port string) error {
		_, err := node.Run(ctx, "iptables", "--wait", operation, "OUTPUT", "-p", "tcp", "--sport", port, "--dport", "6443", "-j", "DROP")
		return err
	}
	heal = func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		var errs []error
		for _, port := range ports {
			errs = append(errs, rule(ctx, "-D", port))
		}
		return errors.Join(errs...)
	}
	for n, port := range ports {
		if err := rule(ctx, "-I", port); err != nil {
			ports = ports[:n]
			return nil, errors.Join(err, heal())
		}
	}
	return heal, nil
}

var localPort = regexp.MustCompile(`:(\d+)\s+\S+:6443\s`)

// agentPorts returns the local ports of the connections of the agent to the API server, from the output of ss.
func agentPorts(ss string) []string {
	var ports []string
	for line := range strings.Lines(ss) {
		if m := localPort.FindStringSubmatch(line); m != nil && strings.Contains(line, `"cilium-agent"`) {
			ports = append(ports, m[1])
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// agentCutOff replaces a pod and places a new one while the agent of their node is partitioned. The first pod gets its
// addresses, because its entries already exist. The second may get other addresses than the claimed ones, but must run with
// its fixed addresses after the partition, and keep them when it is replaced.
func agentCutOff(ctx context.Context, s *scene) error {
	before, err := s.placed(ctx, workload{name: "old", replicas: 1, nodes: []string{victimNode}})
	if err != nil {
		return err
	}
	heal, err := s.cutAgent(ctx, victimNode)
	if err != nil {
		return err
	}
	// Pod new-0 may run with another address for a while, because the node is not strict.
	endTolerance := s.witness.Tolerate(s.namespace + "/new-0")
	claimed, got, err := s.placeWhileCut(ctx)
	if err := errors.Join(err, heal()); err != nil {
		return err
	}
	s.note = fmt.Sprintf("claimed %v, got %v from the agent", claimed, got)
	if _, err := s.awaitReplaced(ctx, before, "old-0"); err != nil {
		return err
	}
	after, err := s.awaitSet(ctx, "new", 1)
	if err != nil {
		return err
	}
	endTolerance()
	if err := s.deletePods(ctx, false, "new-0"); err != nil {
		return err
	}
	_, err = s.awaitReplaced(ctx, after, "new-0")
	return err
}

// placeWhileCut deletes pod old-0, creates pod new-0, and waits until new-0 is bound and then for the time stayFor. It
// returns the claimed addresses of new-0 and the addresses of its status.
func (s *scene) placeWhileCut(ctx context.Context) (claimed, got []string, err error) {
	if err := s.deletePods(ctx, false, "old-0"); err != nil {
		return nil, nil, err
	}
	if err := s.create(ctx, s.statefulSet(workload{name: "new", replicas: 1, nodes: []string{victimNode}})); err != nil {
		return nil, nil, err
	}
	if err := eventually(ctx, func() error {
		pod := s.witness.Pod(s.namespace, "new-0")
		if pod == nil || pod.Spec.NodeName == "" {
			return errors.New("pod new-0 is not bound")
		}
		return nil
	}); err != nil {
		return nil, nil, err
	}
	for _, e := range s.witness.Entries(s.namespace, "new-0") {
		claimed = append(claimed, strings.TrimPrefix(e, victimNode+"/"))
	}
	err = stays(ctx, func() error {
		got = nil
		if pod := s.witness.Pod(s.namespace, "new-0"); pod != nil {
			for _, ip := range pod.Status.PodIPs {
				got = append(got, ip.IP)
			}
		}
		return nil
	})
	return claimed, got, err
}

// agentCutOffStrict does the same as agentCutOff on a strict node, but does not replace the new pod. The pool has no dynamic
// entry, so the new pod waits until the agent has seen the claim, and then has the claimed addresses.
func agentCutOffStrict(ctx context.Context, s *scene) error {
	const key = "fixedip.io/strict"
	if err := s.label(ctx, victimNode, key, "true"); err != nil {
		return err
	}
	err := s.strictCut(ctx)
	return errors.Join(err, s.label(context.WithoutCancel(ctx), victimNode, key, ""))
}

func (s *scene) strictCut(ctx context.Context) error {
	if err := s.onlyOwned(ctx, victimNode); err != nil {
		return err
	}
	before, err := s.placed(ctx, workload{name: "old", replicas: 1, nodes: []string{victimNode}})
	if err != nil {
		return err
	}
	heal, err := s.cutAgent(ctx, victimNode)
	if err != nil {
		return err
	}
	claimed, got, err := s.placeWhileCut(ctx)
	if err == nil && len(got) > 0 && !same(got, claimed) {
		err = fmt.Errorf("pod new-0 on a strict node has %v, want the claimed addresses %v", got, claimed)
	}
	s.note = fmt.Sprintf("claimed %v, got %v from the agent", claimed, got)
	if err := errors.Join(err, heal()); err != nil {
		return err
	}
	if _, err := s.awaitReplaced(ctx, before, "old-0"); err != nil {
		return err
	}
	after, err := s.awaitSet(ctx, "new", 1)
	if err != nil {
		return err
	}
	if !same(after["new-0"].addresses, claimed) {
		return fmt.Errorf("pod new-0 on a strict node has %v, want the claimed addresses %v", after["new-0"].addresses, claimed)
	}
	return nil
}
