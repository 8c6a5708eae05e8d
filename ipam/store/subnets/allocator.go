// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnets

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/fixedips"
)

// Options are what an Allocator works with.
type Options struct {
	// API reads from the API server, not from a cache.
	API client.Client
	// Cached may be old. It shows FixedIPs.
	Cached client.Reader
	Pools  *ciliumpool.Pools
	Writer *ciliumpool.Writer
	// Ledger follows the watches of CiliumNodes and of FixedIPs.
	Ledger *ledger.Ledger
	Rules  plan.SubnetRules
	// Namespace is that of the ticket.
	Namespace string
	Clock     clock.PassiveClock
}

// Allocator gives subnets to nodes, one node at a time.
//
// The order of its steps is what makes it safe. It takes the ticket, then lists all CiliumNodes
// and FixedIPs at the API server, then chooses, then writes the ticket with its intent, then
// publishes. As long as it holds the ticket nobody else has chosen since the list, and the list
// and its own choices are all there is. An intent that was not published is kept out of later
// choices while it could still be; a publication that comes late fails on the node's UID or on the
// subnets that the node has by then.
type Allocator struct {
	Options

	mu     sync.Mutex
	ticket ticket
	// chosen are subnets that were given away and that the ledger may not show yet. Key: the subnet.
	// Value: the CiliumNode that it was chosen for. A subnet leaves when the ledger shows it, which
	// from then on knows better, or when it is sure that its node will never have it.
	chosen map[netip.Prefix]holder
	// worn are the subnets that had a node at some time since the ticket was taken. Addresses may be
	// kept in them that the cache of FixedIPs does not show yet.
	worn map[netip.Prefix]bool
}

// holder is one incarnation of a CiliumNode.
type holder struct {
	name, uid string
	// onto are the podCIDRs that it had when the subnet was chosen for it.
	onto []string
	// published tells that the subnet was seen in its podCIDRs.
	published bool
}

// NewAllocator makes an Allocator.
func NewAllocator(o Options) *Allocator {
	return &Allocator{Options: o, ticket: ticket{api: o.API, namespace: o.Namespace}}
}

// Assign gives a node the subnets that it lacks and the first entries of its pool, in one write.
// first makes the entries of a fresh pool. Families whose cluster pools are used up are in the
// result; where nothing is left in any, nothing is written.
func (a *Allocator) Assign(ctx context.Context, n pool.Node, j plan.Joiner, first func(pool.Node) []pool.Edit) (plan.Assignment, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	j.Name, j.Subnets = n.Name, n.Subnets
	given, err := a.choose(ctx, n, j)
	if err != nil {
		return plan.Assignment{}, err
	}
	if len(given.Subnets) == 0 {
		return given, nil
	}
	if err := a.give(ctx, n, given, first); err != nil {
		return plan.Assignment{}, err
	}
	return given, nil
}

// Adoption is an orphan that a living node was given.
type Adoption struct {
	plan.Assignment
	Heir string
}

// Adopt gives the orphans to living nodes that may have them now. It counts what it gives among the
// subnets of the heirs. What was given before an error is in the result too.
func (a *Allocator) Adopt(ctx context.Context, heirs []plan.Heir) ([]Adoption, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w, err := a.world(ctx, "")
	if err != nil {
		return nil, err
	}
	if w.Kept, err = a.kept(ctx); err != nil {
		return nil, err
	}
	var done []Adoption
	adopt := func(heir string, given plan.Assignment) error {
		n, err := a.Pools.Get(ctx, heir)
		if err != nil {
			return err
		}
		if err := a.give(ctx, n, given, nil); err != nil {
			return err
		}
		if i := slices.IndexFunc(heirs, func(h plan.Heir) bool { return h.Name == heir }); i >= 0 {
			heirs[i].Subnets += len(given.Subnets)
		}
		done = append(done, Adoption{Assignment: given, Heir: heir})
		return nil
	}
	// What somebody set out to give to a living node goes there and nowhere else: it may still be
	// on its way.
	for _, open := range a.open() {
		if len(open.Onto) > 0 {
			if err := adopt(open.Node, plan.Assignment{Subnets: open.Subnets, Kept: plan.KeptIn(open.Subnets, w.Kept), Origin: plan.Adopted}); err != nil {
				return done, err
			}
		}
	}
	for _, o := range w.Orphans(a.Rules.Pools) {
		heir, _ := a.Rules.Adopter(o, heirs, w.Now)
		if heir == "" {
			continue
		}
		there, err := a.exists(ctx, o.Node)
		if err != nil {
			return done, err
		}
		if there {
			continue
		}
		if err := adopt(heir, plan.Assignment{Subnets: o.Subnets, Kept: o.Kept, Origin: plan.Adopted, From: o.Node}); err != nil {
			return done, err
		}
	}
	return done, nil
}

// give stakes the intent and carries it out.
func (a *Allocator) give(ctx context.Context, n pool.Node, given plan.Assignment, first func(pool.Node) []pool.Edit) error {
	var open []intent
	for _, i := range a.open() {
		// What was chosen for the node before is chosen anew.
		if i.UID != n.UID {
			open = append(open, i)
		}
	}
	if err := a.ticket.write(ctx, append(open, intent{Node: n.Name, UID: n.UID, Onto: n.PodCIDRs, Subnets: given.Subnets})); err != nil {
		return fmt.Errorf("set out to give %v to node %s: %w", given.Subnets, n.Name, err)
	}
	had := false
	for _, s := range given.Subnets {
		had = had || a.worn[s]
		a.chosen[s] = holder{name: n.Name, uid: n.UID, onto: n.PodCIDRs}
		a.worn[s] = true
	}
	// Where it fails, the subnets stay chosen until settle has seen what became of them: somebody
	// else may have published the same ones for the same node, having read our intent.
	if err := a.publish(ctx, n, given, had, first); err != nil {
		return err
	}
	for _, s := range given.Subnets {
		h := a.chosen[s]
		h.published = true
		a.chosen[s] = h
	}
	return nil
}

// choose finds subnets for a node.
func (a *Allocator) choose(ctx context.Context, n pool.Node, j plan.Joiner) (plan.Assignment, error) {
	w, err := a.world(ctx, n.UID)
	if err != nil {
		return plan.Assignment{}, err
	}
	if w.Kept, err = a.homeless(ctx); err != nil {
		return plan.Assignment{}, err
	}
	given := plan.Assign(j, a.Rules, w)
	if len(given.Kept) > 0 || slices.ContainsFunc(given.Subnets, func(s netip.Prefix) bool { return a.worn[s] }) {
		// Now it matters whether the cache has shown all that is kept. Reading all records for each
		// node of a cluster that comes up would be quadratic.
		if w.Kept, err = a.kept(ctx); err != nil {
			return plan.Assignment{}, err
		}
		given = plan.Assign(j, a.Rules, w)
	}
	for given.Origin == plan.Inherited {
		there, err := a.exists(ctx, given.From)
		if err != nil {
			return plan.Assignment{}, err
		}
		if !there {
			break
		}
		w.Present[given.From] = true
		given = plan.Assign(j, a.Rules, w)
	}
	return given, nil
}

// exists tells whether there is a Node of the name, or a CiliumNode: its pods may run.
func (a *Allocator) exists(ctx context.Context, name string) (bool, error) {
	if name == "" {
		return false, nil
	}
	for _, obj := range []client.Object{&corev1.Node{}, &ciliumv2.CiliumNode{}} {
		switch err := a.API.Get(ctx, client.ObjectKey{Name: name}, obj); {
		case err == nil:
			return true, nil
		case !apierrors.IsNotFound(err):
			return false, fmt.Errorf("look whether node %s is gone: %w", name, err)
		}
	}
	return false, nil
}

// world is what stands, but for what is kept. It takes the ticket. What was chosen for the CiliumNode
// of the given UID and not published is not taken: the node may have it, or another.
func (a *Allocator) world(ctx context.Context, uid string) (plan.World, error) {
	if !a.ticket.held() {
		if err := a.start(ctx); err != nil {
			return plan.World{}, err
		}
	}
	if err := a.settle(ctx); err != nil {
		return plan.World{}, err
	}
	homed := map[string]bool{}
	w := plan.World{Homed: func(node string) bool { return homed[node] }, Present: map[string]bool{}, Now: a.Clock.Now()}
	for _, n := range a.Ledger.Nodes() {
		w.Taken = append(w.Taken, n.Subnets...)
		homed[n.Name] = len(n.Subnets) > 0
	}
	for s, by := range a.chosen {
		if by.published || by.uid != uid {
			w.Taken = append(w.Taken, s)
			homed[by.name] = true
		}
	}
	return w, nil
}

// start takes the ticket and learns all that was given away before.
func (a *Allocator) start(ctx context.Context) error {
	open, err := a.ticket.take(ctx)
	if err != nil {
		return err
	}
	chosen, worn := map[netip.Prefix]holder{}, map[netip.Prefix]bool{}
	err = a.each(ctx, func() client.ObjectList { return &ciliumv2.CiliumNodeList{} }, func(obj runtime.Object) {
		n := ciliumpool.FromCiliumNode(obj.(*ciliumv2.CiliumNode))
		for _, s := range n.Subnets {
			chosen[s] = holder{name: n.Name, uid: n.UID, published: true}
			worn[s] = true
		}
	})
	if err != nil {
		a.ticket.lease = nil
		return err
	}
	a.chosen, a.worn = chosen, worn
	for _, i := range open {
		for _, s := range i.Subnets {
			if _, published := a.chosen[s]; !published {
				a.chosen[s] = holder{name: i.Node, uid: i.UID, onto: i.Onto}
			}
			a.worn[s] = true
		}
	}
	return nil
}

// open are the intents that were not seen published, by node.
func (a *Allocator) open() []intent {
	var open []intent
	for _, s := range a.inOrder() {
		h := a.chosen[s]
		if h.published {
			continue
		}
		if i := slices.IndexFunc(open, func(i intent) bool { return i.UID == h.uid }); i >= 0 {
			open[i].Subnets = append(open[i].Subnets, s)
		} else {
			open = append(open, intent{Node: h.name, UID: h.uid, Onto: h.onto, Subnets: []netip.Prefix{s}})
		}
	}
	return open
}

// inOrder are the chosen subnets. What is asked and written in turn is the same each time.
func (a *Allocator) inOrder() []netip.Prefix {
	return slices.SortedFunc(maps.Keys(a.chosen), netip.Prefix.Compare)
}

// settle drops what needs no remembering any more: subnets that the ledger shows, and those whose
// node is gone or has others than before, so that their publication can't come any more.
func (a *Allocator) settle(ctx context.Context) error {
	for _, s := range a.inOrder() {
		by := a.chosen[s]
		if shown, ok := a.Ledger.Node(by.name); ok && shown.UID == by.uid && slices.Contains(shown.Subnets, s) {
			delete(a.chosen, s)
			continue
		}
		n, err := a.Pools.Get(ctx, by.name)
		switch {
		case errors.Is(err, ciliumpool.ErrGone), err == nil && n.UID != by.uid:
			delete(a.chosen, s)
		case err != nil:
			return err
		case slices.Contains(n.Subnets, s):
			by.published = true
			a.chosen[s] = by
		case by.published, !slices.Equal(n.PodCIDRs, by.onto):
			delete(a.chosen, s)
		}
	}
	return nil
}

// homeless are the addresses that are kept and in no node's subnet, as the cache shows them.
func (a *Allocator) homeless(ctx context.Context) ([]plan.Kept, error) {
	records, err := fixedips.Read(ctx, a.Cached, a.Ledger.Homeless())
	return plan.KeepsAll(records), err
}

// kept are the addresses of all FixedIPs, as the API server has them.
func (a *Allocator) kept(ctx context.Context) (kept []plan.Kept, err error) {
	err = a.each(ctx, func() client.ObjectList { return &v1alpha1.FixedIPList{} }, func(obj runtime.Object) {
		kept = append(kept, plan.Keeps(obj.(*v1alpha1.FixedIP))...)
	})
	return kept, err
}

// pageSize is how many objects are asked for at once: that many are in memory as the API server sends them.
const pageSize = 500

// each visits all objects of a kind, as the API server has them at one moment.
func (a *Allocator) each(ctx context.Context, list func() client.ObjectList, visit func(runtime.Object)) error {
	pages := pager.ListPager{PageSize: pageSize, PageFn: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		page := list()
		err := a.API.List(ctx, page, &client.ListOptions{Limit: o.Limit, Continue: o.Continue})
		return page, err
	}}
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(obj runtime.Object) error {
		visit(obj)
		return nil
	})
	if err != nil {
		return fmt.Errorf("list all of %T: %w", list(), err)
	}
	return nil
}
