// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/scheme"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

const (
	// costFixed and costUnreserved are the numbers of pods with and without fixed addresses on the measured node.
	costFixed, costUnreserved = 20, 40
	// costWriters is the number of claims that are written at the same time. costNodes is the number of CiliumNodes of each
	// kind, ours and the guide's.
	costWriters, costNodes = 16, 200
	// minSizeRatio is the minimum size of the guide's CiliumNode relative to ours. 2.8 was measured.
	minSizeRatio = 2.2
)

// claimRounds returns the number of claims per node: FIXEDIP_CLAIM_ROUNDS, or 2.
func claimRounds(t *testing.T) int {
	if s := os.Getenv("FIXEDIP_CLAIM_ROUNDS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			t.Fatalf("FIXEDIP_CLAIM_ROUNDS: %q is not a positive integer", s)
		}
		return n
	}
	return 2
}

// TestCostOfAClaim compares the size of a CiliumNode with 60 pods, and the rate of claims, with those of the guide,
// whose pools contain the whole subnet. It asserts the sizes and logs the rates. The target "claims" of the Makefile
// runs it with more rounds.
func TestCostOfAClaim(t *testing.T) {
	t.Parallel()
	var ours *ciliumv2.CiliumNode
	// The cluster of busyNode is stopped at the end of the subtest, before the measurement.
	if !t.Run("busy node", func(t *testing.T) { ours = busyNode(t) }) {
		return
	}
	if len(ours.ManagedFields) > 0 {
		t.Errorf("the CiliumNode has managed fields of %s, want none", ours.ManagedFields[0].Manager)
	}

	// This cluster has no controllers, so that no other program uses its API server during the measurement. make claims runs
	// no other test. In make test, tests that run in parallel use the processors too, which is why no rate is asserted.
	kinds, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Start(within(t), cluster.Options{
		Dir:              t.TempDir(),
		Binaries:         cluster.Binaries{ControlPlane: apiServer},
		ControlPlaneArgs: []string{"--no-controllers"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	cfg, err := c.RESTConfig(cluster.Admin)
	if err != nil {
		t.Fatal(err)
	}
	cfg.QPS = -1
	api, err := client.New(cfg, client.Options{Scheme: kinds})
	if err != nil {
		t.Fatal(err)
	}
	guides := asTheGuide(ours)
	ourClaims := &claims{t: t, api: api, like: ours, name: "ours", nodes: map[string]pool.NodePool{}}
	guideClaims := &claims{t: t, api: api, like: guides, name: "guide", nodes: map[string]pool.NodePool{}}
	ourClaims.makeNodes(func(cn *ciliumv2.CiliumNode) { cn.ManagedFields = []metav1.ManagedFieldsEntry{{}} })
	guideClaims.makeNodes(nil)
	ourSize, guideSize := ourClaims.size(), guideClaims.size()
	t.Logf("with %d pods, %d of them fixed: our CiliumNode has %d pool entries and %d bytes; the guide's has %d entries and %d bytes, %.1f times as many bytes",
		costFixed+costUnreserved, costFixed, len(ours.Spec.IPAM.Pool), ourSize, len(guides.Spec.IPAM.Pool), guideSize, float64(guideSize)/float64(ourSize))
	if float64(guideSize) < minSizeRatio*float64(ourSize) {
		t.Errorf("the guide's CiliumNode has %d bytes, want at least %.1f times the %d bytes of ours", guideSize, minSizeRatio, ourSize)
	}

	var ourTime, guideTime time.Duration
	rounds := claimRounds(t)
	for round := range rounds {
		// The rounds alternate, so that other load affects both equally.
		ourTime += ourClaims.round(round)
		guideTime += guideClaims.round(round)
	}
	perSecond := func(d time.Duration) float64 { return float64(rounds*costNodes) / d.Seconds() }
	t.Logf("%d claims on our CiliumNodes and as many on the guide's, by %d writers: %.0f/s and %.0f/s, a ratio of %.1f", rounds*costNodes, costWriters, perSecond(ourTime), perSecond(guideTime), guideTime.Seconds()/ourTime.Seconds())
}

// busyNode returns the CiliumNode of a node with 60 running pods, as our controller with default settings and the
// allocator of Cilium leave it.
func busyNode(t *testing.T) *ciliumv2.CiliumNode {
	t.Helper()
	e := start(t, options{nodes: []string{"node-1"}, controllerArgs: []string{"--cluster-pool-ipv4-cidr=10.240.0.0/16"}})
	e.create(statefulSet("fixed", costFixed), placed("unreserved", "node-1", costUnreserved, map[string]string{"app": "unreserved"}))
	e.await("wait for all pods to run", func(rows []witness.Row) bool {
		running := 0
		for _, r := range rows {
			if r.Running {
				running++
			}
		}
		return running == costFixed+costUnreserved
	})
	var cn ciliumv2.CiliumNode
	err := wait.PollUntilContextCancel(within(t), 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		if err := e.api.Get(ctx, client.ObjectKey{Name: "node-1"}, &cn); err != nil {
			return false, err
		}
		free := 0
		for a, entry := range cn.Spec.IPAM.Pool {
			if _, used := cn.Status.IPAM.Used[a]; entry.Owner == "" && !used {
				free++
			}
		}
		// The node itself uses two addresses: router and health.
		return len(cn.Status.IPAM.Used) == costFixed+costUnreserved+2 && free >= 8 && free <= 16 && withdrawn(&cn) == 0 && len(cn.ManagedFields) == 0, nil
	})
	if err != nil {
		t.Fatalf("wait for the pool to be stable: %v; got %d entries, %d used addresses, %d withdrawn entries and %d managed fields", err, len(cn.Spec.IPAM.Pool), len(cn.Status.IPAM.Used), withdrawn(&cn), len(cn.ManagedFields))
	}
	return &cn
}

// asTheGuide returns a copy of the CiliumNode with a pool as in the guide: it contains every usable address of the subnet.
func asTheGuide(ours *ciliumv2.CiliumNode) *ciliumv2.CiliumNode {
	cn := ours.DeepCopy()
	for a := range address.Up(netip.MustParsePrefix(cn.Spec.IPAM.PodCIDRs[0])) {
		if _, ok := cn.Spec.IPAM.Pool[a.String()]; !ok {
			cn.Spec.IPAM.Pool[a.String()] = ipamtypes.AllocationIP{}
		}
	}
	return cn
}

// claims writes claims to copies of one CiliumNode.
type claims struct {
	t    *testing.T
	api  client.Client
	like *ciliumv2.CiliumNode
	name string
	// nodes contains the current pools. Key: the node.
	nodes map[string]pool.NodePool
}

// makeNodes creates the CiliumNodes through the API server, which adds managed fields to them. Unless strip is nil,
// makeNodes then applies strip to each CiliumNode and writes the CiliumNode again.
func (c *claims) makeNodes(strip func(*ciliumv2.CiliumNode)) {
	c.t.Helper()
	ctx := within(c.t)
	for i := range costNodes {
		cn := c.like.DeepCopy()
		cn.ObjectMeta = metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", c.name, i), Labels: cn.Labels, OwnerReferences: cn.OwnerReferences}
		err := c.api.Create(ctx, cn)
		if err == nil {
			cn.Status = c.like.Status
			err = c.api.Status().Update(ctx, cn)
		}
		if err == nil && strip != nil {
			strip(cn)
			err = c.api.Update(ctx, cn)
		}
		if err != nil {
			c.t.Fatal(err)
		}
		c.nodes[cn.Name] = ciliumpool.FromCiliumNode(cn)
	}
}

// size returns the size of one of the CiliumNodes as JSON, in bytes.
func (c *claims) size() int {
	c.t.Helper()
	var cn ciliumv2.CiliumNode
	if err := c.api.Get(within(c.t), client.ObjectKey{Name: c.name + "-0"}, &cn); err != nil {
		c.t.Fatal(err)
	}
	data, err := json.Marshal(&cn)
	if err != nil {
		c.t.Fatal(err)
	}
	return len(data)
}

// round claims one address on each node, in one write each, and returns how long that took.
func (c *claims) round(round int) time.Duration {
	c.t.Helper()
	ctx, cancel := context.WithCancel(within(c.t))
	// known contains the pools at the beginning of the round. It is a copy, because w may read known while round changes c.nodes.
	known := maps.Clone(c.nodes)
	w := ciliumpool.NewWriter(ctx, ciliumpool.New(c.api), func(node string) (pool.NodePool, bool) { n, ok := known[node]; return n, ok })
	defer w.Wait()
	defer cancel()
	began := time.Now()
	writers, ctx := errgroup.WithContext(ctx)
	writers.SetLimit(costWriters)
	after := make([]pool.NodePool, costNodes)
	for i, name := range slices.Sorted(maps.Keys(c.nodes)) {
		writers.Go(func() error {
			entry := pool.OwnedEntry("db", fmt.Sprintf("mysql-%d", round), "StatefulSet", "mysql")
			return w.Write(ctx, ciliumpool.WriteRequest{Node: name, RequireUnchangedSpec: true, Decide: func(n pool.NodePool) ([]pool.EntryChange, error) {
				edits := []pool.EntryChange{n.Set(claimable(n), entry)}
				after[i] = n.With(edits)
				return edits, nil
			}})
		})
	}
	if err := writers.Wait(); err != nil {
		c.t.Fatal(err)
	}
	took := time.Since(began)
	for _, n := range after {
		// The write has incremented the generation, as the watch would show.
		n.Generation++
		c.nodes[n.Name] = n
	}
	return took
}

// claimable returns the highest address of the node's first subnet that a claim can take: it is not in use, and has no entry
// or a dynamic entry. claimable returns the zero Addr if there is none. In the guide's pools, every address of the subnet has
// an entry.
func claimable(n pool.NodePool) (found netip.Addr) {
	for a := range address.Up(n.Subnets[0]) {
		if e, ok := n.Entries[a]; !n.InUse(a) && (!ok || e.Kind == pool.Dynamic) {
			found = a
		}
	}
	return found
}
