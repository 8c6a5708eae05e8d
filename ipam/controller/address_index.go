package controller

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/podutil"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
)

const (
	// podBlockIndex finds the pods that have an address in a block, by the block, and recordBlockIndex the
	// FixedIPs. An index by address would have a set for every pod of the cluster with that one pod in it,
	// which takes more memory than all else that is kept of the pod.
	podBlockIndex    = "podIPBlock"
	recordBlockIndex = "ipBlock"
	// podPlaceIndex finds the pods of a node, those included that a DaemonSet made for it and that are
	// not bound yet.
	podPlaceIndex = "place"
	// blockBits is how many bits of an address are its own within its block.
	blockBits = 3
)

// blockOf is the block of eight addresses that an address is in.
func blockOf(a netip.Addr) string {
	return netip.PrefixFrom(a, address.Of(a).Bits()-blockBits).Masked().String()
}

// blocksOf are the blocks of all addresses of a record. What is no address is in none.
func blocksOf(record *v1alpha1.FixedIP) []string {
	var blocks []string
	for _, ip := range record.Spec.IPs {
		if a, err := address.Parse(ip); err == nil {
			blocks = append(blocks, blockOf(a))
		}
	}
	return blocks
}

// podBlocks is the index function of podBlockIndex.
func podBlocks(obj client.Object) []string {
	pod := obj.(*corev1.Pod)
	if !podutil.HoldsIPs(pod) {
		return nil
	}
	var blocks []string
	for _, a := range podutil.IPs(pod) {
		blocks = append(blocks, blockOf(a))
	}
	return blocks
}

// indexAddresses makes the indexes that podsWith, recordsWith and dutyFor look into.
func indexAddresses(ctx context.Context, mgr manager.Manager) error {
	err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, podBlockIndex, podBlocks)
	if err != nil {
		return fmt.Errorf("index pods by address: %w", err)
	}
	err = mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.FixedIP{}, recordBlockIndex, func(obj client.Object) []string {
		return blocksOf(obj.(*v1alpha1.FixedIP))
	})
	if err != nil {
		return fmt.Errorf("index FixedIPs by address: %w", err)
	}
	err = mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, podPlaceIndex, func(obj client.Object) []string {
		if place := identity.Place(obj.(*corev1.Pod)); place != "" {
			return []string{place}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("index pods by node: %w", err)
	}
	return nil
}

// podsWith are the pods that have an address, whatever their node. They are the cache's: they are only
// read.
func podsWith(ctx context.Context, cached client.Reader, a netip.Addr) ([]*corev1.Pod, error) {
	var pods corev1.PodList
	if err := cached.List(ctx, &pods, client.MatchingFields{podBlockIndex: blockOf(a)}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the pods that have %s from the cache: %w", a, err)
	}
	var found []*corev1.Pod
	for i := range pods.Items {
		if slices.Contains(podutil.IPs(&pods.Items[i]), a) {
			found = append(found, &pods.Items[i])
		}
	}
	return found, nil
}

// recordsWith are the FixedIPs that hold an address. They are the cache's, too.
func recordsWith(ctx context.Context, cached client.Reader, a netip.Addr) ([]*v1alpha1.FixedIP, error) {
	var records v1alpha1.FixedIPList
	if err := cached.List(ctx, &records, client.MatchingFields{recordBlockIndex: blockOf(a)}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the FixedIPs that hold %s from the cache: %w", a, err)
	}
	var found []*v1alpha1.FixedIP
	for i := range records.Items {
		if slices.Contains(records.Items[i].Spec.IPs, a.String()) {
			found = append(found, &records.Items[i])
		}
	}
	return found, nil
}
