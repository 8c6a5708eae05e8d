// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/subnet"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/fixedips"
)

// TestPools checks writes of CiliumNodes and NodeSubnets with the real API server, because the fakes of client-go accept
// conflicting writes.
func TestPools(t *testing.T) {
	t.Parallel()
	e := startCluster(t)
	t.Run("two patches race for one address", e.racingPatches)
	t.Run("two writers race for one address", e.racingWriters)
	t.Run("a claim that fails does not fail the other claims of its batch", e.failedClaimAlone)
	t.Run("concurrent claims share writes", e.burst)
	t.Run("a write for a CiliumNode that was replaced fails", e.replacedNode)
	t.Run("an entry is not taken over if the agent reports its address as used before the write", e.usedMeanwhile)
	t.Run("two controllers never assign one subnet to two nodes", e.racingAssigners)
	t.Run("a subnet that was claimed and not published is published later", e.pausedAssigner)
	t.Run("a node that joins again gets its former subnet", e.returningNode)
	t.Run("two controllers never let two nodes inherit one subnet", e.racingInheritance)
	t.Run("an inherited subnet that was not published is published for the same node", e.pausedInheritance)
	t.Run("an address without a FixedIP that another node carries has a moved entry at its home node", e.unreservedMovedAddress)
	t.Run("an inherited address that another node carries has a moved entry, and a move in progress is canceled", e.inheritedEntries)
}

// ciliumNode creates a CiliumNode with the given subnets and a first report of the agent, but without a pool. It
// deletes the CiliumNode at the end of the test.
func (e *env) ciliumNode(t *testing.T, name string, subnet ...string) pool.NodePool {
	t.Helper()
	cn := e.unreportedNode(t, name, subnet...)
	if err := report(within(t), e.api, name); err != nil {
		t.Fatal(err)
	}
	if err := e.api.Get(within(t), client.ObjectKeyFromObject(cn), cn); err != nil {
		t.Fatal(err)
	}
	return ciliumpool.FromCiliumNode(cn)
}

// unreportedNode does the same as ciliumNode, but the agent has not reported.
func (e *env) unreportedNode(t *testing.T, name string, subnet ...string) *ciliumv2.CiliumNode {
	t.Helper()
	cn := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	cn.Spec.IPAM.PodCIDRs = subnet
	if err := e.api.Create(within(t), cn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(e.api.Delete(context.Background(), cn)); err != nil {
			t.Error(err)
		}
	})
	return cn
}

func owned(pod string) pool.Entry { return pool.OwnedEntry("db", pod, "StatefulSet", "mysql") }

// claim returns a write request like a claim of the scheduler.
func claim(node, pod string, addrs ...string) ciliumpool.WriteRequest {
	var want []netip.Addr
	for _, a := range addrs {
		want = append(want, netip.MustParseAddr(a))
	}
	return ciliumpool.WriteRequest{Node: node, Decide: func(n pool.NodePool) ([]pool.EntryChange, error) { return n.Claim(want, owned(pod)) }}
}

func (e *env) racingPatches(t *testing.T) {
	n := e.ciliumNode(t, "race", "10.1.0.0/24")
	pools := ciliumpool.New(e.api)
	for _, a := range slices.Backward(slices.Collect(address.Up(n.Subnets[0]))) {
		if a.As4()[3] < 200 {
			break
		}
		var err error
		if n, err = pools.Get(within(t), n.Name); err != nil {
			t.Fatal(err)
		}
		errs := make([]error, 2)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() {
				_, errs[i] = pools.ChangeEntries(within(t), n, []pool.EntryChange{n.Set(a, owned(fmt.Sprintf("mysql-%d", i)))}, false)
			})
		}
		wg.Wait()
		winner := 0
		if errs[0] != nil {
			winner = 1
		}
		if errs[winner] != nil || !errors.Is(errs[1-winner], ciliumpool.ErrChanged) {
			t.Fatalf("%s: the patches returned %v and %v, want success for one and ErrChanged for the other", a, errs[0], errs[1])
		}
		after, err := pools.Get(within(t), n.Name)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := after.Entries[a], owned(fmt.Sprintf("mysql-%d", winner)); got != want {
			t.Fatalf("%s: the pool has the entry %+v, want %+v of the patch that succeeded", a, got, want)
		}
	}
}

// unknown is the lookup function of an empty cache of pools.
func unknown(string) (pool.NodePool, bool) { return pool.NodePool{}, false }

// writer returns a Writer. At the end of the test, the context of the Writer is canceled, and the test waits until no write is
// in flight. The tests of package ciliumpool check that a Writer leaks no goroutines.
func writer(t *testing.T, api ciliumpool.API, known func(string) (pool.NodePool, bool)) *ciliumpool.Writer {
	ctx, cancel := context.WithCancel(context.Background())
	w := ciliumpool.NewWriter(ctx, ciliumpool.New(api), known)
	t.Cleanup(func() {
		cancel()
		w.Wait()
	})
	return w
}

func (e *env) racingWriters(t *testing.T) {
	n := e.ciliumNode(t, "writers", "10.2.0.0/24")
	// Both caches are stale and show the address as free.
	stale := func(string) (pool.NodePool, bool) { return n, true }
	first, second := writer(t, e.api, stale), writer(t, e.api, stale)
	if err := first.Write(within(t), claim("writers", "mysql-0", "10.2.0.200")); err != nil {
		t.Fatal(err)
	}
	err := second.Write(within(t), claim("writers", "mysql-1", "10.2.0.200"))
	if !errors.Is(err, pool.ErrTaken) {
		t.Fatalf("the claim of the second writer returned %v, want ErrTaken", err)
	}
	// The first claim succeeds again, with the same stale cache.
	if err := first.Write(within(t), claim("writers", "mysql-0", "10.2.0.200")); err != nil {
		t.Fatal(err)
	}
}

// counting counts the patches that are sent to the API server. If hold is set, the first patch waits until hold is closed.
type counting struct {
	ciliumpool.API
	hold chan struct{}

	mu      sync.Mutex
	patches int
}

func (c *counting) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	c.mu.Lock()
	c.patches++
	first := c.patches == 1
	c.mu.Unlock()
	if first && c.hold != nil {
		<-c.hold
	}
	return c.API.Patch(ctx, obj, patch, opts...)
}

// usedMeanwhile checks a write that requires an unused address. The write has to be refused exactly if the agent reports the
// address as used between the read and the write, whether or not the agent has reported before.
func (e *env) usedMeanwhile(t *testing.T) {
	report := func(node, status string) {
		t.Helper()
		cn := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: node}}
		if err := e.api.Status().Patch(within(t), cn, client.RawPatch(types.MergePatchType, []byte(status))); err != nil {
			t.Fatal(err)
		}
	}
	// used returns a function that returns a status with used addresses, given by their last byte.
	used := func(last ...int) func(i int) string {
		return func(i int) string {
			list := map[string]map[string]string{}
			for _, l := range last {
				list[fmt.Sprintf("10.18.%d.%d", i, l)] = map[string]string{"owner": fmt.Sprintf("db/used-%d-%d", i, l)}
			}
			data, err := json.Marshal(list)
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprintf(`{"status":{"ipam":{"used":%s}}}`, data)
		}
	}
	operatorStatus := func(int) string { return `{"status":{"ipam":{"operator-status":{"error":"none"}}}}` }
	for i, c := range []struct {
		what              string
		before, meanwhile func(i int) string
		refused           bool
	}{
		{what: "no report before the write"},
		{what: "no report before the read, and a report with the address before the write", meanwhile: used(200), refused: true},
		{what: "an operator status is written before the read", before: operatorStatus},
		{what: "a report without addresses before the read", before: used()},
		{what: "a report without addresses before the read, and a report with the address before the write", before: used(), meanwhile: used(200), refused: true},
		{what: "another address is reported before the read", before: used(1)},
		{what: "another address is reported before the read, and a third address before the write", before: used(1), meanwhile: used(2)},
		{what: "another address is reported before the read, and both addresses before the write", before: used(1), meanwhile: used(1, 200), refused: true},
	} {
		name := fmt.Sprintf("reports-%d", i)
		e.unreportedNode(t, name, fmt.Sprintf("10.18.%d.0/24", i))
		if c.before != nil {
			report(name, c.before(i))
		}
		pools := ciliumpool.New(e.api)
		a := netip.AddrFrom4([4]byte{10, 18, byte(i), 200})
		n, err := pools.Get(within(t), name)
		if err != nil {
			t.Fatal(err)
		}
		if n, err = pools.ChangeEntries(within(t), n, []pool.EntryChange{n.Set(a, owned(fmt.Sprintf("used-%d-200", i)))}, false); err != nil {
			t.Fatal(err)
		}
		if c.meanwhile != nil {
			report(name, c.meanwhile(i))
		}
		edit := n.Set(a, owned(fmt.Sprintf("next-%d", i)))
		edit.RequireUnused = true
		_, err = pools.ChangeEntries(within(t), n, []pool.EntryChange{edit}, false)
		if c.refused != errors.Is(err, ciliumpool.ErrChanged) || !c.refused && err != nil {
			t.Errorf("%s: the write returned %v, want ErrChanged: %t", c.what, err, c.refused)
		}
	}
}

func (e *env) failedClaimAlone(t *testing.T) {
	e.ciliumNode(t, "failed-claim", "10.3.0.0/24")
	api := &counting{API: e.api, hold: make(chan struct{})}
	w := writer(t, api, unknown)
	errs := make([]error, 4)
	var wg sync.WaitGroup
	write := func(i int, r ciliumpool.WriteRequest) { wg.Go(func() { errs[i] = w.Write(within(t), r) }) }
	write(0, claim("failed-claim", "mysql-0", "10.3.0.200"))
	for api.count() == 0 {
		time.Sleep(time.Millisecond)
	}
	// These three claims wait behind the first write, which takes an address that the claim of mysql-2 needs too.
	write(1, claim("failed-claim", "mysql-1", "10.3.0.201"))
	write(2, claim("failed-claim", "mysql-2", "10.3.0.200", "10.3.0.202"))
	write(3, claim("failed-claim", "mysql-3", "10.3.0.203"))
	close(api.hold)
	wg.Wait()
	if errs[0] != nil || errs[1] != nil || errs[3] != nil || !errors.Is(errs[2], pool.ErrTaken) {
		t.Fatalf("the claims returned %v, want ErrTaken for the third and success for the others", errs)
	}
	n, err := ciliumpool.New(e.api).Get(within(t), "failed-claim")
	if err != nil {
		t.Fatal(err)
	}
	for a, want := range map[string]pool.Entry{"10.3.0.200": owned("mysql-0"), "10.3.0.201": owned("mysql-1"), "10.3.0.203": owned("mysql-3")} {
		if got := n.Entries[netip.MustParseAddr(a)]; got != want {
			t.Errorf("%s: the pool has the entry %+v, want %+v", a, got, want)
		}
	}
	if len(n.Entries) != 3 {
		t.Errorf("the pool has the entries %v, want 3: the failed claim must not write its second address either", n.Entries)
	}
}

func (c *counting) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.patches
}

func (e *env) burst(t *testing.T) {
	e.ciliumNode(t, "burst", "10.4.0.0/24")
	api := &counting{API: e.api, hold: make(chan struct{})}
	w := writer(t, api, unknown)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			if err := w.Write(within(t), claim("burst", fmt.Sprintf("mysql-%d", i), fmt.Sprintf("10.4.0.%d", 100+i))); err != nil {
				t.Error(err)
			}
		})
		if i == 0 {
			for api.count() == 0 {
				time.Sleep(time.Millisecond)
			}
		}
	}
	// The other claims get time to queue behind the first one.
	time.Sleep(50 * time.Millisecond)
	close(api.hold)
	wg.Wait()
	if got := api.count(); got > 10 {
		t.Errorf("50 concurrent claims took %d writes, want at most 10", got)
	}
}

func (e *env) replacedNode(t *testing.T) {
	old := e.ciliumNode(t, "replaced", "10.5.0.0/24")
	if err := e.api.Delete(within(t), &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "replaced"}}); err != nil {
		t.Fatal(err)
	}
	e.ciliumNode(t, "replaced", "10.5.0.0/24")
	_, err := ciliumpool.New(e.api).ChangeEntries(within(t), old, []pool.EntryChange{old.Set(netip.MustParseAddr("10.5.0.9"), owned("mysql-0"))}, false)
	if !errors.Is(err, ciliumpool.ErrChanged) {
		t.Fatalf("a write for the former CiliumNode returned %v, want ErrChanged", err)
	}
}

var smallPool = []address.ClusterPool{{CIDR: netip.MustParsePrefix("10.6.0.0/24"), MaskSize: 28}}

// assigner returns a Controller for smallPool whose ledger is never updated: it contains the FixedIPs that exist when
// assigner is called, and no nodes. The grace period of orphaned subnets is 0.
func (e *env) assigner(t *testing.T, api client.Client, policy subnetplan.OrphanPolicy) *subnet.Controller {
	t.Helper()
	var records v1alpha1.FixedIPList
	if err := e.api.List(within(t), &records); err != nil {
		t.Fatal(err)
	}
	l := ledger.New()
	for i := range records.Items {
		l.SetReservation(fixedips.ReservationOf(&records.Items[i]))
	}
	pools := ciliumpool.New(api)
	return &subnet.Controller{
		Pools: pools, Writer: ciliumpool.NewWriter(t.Context(), pools, unknown), Ledger: l, API: api, Cached: e.api,
		Rules: subnetplan.Rules{Pools: smallPool, Policy: policy}, StrictNodes: labels.Nothing(), Kinds: identity.NewKinds(), Adoption: identity.Adoption{Schedulers: []string{"fixedip-scheduler"}}, Clock: clock.RealClock{},
		FirstEntries: func(context.Context, pool.NodePool) ([]pool.EntryChange, error) { return nil, nil },
	}
}

// busy reports whether an error means that another write came first, so that a retry may succeed.
func busy(err error) bool {
	return errors.Is(err, ciliumpool.ErrChanged) || errors.Is(err, subnet.ErrChanged)
}

// racingAssigners runs two controllers that are both active and whose ledgers are never updated. It checks that they
// assign different subnets to 16 nodes, from a cluster pool of 16 subnets.
func (e *env) racingAssigners(t *testing.T) {
	e.cleanUpNodeSubnets(t)
	var nodes []pool.NodePool
	for i := range 16 {
		nodes = append(nodes, e.ciliumNode(t, fmt.Sprintf("alloc-%d", i)))
	}
	var wg sync.WaitGroup
	for range 2 {
		a := e.assigner(t, e.api, subnetplan.Inherit)
		wg.Go(func() {
			for _, n := range nodes {
				for tries := 0; ; tries++ {
					_, err := a.Assign(within(t), n, nil)
					if err == nil || errors.Is(err, ciliumpool.ErrChanged) {
						break
					}
					if !busy(err) || tries > 100 {
						t.Errorf("assign a subnet to node %s: %v", n.Name, err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	// seen contains the subnets of all nodes. Key: the subnet. Value: the node.
	seen := map[string]string{}
	for _, n := range nodes {
		now, err := ciliumpool.New(e.api).Get(within(t), n.Name)
		if err != nil {
			t.Fatal(err)
		}
		if len(now.PodCIDRs) != 1 {
			t.Fatalf("node %s has the subnets %v, want one", n.Name, now.PodCIDRs)
		}
		if other, taken := seen[now.PodCIDRs[0]]; taken {
			t.Errorf("nodes %s and %s both have the subnet %s", n.Name, other, now.PodCIDRs[0])
		}
		seen[now.PodCIDRs[0]] = n.Name
	}
}

// cleanUpNodeSubnets deletes all NodeSubnets at the end of the test.
func (e *env) cleanUpNodeSubnets(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if err := e.api.DeleteAllOf(context.Background(), &v1alpha1.NodeSubnet{}); err != nil {
			t.Error(err)
		}
	})
}

// unpublished is a client that refuses all patches. With it a controller creates the NodeSubnet of a node and does not
// write the CiliumNode, as if the controller stopped between these two writes.
type unpublished struct{ client.Client }

var errStopped = errors.New("stopped")

func (unpublished) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return errStopped
}

// pausedAssigner covers a controller that stops after it has created the NodeSubnet of a node, and before it has
// written the subnet to the CiliumNode. Another controller has to write that subnet to the CiliumNode.
func (e *env) pausedAssigner(t *testing.T) {
	e.cleanUpNodeSubnets(t)
	first, second := e.ciliumNode(t, "paused-1"), e.ciliumNode(t, "paused-2")
	stopped := e.assigner(t, unpublished{e.api}, subnetplan.Inherit)
	if _, err := stopped.Assign(within(t), first, nil); !errors.Is(err, errStopped) {
		t.Fatalf("the controller that stops returned %v, want errStopped", err)
	}
	next := e.assigner(t, e.api, subnetplan.Inherit)
	given2, err := next.Assign(within(t), second, nil)
	if err != nil {
		t.Fatal(err)
	}
	given1, err := next.Assign(within(t), first, nil)
	if err != nil {
		t.Fatal(err)
	}
	if given1.Subnets[0] == given2.Subnets[0] || given1.Origin != subnetplan.Restored {
		t.Errorf("the nodes got %+v and %+v, want different subnets, and the first one restored", given1, given2)
	}
}

func (e *env) returningNode(t *testing.T) {
	e.cleanUpNodeSubnets(t)
	pools := ciliumpool.New(e.api)
	a := e.assigner(t, e.api, subnetplan.Inherit)
	before := e.ciliumNode(t, "returns")
	given, err := a.Assign(within(t), before, nil)
	if err != nil {
		t.Fatal(err)
	}
	addr := given.Subnets[0].Addr().Next()
	record := &v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "mysql-0"}, Spec: v1alpha1.FixedIPSpec{
		IPs: []string{addr.String()}, NodeName: "returns", PodName: "mysql-0",
		Owner: v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mysql", UID: types.UID("1")},
	}}
	if err := e.api.Create(within(t), record); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.api.Delete(context.Background(), record); err != nil {
			t.Error(err)
		}
	})
	// The ledger of the assigner never contains the node, as if the node had been deleted before the watch showed it.
	if err := e.api.Delete(within(t), &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "returns"}}); err != nil {
		t.Fatal(err)
	}
	other, err := a.Assign(within(t), e.ciliumNode(t, "another"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if other.Subnets[0] == given.Subnets[0] {
		t.Errorf("node 'another' got the subnets %v, in which %s is reserved, want another subnet", other.Subnets, addr)
	}
	again, err := a.Assign(within(t), e.ciliumNode(t, "returns"), nil)
	if err != nil {
		t.Fatal(err)
	}
	now, err := pools.Get(within(t), "returns")
	if err != nil {
		t.Fatal(err)
	}
	want := pool.OwnedEntry(namespace, "mysql-0", "StatefulSet", "mysql")
	if !slices.Equal(again.Subnets, given.Subnets) {
		t.Errorf("node 'returns' has the subnets %v after it joined again, want %v", again.Subnets, given.Subnets)
	}
	if now.Entries[addr] != want {
		t.Errorf("the new pool of node 'returns' has the entry %+v for %s, want %+v", now.Entries[addr], addr, want)
	}
	if now.UID == before.UID {
		t.Errorf("the CiliumNode of node 'returns' has the UID %s as before, want another one", now.UID)
	}
}
