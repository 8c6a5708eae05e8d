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
	"fixedip.io/fixedip/ipam/core/address"
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
	// The addresses that move, at home on "home".
	movedAddrs = []netip.Addr{netip.MustParseAddr("10.0.1.9"), netip.MustParseAddr("fd00:1::9")}
	movedID    = identity.Identity{Namespace: "db", PodName: "mysql-0", Owner: identity.Owner{Kind: "StatefulSet", Name: "mysql"}}
	errDead    = errors.New("the process is dead")
)

// pools holds CiliumNodes and patches them as the API server does. After each patch it sees that no
// two of them offer one of the addresses.
type pools struct {
	t     *testing.T
	mu    sync.Mutex
	nodes map[string]*ciliumv2.CiliumNode
	// actors are told of every change, some of them late.
	actors []*actor
	rand   *rand.Rand
	log    []string
}

// actor is one process: a scheduler that moves, or a controller that releases.
type actor struct {
	*pools
	name   string
	binder *Binder
	// dies is how many patches more are done before it is dead; negative: it lives.
	dies int
	// turn lets one request through; nil: all go at once.
	turn    chan struct{}
	waiting bool
	// late are changes that its watch has not shown yet.
	late []*ciliumv2.CiliumNode
}

func newPools(t *testing.T, seed uint64, entries map[string]pool.Entry) *pools {
	s := &pools{t: t, nodes: map[string]*ciliumv2.CiliumNode{}, rand: rand.New(rand.NewPCG(seed, 0))}
	for name, subnets := range map[string][]string{"home": {"10.0.1.0/24", "fd00:1::/120"}, "a": {"10.0.2.0/24", "fd00:2::/120"}, "b": {"10.0.3.0/24", "fd00:3::/120"}} {
		cn := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: 1, ResourceVersion: "1"}}
		cn.Spec.IPAM.PodCIDRs, cn.Spec.IPAM.Pool = subnets, ipamtypes.AllocationMap{"10.0.9.9": {}}
		if e, ok := entries[name]; ok {
			for _, a := range movedAddrs {
				cn.Spec.IPAM.Pool[a.String()] = ciliumpool.EncodeEntry(e)
			}
		}
		s.nodes[name] = cn
	}
	return s
}

// process starts an actor that knows all that stands.
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

// Status is not written by the scheduler.
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
	a.judge()
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
		// Done, and nobody hears the answer.
		return errDead
	}
	cn.DeepCopyInto(obj.(*ciliumv2.CiliumNode))
	return nil
}

// show lets the actor's watch show what it has not yet. Called under mu.
func (a *actor) show() {
	for _, cn := range a.late {
		a.binder.Cache.PoolChanged(cn.Name, a.binder.Cache.Ledger.SetNode(ciliumpool.FromCiliumNode(cn)))
	}
	a.late = nil
}

// judge fails the test where two pools offer an address, or one offers what its home says is elsewhere.
// Called under mu.
func (s *pools) judge() {
	for _, addr := range movedAddrs {
		var offering []string
		for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
			e, ok := s.nodes[name].Spec.IPAM.Pool[addr.String()]
			if ok && !strings.HasPrefix(e.Owner, "fixedip.io/") {
				offering = append(offering, name)
				if mark := s.nodes["home"].Spec.IPAM.Pool[addr.String()]; name != "home" && strings.TrimSuffix(mark.Resource, ";leaving") != "node="+name+";pod="+movedOwner {
					s.t.Errorf("%s is offered by %s, and its home says %v\n%s", addr, name, mark, strings.Join(s.log, "\n"))
				}
			}
		}
		if len(offering) > 1 {
			s.t.Errorf("%s is offered by %v\n%s", addr, offering, strings.Join(s.log, "\n"))
		}
	}
}

// goTo does what PreBind does for the pod on a node, from what the actor's ledger shows now.
func (a *actor) goTo(ctx context.Context, pod *corev1.Pod, node string) error {
	r := a.binder.fromPools(a.binder.Cache.Ledger.Held(movedOwner), a.binder.Cache.Ledger.Away(movedOwner), "", nil)
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
	return a.binder.migrate(ctx, pod, p, claim)
}

// settled fails the test unless the addresses are on one node and their home knows it.
func (s *pools) settled(t *testing.T, node string) {
	t.Helper()
	for _, addr := range movedAddrs {
		if got := s.nodes[node].Spec.IPAM.Pool[addr.String()].Owner; got != movedOwner {
			t.Errorf("%s is %q on %s\n%s", addr, got, node, strings.Join(s.log, "\n"))
		}
		if got, want := strings.TrimSuffix(s.nodes["home"].Spec.IPAM.Pool[addr.String()].Resource, ";leaving"), "node="+node+";pod="+movedOwner; node != "home" && got != want {
			t.Errorf("%s at home is %q, want %q\n%s", addr, got, want, strings.Join(s.log, "\n"))
		}
	}
}

func movedPod() (*corev1.Pod, kubernetes.Interface) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mysql-0", UID: "pod-1"}}
	objects := fake.NewClientset(pod)

	return pod, objects
}

var (
	atHome = map[string]pool.Entry{"home": movedID.Entry()}
	onA    = map[string]pool.Entry{"home": pool.MovedEntry("a", movedOwner), "a": movedID.Entry()}
)

// A scheduler dies after each write of a move. The next one brings the pod to whatever node takes it
// then, with its addresses.
func TestMoveResumed(t *testing.T) {
	for name, leg := range map[string]struct {
		from   map[string]pool.Entry
		to     string
		writes int
	}{
		"from home": {atHome, "a", 3},
		"further":   {onA, "b", 5},
		"home":      {onA, "home", 3},
	} {
		for dies := 1; dies <= leg.writes; dies++ {
			for _, then := range []string{"home", "a", "b"} {
				t.Run(fmt.Sprintf("%s, dies after %d writes, then to %s", name, dies, then), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						ctx, cancel := context.WithCancel(t.Context())
						defer cancel()
						pod, clients := movedPod()
						s := newPools(t, 0, leg.from)
						victim := s.process(ctx, "victim", clients)
						victim.dies = dies
						if err := victim.goTo(ctx, pod, leg.to); err == nil {
							t.Fatal("the dead have moved it")
						}
						s.actors = nil
						successor := s.process(ctx, "successor", clients)
						rests := false
						for _, e := range s.nodes[then].Spec.IPAM.Pool {
							rests = rests || e.Owner == "fixedip.io/cooldown"
						}
						err := successor.goTo(ctx, pod, then)
						if rests {
							if !errors.Is(err, pool.ErrTaken) {
								t.Errorf("it rests on %s, and moving it there says %v", then, err)
							}
							return
						}
						if err != nil {
							t.Fatalf("%v\n%s", err, strings.Join(s.log, "\n"))
						}
						s.settled(t, then)
					})
				})
			}
		}
	}
}

// A pod that another scheduler has bound to its old node meanwhile has its entries back.
func TestMoveTakenBack(t *testing.T) {
	for name, from := range map[string]map[string]pool.Entry{"home": atHome, "a": onA} {
		t.Run(name, func(t *testing.T) {
			pod, clients := movedPod()
			bound := pod.DeepCopy()
			bound.Spec.NodeName = name
			if err := clients.(*fake.Clientset).Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), bound, "db"); err != nil {
				t.Fatal(err)
			}
			s := newPools(t, 0, from)
			if err := s.process(t.Context(), "late", clients).goTo(t.Context(), pod, "b"); !errors.Is(err, pool.ErrTaken) {
				t.Errorf("%v", err)
			}
			s.settled(t, name)
		})
	}
}

// Two schedulers move one pod here and there, marks that rest are swept away, and a controller gives its addresses back as if it
// were gone and hands them to another pod at home, request by request in any order, some watches late.
// At no time do two pools offer an address.
func TestMovesAtOnce(t *testing.T) {
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			pod, clients := movedPod()
			from := atHome
			if seed%2 == 1 {
				from = onA
			}
			s := newPools(t, seed, from)
			var running sync.WaitGroup
			begin := func(name string, do func(*actor)) {
				a := s.process(ctx, name, clients)
				a.turn = make(chan struct{})
				running.Go(func() { do(a) })
			}
			for _, name := range []string{"one", "two"} {
				var ways []string
				for range 3 {
					ways = append(ways, []string{"home", "a", "b"}[s.rand.IntN(3)])
				}
				begin(name, func(a *actor) {
					for _, to := range ways {
						// Errors are as good as success here: somebody else was faster.
						if err := a.goTo(ctx, pod, to); err != nil {
							s.note(a.name + " does not go to " + to + ": " + err.Error())
						}
					}
				})
			}
			begin("sweep", func(a *actor) {
				for range 10 {
					a.sweep(ctx)
				}
			})
			if seed%3 > 0 {
				begin("release", func(a *actor) { a.giveBack(ctx) })
			}
			done := make(chan struct{})
			go func() { running.Wait(); close(done) }()
			s.drive(done)
			if t.Failed() || seed%3 > 0 {
				return
			}
			// The next scheduler brings it to an end.
			s.actors = nil
			s.process(ctx, "sweep", clients).sweep(ctx)
			last := s.process(ctx, "last", clients)
			var errs []error
			for _, to := range []string{"home", "a", "b"} {
				err := last.goTo(ctx, pod, to)
				if err == nil {
					s.settled(t, to)
					return
				}
				errs = append(errs, err)
			}
			t.Errorf("seed %d: no node takes it: %v\n%s", seed, errs, strings.Join(s.log, "\n"))
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// drive lets one request after the other through, in random order, until all actors are done.
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

// sweep does what the controller does with marks of addresses that have rested, without a cool-down.
func (a *actor) sweep(ctx context.Context) {
	for _, node := range []string{"a", "b"} {
		err := a.binder.write(ctx, node, func(n pool.NodePool) ([]pool.EntryChange, error) {
			edits, _ := nodepool.ExpireCooldowns(n, time.Now(), 0, time.Time{}, func(netip.Addr) bool { return false })
			return edits, nil
		})
		if err != nil {
			a.note("sweep: " + err.Error())
		}
	}
}

// giveBack does what the controller does for a record that is being deleted, and gives the addresses to
// another pod at home as soon as they are to be had there.
func (a *actor) giveBack(ctx context.Context) {
	record := &v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}, Finalizers: []string{v1alpha1.Finalizer}}}
	l := a.binder.Cache.Ledger
	write := func(node string, decide func(pool.NodePool) ([]pool.EntryChange, error)) {
		// What fails is decided anew.
		if err := a.binder.write(ctx, node, decide); err != nil {
			a.note("release: " + err.Error())
		}
	}
	for range 20 {
		next := reclaim.Decide(reclaim.State{Record: record, Held: l.Held(movedOwner), Arriving: l.Arriving(movedOwner), Away: l.Away(movedOwner)})
		write(cmp.Or(next.Node, "home"), func(n pool.NodePool) ([]pool.EntryChange, error) {
			switch next.Type {
			case reclaim.ReleaseEntries:
				return n.Release(movedOwner, next.Addrs, time.Now()), nil
			case reclaim.MarkLeaving:
				return n.MarkLeaving(movedOwner, next.From, next.Addrs)
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
			write("home", func(n pool.NodePool) ([]pool.EntryChange, error) {
				return n.Claim(movedAddrs, pool.OwnedEntry("db", "other-0", "StatefulSet", "other"))
			})
		}
	}
}

// A claim that stands in the cache, and that the API server does not have any more, is lost. The read that finds it out is
// in the cache by then.
func TestStandingClaimThatWasReplaced(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, clients := movedPod()
	s := newPools(t, 0, atHome)
	a := s.process(ctx, "scheduler", clients)
	s.actors = nil // The watch shows nothing of what follows.
	for _, addr := range movedAddrs {
		s.nodes["home"].Spec.IPAM.Pool[addr.String()] = ciliumpool.EncodeEntry(pool.CooldownEntry(movedOwner, time.Now()))
	}
	s.nodes["home"].Spec.IPAM.Pool["10.0.1.20"] = ciliumpool.EncodeEntry(movedID.Entry())
	s.nodes["home"].Generation, s.nodes["home"].ResourceVersion = 2, "2"
	claim, err := a.binder.Cache.Ledger.Assume("pod-1", ledger.ClaimRequest{Claim: ledger.Claim{Owner: movedOwner, Node: "home"}, Families: []address.Family{address.IPv4, address.IPv6}})
	if err != nil || !a.binder.Cache.Ledger.IsClaimed(claim) {
		t.Fatalf("the claim %v does not stand: %v", claim, err)
	}
	if err := a.binder.claim(ctx, &Plan{id: movedID}, claim); !errors.Is(err, pool.ErrTaken) {
		t.Errorf("%v", err)
	}
	if a.binder.Cache.Ledger.IsClaimed(claim) {
		t.Error("the cache still shows the claim")
	}
}
