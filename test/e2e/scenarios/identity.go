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
	"fixedip.io/fixedip/ipam/core/reservation"
)

// identity contains the node, UID, MAC address and addresses of a pod.
type identity struct {
	node, uid, mac string
	addresses      []string
}

// identities are the pods of a workload. Key: the pod name.
type identities map[string]identity

func (i identities) names() []string { return slices.Sorted(maps.Keys(i)) }

// awaitSet returns when all pods of a StatefulSet are whole (see whole).
func (s *scene) awaitSet(ctx context.Context, set string, replicas int) (identities, error) {
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

// awaitReplaced returns when the pods in replaced have been replaced and all pods in before are whole again (see whole). It
// returns an error if a pod has other addresses than before, or was replaced although it is not in replaced.
func (s *scene) awaitReplaced(ctx context.Context, before identities, replaced ...string) (identities, error) {
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
			return after, fmt.Errorf("pod %s has %v, want %v as before", name, after[name].addresses, before[name].addresses)
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
	if err := errors.Join(s.checkFixedIP(name, i), s.checkEntries(name, i), s.checkEndpoint(ctx, name, i)); err != nil {
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
		return i, fmt.Errorf("pod %s has the addresses %v, want one of each family", name, i.addresses)
	}
	return i, nil
}

// checkFixedIP compares a pod with its FixedIP, and checks that every condition of the FixedIP is true.
func (s *scene) checkFixedIP(name string, i identity) error {
	fip := s.witness.Record(s.namespace, name)
	if fip == nil {
		for _, r := range s.witness.Records(s.namespace) {
			if r.Spec.AssignedTo == v1alpha1.Slot && r.Spec.PodName == name {
				fip = r
			}
		}
	}
	if fip == nil {
		return fmt.Errorf("pod %s has no FixedIP", name)
	}
	if !same(fip.Spec.IPs, i.addresses) || fip.Spec.NodeName != i.node ||
		reservation.StateOf(fip) != reservation.InUse || string(fip.Status.PodUID) != i.uid {
		return fmt.Errorf("pod %s is %+v, but FixedIP %s has the IPs %v, the node %q, the state %q and the pod UID %q",
			name, i, fip.Name, fip.Spec.IPs, fip.Spec.NodeName, reservation.StateOf(fip), fip.Status.PodUID)
	}
	for _, c := range fip.Status.Conditions {
		if c.Status != "True" {
			return fmt.Errorf("FixedIP %s has the condition %s with the status %s: %s", fip.Name, c.Type, c.Status, c.Message)
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
		return fmt.Errorf("the pools have %v for pod %s, want %v", got, name, want)
	}
	return nil
}

// checkEndpoint compares a pod with its CiliumEndpoint.
func (s *scene) checkEndpoint(ctx context.Context, name string, i identity) error {
	var cep ciliumv2.CiliumEndpoint
	if err := s.api.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, &cep); err != nil {
		return fmt.Errorf("read the CiliumEndpoint of pod %s: %w", name, err)
	}
	if got := endpointAddresses(&cep); !same(got, i.addresses) {
		return fmt.Errorf("the CiliumEndpoint of pod %s has %v, want %v", name, got, i.addresses)
	}
	for _, owner := range cep.OwnerReferences {
		if owner.Kind == "Pod" && string(owner.UID) != i.uid {
			return fmt.Errorf("the CiliumEndpoint of pod %s has an owner with the UID %s, want %s", name, owner.UID, i.uid)
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

// answers checks that the interface of a pod has the addresses of its status, and that the pod answers requests at each of
// them from one control pod on each calm node. It returns the identity with the MAC address.
func (s *scene) answers(ctx context.Context, name string, i identity) (identity, error) {
	box, err := s.wire.sandboxOf(i.node, i.uid)
	if err != nil {
		return i, err
	}
	if !same(box.addresses, i.addresses) {
		return i, fmt.Errorf("the interface of pod %s has %v, want the addresses %v of its status", name, box.addresses, i.addresses)
	}
	i.mac = box.mac
	for _, from := range s.watch.clients() {
		for _, address := range i.addresses {
			a, err := from.fetch(ctx, address)
			if err != nil {
				return i, fmt.Errorf("pod %s does not answer: %w", name, err)
			}
			if a.Hostname != name {
				return i, fmt.Errorf("pod %s answers at %s, which is an address of pod %s", a.Hostname, address, name)
			}
		}
	}
	return i, nil
}

// reasons returns the phase of a pod and the messages of its conditions that are not true. Of each container, it returns why it
// waits, and whether its startup probe has not succeeded yet. It does not return how often a container was restarted: a new text
// counts as progress (see eventually), and a restart is none.
func reasons(pod *corev1.Pod) string {
	var list []string
	for _, c := range pod.Status.Conditions {
		if c.Status != corev1.ConditionTrue && c.Message != "" {
			list = append(list, c.Message)
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil {
			list = append(list, strings.TrimSpace(w.Reason+" "+w.Message))
		}
		if c.State.Running != nil && c.Started != nil && !*c.Started {
			list = append(list, "the startup probe of "+c.Name+" has not succeeded")
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
