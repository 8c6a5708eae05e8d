// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package index finds pods and FixedIPs by IP, node and workload in the cache, and reads single objects that may not
// exist.
//
// The objects in lists from the cache belong to the cache: callers must not change them.
package index

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/podutil"
)

const (
	// Pods and FixedIPs are indexed by blocks of four IPs. With smaller blocks, the index has more values and needs more
	// memory. With larger blocks, a search for one IP decodes more objects that have other IPs.
	podIPBlock     = "podIPBlock"
	fixedIPBlock   = "ipBlock"
	podNode        = "place"
	unschedulable  = "unschedulable"
	fixedIPOwner   = "workload"
	hostBitsOfAnIP = 2
)

// indexes are the indexes of this package.
var indexes = []struct {
	of   client.Object
	name string
	fn   client.IndexerFunc
}{
	{&corev1.Pod{}, podIPBlock, func(obj client.Object) []string {
		pod := obj.(*corev1.Pod)
		if !podutil.HoldsIPs(pod) {
			return nil
		}
		return blocks(podutil.IPs(pod))
	}},
	{&corev1.Pod{}, podNode, func(obj client.Object) []string {
		if node := identity.PodNode(obj.(*corev1.Pod)); node != "" {
			return []string{node}
		}
		return nil
	}},
	{&corev1.Pod{}, unschedulable, func(obj client.Object) []string {
		if podutil.IsUnschedulable(obj.(*corev1.Pod)) {
			return []string{"true"}
		}
		return nil
	}},
	{&v1alpha1.FixedIP{}, fixedIPBlock, func(obj client.Object) []string {
		return blocks(address.ParseAll(obj.(*v1alpha1.FixedIP).Spec.IPs))
	}},
	{&v1alpha1.FixedIP{}, fixedIPOwner, func(obj client.Object) []string {
		return []string{identity.OwnerOf(obj.(*v1alpha1.FixedIP)).Resource(obj.GetNamespace())}
	}},
}

// Setup adds the indexes to a cache. It must be called before the cache starts.
func Setup(ctx context.Context, indexer client.FieldIndexer) error {
	return Each(func(of client.Object, name string, fn client.IndexerFunc) error {
		if err := indexer.IndexField(ctx, of, name, fn); err != nil {
			return fmt.Errorf("add the index %s of %T: %w", name, of, err)
		}
		return nil
	})
}

// Each calls add for each index, for example to add the indexes to a fake client.
func Each(add func(of client.Object, name string, fn client.IndexerFunc) error) error {
	for _, i := range indexes {
		if err := add(i.of, i.name, i.fn); err != nil {
			return err
		}
	}
	return nil
}

// PodsWithIP returns the pods of any node that have the IP, except terminal pods and pods of the host network.
func PodsWithIP(ctx context.Context, cached client.Reader, a netip.Addr) ([]*corev1.Pod, error) {
	var pods corev1.PodList
	if err := cached.List(ctx, &pods, client.MatchingFields{podIPBlock: block(a)}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the pods with IP %s from the cache: %w", a, err)
	}
	var found []*corev1.Pod
	for i := range pods.Items {
		if podutil.RunsWith(&pods.Items[i], a) {
			found = append(found, &pods.Items[i])
		}
	}
	return found, nil
}

// PodsOnNode returns the pods of a node, including pods that a DaemonSet has created for the node and that are not bound
// yet.
func PodsOnNode(ctx context.Context, cached client.Reader, node string) ([]corev1.Pod, error) {
	var pods corev1.PodList
	if err := cached.List(ctx, &pods, client.MatchingFields{podNode: node}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the pods of node %s from the cache: %w", node, err)
	}
	return pods.Items, nil
}

// UnschedulablePods returns the pods for which a scheduler has found no node.
func UnschedulablePods(ctx context.Context, cached client.Reader) ([]corev1.Pod, error) {
	var pods corev1.PodList
	if err := cached.List(ctx, &pods, client.MatchingFields{unschedulable: "true"}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the unschedulable pods from the cache: %w", err)
	}
	return pods.Items, nil
}

// LivePodsOnNode returns the pods that are bound to a node, as the API server has them.
func LivePodsOnNode(ctx context.Context, live client.Reader, node string, opts ...client.ListOption) ([]corev1.Pod, error) {
	var pods corev1.PodList
	if err := live.List(ctx, &pods, append(opts, client.MatchingFields{"spec.nodeName": node})...); err != nil {
		return nil, fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	return pods.Items, nil
}

// FixedIPsWithIP returns the FixedIPs whose spec names the IP.
func FixedIPsWithIP(ctx context.Context, cached client.Reader, a netip.Addr) ([]*v1alpha1.FixedIP, error) {
	var records v1alpha1.FixedIPList
	if err := cached.List(ctx, &records, client.MatchingFields{fixedIPBlock: block(a)}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the FixedIPs with IP %s from the cache: %w", a, err)
	}
	var found []*v1alpha1.FixedIP
	for i := range records.Items {
		if slices.Contains(records.Items[i].Spec.IPs, a.String()) {
			found = append(found, &records.Items[i])
		}
	}
	return found, nil
}

// OfWorkload returns a list option that selects the FixedIPs of a workload in the cache. resource is the name of the workload in
// pool entries.
func OfWorkload(resource string) client.ListOption {
	return client.MatchingFields{fixedIPOwner: resource}
}

// Object is a pointer to an API object of type T.
type Object[T any] interface {
	*T
	client.Object
}

// Get reads an object from the cache or the API server. It returns nil if the object does not exist.
func Get[T any, P Object[T]](ctx context.Context, from client.Reader, key client.ObjectKey) (*T, error) {
	var obj T
	switch err := from.Get(ctx, key, P(&obj)); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read %s %s: %w", reflect.TypeFor[T]().Name(), klog.KRef(key.Namespace, key.Name), err)
	}
	return &obj, nil
}

// Node reads a Node from the cache or the API server. If the Node does not exist there, it tries the next readers. It
// returns nil if no reader has the Node.
func Node(ctx context.Context, from client.Reader, name string, next ...client.Reader) (*corev1.Node, error) {
	node, err := Get[corev1.Node](ctx, from, client.ObjectKey{Name: name})
	if node == nil && err == nil && len(next) > 0 {
		return Node(ctx, next[0], name, next[1:]...)
	}
	return node, err
}

func block(a netip.Addr) string {
	return netip.PrefixFrom(a, address.Of(a).Bits()-hostBitsOfAnIP).Masked().String()
}

func blocks(ips []netip.Addr) []string {
	var all []string
	for _, a := range ips {
		all = append(all, block(a))
	}
	return all
}
