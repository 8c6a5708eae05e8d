package subnets

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// Allocator gives subnets to nodes, one node at a time.
//
// The order of its steps is what makes it safe. It takes the ticket, then lists all CiliumNodes
// and FixedIPs at the API server, then chooses, then writes the ticket with its intent, then
// publishes. As long as it holds the ticket nobody else has chosen since the list, and the list
// and its own choices are all there is. An intent that was not published is kept out of later
// choices while its node lives; a publication that comes late fails on the node's UID or on the
// subnets that the node has by then.
type Allocator struct {
	// api reads from the API server, not from a cache.
	api    client.Client
	pools  *ciliumpool.Pools
	ledger *ledger.Ledger
	from   []address.ClusterPool

	mu     sync.Mutex
	ticket ticket
	// chosen are subnets that were given away and that the ledger may not show yet. Key: the subnet.
	// Value: the CiliumNode that it was chosen for. A subnet leaves when the ledger shows it, which
	// from then on knows better, or when it is sure that its node will never have it.
	chosen map[netip.Prefix]holder
}

// holder is one incarnation of a CiliumNode.
type holder struct{ name, uid string }

// NewAllocator makes an Allocator over the given cluster pools. Its ticket is a Lease in the given
// namespace. The ledger has to follow the watch of CiliumNodes.
func NewAllocator(api client.Client, pools *ciliumpool.Pools, l *ledger.Ledger, from []address.ClusterPool, namespace string) *Allocator {
	return &Allocator{
		api:    api,
		pools:  pools,
		ledger: l,
		from:   from,
		ticket: ticket{api: api, namespace: namespace},
		chosen: map[netip.Prefix]holder{},
	}
}

// Assign gives a node without subnets its subnets and the first entries of its pool, in one write.
// first makes the entries of a fresh pool. Families whose cluster pools are used up are in the
// result; where nothing is left in any, nothing is written.
func (a *Allocator) Assign(ctx context.Context, n pool.Node, first func(pool.Node) []pool.Edit) (plan.Assignment, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	given, err := a.choose(ctx, n)
	if err != nil {
		return plan.Assignment{}, err
	}
	if len(given.Subnets) == 0 {
		return given, nil
	}
	if err := a.ticket.write(ctx, intent{node: n.Name, uid: n.UID, subnets: given.Subnets}); err != nil {
		return plan.Assignment{}, err
	}
	for _, s := range given.Subnets {
		a.chosen[s] = holder{n.Name, n.UID}
	}
	if err := a.publish(ctx, n, given, first); err != nil {
		return plan.Assignment{}, err
	}
	return given, nil
}

// choose finds subnets for a node.
func (a *Allocator) choose(ctx context.Context, n pool.Node) (plan.Assignment, error) {
	kept, err := a.kept(ctx)
	if err != nil {
		return plan.Assignment{}, err
	}
	if !a.ticket.held() {
		if err := a.start(ctx); err != nil {
			return plan.Assignment{}, err
		}
	}
	if err := a.settle(ctx); err != nil {
		return plan.Assignment{}, err
	}
	var taken []netip.Prefix
	for _, other := range a.ledger.Nodes() {
		taken = append(taken, other.Subnets...)
	}
	for s, by := range a.chosen {
		// What was chosen for the node itself and not published it may have, or another.
		if by.uid != n.UID {
			taken = append(taken, s)
		}
	}
	return plan.Assign(n.Name, a.from, taken, kept), nil
}

// start takes the ticket and learns all that was given away before.
func (a *Allocator) start(ctx context.Context) error {
	last, err := a.ticket.take(ctx)
	if err != nil {
		return err
	}
	var nodes ciliumv2.CiliumNodeList
	if err := a.api.List(ctx, &nodes); err != nil {
		a.ticket.lease = nil
		return fmt.Errorf("list CiliumNodes: %w", err)
	}
	a.chosen = map[netip.Prefix]holder{}
	for i := range nodes.Items {
		n := ciliumpool.FromCiliumNode(&nodes.Items[i])
		for _, s := range n.Subnets {
			a.chosen[s] = holder{n.Name, n.UID}
		}
	}
	for _, s := range last.subnets {
		if _, published := a.chosen[s]; !published {
			a.chosen[s] = holder{last.node, last.uid}
		}
	}
	return nil
}

// settle drops what needs no remembering any more: subnets that the ledger shows, and those whose
// node is gone or has others, so that their publication can't come any more.
func (a *Allocator) settle(ctx context.Context) error {
	for s, by := range a.chosen {
		if shown, ok := a.ledger.Node(by.name); ok && shown.UID == by.uid && slices.Contains(shown.Subnets, s) {
			delete(a.chosen, s)
			continue
		}
		n, err := a.pools.Get(ctx, by.name)
		switch {
		case errors.Is(err, ciliumpool.ErrGone), err == nil && n.UID != by.uid, err == nil && len(n.PodCIDRs) > 0 && !slices.Contains(n.Subnets, s):
			delete(a.chosen, s)
		case err != nil:
			return err
		}
	}
	return nil
}

// kept are the addresses of all records. They are few compared with what is at stake, so they are
// read from the API server.
func (a *Allocator) kept(ctx context.Context) ([]plan.Kept, error) {
	var records v1alpha1.FixedIPList
	if err := a.api.List(ctx, &records); err != nil {
		return nil, fmt.Errorf("list FixedIPs: %w", err)
	}
	var kept []plan.Kept
	for i := range records.Items {
		kept = append(kept, plan.Keeps(&records.Items[i])...)
	}
	return kept, nil
}

func (a *Allocator) publish(ctx context.Context, n pool.Node, given plan.Assignment, first func(pool.Node) []pool.Edit) error {
	var edits []pool.Edit
	for addr, e := range given.Entries {
		edits = append(edits, n.Set(addr, e))
	}
	slices.SortFunc(edits, func(x, y pool.Edit) int { return x.Addr.Compare(y.Addr) })
	fresh := n.With(edits)
	fresh.Subnets = given.Subnets
	edits = append(edits, first(fresh)...)
	// Where it fails, the subnets stay chosen until settle has seen what became of them: somebody
	// else may have published the same ones for the same node, having read our intent.
	_, err := a.pools.Publish(ctx, n, given.Subnets, edits)
	return err
}
