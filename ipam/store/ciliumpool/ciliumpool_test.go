// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumpool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/core/pool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ciliumNode(change ...func(*ciliumv2.CiliumNode)) *ciliumv2.CiliumNode {
	cn := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "uid-1", ResourceVersion: "7", Generation: 1}}
	cn.Spec.IPAM.PodCIDRs = []string{"10.0.1.0/24"}
	for _, c := range change {
		c(cn)
	}
	return cn
}

// reports changes a CiliumNode as the first report of an agent does.
func reports(cn *ciliumv2.CiliumNode) {
	cn.Status.IPAM.Used = ipamtypes.AllocationMap{"10.0.1.250": {Owner: "router"}}
}

var compareAddrs = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
var comparePrefixes = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

func TestFromCiliumNode(t *testing.T) {
	cn := ciliumNode(func(cn *ciliumv2.CiliumNode) {
		cn.Spec.IPAM.PodCIDRs = []string{"10.0.1.0/24", "fd00::/64", "10.0.0/8"}
		cn.Spec.IPAM.Pool = ipamtypes.AllocationMap{
			"10.0.1.1":    {},
			"10.0.1.254":  {Owner: "db/mysql-0", Resource: "db/StatefulSet/mysql"},
			"fd00::a":     {Owner: "router"},
			"FD00::B":     {Owner: "db/mysql-1"},
			"10.0.1.0001": {},
		}
		cn.Status.IPAM.Used = ipamtypes.AllocationMap{"10.0.1.254": {Owner: "db/mysql-0 [restored]"}, "10.0.1.1": {Owner: "db/other"}}
	})
	want := pool.NodePool{
		Name: "n", UID: "uid-1", ResourceVersion: "7", Generation: 1, HasPool: true,
		Subnets:  []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24"), netip.MustParsePrefix("fd00::/64")},
		PodCIDRs: []string{"10.0.1.0/24", "fd00::/64", "10.0.0/8"},
		Entries: map[netip.Addr]pool.Entry{
			netip.MustParseAddr("10.0.1.1"):   {},
			netip.MustParseAddr("10.0.1.254"): pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"),
			netip.MustParseAddr("fd00::a"):    pool.ForOwner("router"),
		},
		Used:    map[netip.Addr]string{netip.MustParseAddr("10.0.1.254"): "db/mysql-0", netip.MustParseAddr("10.0.1.1"): "db/other"},
		HasUsed: true, Unreported: true,
	}
	cached, err := ForCache(cn)
	if err != nil {
		t.Fatal(err)
	}
	for from, got := range map[string]pool.NodePool{"decoded": FromCiliumNode(cn), "cached": cached.(*cachedNode).pool} {
		if len(got.Malformed) != 3 {
			t.Errorf("%s: got malformed %q, want three elements", from, got.Malformed)
		}
		got.Malformed = nil
		if diff := cmp.Diff(want, got, compareAddrs, comparePrefixes); diff != "" {
			t.Errorf("%s pool (-want +got): %s", from, diff)
		}
	}
}

// TestSubnets checks which podCIDRs are malformed: overlapping subnets, whose addresses would be counted and assigned
// twice, and subnets of IPv4-mapped IPv6 addresses, because agents compare addresses as text.
func TestSubnets(t *testing.T) {
	for name, c := range map[string]struct{ podCIDRs, want, malformed []string }{
		"disjoint":                                     {podCIDRs: []string{"10.0.1.0/24", "10.0.2.0/24", "fd00::/64"}, want: []string{"10.0.1.0/24", "10.0.2.0/24", "fd00::/64"}},
		"the same subnet twice":                        {[]string{"10.0.1.0/24", "10.0.1.0/24"}, []string{"10.0.1.0/24"}, []string{`spec.ipam.podCIDRs: "10.0.1.0/24" is contained in 10.0.1.0/24`}},
		"a smaller subnet after the larger one":        {[]string{"10.0.1.0/24", "10.0.1.128/25"}, []string{"10.0.1.0/24"}, []string{`spec.ipam.podCIDRs: "10.0.1.128/25" is contained in 10.0.1.0/24`}},
		"smaller subnets before the larger one":        {[]string{"10.0.1.0/25", "10.0.1.128/25", "10.0.1.9/24"}, []string{"10.0.1.0/24"}, []string{`spec.ipam.podCIDRs: 10.0.1.0/25 is contained in "10.0.1.9/24"`, `spec.ipam.podCIDRs: 10.0.1.128/25 is contained in "10.0.1.9/24"`}},
		"a subnet that contains IPv4-mapped addresses": {[]string{"::/80"}, nil, []string{`spec.ipam.podCIDRs: "::/80" has IPv4 addresses mapped into IPv6`}},
		"a subnet of IPv4-mapped addresses":            {[]string{"::ffff:10.0.1.0/120"}, nil, []string{`spec.ipam.podCIDRs: "::ffff:10.0.1.0/120" has IPv4 addresses mapped into IPv6`}},
	} {
		n := FromCiliumNode(ciliumNode(func(cn *ciliumv2.CiliumNode) { cn.Spec.IPAM.PodCIDRs = c.podCIDRs }))
		var got []string
		for _, s := range n.Subnets {
			got = append(got, s.String())
		}
		if !slices.Equal(got, c.want) || !slices.Equal(n.Malformed, c.malformed) {
			t.Errorf("%s: got subnets %q and malformed %q, want %q and %q", name, got, n.Malformed, c.want, c.malformed)
		}
	}
}

func TestForCacheOfOtherObject(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"a": "b"}}}
	if got, err := ForCache(pod); err != nil || got != any(pod) {
		t.Errorf("ForCache of a pod: got %v, error %v; want the same object", got, err)
	}
}

// apiServer contains one CiliumNode, and patches it as the API server does, including the tests of JSON patches.
type apiServer struct {
	mu   sync.Mutex
	node []byte
	// fail returns the error with which patch n fails, and whether the patch is applied nevertheless. The first patch has
	// n = 1. If fail is nil or returns a nil error, the patch is handled as by the API server.
	fail    func(n int) (response error, applied bool)
	patches int
	reads   int
}

var (
	resource = schema.GroupResource{Group: "cilium.io", Resource: "ciliumnodes"}
	kind     = schema.GroupKind{Group: "cilium.io", Kind: "CiliumNode"}
)

func newAPI(t *testing.T, cn *ciliumv2.CiliumNode) *apiServer {
	data, err := json.Marshal(cn)
	if err != nil {
		t.Fatal(err)
	}
	return &apiServer{node: data}
}

func (s *apiServer) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	if s.node == nil {
		return apierrors.NewNotFound(resource, key.Name)
	}
	return json.Unmarshal(s.node, obj)
}

func (s *apiServer) Patch(_ context.Context, obj client.Object, patch client.Patch, _ ...client.PatchOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.patches++
	var response error
	if s.fail != nil {
		var applied bool
		if response, applied = s.fail(s.patches); response != nil && !applied {
			return response
		}
	}
	if s.node == nil {
		return apierrors.NewNotFound(resource, obj.GetName())
	}
	data, err := patch.Data(obj)
	if err != nil {
		return err
	}
	after, err := s.apply(patch.Type(), data)
	if err != nil {
		return apierrors.NewInvalid(kind, obj.GetName(), nil)
	}
	var before, cn ciliumv2.CiliumNode
	if err := errors.Join(json.Unmarshal(s.node, &before), json.Unmarshal(after, &cn)); err != nil {
		return err
	}
	if cn.ResourceVersion != before.ResourceVersion {
		return apierrors.NewConflict(resource, obj.GetName(), errors.New("the object has been modified"))
	}
	cn.Generation++
	cn.ResourceVersion = fmt.Sprint("after ", s.patches)
	if after, err = json.Marshal(&cn); err != nil {
		return err
	}
	s.node = after
	if response != nil {
		return response
	}
	return json.Unmarshal(after, obj)
}

func (s *apiServer) apply(form types.PatchType, data []byte) ([]byte, error) {
	if form == types.MergePatchType {
		return jsonpatch.MergePatch(s.node, data)
	}
	ops, err := jsonpatch.DecodePatch(data)
	if err != nil {
		return nil, err
	}
	return ops.Apply(s.node)
}

// Status returns a writer that patches the whole object: the tests of this package do not check that the API server ignores
// other fields in a patch of the status.
func (s *apiServer) Status() client.SubResourceWriter { return statusOf{apiServer: s} }

type statusOf struct {
	client.SubResourceWriter
	*apiServer
}

func (s statusOf) Patch(ctx context.Context, obj client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	return s.apiServer.Patch(ctx, obj, patch)
}

func (s *apiServer) entries(t *testing.T) map[netip.Addr]pool.Entry {
	t.Helper()
	n, err := New(s).Get(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	return n.Entries
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

var (
	mysql0 = pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql")
)

func TestChangeEntries(t *testing.T) {
	withEntry := func(a string, e ipamtypes.AllocationIP) func(*ciliumv2.CiliumNode) {
		return func(cn *ciliumv2.CiliumNode) {
			if cn.Spec.IPAM.Pool == nil {
				cn.Spec.IPAM.Pool = ipamtypes.AllocationMap{}
			}
			cn.Spec.IPAM.Pool[a] = e
		}
	}
	seen := FromCiliumNode(ciliumNode(withEntry("10.0.1.1", ipamtypes.AllocationIP{}), withEntry("10.0.1.9", ipamtypes.AllocationIP{Owner: "db/mysql-0", Resource: "db/StatefulSet/mysql"})))
	drop := func(a string) pool.EntryChange { e, _ := seen.Drop(addr(a)); return e }
	for name, c := range map[string]struct {
		now   *ciliumv2.CiliumNode
		from  pool.NodePool
		edits []pool.EntryChange
		want  map[netip.Addr]pool.Entry
		err   error
	}{
		"a new entry": {
			now: ciliumNode(withEntry("10.0.1.1", ipamtypes.AllocationIP{})), from: FromCiliumNode(ciliumNode(withEntry("10.0.1.1", ipamtypes.AllocationIP{}))),
			edits: []pool.EntryChange{seen.Set(addr("10.0.1.200"), mysql0)},
			want:  map[netip.Addr]pool.Entry{addr("10.0.1.1"): {}, addr("10.0.1.200"): mysql0}},
		"the first entry of a pool": {
			now: ciliumNode(), from: FromCiliumNode(ciliumNode()),
			edits: []pool.EntryChange{{Addr: addr("10.0.1.200"), To: &mysql0}},
			want:  map[netip.Addr]pool.Entry{addr("10.0.1.200"): mysql0}},
		"an IPv6 entry": {
			now: ciliumNode(), from: FromCiliumNode(ciliumNode()),
			edits: []pool.EntryChange{{Addr: addr("fd00:240::1:a"), To: &mysql0}},
			want:  map[netip.Addr]pool.Entry{addr("fd00:240::1:a"): mysql0}},
		"a new entry, but the address has got an entry in the meantime": {
			now: ciliumNode(withEntry("10.0.1.200", ipamtypes.AllocationIP{Owner: "db/other-0"})), from: FromCiliumNode(ciliumNode(withEntry("10.0.1.1", ipamtypes.AllocationIP{}))),
			edits: []pool.EntryChange{{Addr: addr("10.0.1.200"), To: &mysql0}}, err: ErrChanged},
		"a removal": {
			now: ciliumNode(withEntry("10.0.1.1", ipamtypes.AllocationIP{}), withEntry("10.0.1.9", ipamtypes.AllocationIP{Owner: "db/mysql-0", Resource: "db/StatefulSet/mysql"})), from: seen,
			edits: []pool.EntryChange{drop("10.0.1.9")}, want: map[netip.Addr]pool.Entry{addr("10.0.1.1"): {}}},
		"a removal, but the entry has changed in the meantime": {
			now: ciliumNode(withEntry("10.0.1.9", ipamtypes.AllocationIP{Owner: "db/mysql-1", Resource: "db/StatefulSet/mysql"})), from: seen,
			edits: []pool.EntryChange{drop("10.0.1.9")}, err: ErrChanged},
		"two edits, one of which fails": {
			now: ciliumNode(withEntry("10.0.1.9", ipamtypes.AllocationIP{Owner: "db/mysql-1"})), from: seen,
			edits: []pool.EntryChange{{Addr: addr("10.0.1.200"), To: &mysql0}, drop("10.0.1.9")}, err: ErrChanged},
		"the subnets have changed in the meantime": {
			now: ciliumNode(func(cn *ciliumv2.CiliumNode) { cn.Spec.IPAM.PodCIDRs = []string{"10.0.2.0/24"} }), from: FromCiliumNode(ciliumNode()),
			edits: []pool.EntryChange{{Addr: addr("10.0.1.200"), To: &mysql0}}, err: ErrChanged},
		"the CiliumNode was replaced in the meantime": {
			now: ciliumNode(func(cn *ciliumv2.CiliumNode) { cn.UID = "uid-2" }), from: FromCiliumNode(ciliumNode()),
			edits: []pool.EntryChange{{Addr: addr("10.0.1.200"), To: &mysql0}}, err: ErrChanged},
	} {
		t.Run(name, func(t *testing.T) {
			api := newAPI(t, c.now)
			before := api.entries(t)
			_, err := New(api).ChangeEntries(t.Context(), c.from, c.edits, false)
			if !errors.Is(err, c.err) || (c.err == nil) != (err == nil) {
				t.Fatalf("got error %v, want %v", err, c.err)
			}
			want := c.want
			if c.err != nil {
				want = before
			}
			if diff := cmp.Diff(want, api.entries(t), compareAddrs); diff != "" {
				t.Errorf("entries (-want +got): %s", diff)
			}
		})
	}
}

func TestPublish(t *testing.T) {
	bare := ciliumNode(func(cn *ciliumv2.CiliumNode) { cn.Spec.IPAM.PodCIDRs = nil })
	api := newAPI(t, bare)
	subnets := []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24"), netip.MustParsePrefix("fd00::/64")}
	n, err := New(api).Publish(t.Context(), FromCiliumNode(bare), subnets, []pool.EntryChange{{Addr: addr("10.0.1.254"), To: &mysql0}})
	if err != nil || !cmp.Equal(n.Subnets, subnets, comparePrefixes) || n.Entries[addr("10.0.1.254")] != mysql0 {
		t.Fatalf("Publish: got %+v, error %v; want both subnets and the entry", n, err)
	}
	if _, err := New(api).Publish(t.Context(), FromCiliumNode(bare), subnets[:1], nil); !errors.Is(err, ErrChanged) {
		t.Fatalf("Publish with outdated subnets: got error %v, want %v", err, ErrChanged)
	}
}
