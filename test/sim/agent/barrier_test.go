// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cilium/cilium/pkg/ipam"
	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	jsonpatch "github.com/evanphx/json-patch/v5"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/core/agentview"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// patches serves the CiliumNode of api to ciliumpool.
type patches struct{ *api }

func (p patches) Status() client.SubResourceWriter { return statusPatches{patches: p} }

func (p patches) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	// The conversion to JSON removes empty maps. The API server does not store them either, so that a patch of a path in an
	// empty map fails.
	data, err := json.Marshal(p.node)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, obj)
}

func (p patches) Patch(_ context.Context, obj client.Object, patch client.Patch, _ ...client.PatchOption) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	data, err := patch.Data(obj)
	if err != nil {
		return err
	}
	before, err := json.Marshal(p.node)
	if err != nil {
		return err
	}
	after, err := apply(before, patch.Type(), data)
	if err != nil {
		return apierrors.NewInvalid(schema.GroupKind{Group: "cilium.io", Kind: "CiliumNode"}, obj.GetName(), nil)
	}
	var next ciliumv2.CiliumNode
	if err := json.Unmarshal(after, &next); err != nil {
		return err
	}
	if next.ResourceVersion != p.node.ResourceVersion {
		return apierrors.NewConflict(schema.GroupResource{Group: "cilium.io", Resource: "ciliumnodes"}, obj.GetName(), errors.New("the object has been modified"))
	}
	p.write(func(n *ciliumv2.CiliumNode) { n.Spec, n.Status = next.Spec, next.Status })
	p.node.DeepCopyInto(obj.(*ciliumv2.CiliumNode))
	return nil
}

func apply(object []byte, form types.PatchType, data []byte) ([]byte, error) {
	if form == types.MergePatchType {
		return jsonpatch.MergePatch(object, data)
	}
	ops, err := jsonpatch.DecodePatch(data)
	if err != nil {
		return nil, err
	}
	return ops.Apply(object)
}

type statusPatches struct {
	client.SubResourceWriter
	patches
}

func (s statusPatches) Patch(ctx context.Context, obj client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	return s.patches.Patch(ctx, obj, patch)
}

// holders tracks which pod has which address, and compares that with the judgement of each address.
type holders struct {
	mu sync.Mutex
	// by contains the pod that has each address. Key: the address.
	by map[netip.Addr]string
	// clear contains the addresses that were judged Clear and are not offered again yet.
	clear map[netip.Addr]bool
	// wrong contains a message for each pod that had an address in clear.
	wrong []string
}

func (h *holders) got(a netip.Addr, pod string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.by[a] = pod
	if h.clear[a] {
		h.wrong = append(h.wrong, fmt.Sprintf("pod %s got IP %s after the IP was judged Clear", pod, a))
	}
}

func (h *holders) lost(a netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.by, a)
}

func (h *holders) judged(a netip.Addr, v agentview.AddressUse) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if v.State != agentview.Clear {
		return
	}
	h.clear[a] = true
	if pod, used := h.by[a]; used {
		h.wrong = append(h.wrong, fmt.Sprintf("pod %s has IP %s, which was judged Clear", pod, a))
	}
}

func (h *holders) offered(a netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.clear, a)
}

// TestBarrierAgainstCilium sends agent barriers to Cilium's own allocator while addresses are allocated and released, and the
// labels of the CiliumNode change. It checks that each barrier is acknowledged, and that no pod has a withdrawn address that
// was judged Clear, or gets it before it is offered again.
func TestBarrierAgainstCilium(t *testing.T) {
	real := cilium()
	real.refuse(false)
	const size = 6
	real.write(t, func(cn *ciliumv2.CiliumNode) {
		cn.UID = "uid"
		cn.Spec.IPAM.Pool = ipamtypes.AllocationMap{"10.0.0.100": {Owner: "router"}}
		cn.Status.IPAM.ReleaseIPs = nil
		for i := range size {
			cn.Spec.IPAM.Pool[fmt.Sprintf("10.0.0.%d", i+1)] = ipamtypes.AllocationIP{}
		}
	})
	router, err := real.AllocateNextFamily(ipam.IPv4, "router", ipam.PoolDefault())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	h := &holders{by: map[netip.Addr]string{}, clear: map[netip.Addr]bool{}}
	for i := range 4 {
		running.Go(func() {
			for ctx.Err() == nil {
				pod := fmt.Sprintf("default/pod-%d", i)
				got, err := real.AllocateNextFamily(ipam.IPv4, pod, ipam.PoolDefault())
				if err != nil {
					time.Sleep(time.Millisecond)
					continue
				}
				a, _ := netip.AddrFromSlice(got.IP.To4())
				h.got(a, pod)
				time.Sleep(rand.N(3 * time.Millisecond))
				h.lost(a)
				if err := real.ReleaseIP(got.IP, ipam.PoolDefault()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	running.Go(func() {
		for ctx.Err() == nil {
			real.server.mu.Lock()
			real.server.write(func(cn *ciliumv2.CiliumNode) { cn.Labels = map[string]string{"version": cn.ResourceVersion} })
			real.server.mu.Unlock()
			time.Sleep(rand.N(2 * time.Millisecond))
		}
	})
	pools := ciliumpool.New(patches{api: real.server})
	count := map[agentview.State]int{}
	var longest time.Duration
	for i := range barriers(t) {
		a := netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i%size)})
		edit(t, pools, a, pool.ForOwner("fixedip.io/withdrawn"))
		began := time.Now()
		evidence := runBarrier(t, pools)
		longest = max(longest, time.Since(began))
		v := evidence.Judge(a, "", nil)
		count[v.State]++
		h.judged(a, v)
		time.Sleep(time.Millisecond)
		h.offered(a)
		edit(t, pools, a, pool.Entry{})
	}
	stop()
	running.Wait()
	for _, w := range h.wrong {
		t.Error(w)
	}
	if count[agentview.Clear] == 0 || count[agentview.InUse] == 0 || count[agentview.Unknown] > 0 {
		t.Errorf("judgements are %v, want some Clear, some InUse and no Unknown", count)
	}
	t.Logf("judgements: %v; the longest barrier took %s", count, longest.Round(time.Millisecond))
	if err := real.ReleaseIP(router.IP, ipam.PoolDefault()); err != nil {
		t.Error(err)
	}
	for a := range h.by {
		_ = real.ReleaseIP(net.ParseIP(a.String()), ipam.PoolDefault())
	}
}

// edit changes the entry of one address. It tries again if the CiliumNode was changed meanwhile.
func edit(t *testing.T, pools *ciliumpool.Client, a netip.Addr, to pool.Entry) {
	t.Helper()
	for {
		n, err := pools.Get(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		if _, err = pools.ChangeEntries(t.Context(), n, []pool.EntryChange{n.Set(a, to)}, false); err == nil {
			return
		} else if !errors.Is(err, ciliumpool.ErrChanged) {
			t.Fatal(err)
		}
	}
}

// runBarrier writes a probe and returns the evidence in the report that acknowledges it.
func runBarrier(t *testing.T, pools *ciliumpool.Client) agentview.Evidence {
	t.Helper()
	var b agentview.Barrier
	for b.Probe == (netip.Addr{}) {
		n, err := pools.Get(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		probe := agentview.NewProbe(n)
		if asked, err := pools.WriteProbe(t.Context(), n, probe); err == nil {
			b = agentview.Barrier{ProbedNode: asked, Probe: probe}
		} else if !errors.Is(err, ciliumpool.ErrChanged) {
			t.Fatal(err)
		}
	}
	var evidence agentview.Evidence
	until(t, "the barrier is acknowledged", func() bool {
		n, err := pools.Get(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		var answer agentview.Answer
		evidence, answer = b.Answer(n)
		return answer == agentview.Complete
	})
	return evidence
}

// barriers returns the number of barriers: FIXEDIP_BARRIERS, or 200 if it is not set.
func barriers(t *testing.T) int {
	text, ok := os.LookupEnv("FIXEDIP_BARRIERS")
	if !ok {
		return 200
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("FIXEDIP_BARRIERS is %q, want a number", text)
	}
	return n
}
