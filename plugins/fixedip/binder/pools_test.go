// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	jsonpatch "github.com/evanphx/json-patch/v5"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/nodepool"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reclaim"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/plugins/fixedip/cache"
)

const movedOwner = "db/mysql-0"

var (
	// movedAddrs are the addresses that move. Their home is the node "home".
	movedAddrs = []netip.Addr{netip.MustParseAddr("10.0.1.9"), netip.MustParseAddr("fd00:1::9")}
	movedID    = identity.Identity{Namespace: "db", PodName: "mysql-0", Owner: identity.Owner{Kind: "StatefulSet", Name: "mysql"}}
	errDead    = errors.New("the process is dead")
)

// pools contains CiliumNodes, and patches them as the API server does. After each patch it checks that at most one pool
// offers each of movedAddrs.
type pools struct {
	t     *testing.T
	mu    sync.Mutex
	nodes map[string]*ciliumv2.CiliumNode
	// actors are the processes whose watches show the changes. A watch may be late.
	actors []*actor
	rand   *rand.Rand
	log    []string
	// moving is the number of moves in flight. claimedInMove is the number of claims for other-0 that were written during a move.
	moving, claimedInMove int
}

// actor is one process: a scheduler that moves addresses, or a controller that releases them or ends cooldowns.
type actor struct {
	*pools
	name   string
	binder *Binder
	// dies is the number of patches that are still applied before the process dies; negative: the process does not die.
	dies int
	// turn lets one request through for each value that is sent to it; nil: requests do not wait.
	turn    chan struct{}
	waiting bool
	// late contains the changes that the watch of the actor has not shown yet.
	late []*ciliumv2.CiliumNode
}

func newPools(t *testing.T, seed uint64, entries map[string]pool.Entry) *pools {
	s := &pools{t: t, nodes: map[string]*ciliumv2.CiliumNode{}, rand: rand.New(rand.NewPCG(seed, 0))}
	for name, subnets := range map[string][]string{"home": {"10.0.1.0/24", "fd00:1::/120"}, "a": {"10.0.2.0/24", "fd00:2::/120"}, "b": {"10.0.3.0/24", "fd00:3::/120"}} {
		cn := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: 1, ResourceVersion: "1"}}
		cn.Spec.IPAM.PodCIDRs, cn.Spec.IPAM.Pool = subnets, ipamtypes.AllocationMap{"10.0.9.9": {}}
		cn.Status.IPAM.Used = ipamtypes.AllocationMap{"192.0.2.1": {Owner: "router"}}
		if e, ok := entries[name]; ok {
			for _, a := range movedAddrs {
				cn.Spec.IPAM.Pool[a.String()] = ciliumpool.EncodeEntry(e)
			}
		}
		s.nodes[name] = cn
	}
	return s
}

// process starts an actor whose ledger contains all pools.
func (s *pools) process(ctx context.Context, name string, clients kubernetes.Interface) *actor {
	a := &actor{pools: s, name: name, dies: -1}
	c := &cache.Cache{Ledger: ledger.New()}
	c.WritePools(ctx, ciliumpool.New(a))
	a.binder = &Binder{Shared: &Shared{Cache: c, Client: clients}}
	for _, cn := range s.nodes {
		a.binder.Cache.Ledger.SetNode(ciliumpool.FromCiliumNode(cn))
	}
	s.actors = append(s.actors, a)
	return a
}

func (a *actor) take() {
	if a.turn == nil {
		return
	}
	a.mu.Lock()
	a.waiting = true
	a.mu.Unlock()
	<-a.turn
}

func (a *actor) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	a.take()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dies == 0 {
		return errDead
	}
	a.nodes[key.Name].DeepCopyInto(obj.(*ciliumv2.CiliumNode))
	return nil
}

// Status returns nil, because the scheduler does not write the status.
func (a *actor) Status() client.SubResourceWriter { return nil }

func (a *actor) Patch(_ context.Context, obj client.Object, patch client.Patch, _ ...client.PatchOption) error {
	a.take()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dies == 0 {
		return errDead
	}
	now := a.nodes[obj.GetName()]
	data, err := patch.Data(obj)
	if err != nil {
		return err
	}
	ops, err := jsonpatch.DecodePatch(data)
	if err != nil {
		return err
	}
	before, err := json.Marshal(now)
	if err != nil {
		return err
	}
	after, err := ops.Apply(before)
	if err != nil {
		return apierrors.NewInvalid(schema.GroupKind{Group: "cilium.io", Kind: "CiliumNode"}, obj.GetName(), nil)
	}
	var cn ciliumv2.CiliumNode
	if err := json.Unmarshal(after, &cn); err != nil {
		return err
	}
	cn.Generation++
	cn.ResourceVersion = strconv.FormatInt(cn.Generation, 10)
	a.nodes[cn.Name] = &cn
	a.log = append(a.log, fmt.Sprintf("%s at %s: %v", a.name, cn.Name, cn.Spec.IPAM.Pool))
	a.checkOffers()
	for _, other := range a.actors {
		other.late = append(other.late, &cn)
		if a.turn == nil || a.rand.IntN(2) == 0 {
			other.show()
		}
	}
	if a.dies > 0 {
		a.dies--
	}
	if a.dies == 0 {
		// The patch is applied, and its response is lost.
		return errDead
	}
	cn.DeepCopyInto(obj.(*ciliumv2.CiliumNode))
	return nil
}

// show passes the late changes to the cache of the actor. Called under mu.
func (a *actor) show() {
	for _, cn := range a.late {
		a.binder.Cache.PoolChanged(cn.Name, a.binder.Cache.Ledger.SetNode(ciliumpool.FromCiliumNode(cn)))
	}
	a.late = nil
}

// checkOffers fails the test if two pools offer an address, or if the pool of a node other than the home of an address offers
// it although the entry at the home does not show it as moved to that node. Called under mu.
func (s *pools) checkOffers() {
	for _, addr := range movedAddrs {
		var offering []string
		for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
			e, ok := s.nodes[name].Spec.IPAM.Pool[addr.String()]
			if ok && !strings.HasPrefix(e.Owner, "fixedip.io/") {
				offering = append(offering, name)
				if moved := s.nodes["home"].Spec.IPAM.Pool[addr.String()]; name != "home" && strings.TrimSuffix(moved.Resource, ";leaving") != "node="+name+";pod="+movedOwner {
					s.t.Errorf("the pool of node %[2]s offers %[1]s, but the entry at home is %[3]v, want moved to %[2]s\n%[4]s", addr, name, moved, strings.Join(s.log, "\n"))
				}
			}
		}
		if len(offering) > 1 {
			s.t.Errorf("%s is offered by the pools of nodes %v, want at most one\n%s", addr, offering, strings.Join(s.log, "\n"))
		}
	}
}

// goTo makes a plan for the pod from the actor's ledger, and moves the addresses to the node as PreBind does.
func (a *actor) goTo(ctx context.Context, pod *corev1.Pod, node string) error {
	r := a.binder.fromPools(a.binder.Cache.Ledger.Held(movedOwner), a.binder.Cache.Ledger.Moved(movedOwner), "", nil)
	p := &Plan{id: movedID, uid: pod.UID, reservation: r}
	p.reservation.movableFor = pod.UID
	if r.node != node {
		p.failover = v1alpha1.Migrate
	}
	if !p.moves(node) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	claim, err := a.binder.Cache.Ledger.Assume(types.UID(a.name), ledger.ClaimRequest{Claim: ledger.Claim{Owner: movedOwner, Node: node, Addrs: r.addrs}, Carry: true})
	if err != nil {
		return err
	}
	a.countMoves(1)
	defer a.countMoves(-1)
	return a.binder.migrate(ctx, pod, p, claim)
}

func (s *pools) countMoves(change int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moving += change
}

// checkMoved fails the test unless the pool of the node gives the addresses to the pod and, if the node is not their home,
// the entries at home are moved to the node.
func (s *pools) checkMoved(t *testing.T, node string) {
	t.Helper()
	for _, addr := range movedAddrs {
		if got := s.nodes[node].Spec.IPAM.Pool[addr.String()].Owner; got != movedOwner {
			t.Errorf("owner of %s in the pool of node %s: got %q, want %q\n%s", addr, node, got, movedOwner, strings.Join(s.log, "\n"))
		}
		if got, want := strings.TrimSuffix(s.nodes["home"].Spec.IPAM.Pool[addr.String()].Resource, ";leaving"), "node="+node+";pod="+movedOwner; node != "home" && got != want {
			t.Errorf("resource of %s at home: got %q, want %q\n%s", addr, got, want, strings.Join(s.log, "\n"))
		}
	}
}

func movedPod() (*corev1.Pod, kubernetes.Interface) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mysql-0", UID: "pod-1"}}
	objects := fake.NewClientset(pod)

	return pod, objects
}

// drive executes the waiting requests one at a time, in random order, until done is closed.
func (s *pools) drive(done <-chan struct{}) {
	for {
		synctest.Wait()
		select {
		case <-done:
			return
		default:
		}
		s.mu.Lock()
		var waiting []*actor
		for _, a := range s.actors {
			if a.waiting {
				waiting = append(waiting, a)
			}
		}
		if len(waiting) == 0 {
			for _, a := range s.actors {
				a.show()
			}
			s.mu.Unlock()
			time.Sleep(time.Second)
			continue
		}
		a := waiting[s.rand.IntN(len(waiting))]
		a.waiting = false
		s.mu.Unlock()
		a.turn <- struct{}{}
	}
}

func (s *pools) note(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, line)
}

// expire removes the cooldown entries as the controller does, with a cooldown of 0, agents that acknowledge at once, and no
// check whether another node still has an address.
func (a *actor) expire(ctx context.Context) {
	for _, node := range []string{"home", "a", "b"} {
		err := a.binder.write(ctx, node, func(n pool.NodePool) ([]pool.EntryChange, error) {
			none := func(netip.Addr) bool { return false }
			state := nodepool.State{Now: time.Now(), Held: none, OnOtherNode: none, Acknowledged: func(pool.NodePool, netip.Addr) bool { return true }}
			edits, _ := state.ExpireCooldowns(n)
			return edits, nil
		})
		if err != nil {
			a.note("expire: " + err.Error())
		}
	}
}

// release releases the addresses as the controller does for a FixedIP that is being deleted, and then tries to claim them for
// another pod at their home. The claim is refused until expire has removed the cooldown entries there.
func (a *actor) release(ctx context.Context) {
	record := &v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}, Finalizers: []string{v1alpha1.Finalizer}}}
	l := a.binder.Cache.Ledger
	write := func(node string, decide func(pool.NodePool) ([]pool.EntryChange, error)) bool {
		err := a.binder.write(ctx, node, decide)
		if err != nil {
			// The loop below decides again.
			a.note("release: " + err.Error())
		}
		return err == nil
	}
	for range 20 {
		next := reclaim.Decide(reclaim.State{Record: record, Held: l.Held(movedOwner), MoveTargets: l.MoveTargets(movedOwner), Moved: l.Moved(movedOwner)})
		write(cmp.Or(next.Node, "home"), func(n pool.NodePool) ([]pool.EntryChange, error) {
			switch next.Type {
			case reclaim.ReleaseEntries:
				return n.Release(movedOwner, next.Addrs, time.Now()), nil
			case reclaim.MarkLeaving:
				return pool.Move{Owner: movedOwner, From: next.From, Addrs: next.Addrs}.MarkLeaving(n)
			case reclaim.FenceTarget:
				return n.FenceTarget(movedOwner, next.Addrs, time.Now()), nil
			case reclaim.ReleaseHome:
				if n.Generation != next.Generation {
					return nil, errPoolChanged
				}
				return n.ReturnHome(movedOwner, next.From, next.Addrs, time.Now()), nil
			}
			return nil, nil
		})
		if next.Type == reclaim.FinishRecord {
			var claim []pool.EntryChange
			written := write("home", func(n pool.NodePool) (_ []pool.EntryChange, err error) {
				claim, err = n.Claim(movedAddrs, pool.OwnedEntry("db", "other-0", "StatefulSet", "other"))
				return claim, err
			})
			a.mu.Lock()
			if written && len(claim) > 0 && a.moving > 0 {
				a.claimedInMove++
			}
			a.mu.Unlock()
		}
	}
}
