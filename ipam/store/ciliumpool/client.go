// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumpool

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/core/pool"
)

var (
	// ErrChanged means that something that the write relied on has changed. Nothing was written; read the
	// pool again and decide anew.
	ErrChanged = errors.New("the pool has changed meanwhile")
	// ErrGone means that the node has no CiliumNode any more, or another one of the same name.
	ErrGone = errors.New("the CiliumNode is gone")
	// ErrRefused means that the API server does not let the request pass, and would not when asked again.
	// Nothing was written.
	ErrRefused = errors.New("the API server refuses it")
)

// Client is what Pools needs of the API server: reads that go there and not to a cache, and
// patches.
type Client interface {
	Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error
	Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error
	Status() client.SubResourceWriter
}

// Pools reads and writes the pools of nodes at the API server.
type Pools struct {
	api Client
	// untrack: field tracking goes with the next write.
	untrack bool
}

// New makes Pools over a client that does not read from a cache.
func New(api Client) *Pools { return &Pools{api: api} }

// Untrack makes every write to a pool strip the field tracking of its CiliumNode, where there is
// any: it is as large as the rest and of use only to those who apply server-side. The API server
// does not start it anew until somebody does. Call it before the first write.
func (p *Pools) Untrack() { p.untrack = true }

// Get reads the pool of a node as it is now. ErrGone where there is none.
func (p *Pools) Get(ctx context.Context, name string) (pool.Node, error) {
	var cn ciliumv2.CiliumNode
	if err := p.api.Get(ctx, client.ObjectKey{Name: name}, &cn); err != nil {
		if apierrors.IsNotFound(err) {
			return pool.Node{}, fmt.Errorf("CiliumNode %s: %w", name, ErrGone)
		}
		return pool.Node{}, fmt.Errorf("read CiliumNode %s: %w", name, answered(err))
	}
	return FromCiliumNode(&cn), nil
}

// answered makes what the API server says ErrRefused where it is about the request, and not about
// the moment.
func answered(err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return err
	}
	switch code := status.Status().Code; code {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		// A token may just have run out.
		return err
	default:
		if code < 400 || code >= 500 {
			return err
		}
	}
	return fmt.Errorf("%w: %w", ErrRefused, err)
}

// untrue tells whether a patch failed for one of its tests: that is 422 Invalid, as is an object that
// validation or an admission policy turns down, but without the causes that these name.
func untrue(err error) bool {
	var status apierrors.APIStatus
	return apierrors.IsInvalid(err) && errors.As(err, &status) && (status.Status().Details == nil || len(status.Status().Details.Causes) == 0)
}

// Edit applies all edits to the pool of a node in one write, or none of them. The result is the
// pool after it. ErrChanged, ErrGone and ErrRefused say that nothing was written; after any other
// error the write may have happened.
func (p *Pools) Edit(ctx context.Context, n pool.Node, edits []pool.Edit) (pool.Node, error) {
	return p.patch(ctx, n, nil, edits, false)
}

// EditWhole is Edit for edits that rely on the pool as a whole being what n says: it fails with
// ErrChanged where anything in the spec of the CiliumNode was written since.
func (p *Pools) EditWhole(ctx context.Context, n pool.Node, edits []pool.Edit) (pool.Node, error) {
	return p.patch(ctx, n, nil, edits, true)
}

// Publish gives subnets to a node in addition to those that it has, together with the first entries
// in them: whoever sees the subnets sees what is reserved there. It fails with ErrChanged where the
// node's subnets are no longer those of n.
func (p *Pools) Publish(ctx context.Context, n pool.Node, subnets []netip.Prefix, edits []pool.Edit) (pool.Node, error) {
	podCIDRs := append([]string{}, n.PodCIDRs...)
	for _, s := range subnets {
		podCIDRs = append(podCIDRs, s.String())
	}
	return p.patch(ctx, n, podCIDRs, edits, false)
}

func (p *Pools) patch(ctx context.Context, n pool.Node, podCIDRs []string, edits []pool.Edit, whole bool) (pool.Node, error) {
	data, err := encode(n, podCIDRs, edits, whole, p.untrack && n.Tracked)
	if err != nil {
		return pool.Node{}, err
	}
	return p.send(ctx, n, data, func(ctx context.Context, obj client.Object, patch client.Patch) error {
		return p.api.Patch(ctx, obj, patch)
	})
}

// send has a patch of n applied, and says what stands after it.
func (p *Pools) send(ctx context.Context, n pool.Node, data []byte, apply func(context.Context, client.Object, client.Patch) error) (pool.Node, error) {
	var cn ciliumv2.CiliumNode
	cn.Name = n.Name
	switch err := apply(ctx, &cn, client.RawPatch(types.JSONPatchType, data)); {
	case err == nil:
		return FromCiliumNode(&cn), nil
	case apierrors.IsNotFound(err):
		return pool.Node{}, fmt.Errorf("CiliumNode %s: %w", n.Name, ErrGone)
	case untrue(err), apierrors.IsConflict(err):
		// A conflict is one that the API server met five times over while it applied the patch.
		return pool.Node{}, fmt.Errorf("CiliumNode %s: %w: %w", n.Name, ErrChanged, err)
	default:
		return pool.Node{}, fmt.Errorf("patch CiliumNode %s: %w", n.Name, answered(err))
	}
}
