// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// Scenarios about the addresses that pods get: requested addresses, entries written by hand, the last free address, adoption,
// and many unreserved pods.

// unusedAddresses returns n addresses of each family that have no entry in the pool of a node, from the upper half of its
// subnets.
func (s *scene) unusedAddresses(ctx context.Context, node string, n int) (v4, v6 []string, err error) {
	var cn ciliumv2.CiliumNode
	if err := s.api.Get(ctx, client.ObjectKey{Name: node}, &cn); err != nil {
		return nil, nil, fmt.Errorf("read the CiliumNode %s: %w", node, err)
	}
	for _, cidr := range cn.Spec.IPAM.PodCIDRs {
		subnet, err := netip.ParsePrefix(cidr)
		if err != nil {
			return nil, nil, fmt.Errorf("parse a subnet of node %s: %w", node, err)
		}
		list := &v4
		if subnet.Addr().Is6() {
			list = &v6
		}
		bytes := subnet.Masked().Addr().AsSlice()
		// The subnets are /24 and /120, so the last byte is the number of an address in its subnet. Claims of
		// addresses that were not requested begin at the top of the subnet.
		for last := 140; last < 200 && len(*list) < n; last++ {
			bytes[len(bytes)-1] = byte(last)
			a, _ := netip.AddrFromSlice(bytes)
			if _, taken := cn.Spec.IPAM.Pool[a.String()]; !taken {
				*list = append(*list, a.String())
			}
		}
	}
	if len(v4) < n || len(v6) < n {
		return nil, nil, fmt.Errorf("node %s has fewer than %d IPv4 or IPv6 addresses without a pool entry among those of its subnets %v whose last byte is 140 to 199", node, n, cn.Spec.IPAM.PodCIDRs)
	}
	return v4, v6, nil
}

func requestedAddresses(ctx context.Context, s *scene) error {
	v4, v6, err := s.unusedAddresses(ctx, otherNode, 2)
	if err != nil {
		return err
	}
	before, err := s.placed(ctx, workload{name: "web", replicas: 2, podAnnotations: map[string]string{
		"fixedip.io/ips": strings.Join(append(slices.Clone(v4), v6...), ","),
	}})
	if err != nil {
		return err
	}
	for n, name := range podNames("web", 2) {
		if want := []string{v4[n], v6[n]}; !same(before[name].addresses, want) || before[name].node != otherNode {
			return fmt.Errorf("pod %s has %+v, want the requested addresses %v on node %s", name, before[name], want, otherNode)
		}
	}
	if err := s.deletePods(ctx, false, before.names()...); err != nil {
		return err
	}
	_, err = s.awaitReplaced(ctx, before, before.names()...)
	return err
}

// lastAddress leaves one free IPv4 address on a node, for which two pods compete. The pod that does not get the
// address waits, and gets it when the StatefulSet of the other pod is deleted.
func lastAddress(ctx context.Context, s *scene) error {
	last, err := s.fill(ctx, victimNode)
	if err != nil {
		return err
	}
	for _, name := range []string{"one", "two"} {
		if err := s.create(ctx, s.statefulSet(workload{name: name, replicas: 1, nodes: []string{victimNode}})); err != nil {
			return err
		}
	}
	var winner, loser string
	if err := eventually(ctx, func() error {
		for _, pair := range [][2]string{{"one", "two"}, {"two", "one"}} {
			i, err := s.whole(ctx, pair[0]+"-0")
			if err != nil {
				continue
			}
			if a := ofFamily(i.addresses, false); a != last {
				return fmt.Errorf("pod %s-0 has %s, want %s, the only free address", pair[0], a, last)
			}
			winner, loser = pair[0], pair[1]
			return nil
		}
		return fmt.Errorf("no pod has the last free address %s of node %s", last, victimNode)
	}); err != nil {
		return err
	}
	message, err := s.waiting(ctx, loser+"-0")
	if err != nil {
		return err
	}
	if !strings.Contains(message, "IPv4") {
		return fmt.Errorf("pod %s-0: the condition PodScheduled has the message %q, want it to contain %q", loser, message, "IPv4")
	}
	if err := stays(ctx, func() error {
		pod := s.witness.Pod(s.namespace, loser+"-0")
		if pod == nil {
			return fmt.Errorf("pod %s-0 does not exist, want it to wait", loser)
		}
		if pod.Spec.NodeName != "" {
			return fmt.Errorf("pod %s is on node %s, although no address is free for the pod", pod.Name, pod.Spec.NodeName)
		}
		return nil
	}); err != nil {
		return err
	}
	if err := s.removeSet(ctx, winner); err != nil {
		return err
	}
	after, err := s.awaitSet(ctx, loser, 1)
	if err != nil {
		return err
	}
	if a := ofFamily(after[loser+"-0"].addresses, false); a != last {
		return fmt.Errorf("pod %s-0 has %s, want %s, the address that was released", loser, a, last)
	}
	s.note = last
	return nil
}

// fill creates FixedIPs for all IPv4 addresses of a node that have no entry, except one, and returns that address. It waits
// until each of these FixedIPs has its entry.
func (s *scene) fill(ctx context.Context, node string) (string, error) {
	var cn ciliumv2.CiliumNode
	// Addresses of an earlier scenario may be in cooldown, and would become free while this scenario runs.
	if err := eventually(ctx, func() error {
		if err := s.api.Get(ctx, client.ObjectKey{Name: node}, &cn); err != nil {
			return err
		}
		for a, e := range cn.Spec.IPAM.Pool {
			if e.Owner == "fixedip.io/cooldown" {
				return fmt.Errorf("%s is still in cooldown on node %s", a, node)
			}
		}
		return nil
	}); err != nil {
		return "", err
	}
	var free []netip.Addr
	for _, cidr := range cn.Spec.IPAM.PodCIDRs {
		subnet, err := netip.ParsePrefix(cidr)
		if err != nil || subnet.Addr().Is6() {
			continue
		}
		// The first address is the network address and the last the broadcast address.
		for a := subnet.Masked().Addr().Next(); subnet.Contains(a.Next()); a = a.Next() {
			if _, taken := cn.Spec.IPAM.Pool[a.String()]; !taken {
				free = append(free, a)
			}
		}
	}
	if len(free) == 0 {
		return "", fmt.Errorf("node %s has no free IPv4 address", node)
	}
	last := free[len(free)-1].String()
	var names []string
	for n, a := range free[:len(free)-1] {
		name := fmt.Sprintf("filler-%d", n)
		names = append(names, name)
		if err := s.create(ctx, &v1alpha1.FixedIP{ObjectMeta: s.meta(name), Spec: v1alpha1.FixedIPSpec{
			IPs: []string{a.String()}, PodName: name,
			Owner:   v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "filler"},
			Reclaim: v1alpha1.ReclaimPolicy{WhenDeleted: v1alpha1.Retain, WhenScaled: v1alpha1.Retain},
		}}); err != nil {
			return "", err
		}
	}
	return last, eventually(ctx, func() error {
		for _, name := range names {
			if len(s.witness.Entries(s.namespace, name)) == 0 {
				return fmt.Errorf("FixedIP %s, one of %d, has no pool entry, want one on node %s", name, len(names), node)
			}
		}
		return nil
	})
}

// handWritten writes owned pool entries as an administrator would, before the pods exist.
func handWritten(ctx context.Context, s *scene) error {
	v4, v6, err := s.unusedAddresses(ctx, calmNode, 2)
	if err != nil {
		return err
	}
	names := podNames("web", 2)
	for n, name := range names {
		for _, a := range []string{v4[n], v6[n]} {
			patch := fmt.Appendf(nil, `[{"op":"test","path":"/spec/ipam/pool/%s","value":null},{"op":"add","path":"/spec/ipam/pool/%s","value":{"owner":"%s/%s"}}]`, a, a, s.namespace, name)
			cn := &ciliumv2.CiliumNode{}
			cn.Name = calmNode
			if err := s.api.Patch(ctx, cn, client.RawPatch("application/json-patch+json", patch)); err != nil {
				return fmt.Errorf("write %s into the pool of node %s: %w", a, calmNode, err)
			}
		}
	}
	before, err := s.placed(ctx, workload{name: "web", replicas: 2})
	if err != nil {
		return err
	}
	for n, name := range names {
		if want := []string{v4[n], v6[n]}; !same(before[name].addresses, want) || before[name].node != calmNode {
			return fmt.Errorf("pod %s has %+v, want the addresses %v of its entries on node %s", name, before[name], want, calmNode)
		}
	}
	if err := s.deletePods(ctx, false, names...); err != nil {
		return err
	}
	_, err = s.awaitReplaced(ctx, before, names...)
	return err
}

// adopted checks that the addresses of pods of the default scheduler are adopted if the template of the pods has the
// annotation fixedip.io/enabled, or if adoption.podSelector matches the labels of the pods.
func adopted(ctx context.Context, s *scene) error {
	s.witness.AnyOrder(stockScheduler)
	for _, w := range []workload{
		{name: "annotated", podAnnotations: map[string]string{"fixedip.io/enabled": "true"}},
		{name: "labelled", labels: map[string]string{"fixed": "by-label"}},
	} {
		// The pods are pinned to a node, because the default scheduler does not place them on the node of their address.
		w.replicas, w.scheduler, w.nodes = 2, stockScheduler, []string{calmNode}
		before, err := s.placed(ctx, w)
		if err != nil {
			return err
		}
		for _, force := range []bool{false, true} {
			if err := s.deletePods(ctx, force, before.names()...); err != nil {
				return err
			}
			if before, err = s.awaitReplaced(ctx, before, before.names()...); err != nil {
				return err
			}
		}
	}
	return nil
}

// burst starts 60 unreserved pods on a node on which pods with fixed addresses are replaced at the same time.
func burst(ctx context.Context, s *scene) error {
	before, err := s.placed(ctx, workload{name: "web", replicas: 2, nodes: []string{otherNode}})
	if err != nil {
		return err
	}
	const pods = 60
	d := s.deployment(workload{name: "crowd", replicas: pods, nodes: []string{otherNode}, scheduler: stockScheduler})
	if err := s.create(ctx, d); err != nil {
		return err
	}
	if err := s.deletePods(ctx, false, before.names()...); err != nil {
		return err
	}
	if before, err = s.awaitReplaced(ctx, before, before.names()...); err != nil {
		return err
	}
	if _, err := s.awaitCrowd(ctx, pods); err != nil {
		return err
	}
	if err := s.deletePods(ctx, false, before.names()...); err != nil {
		return err
	}
	_, err = s.awaitReplaced(ctx, before, before.names()...)
	return err
}

// awaitCrowd returns when all pods of the Deployment crowd are ready and each has answered at its addresses. It returns an
// error if two pods share an address. found contains the addresses, sorted. Key: the name of the pod.
func (s *scene) awaitCrowd(ctx context.Context, pods int) (found map[string][]string, err error) {
	if err := within(ctx, 2*stepTimeout, func() error {
		d := &appsv1.Deployment{ObjectMeta: s.meta("crowd")}
		if err := s.api.Get(ctx, client.ObjectKeyFromObject(d), d); err != nil {
			return err
		}
		if int(d.Status.ReadyReplicas) != pods {
			return fmt.Errorf("%d of %d unreserved pods are ready", d.Status.ReadyReplicas, pods)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	var list corev1.PodList
	if err := s.api.List(ctx, &list, client.InNamespace(s.namespace), client.MatchingLabels{"app": "crowd"}); err != nil {
		return nil, fmt.Errorf("list the unreserved pods: %w", err)
	}
	found = map[string][]string{}
	users := map[string]string{}
	for _, pod := range list.Items {
		for _, ip := range pod.Status.PodIPs {
			if other, taken := users[ip.IP]; taken {
				return nil, fmt.Errorf("the unreserved pods %s and %s have the same address %s", other, pod.Name, ip.IP)
			}
			users[ip.IP] = pod.Name
			found[pod.Name] = append(found[pod.Name], ip.IP)
			if err := within(ctx, fetchTimeout*3, func() error {
				a, err := s.watch.clients()[0].fetch(ctx, ip.IP)
				if err == nil && a.Hostname != pod.Name {
					err = fmt.Errorf("pod %s answers instead", a.Hostname)
				}
				return err
			}); err != nil {
				return nil, fmt.Errorf("the unreserved pod %s does not answer at %s: %w", pod.Name, ip.IP, err)
			}
		}
		slices.Sort(found[pod.Name])
	}
	if len(users) != 2*pods {
		return nil, fmt.Errorf("%d unreserved pods have %d addresses, want %d", len(list.Items), len(users), 2*pods)
	}
	return found, nil
}
