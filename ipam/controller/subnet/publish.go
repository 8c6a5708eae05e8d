// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reservation"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/fixedips"
)

// reserveTries bounds how often reserved reads the pools for one node: again each time after it has cancelled moves. Two
// reads should be enough, since no scheduler begins to move an address without a home node.
const reserveTries = 4

// publish writes the subnets of the claims into the CiliumNode, together with the first entries: the addresses that
// FixedIPs reserve, the addresses that pods of the node run with, and the other entries that the node needs. had is true
// if a node had one of the subnets before.
func (c *Controller) publish(ctx context.Context, n pool.NodePool, node *corev1.Node, claims []subnetplan.Subnet, given Assignment, had bool) (Assignment, error) {
	in := subnetplan.CIDRs(claims)
	kept, entries, others, own, err := c.reserved(ctx, n, in, had)
	if err != nil {
		return Assignment{}, err
	}
	fresh := n.With(nil)
	fresh.Subnets = slices.Concat(n.Subnets, in)
	maps.Copy(fresh.Entries, entries)
	running, err := c.running(ctx, n.Name)
	if err != nil {
		return Assignment{}, err
	}
	moved, err := c.movedTo(ctx, n.Name, others)
	if err != nil {
		return Assignment{}, err
	}
	strict := node != nil && c.StrictNodes.Matches(labels.Set(node.Labels))
	fresh = subnetplan.KeepRunning(fresh, slices.Concat(own, running, moved), strict, others, c.Clock.Now())
	fill, err := c.FirstEntries(ctx, fresh)
	if err != nil {
		return Assignment{}, err
	}
	var edits []pool.EntryChange
	for addr, e := range fresh.With(fill).Entries {
		if before, exists := n.Entries[addr]; !exists || before != e {
			edits = append(edits, n.Set(addr, e))
		}
	}
	slices.SortFunc(edits, func(x, y pool.EntryChange) int { return x.Addr.Compare(y.Addr) })
	if _, err = c.Pools.Publish(ctx, n, in, edits); err != nil {
		return Assignment{}, err
	}
	given.Subnets, given.Reserved = in, len(kept)
	return given, nil
}

// reserved returns the reserved addresses in the subnets, their entries, the pools of all nodes, and the addresses of the
// node itself that its CiliumNode names. All of them are nil for new subnets in which no FixedIP reserves an address and
// no pool offers one.
//
// If a node had one of the subnets before, the reserved addresses are read from the API server: the pool of another node
// may have an address, or an address may be about to move there. For new subnets, which were free, the caches are
// sufficient.
func (c *Controller) reserved(ctx context.Context, n pool.NodePool, in []netip.Prefix, had bool) (kept []reservation.Address, entries map[netip.Addr]pool.Entry, others []pool.NodePool, own []subnetplan.Running, err error) {
	if had {
		kept, err = c.reservedLive(ctx, in)
	} else {
		known := c.Ledger.ReservationsIn(in...)
		if len(known) == 0 && !c.Ledger.HasForeignAddresses(in) {
			return nil, nil, nil, nil, nil
		}
		var records []*v1alpha1.FixedIP
		records, err = fixedips.Read(ctx, c.Cached, known)
		kept = subnetplan.ReservedIn(in, reservation.Of(records...))
	}
	if err != nil {
		return nil, nil, nil, nil, err
	}
	elsewhere, err := c.elsewhere(ctx, n.Name, kept)
	if err != nil {
		return nil, nil, nil, nil, err
	}
	for range reserveTries {
		others, own = nil, nil
		err := each(ctx, c.API, &ciliumv2.CiliumNodeList{}, func(cn *ciliumv2.CiliumNode) {
			others = append(others, ciliumpool.FromCiliumNode(cn))
			if cn.Name == n.Name {
				for owner, addrs := range ciliumpool.NodeAddresses(cn) {
					own = append(own, subnetplan.Running{Owner: owner, Addrs: addrs, Dedicated: pool.ForOwner(owner)})
				}
			}
		})
		if err != nil {
			return nil, nil, nil, nil, err
		}
		entries, announced := subnetplan.Reserve(n, in, kept, elsewhere, others)
		if len(announced) == 0 {
			return kept, entries, others, own, nil
		}
		for _, m := range announced {
			if err := c.cancelMove(ctx, m); err != nil {
				return nil, nil, nil, nil, err
			}
		}
	}
	return nil, nil, nil, nil, fmt.Errorf("addresses in %v were still about to move to other nodes after %d tries: %w", in, reserveTries, ciliumpool.ErrChanged)
}

// elsewhere returns the reserved addresses of a node's subnets that have moved. Key: the address. Value: the node where
// the address is now.
//
// It asks the API server only about pods that are on another node according to the cache or to the FixedIP. The address is
// on the node of its pod if the pod runs with it there, or may have taken it there and has not reported it yet
// (status.movableFor). Otherwise, unless the pod is bound to this node or has reported other IPs, an earlier pod of the name may
// have been deleted by force and still run: the address is on the node that the FixedIP names, if that node exists and the
// status of the FixedIP names a pod that uses the address or could move it.
func (c *Controller) elsewhere(ctx context.Context, node string, kept []reservation.Address) (map[netip.Addr]string, error) {
	found := map[netip.Addr]string{}
	// alive contains whether a node that a FixedIP names exists. Key: the node.
	alive := map[string]bool{}
	for _, k := range kept {
		namespace, name, _ := pool.SplitOwnerKey(k.Entry.Owner)
		key := client.ObjectKey{Namespace: namespace, Name: name}
		pod, err := index.Get[corev1.Pod](ctx, c.Cached, key)
		if err != nil {
			return nil, err
		}
		if (k.Node == node || k.Node == "") && (pod == nil || pod.Spec.NodeName == node) {
			continue
		}
		if pod, err = index.Get[corev1.Pod](ctx, c.API, key); err != nil {
			return nil, err
		}
		placed := pod != nil && pod.Spec.NodeName != ""
		if placed && pod.Spec.NodeName != node && podutil.HoldsIPs(pod) && (podutil.RunsWith(pod, k.Addr) || !podutil.HasIPs(pod) && k.MovableFor == pod.UID) {
			found[k.Addr] = pod.Spec.NodeName
			continue
		}
		if k.Node == node || !k.NamesPod() || placed && (pod.Spec.NodeName == node || podutil.HasIPs(pod)) {
			continue
		}
		if _, asked := alive[k.Node]; !asked {
			if alive[k.Node], err = c.exists(ctx, k.Node); err != nil {
				return nil, err
			}
		}
		if alive[k.Node] {
			found[k.Addr] = k.Node
		}
	}
	return found, nil
}

// movedTo returns the pods whose addresses have moved to a node according to the pools of their home nodes, with the
// addresses that their FixedIPs still reserve. They include pods that have not reported their address yet, and pods that
// do not exist at the moment.
func (c *Controller) movedTo(ctx context.Context, node string, others []pool.NodePool) (moved []subnetplan.Running, err error) {
	for _, home := range others {
		for addr, e := range home.Entries {
			if e.Kind != pool.Moved || e.Node != node || e.Leaving {
				continue
			}
			namespace, name, _ := pool.SplitOwnerKey(e.Pod)
			record, err := index.Get[v1alpha1.FixedIP](ctx, c.Cached, client.ObjectKey{Namespace: namespace, Name: name})
			if err != nil {
				return nil, err
			}
			if record != nil && slices.Contains(record.Spec.IPs, addr.String()) {
				entry := reservation.EntryOf(record)
				moved = append(moved, subnetplan.Running{Owner: e.Pod, Addrs: []netip.Addr{addr}, Fixed: &entry, Reserved: []netip.Addr{addr}})
			}
		}
	}
	return moved, nil
}

// cancelMove replaces the move-target entry of an address by a cooldown entry. If the move-target entry is gone, it writes
// nothing: the address may have arrived, which the next list will show.
func (c *Controller) cancelMove(ctx context.Context, m subnetplan.Announced) error {
	at := c.Clock.Now()
	err := c.Writer.Write(ctx, ciliumpool.WriteRequest{Node: m.Node, FromAPIServer: true, Decide: func(n pool.NodePool) ([]pool.EntryChange, error) {
		if n.Entries[m.Addr] != m.Entry {
			return nil, nil
		}
		return []pool.EntryChange{n.Set(m.Addr, pool.CooldownEntry("", at))}, nil
	}})
	if err != nil && !errors.Is(err, ciliumpool.ErrGone) {
		return fmt.Errorf("cancel the move of address %s to node %s: %w", m.Addr, m.Node, err)
	}
	return nil
}

// reservedLive returns the addresses in the given subnets that FixedIPs reserve, as the API server has them.
func (c *Controller) reservedLive(ctx context.Context, in []netip.Prefix) (kept []reservation.Address, err error) {
	err = each(ctx, c.API, &v1alpha1.FixedIPList{}, func(record *v1alpha1.FixedIP) {
		kept = append(kept, subnetplan.ReservedIn(in, reservation.Of(record))...)
	})
	return kept, err
}

// running returns the pods of a node with their addresses, as the API server has them. A pod that is being deleted has its
// addresses until it is gone. A pod that was allowed to take its addresses to the node has them before it reports them
// (status.movableFor). If a FixedIP of its name exists, a pod has the entry of that FixedIP, even if its workload no
// longer controls it.
func (c *Controller) running(ctx context.Context, node string) ([]subnetplan.Running, error) {
	pods, err := index.LivePodsOnNode(ctx, c.API, node)
	if err != nil {
		return nil, err
	}
	var running []subnetplan.Running
	for i := range pods {
		pod := &pods[i]
		if !podutil.HoldsIPs(pod) {
			continue
		}
		r := subnetplan.Running{Owner: pool.OwnerKey(pod.Namespace, pod.Name), Addrs: podutil.IPs(pod), Dedicated: pool.UnreservedEntry(pod.Namespace, pod.Name), IPv4Only: c.IPv4Only}
		reader := client.Reader(c.Cached)
		if len(r.Addrs) == 0 {
			// The cache may not show yet that the pod could move.
			reader = c.API
		}
		record, err := index.Get[v1alpha1.FixedIP](ctx, reader, client.ObjectKeyFromObject(pod))
		if err != nil {
			return nil, err
		}
		if record != nil {
			r.Fixed, r.Reserved = ptr.To(reservation.EntryOf(record)), address.ParseAll(record.Spec.IPs)
			// An earlier pod of the name may have moved to the node: see elsewhere.
			moved := func(k reservation.Address) bool { return k.Node == node && k.NamesPod() || k.MovableFor == pod.UID }
			if len(r.Addrs) == 0 && slices.ContainsFunc(reservation.Of(record), moved) {
				r.Addrs = r.Reserved
			}
		} else if id, fixed, err := identity.Of(pod, c.Kinds, identity.NoControllers); err == nil && fixed {
			// Without a FixedIP the identity determines the entry. If the workload is not known yet, or an annotation
			// can't be read, the pod keeps its address without a fixed entry.
			r.Fixed = ptr.To(id.Entry())
		}
		running = append(running, r)
	}
	return running, nil
}

// pageSize is the number of objects in one page of a list. It limits how many complete objects are in memory at once.
const pageSize = 500

// each visits all objects of a kind, as the API server has them at one moment.
func each[T runtime.Object](ctx context.Context, api client.Reader, list client.ObjectList, visit func(T)) error {
	pages := pager.ListPager{PageSize: pageSize, FullListIfExpired: true, PageFn: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		page := list.DeepCopyObject().(client.ObjectList)
		err := api.List(ctx, page, &client.ListOptions{Limit: o.Limit, Continue: o.Continue})
		return page, err
	}}
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(obj runtime.Object) error {
		visit(obj.(T))
		return nil
	})
	if err != nil {
		return fmt.Errorf("list all of %T: %w", list, err)
	}
	return nil
}
