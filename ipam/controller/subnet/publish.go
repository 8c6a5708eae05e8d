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

// reserveTries is the maximum number of times that reserved reads all pools: it reads them again after it has canceled moves.
// Two reads should be enough, since no scheduler begins to move an address without a home node.
const reserveTries = 4

// publish writes the subnets of the claims into the CiliumNode, together with the first entries: those of the addresses that
// FixedIPs reserve, those of the addresses that pods of the node run with, and the other entries that the node needs. had is
// true if a node had one of the subnets before. publish returns given with the fields Subnets and Reserved added.
func (c *Controller) publish(ctx context.Context, n pool.NodePool, node *corev1.Node, claims []subnetplan.Subnet, given Assignment, had bool) (Assignment, error) {
	in := subnetplan.CIDRs(claims)
	reserved, entries, others, own, err := c.reserved(ctx, n, in, had)
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
	if others == nil && subnetplan.HasAddressesElsewhere(fresh, running) {
		if others, _, err = c.readPools(ctx, n.Name); err != nil {
			return Assignment{}, err
		}
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
	given.Subnets, given.Reserved = in, len(reserved)
	return given, nil
}

// reserved returns the reserved addresses in the subnets, their entries (key: the address), the pools of all nodes, and the
// addresses of the node itself in its CiliumNode. All results are nil for new subnets in which no FixedIP reserves an
// address and no pool has an allocatable entry. publish then reads the pools only if a pod of the node has a fixed address
// outside the subnets of the node.
//
// If had is true, a node had one of the subnets before, and the reserved addresses are read from the API server. For new
// subnets, which were free, the caches are sufficient. The pools are read from the API server: the pool of another node may
// have an entry for one of the addresses, or an address may be about to move to that pool. reserved cancels such moves.
func (c *Controller) reserved(ctx context.Context, n pool.NodePool, in []netip.Prefix, had bool) (reserved []reservation.Address, entries map[netip.Addr]pool.Entry, others []pool.NodePool, own []subnetplan.Running, err error) {
	if had {
		reserved, err = c.reservedLive(ctx, in)
	} else {
		known := c.Ledger.ReservationsIn(in...)
		if len(known) == 0 && !c.Ledger.HasCarriedAddresses(in) {
			return nil, nil, nil, nil, nil
		}
		var records []*v1alpha1.FixedIP
		records, err = fixedips.Read(ctx, c.Cached, known)
		reserved = subnetplan.ReservedIn(in, reservation.Of(records...))
	}
	if err != nil {
		return nil, nil, nil, nil, err
	}
	moved, err := c.movedAway(ctx, n.Name, reserved)
	if err != nil {
		return nil, nil, nil, nil, err
	}
	for range reserveTries {
		if others, own, err = c.readPools(ctx, n.Name); err != nil {
			return nil, nil, nil, nil, err
		}
		entries, announced := subnetplan.Reserve(n, in, reserved, moved, others)
		if len(announced) == 0 {
			return reserved, entries, others, own, nil
		}
		for _, m := range announced {
			if err := c.cancelMove(ctx, m); err != nil {
				return nil, nil, nil, nil, err
			}
		}
	}
	return nil, nil, nil, nil, fmt.Errorf("addresses in %s were still about to move to other nodes after %d tries: %w", pool.JoinSubnets(in), reserveTries, ciliumpool.ErrChanged)
}

// readPools reads the pools of all nodes from the API server, and the addresses of the node itself in its CiliumNode.
func (c *Controller) readPools(ctx context.Context, node string) (all []pool.NodePool, own []subnetplan.Running, err error) {
	err = each(ctx, c.API, &ciliumv2.CiliumNodeList{}, func(cn *ciliumv2.CiliumNode) {
		all = append(all, ciliumpool.FromCiliumNode(cn))
		if cn.Name == node {
			for owner, addrs := range ciliumpool.NodeAddresses(cn) {
				own = append(own, subnetplan.Running{Owner: owner, Addrs: addrs, Dedicated: pool.ForOwner(owner)})
			}
		}
	})
	return all, own, err
}

// movedAway returns the reserved addresses of a node's subnets that have moved to another node. Key: the address. Value: that
// node.
//
// An address has moved to the node of its pod if the pod runs with the address there. It has also moved there if the
// pod has reported no IP yet and was allowed to move the address (status.movableFor).
//
// In all other cases the FixedIP decides, because an earlier pod with the same name may have been deleted by force
// and still run. The address has moved to the node that the FixedIP names if that node exists and the status of the
// FixedIP names a pod that uses the address or could move it. The address has not moved if the pod is bound to this
// node or has reported other IPs.
//
// movedAway reads a pod from the API server in two cases only: the FixedIP names another node, or the cache shows the
// pod without a node or on another node.
func (c *Controller) movedAway(ctx context.Context, node string, reserved []reservation.Address) (map[netip.Addr]string, error) {
	found := map[netip.Addr]string{}
	// alive contains the nodes that FixedIPs name. Key: the node. Value: whether the node exists.
	alive := map[string]bool{}
	for _, k := range reserved {
		namespace, name, _ := pool.SplitOwnerKey(k.Entry.Owner())
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
		if _, checked := alive[k.Node]; !checked {
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
// addresses that their FixedIPs still reserve. The result includes pods that have not reported their address yet, and pods
// that do not exist at the moment.
func (c *Controller) movedTo(ctx context.Context, node string, others []pool.NodePool) (moved []subnetplan.Running, err error) {
	for _, home := range others {
		for addr, e := range home.Entries {
			if e.Kind != pool.Moved || e.Node() != node || e.Leaving {
				continue
			}
			namespace, name, _ := pool.SplitOwnerKey(e.Pod())
			record, err := index.Get[v1alpha1.FixedIP](ctx, c.Cached, client.ObjectKey{Namespace: namespace, Name: name})
			if err != nil {
				return nil, err
			}
			if record != nil && slices.Contains(record.Spec.IPs, addr.String()) {
				entry := reservation.EntryOf(record)
				moved = append(moved, subnetplan.Running{Owner: e.Pod(), Addrs: []netip.Addr{addr}, Fixed: &entry, Reserved: []netip.Addr{addr}})
			}
		}
	}
	return moved, nil
}

// cancelMove replaces the move-target entry of an address with a cooldown entry. If the move-target entry has changed, it
// writes nothing: the address may have arrived, and the next read of the pools shows that.
func (c *Controller) cancelMove(ctx context.Context, m subnetplan.MoveTarget) error {
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
func (c *Controller) reservedLive(ctx context.Context, in []netip.Prefix) (reserved []reservation.Address, err error) {
	err = each(ctx, c.API, &v1alpha1.FixedIPList{}, func(record *v1alpha1.FixedIP) {
		reserved = append(reserved, subnetplan.ReservedIn(in, reservation.Of(record))...)
	})
	return reserved, err
}

// running returns the pods of a node with their addresses, as the API server has them. A pod that is being deleted has its
// addresses until the API server no longer has the pod. A pod that was allowed to move its addresses to the node
// (status.movableFor) has them before its status shows them. If a FixedIP with the name of the pod exists, the pod gets the
// entry of that FixedIP, even if the workload no longer controls the pod.
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
		r := subnetplan.Running{Owner: pool.OwnerKey(pod.Namespace, pod.Name), Addrs: podutil.IPs(pod), Dedicated: pool.UnreservedEntry(pod.Namespace, pod.Name), IPv4Only: c.Adoption.IPv4Only}
		reader := client.Reader(c.Cached)
		if len(r.Addrs) == 0 {
			// The cache may not show yet that the pod was allowed to move its addresses.
			reader = c.API
		}
		record, err := index.Get[v1alpha1.FixedIP](ctx, reader, client.ObjectKeyFromObject(pod))
		if err != nil {
			return nil, err
		}
		if record != nil {
			r.Fixed, r.Reserved = ptr.To(reservation.EntryOf(record)), address.ParseAll(record.Spec.IPs)
			// An earlier pod with this name may have moved its addresses to the node: see movedAway.
			moved := func(k reservation.Address) bool { return k.Node == node && k.NamesPod() || k.MovableFor == pod.UID }
			if len(r.Addrs) == 0 && slices.ContainsFunc(reservation.Of(record), moved) {
				r.Addrs = r.Reserved
			}
		} else if id, ours := c.Adoption.Placed(pod, c.Kinds, identity.NoControllers); ours {
			// Our scheduler has claimed an address for the pod, and no FixedIP has the name of the pod: the address is not
			// recorded yet, or the pod has a slot. The address of any other pod without a FixedIP of its name gets a dynamic
			// entry or, on a strict node, the entry of an unreserved pod, unless a FixedIP reserves the address. This includes
			// all pods of ReplicaSets, because NoControllers does not know their workloads. If such a pod has a slot that no
			// FixedIP has recorded, the controller "adopt" reserves the address again, evicts the pod, or only records an
			// event (see restoreLost).
			r.Fixed = ptr.To(id.Entry())
		}
		running = append(running, r)
	}
	return running, nil
}

// pageSize is the number of objects in one page of a list. It limits the number of complete objects in memory.
const pageSize = 500

// each calls visit for each object of a kind. It lists the objects at the API server in pages of one resource version. If that
// version expires before the last page, each returns an error, and visit was called for the objects of the earlier pages.
func each[T runtime.Object](ctx context.Context, api client.Reader, list client.ObjectList, visit func(T)) error {
	pages := pager.ListPager{PageSize: pageSize, PageFn: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		page := list.DeepCopyObject().(client.ObjectList)
		err := api.List(ctx, page, &client.ListOptions{Limit: o.Limit, Continue: o.Continue})
		return page, err
	}}
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(obj runtime.Object) error {
		visit(obj.(T))
		return nil
	})
	if err != nil {
		return fmt.Errorf("list the pages of %T: %w", list, err)
	}
	return nil
}
