// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/fixedips"
	"fixedip.io/fixedip/ipam/store/subnets"
)

// successorLabel on a Node names the node that it replaces.
const successorLabel = "fixedip.io/replaces-node"

// errOverlap: a claim of the node overlaps another one.
var errOverlap = errors.New("its subnet overlaps another NodeSubnet")

// Options are what an Assigner works with.
type Options struct {
	Store *subnets.Store
	Pools *ciliumpool.Client
	// Writer takes back addresses that were about to move to another node.
	Writer *ciliumpool.Writer
	// Ledger follows the watches of CiliumNodes and FixedIPs.
	Ledger *ledger.Ledger
	// API reads from the API server, Cached from the watches.
	API    client.Client
	Cached client.Reader
	Rules  subnetplan.Rules
	// FromNode: Kubernetes assigns the subnets, as Node.spec.podCIDRs.
	FromNode bool
	// StrictNodes selects the nodes whose pools have no dynamic entries.
	StrictNodes labels.Selector
	Kinds       identity.Kinds
	// Fill returns what a pool needs beside the addresses that are reserved or in use.
	Fill  func(ctx context.Context, n pool.NodePool) (func(pool.NodePool) []pool.EntryChange, error)
	Clock clock.PassiveClock
}

// Assigner gives nodes their subnets. It is safe for concurrent use, also by several processes.
type Assigner struct{ Options }

// Assignment is what a node was given.
type Assignment struct {
	// Subnets are those that the CiliumNode has got.
	Subnets []netip.Prefix
	// Reserved is how many addresses FixedIPs reserve there.
	Reserved int
	Origin   subnetplan.Origin
	// From is the node that had the subnets before.
	From string
	// Exhausted are the families that the cluster pools have no subnet left in.
	Exhausted []address.Family
	// Overlap is a subnet that Kubernetes gave the node and that overlaps the subnet of node With.
	Overlap netip.Prefix
	With    string
}

func holder(n pool.NodePool, node *corev1.Node) subnetplan.Holder {
	h := subnetplan.Holder{Node: n.Name, CiliumNodeUID: types.UID(n.UID)}
	if node != nil {
		h.NodeUID = node.UID
	}
	return h
}

// Assign gives a node the subnets that it lacks: those that its NodeSubnets name already, an orphan that it inherits,
// and new ones. node is its Node; nil: there is none yet. ErrChanged of the stores says that another write was faster
// and that the next try may succeed.
func (a *Assigner) Assign(ctx context.Context, n pool.NodePool, node *corev1.Node) (Assignment, error) {
	list, err := a.Store.List(ctx)
	if err != nil {
		return Assignment{}, err
	}
	h := holder(n, node)
	if err := a.ClaimExisting(ctx, n, h, list); err != nil {
		return Assignment{}, err
	}
	given := Assignment{Origin: subnetplan.Returned}
	if a.FromNode {
		return a.assignBrought(ctx, n, node, list)
	}
	claims, err := a.resume(ctx, n, h, unpublished(list, n))
	if err != nil {
		return Assignment{}, err
	}
	if len(claims) > 0 {
		given.From = n.Name
	}
	if claims, given, err = a.inherit(ctx, n, node, claims, given, list); err != nil {
		return Assignment{}, err
	}
	had := len(claims) > 0
	if !had {
		given.Origin = subnetplan.Carved
	}
	lacking := subnetplan.Lacking(a.Rules.Pools, slices.Concat(n.Subnets, cidrs(claims)))
	if len(claims) == 0 && len(lacking) == 0 {
		return Assignment{}, nil
	}
	claims, given.Exhausted, err = a.claim(ctx, n, h, claims, lacking, list)
	if err != nil || len(claims) == 0 {
		return given, err
	}
	return a.publish(ctx, n, node, claims, given, had)
}

// resume returns the claims of a node that are to be published. One that was never assigned is the remains of a
// controller that stopped, or another controller is about to publish it: it is taken over if the node lacks its family,
// and is deleted otherwise. Its maker can't publish it then, since the CiliumNode has got another subnet.
func (a *Assigner) resume(ctx context.Context, n pool.NodePool, h subnetplan.Holder, claims []v1alpha1.NodeSubnet) ([]v1alpha1.NodeSubnet, error) {
	var found []v1alpha1.NodeSubnet
	for i := range claims {
		if established(&claims[i]) {
			found = append(found, claims[i])
		}
	}
	for i := range claims {
		ns := &claims[i]
		s, _ := subnetplan.FromNodeSubnet(ns)
		f := address.Of(s.CIDR.Addr())
		ofFamily := func(c netip.Prefix) bool { return address.Of(c.Addr()) == f }
		switch {
		case established(ns):
		case n.HasFamily(f):
			if err := a.Store.Delete(ctx, ns); err != nil {
				return nil, err
			}
		case slices.ContainsFunc(cidrs(found), ofFamily):
			// One of the two is published first, and then the other one is deleted.
		default:
			taken, err := a.Store.Resume(ctx, ns, h)
			if err != nil {
				return nil, err
			}
			found = append(found, *taken)
		}
	}
	return found, nil
}

// established reports whether a NodeSubnet is more than a claim in the making: its node has had the subnet or has
// inherited it, or FixedIPs reserve addresses there.
func established(ns *v1alpha1.NodeSubnet) bool {
	return ns.Spec.PreviousNodeName != "" || ns.Spec.CiliumNodeUID == "" || meta.FindStatusCondition(ns.Status.Conditions, v1alpha1.ConditionAssigned) != nil
}

// inherit adds the subnets of an orphan that the node inherits. One that has no subnets may inherit any; one that has
// some only what it was chosen for.
func (a *Assigner) inherit(ctx context.Context, n pool.NodePool, node *corev1.Node, claims []v1alpha1.NodeSubnet, given Assignment, list []v1alpha1.NodeSubnet) ([]v1alpha1.NodeSubnet, Assignment, error) {
	orphans, err := a.Orphans(ctx, list)
	if err != nil || len(orphans) == 0 {
		return claims, given, err
	}
	orphan, ok := a.Rules.JoinerInherits(heir(n.Name, len(n.Subnets)+len(claims), node), orphans, a.Clock.Now())
	if !ok {
		return claims, given, nil
	}
	taken, err := a.Take(ctx, orphan, holder(n, node), list)
	if errors.Is(err, errPresent) {
		return claims, given, nil
	}
	given.Origin, given.From = subnetplan.Inherited, orphan.Node
	if len(n.Subnets) > 0 {
		given.Origin = subnetplan.Adopted
	}
	return append(claims, taken...), given, err
}

// heir returns a node as a candidate for orphans.
func heir(name string, subnets int, node *corev1.Node) subnetplan.Heir {
	h := subnetplan.Heir{Name: name, Subnets: subnets}
	if node != nil {
		h.SuccessorOf, h.Ready, h.Joined = node.Labels[successorLabel], nodeutil.IsSchedulable(node), node.CreationTimestamp.Time
		h.Constraints = subnetplan.ConstraintsOf(node)
	}
	return h
}

// Orphans returns the orphans among NodeSubnets, as the caches show them.
func (a *Assigner) Orphans(ctx context.Context, list []v1alpha1.NodeSubnet) ([]subnetplan.Orphan, error) {
	var lost []netip.Prefix
	// gone contains whether each node is gone. Key: its name.
	gone := map[string]bool{"": true}
	for _, s := range subnetplan.FromNodeSubnets(list) {
		if _, known := gone[s.Node]; !known {
			present, err := a.shown(ctx, s.Node)
			if err != nil {
				return nil, err
			}
			gone[s.Node] = !present
		}
		if gone[s.Node] {
			lost = append(lost, s.CIDR)
		}
	}
	if len(lost) == 0 {
		return nil, nil
	}
	records, err := fixedips.Read(ctx, a.Cached, a.Ledger.ReservationsIn(lost...))
	if err != nil {
		return nil, err
	}
	kept := subnetplan.ReservedIn(lost, plan.AllReservedAddresses(records))
	return subnetplan.Orphans(subnetplan.FromNodeSubnets(list), kept, func(node string) bool { return gone[node] }), nil
}

// shown reports whether the caches show a Node or a CiliumNode of a name.
func (a *Assigner) shown(ctx context.Context, name string) (bool, error) {
	if _, ok := a.Ledger.Node(name); ok {
		return true, nil
	}
	node, err := index.Node(ctx, a.Cached, name)
	return node != nil, err
}

// exists reports whether the API server has a Node or a CiliumNode of a name: then its pods may run.
func (a *Assigner) exists(ctx context.Context, name string) (bool, error) {
	for _, obj := range []client.Object{&corev1.Node{}, &ciliumv2.CiliumNode{}} {
		switch err := a.API.Get(ctx, client.ObjectKey{Name: name}, obj); {
		case err == nil:
			return true, nil
		case !apierrors.IsNotFound(err):
			return false, fmt.Errorf("check that node %s is gone: %w", name, err)
		}
	}
	return false, nil
}

// errPresent: the node of an orphan exists after all.
var errPresent = errors.New("the node exists")

// Take makes a node the holder of all subnets of an orphan. errPresent: its own node exists after all. ErrChanged:
// another controller was faster with one of them; what was taken stays the heir's.
func (a *Assigner) Take(ctx context.Context, o subnetplan.Orphan, h subnetplan.Holder, list []v1alpha1.NodeSubnet) ([]v1alpha1.NodeSubnet, error) {
	if o.Node != "" {
		// The list was read before: whatever happens from here on has another version of the NodeSubnet.
		if present, err := a.exists(ctx, o.Node); err != nil || present {
			return nil, errors.Join(err, errPresent)
		}
	}
	var taken []v1alpha1.NodeSubnet
	for _, s := range o.Subnets {
		ns := named(list, s.CIDR)
		if ns == nil {
			continue
		}
		now, err := a.Store.Assign(ctx, ns, h)
		if err != nil {
			return taken, err
		}
		taken = append(taken, *now)
	}
	return taken, nil
}

// ClaimExisting claims the subnets that a CiliumNode has and that no NodeSubnet claims for it: it was set up before
// there were NodeSubnets, a person wrote the subnet, or deleted its NodeSubnet.
func (a *Assigner) ClaimExisting(ctx context.Context, n pool.NodePool, h subnetplan.Holder, list []v1alpha1.NodeSubnet) error {
	for _, cidr := range n.Subnets {
		ns := named(list, cidr)
		var err error
		switch {
		case ns == nil:
			_, err = a.Store.Create(ctx, cidr, h)
		case ns.Spec.NodeName == n.Name && ns.Spec.CiliumNodeUID != h.CiliumNodeUID:
			_, err = a.Store.Assign(ctx, ns, h)
		case ns.Spec.NodeName != n.Name:
			// Two nodes that both exist are reported as overlapping, and nothing in the subnet is given out.
			if free, e := a.lost(ctx, ns); e != nil || !free {
				err = e
				break
			}
			_, err = a.Store.Assign(ctx, ns, h)
		}
		if err != nil && !errors.Is(err, subnets.ErrTaken) && !errors.Is(err, subnets.ErrChanged) {
			return err
		}
	}
	return nil
}

// lost reports whether the node of a NodeSubnet can't have the subnet any more: it is gone, or, if Kubernetes assigns
// the subnets, it has been made again with others.
func (a *Assigner) lost(ctx context.Context, ns *v1alpha1.NodeSubnet) (bool, error) {
	name := ns.Spec.NodeName
	if name == "" {
		return true, nil
	}
	present, err := a.exists(ctx, name)
	if err != nil || !present || !a.FromNode {
		return err == nil && !present, err
	}
	node, err := index.Node(ctx, a.API, name)
	if err != nil || node == nil || node.UID == ns.Spec.NodeUID || slices.Contains(node.Spec.PodCIDRs, ns.Spec.CIDR) {
		return false, err
	}
	n, err := a.Pools.Get(ctx, name)
	if errors.Is(err, ciliumpool.ErrGone) {
		return true, nil
	}
	return err == nil && types.UID(n.UID) != ns.Spec.CiliumNodeUID && !slices.Contains(n.PodCIDRs, ns.Spec.CIDR), err
}

// named returns the NodeSubnet of a subnet; nil: there is none.
func named(list []v1alpha1.NodeSubnet, cidr netip.Prefix) *v1alpha1.NodeSubnet {
	name := address.SubnetName(cidr)
	if i := slices.IndexFunc(list, func(ns v1alpha1.NodeSubnet) bool { return ns.Name == name }); i >= 0 {
		return &list[i]
	}
	return nil
}

// unpublished returns the NodeSubnets of a node whose subnets its CiliumNode does not have.
func unpublished(list []v1alpha1.NodeSubnet, n pool.NodePool) []v1alpha1.NodeSubnet {
	var found []v1alpha1.NodeSubnet
	for i := range list {
		s, ok := subnetplan.FromNodeSubnet(&list[i])
		if ok && s.Node == n.Name && !slices.Contains(n.Subnets, s.CIDR) {
			found = append(found, list[i])
		}
	}
	return found
}

// cidrs returns the subnets of NodeSubnets.
func cidrs(list []v1alpha1.NodeSubnet) []netip.Prefix {
	return subnetplan.CIDRs(subnetplan.FromNodeSubnets(list))
}
