// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// identity contains the node, UID, MAC address and addresses of a pod.
type identity struct {
	node, uid, mac string
	addresses      []string
}

// identities are the pods of a workload. Key: the pod name.
type identities map[string]identity

func (i identities) names() []string { return slices.Sorted(maps.Keys(i)) }

// settled returns when all pods of a StatefulSet are whole.
func (s *scene) settled(ctx context.Context, set string, replicas int) (identities, error) {
	all := identities{}
	err := eventually(ctx, func() error {
		for _, name := range podNames(set, replicas) {
			i, err := s.whole(ctx, name)
			if err != nil {
				return err
			}
			all[name] = i
		}
		return nil
	})
	return all, err
}

// back returns when the pods in replaced were replaced and all pods in before are whole again. It returns an error if a pod
// has other addresses than before, or was replaced although it is not in replaced.
func (s *scene) back(ctx context.Context, before identities, replaced ...string) (identities, error) {
	after := identities{}
	err := eventually(ctx, func() error {
		for _, name := range before.names() {
			pod := s.witness.Pod(s.namespace, name)
			if slices.Contains(replaced, name) && (pod == nil || string(pod.UID) == before[name].uid) {
				return fmt.Errorf("pod %s is not replaced yet", name)
			}
			i, err := s.whole(ctx, name)
			if err != nil {
				return err
			}
			after[name] = i
		}
		return nil
	})
	if err != nil {
		return after, err
	}
	for _, name := range before.names() {
		if !same(before[name].addresses, after[name].addresses) {
			return after, fmt.Errorf("pod %s had %v and came back with %v", name, before[name].addresses, after[name].addresses)
		}
		if !slices.Contains(replaced, name) && before[name].uid != after[name].uid {
			return after, fmt.Errorf("pod %s was replaced unexpectedly", name)
		}
	}
	return after, nil
}

// whole returns the identity of a pod. It returns an error unless the pod is ready, its status, FixedIP, pool entries,
// CiliumEndpoint and interface agree, and it answers requests of pods on both calm nodes.
func (s *scene) whole(ctx context.Context, name string) (identity, error) {
	i, err := s.running(name)
	if err != nil {
		return i, err
	}
	if err := errors.Join(s.checkRecord(name, i), s.checkEntries(name, i), s.checkEndpoint(ctx, name, i)); err != nil {
		return i, err
	}
	return s.answers(ctx, name, i)
}

// running returns the identity of a pod from its status. It returns an error unless the pod is ready and has two addresses.
func (s *scene) running(name string) (identity, error) {
	pod := s.witness.Pod(s.namespace, name)
	switch {
	case pod == nil:
		return identity{}, fmt.Errorf("there is no pod %s", name)
	case pod.DeletionTimestamp != nil:
		return identity{}, fmt.Errorf("pod %s is being deleted", name)
	case !isReady(pod):
		return identity{}, fmt.Errorf("pod %s is not ready: %s", name, reasons(pod))
	}
	i := identity{node: pod.Spec.NodeName, uid: string(pod.UID)}
	for _, ip := range pod.Status.PodIPs {
		i.addresses = append(i.addresses, ip.IP)
	}
	if len(i.addresses) != 2 {
		return i, fmt.Errorf("pod %s has the addresses %v, not one of each family", name, i.addresses)
	}
	return i, nil
}

// checkRecord compares a pod with its FixedIP.
func (s *scene) checkRecord(name string, i identity) error {
	record := s.witness.Record(s.namespace, name)
	if record == nil {
		for _, r := range s.witness.Records(s.namespace) {
			if r.Spec.Slot && r.Spec.PodName == name {
				record = r
			}
		}
	}
	if record == nil {
		return fmt.Errorf("pod %s has no FixedIP", name)
	}
	if !same(record.Spec.IPs, i.addresses) || record.Spec.NodeName != i.node ||
		record.Status.Phase != v1alpha1.PhaseInUse || string(record.Status.PodUID) != i.uid {
		return fmt.Errorf("pod %s is %+v, but FixedIP %s says %v on %s, %s by %s",
			name, i, record.Name, record.Spec.IPs, record.Spec.NodeName, record.Status.Phase, record.Status.PodUID)
	}
	for _, c := range record.Status.Conditions {
		bad := c.Type == v1alpha1.ConditionConflict || c.Type == v1alpha1.ConditionMismatch
		if bad == (c.Status == "True") {
			return fmt.Errorf("FixedIP %s: %s is %s: %s", record.Name, c.Type, c.Status, c.Message)
		}
	}
	return nil
}

// checkEntries compares a pod with the pools: it owns an entry for each of its addresses in the pool of its node, and no
// other entry.
func (s *scene) checkEntries(name string, i identity) error {
	var want []string
	for _, a := range i.addresses {
		want = append(want, i.node+"/"+a)
	}
	if got := s.witness.Entries(s.namespace, name); !same(got, want) {
		return fmt.Errorf("the pools have %v for pod %s, not %v", got, name, want)
	}
	return nil
}

// checkEndpoint compares a pod with its CiliumEndpoint.
func (s *scene) checkEndpoint(ctx context.Context, name string, i identity) error {
	var cep ciliumv2.CiliumEndpoint
	if err := s.api.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, &cep); err != nil {
		return fmt.Errorf("the CiliumEndpoint of pod %s: %w", name, err)
	}
	if got := endpointAddresses(&cep); !same(got, i.addresses) {
		return fmt.Errorf("the CiliumEndpoint of pod %s has %v, not %v", name, got, i.addresses)
	}
	for _, owner := range cep.OwnerReferences {
		if owner.Kind == "Pod" && string(owner.UID) != i.uid {
			return fmt.Errorf("the CiliumEndpoint of pod %s belongs to the former pod %s", name, owner.UID)
		}
	}
	return nil
}

func endpointAddresses(cep *ciliumv2.CiliumEndpoint) []string {
	if cep.Status.Networking == nil {
		return nil
	}
	var list []string
	for _, pair := range cep.Status.Networking.Addressing {
		for _, a := range []string{pair.IPV4, pair.IPV6} {
			if a != "" {
				list = append(list, a)
			}
		}
	}
	return list
}

// answers checks that the interface of a pod has its addresses, and that the pod answers there to one pod on each calm node.
// It returns the identity with the MAC address.
func (s *scene) answers(ctx context.Context, name string, i identity) (identity, error) {
	box, err := s.wire.sandboxOf(i.node, i.uid)
	if err != nil {
		return i, err
	}
	if !same(box.addresses, i.addresses) {
		return i, fmt.Errorf("pod %s has the addresses %v, and its interface has %v", name, i.addresses, box.addresses)
	}
	i.mac = box.mac
	for _, from := range s.watch.askers() {
		for _, address := range i.addresses {
			a, err := from.fetch(ctx, address)
			if err != nil {
				return i, fmt.Errorf("pod %s does not answer: %w", name, err)
			}
			if a.Hostname != name {
				return i, fmt.Errorf("at the address %s of pod %s answers %s", address, name, a.Hostname)
			}
		}
	}
	return i, nil
}

// reasons returns why a pod is not ready, from its status.
func reasons(pod *corev1.Pod) string {
	var list []string
	for _, c := range pod.Status.Conditions {
		if c.Status != corev1.ConditionTrue && c.Message != "" {
			list = append(list, c.Message)
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil {
			list = append(list, w.Reason+" "+w.Message)
		}
	}
	return string(pod.Status.Phase) + ": " + strings.Join(list, "; ")
}

// same compares lists of addresses regardless of order.
func same(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// ofFamily returns the first IPv6 address if is6 is true, and otherwise the first IPv4 address; empty if there is none.
func ofFamily(addresses []string, is6 bool) string {
	for _, a := range addresses {
		if ip, err := netip.ParseAddr(a); err == nil && ip.Is6() == is6 {
			return a
		}
	}
	return ""
}
