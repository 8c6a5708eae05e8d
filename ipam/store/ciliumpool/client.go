// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumpool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/core/pool"
)

var (
	// ErrChanged means that a precondition of the write no longer holds. Nothing was written; read the pool and decide again.
	ErrChanged = errors.New("the CiliumNode has changed since it was read")
	// ErrGone means that the CiliumNode does not exist.
	ErrGone = errors.New("the CiliumNode does not exist")
	// ErrRefused means that the API server refuses the request, and would refuse it again. Nothing was written.
	ErrRefused = errors.New("the API server refuses the request")
)

// API is the part of a Kubernetes client that Client needs: reads that do not come from a cache, and patches.
type API interface {
	Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error
	Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error
	Status() client.SubResourceWriter
}

// Client reads and writes the pools of nodes at the API server.
type Client struct {
	api API
	// StripManagedFields makes every write of a spec also remove the managedFields of the CiliumNode. They are as large as the
	// rest of the object, and only server-side apply uses them; the API server does not write them again until a client uses
	// server-side apply. Set StripManagedFields before the first write.
	StripManagedFields bool
}

// New returns a Client that uses api, which must not read from a cache.
func New(api API) *Client { return &Client{api: api} }

// Get reads the pool of a node from the API server. It returns ErrGone if the CiliumNode does not exist.
func (p *Client) Get(ctx context.Context, name string) (pool.NodePool, error) {
	var cn ciliumv2.CiliumNode
	if err := p.api.Get(ctx, client.ObjectKey{Name: name}, &cn); err != nil {
		if apierrors.IsNotFound(err) {
			return pool.NodePool{}, fmt.Errorf("CiliumNode %s: %w", name, ErrGone)
		}
		return pool.NodePool{}, fmt.Errorf("read CiliumNode %s: %w", name, classifyAPIError(err))
	}
	return FromCiliumNode(&cn), nil
}

// classifyAPIError wraps err in ErrRefused if the API server rejected the request and would reject it again. It returns any
// other error unchanged.
func classifyAPIError(err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return err
	}
	switch code := status.Status().Code; {
	case code == http.StatusUnauthorized, code == http.StatusRequestTimeout, code == http.StatusConflict, code == http.StatusTooManyRequests:
		// These are temporary: for example, a token may just have expired.
		return err
	case code < 400 || code >= 500:
		return err
	}
	return fmt.Errorf("%w: %w", ErrRefused, err)
}

// isPatchTestFailure reports whether a patch failed because of one of its tests. The API server responds with 422 Invalid
// without causes. For an object that the validation or an admission policy rejects, the 422 has causes.
func isPatchTestFailure(err error) bool {
	var status apierrors.APIStatus
	return apierrors.IsInvalid(err) && errors.As(err, &status) && (status.Status().Details == nil || len(status.Status().Details.Causes) == 0)
}

// ChangeEntries applies all edits to the pool of a node in one write, or none of them, and returns the pool after the write.
// It returns ErrChanged if the CiliumNode was replaced, or if its subnets or an edited entry have changed, since n was read,
// or if the agent reports the address of an edit with RequireUnused as used. If n has no status.ipam.used, an edit with
// RequireUnused requires that nothing of the CiliumNode has changed. If requireUnchangedSpec is true, ChangeEntries also returns
// ErrChanged if any other part of the spec has changed. After ErrChanged, ErrGone and ErrRefused nothing was written; after
// any other error the edits may have been written.
func (p *Client) ChangeEntries(ctx context.Context, n pool.NodePool, edits []pool.EntryChange, requireUnchangedSpec bool) (pool.NodePool, error) {
	return p.patch(ctx, n, types.JSONPatchType, encode(n, nil, edits, requireUnchangedSpec, p.StripManagedFields && n.Tracked), false)
}

// Publish adds subnets to a node, together with the first entries in these subnets, so that every reader that sees the
// subnets also sees their reserved addresses. It returns the node after the write. Its errors are those of ChangeEntries: for
// example, it returns ErrChanged if the podCIDRs of the node are no longer those of n.
func (p *Client) Publish(ctx context.Context, n pool.NodePool, subnets []netip.Prefix, edits []pool.EntryChange) (pool.NodePool, error) {
	podCIDRs := append([]string{}, n.PodCIDRs...)
	for _, s := range subnets {
		podCIDRs = append(podCIDRs, s.String())
	}
	return p.patch(ctx, n, types.JSONPatchType, encode(n, podCIDRs, edits, false, p.StripManagedFields && n.Tracked), false)
}

// patch applies a patch to the CiliumNode of n, or to its status if status is true, and returns the pool after the patch.
func (p *Client) patch(ctx context.Context, n pool.NodePool, kind types.PatchType, content any, status bool) (pool.NodePool, error) {
	data, err := json.Marshal(content)
	if err != nil {
		return pool.NodePool{}, fmt.Errorf("encode the patch of CiliumNode %s: %w", n.Name, err)
	}
	cn := ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
	if patch := client.RawPatch(kind, data); status {
		err = p.api.Status().Patch(ctx, &cn, patch)
	} else {
		err = p.api.Patch(ctx, &cn, patch)
	}
	switch {
	case err == nil:
		return FromCiliumNode(&cn), nil
	case apierrors.IsNotFound(err):
		return pool.NodePool{}, fmt.Errorf("CiliumNode %s: %w", n.Name, ErrGone)
	case isPatchTestFailure(err), apierrors.IsConflict(err):
		// The API server returns a conflict if a merge patch has an old resourceVersion, and if it could not apply a JSON patch
		// in five tries because of other writes.
		return pool.NodePool{}, fmt.Errorf("CiliumNode %s: %w: %w", n.Name, ErrChanged, err)
	default:
		return pool.NodePool{}, fmt.Errorf("patch CiliumNode %s: %w", n.Name, classifyAPIError(err))
	}
}

// WriteProbe writes a probe into the status of a CiliumNode, in one patch, and returns the node with the probe. The report
// with which the agent acknowledges all earlier writes removes the probe (see package agentview). WriteProbe does not change
// other probes: only a report of the agent removes a probe.
//
// The patch adds two keys. The key in release-ips, with the state released for an address that is not in the pool, makes the
// agent report (Cilium fact 24). The key in used disappears with that report, because the agent builds used from its
// allocators. If a write of the node's labels makes the agent lose the key in release-ips (Cilium fact 28), the key in used
// still disappears with the next report.
//
// ErrChanged, ErrGone and ErrRefused mean that nothing was written; after any other error the probe may exist.
func (p *Client) WriteProbe(ctx context.Context, n pool.NodePool, probe netip.Addr) (pool.NodePool, error) {
	kind, content := types.JSONPatchType, encodeProbe(n, probe)
	if !n.HasUsed {
		kind, content = types.MergePatchType, encodeFirstProbe(n, probe)
	}
	after, err := p.patch(ctx, n, kind, content, true)
	if err == nil && !slices.Contains(after.Probes, probe) {
		// A probe that was not stored would be missing from used, as if the agent had acknowledged it.
		return pool.NodePool{}, fmt.Errorf("CiliumNode %s: the API server did not store the probe %s; check for an admission webhook or policy that changes the status of CiliumNodes", n.Name, probe)
	}
	return after, err
}

// WithdrawHandshakes removes the release handshakes of the addresses in one write, or none of them, and returns the node
// after the write. The handshakes are in the status, which is written separately from the pool. It returns ErrChanged if the
// CiliumNode was replaced or a handshake has another state than in n. The other errors are those of ChangeEntries.
func (p *Client) WithdrawHandshakes(ctx context.Context, n pool.NodePool, addrs []netip.Addr) (pool.NodePool, error) {
	return p.patch(ctx, n, types.JSONPatchType, encodeWithdrawal(n, addrs), true)
}
