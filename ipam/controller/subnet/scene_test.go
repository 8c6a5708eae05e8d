// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/ipam/scheme"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/fixedips"
	"fixedip.io/fixedip/test/gen"
)

var start = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

// scene is a fake API server and a clock, for one or several controllers.
type scene struct {
	t     *testing.T
	api   client.WithWatch
	clock *clocktesting.FakePassiveClock
	// mu guards requests, which counts the requests of all controllers (key: the verb and the type), and uids while
	// controllers run.
	mu       sync.Mutex
	requests map[string]int
	uids     int
}

func newScene(t *testing.T) *scene {
	t.Helper()
	kinds, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{t: t, clock: clocktesting.NewFakePassiveClock(start), requests: map[string]int{}}
	s.api = fake.NewClientBuilder().WithScheme(kinds).
		WithStatusSubresource(&v1alpha1.FixedIP{}, &v1alpha1.NodeSubnet{}).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).
		WithIndex(&v1alpha1.FixedIP{}, unavailableIndex, unavailable).
		Build()
	return s
}

// create creates objects, each with a new UID.
func (s *scene) create(objects ...client.Object) {
	s.t.Helper()
	for _, o := range objects {
		s.uids++
		o.SetUID(types.UID(fmt.Sprint("uid-", s.uids)))
		if err := s.api.Create(s.t.Context(), o); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *scene) delete(objects ...client.Object) {
	s.t.Helper()
	for _, o := range objects {
		if err := s.api.Delete(s.t.Context(), o); err != nil {
			s.t.Fatal(err)
		}
	}
}

func node(name string, change ...func(*corev1.Node)) *corev1.Node {
	joined := func(n *corev1.Node) { n.CreationTimestamp.Time = start }
	return gen.Node(name, append([]func(*corev1.Node){joined}, change...)...)
}

// counting returns a client for one controller. The client counts its requests in s.requests. before is called with each request;
// if it returns an error, the request fails with that error. before may be nil.
func (s *scene) counting(before func(verb string, o any) error) client.WithWatch {
	return s.countingOver(s.api, before)
}

func (s *scene) countingOver(api client.WithWatch, before func(verb string, o any) error) client.WithWatch {
	count := func(verb string, o any) error {
		s.mu.Lock()
		s.requests[fmt.Sprintf("%s %T", verb, o)]++
		s.mu.Unlock()
		if before == nil {
			return nil
		}
		return before(verb, o)
	}
	return interceptor.NewClient(api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if err := count("get", o); err != nil {
				return err
			}
			return c.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if err := count("list", list); err != nil {
				return err
			}
			return c.List(ctx, list, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := count("create", o); err != nil {
				return err
			}
			s.mu.Lock()
			s.uids++
			o.SetUID(types.UID(fmt.Sprint("uid-", s.uids)))
			s.mu.Unlock()
			return c.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if err := count("update", o); err != nil {
				return err
			}
			// The fake API server does not change generations.
			o.SetGeneration(o.GetGeneration() + 1)
			return c.Update(ctx, o, opts...)
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			if err := count("update "+sub, o); err != nil {
				return err
			}
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if err := count("patch", o); err != nil {
				return err
			}
			return c.Patch(ctx, o, patch, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if err := count("delete", o); err != nil {
				return err
			}
			return deleteIf(ctx, c, o, opts...)
		},
	})
}

// deleteIf deletes an object if the preconditions hold, which the fake client does not check.
func deleteIf(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
	options := (&client.DeleteOptions{}).ApplyOptions(opts)
	now := o.DeepCopyObject().(client.Object)
	if err := c.Get(ctx, client.ObjectKeyFromObject(o), now); err != nil {
		return err
	}
	if p := options.Preconditions; p != nil && (p.UID != nil && *p.UID != now.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != now.GetResourceVersion()) {
		return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("nodesubnets").GroupResource(), o.GetName(), fmt.Errorf("the precondition does not hold"))
	}
	return c.Delete(ctx, o)
}

// testController is the controller of one process.
type testController struct {
	*Controller
}

// controller returns the controller of a process that uses the client api and reads cached as its cache.
func (s *scene) controller(api client.Client, cached client.Reader, rules subnetplan.Rules) *testController {
	pools := ciliumpool.New(api)
	l := ledger.New()
	c := &testController{}
	c.Controller = &Controller{
		Pools: pools, Writer: ciliumpool.NewWriter(s.t.Context(), pools, l.Node), Ledger: l, API: api, Cached: cached,
		Rules: rules, StrictNodes: labels.Nothing(), Kinds: identity.NewKinds(), Adoption: identity.Adoption{Schedulers: []string{"fixedip-scheduler"}}, Clock: s.clock,
		FirstEntries: func(_ context.Context, n pool.NodePool) ([]pool.EntryChange, error) { return fill(n), nil },
		Events:       &events.FakeRecorder{}, Resync: time.Hour, Synced: func() bool { return true }, Nodes: &source.Requests{}, Orphans: &source.Requests{},
	}
	return c
}

// fill returns the edits that add a dynamic entry at the lowest address without an entry in each subnet.
func fill(n pool.NodePool) []pool.EntryChange {
	var edits []pool.EntryChange
	for _, s := range n.Subnets {
		for a := range address.Up(s) {
			if _, ok := n.Entries[a]; !ok {
				edits = append(edits, n.Set(a, pool.Entry{}))
				break
			}
		}
	}
	return edits
}

// watch updates the ledger from the API server.
func (c *testController) watch(s *scene) {
	s.t.Helper()
	var nodes ciliumv2.CiliumNodeList
	var records v1alpha1.FixedIPList
	for _, list := range []client.ObjectList{&nodes, &records} {
		if err := s.api.List(s.t.Context(), list); err != nil {
			s.t.Fatal(err)
		}
	}
	present := map[string]bool{}
	for i := range nodes.Items {
		present[nodes.Items[i].Name] = true
		c.Ledger.SetNode(ciliumpool.FromCiliumNode(&nodes.Items[i]))
	}
	for _, n := range c.Ledger.Nodes() {
		if !present[n.Name] {
			c.Ledger.RemoveNode(n.Name)
		}
	}
	for i := range records.Items {
		c.Ledger.SetReservation(fixedips.ReservationOf(&records.Items[i]))
	}
}

// pass reconciles all orphaned subnets and then all nodes, six times. After that, another reconcile changes nothing.
func (c *testController) pass(s *scene) {
	s.t.Helper()
	for range 6 {
		c.watch(s)
		if _, err := c.reconcileOrphans(s.t.Context(), All); err != nil {
			s.t.Fatal(err)
		}
		for _, n := range c.Ledger.Nodes() {
			if _, err := c.reconcileNode(s.t.Context(), source.ForName(n.Name)); err != nil {
				s.t.Fatal(err)
			}
		}
		s.clock.SetTime(s.clock.Now().Add(passInterval))
	}
}

// pools returns the pools of all CiliumNodes. Key: the node.
func (s *scene) pools() map[string]pool.NodePool {
	s.t.Helper()
	var list ciliumv2.CiliumNodeList
	if err := s.api.List(s.t.Context(), &list); err != nil {
		s.t.Fatal(err)
	}
	all := map[string]pool.NodePool{}
	for i := range list.Items {
		all[list.Items[i].Name] = ciliumpool.FromCiliumNode(&list.Items[i])
	}
	return all
}

// pool returns the pool of one CiliumNode.
func (s *scene) pool(name string) pool.NodePool {
	s.t.Helper()
	n, err := ciliumpool.New(s.api).Get(s.t.Context(), name)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// shelf is a client that stores NodeSubnets in a map: the fake client needs a second to list some thousands of them.
type shelf struct {
	client.WithWatch
	subnets map[string]*v1alpha1.NodeSubnet
}

func (f *shelf) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	all, ok := list.(*v1alpha1.NodeSubnetList)
	if !ok {
		return f.WithWatch.List(ctx, list, opts...)
	}
	for _, ns := range f.subnets {
		all.Items = append(all.Items, *ns)
	}
	return nil
}

func (f *shelf) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	ns, ok := o.(*v1alpha1.NodeSubnet)
	if !ok {
		return f.WithWatch.Create(ctx, o, opts...)
	}
	if f.subnets[ns.Name] != nil {
		return apierrors.NewAlreadyExists(v1alpha1.GroupVersion.WithResource("nodesubnets").GroupResource(), ns.Name)
	}
	f.subnets[ns.Name] = ns.DeepCopy()
	return nil
}

func (f *shelf) SubResource(string) client.SubResourceClient { return shelfStatus{f: f} }

type shelfStatus struct {
	client.SubResourceClient
	f *shelf
}

func (s shelfStatus) Update(_ context.Context, o client.Object, _ ...client.SubResourceUpdateOption) error {
	s.f.subnets[o.GetName()] = o.(*v1alpha1.NodeSubnet).DeepCopy()
	return nil
}

// available returns the condition SubnetAvailable of a FixedIP; the zero value if it has none.
func (s *scene) available(key client.ObjectKey) metav1.Condition {
	s.t.Helper()
	var record v1alpha1.FixedIP
	if err := s.api.Get(s.t.Context(), key, &record); err != nil {
		s.t.Fatal(err)
	}
	return ptr.Deref(meta.FindStatusCondition(record.Status.Conditions, v1alpha1.ConditionSubnetAvailable), metav1.Condition{})
}

// claims returns the node that each NodeSubnet names. Key: the CIDR.
func (s *scene) claims() map[string]string {
	s.t.Helper()
	var list v1alpha1.NodeSubnetList
	if err := s.api.List(s.t.Context(), &list); err != nil {
		s.t.Fatal(err)
	}
	all := map[string]string{}
	for _, ns := range list.Items {
		all[ns.Spec.CIDR] = ns.Spec.NodeName
	}
	return all
}

// disjoint fails the test if the subnets of two nodes overlap.
func (s *scene) disjoint() {
	s.t.Helper()
	seen := map[netip.Prefix]string{}
	for _, name := range slices.Sorted(maps.Keys(s.pools())) {
		for _, sub := range s.pools()[name].Subnets {
			for other, by := range seen {
				if sub.Overlaps(other) {
					s.t.Errorf("subnet %s of node %s overlaps subnet %s of node %s", sub, name, other, by)
				}
			}
			seen[sub] = name
		}
	}
}

// everything returns an empty list of each kind of object that the tests use.
func everything() []client.ObjectList {
	return []client.ObjectList{&corev1.NodeList{}, &corev1.PodList{}, &ciliumv2.CiliumNodeList{}, &v1alpha1.FixedIPList{}, &v1alpha1.NodeSubnetList{}}
}

// items returns the objects of a list.
func items(list client.ObjectList) []client.Object {
	var out []client.Object
	_ = meta.EachListItem(list, func(o runtime.Object) error {
		out = append(out, o.(client.Object))
		return nil
	})
	return out
}

// stamped sets a new UID in an object and returns the object.
func stamped(s *scene, o client.Object) client.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uids++
	o.SetUID(types.UID(fmt.Sprint("uid-", s.uids)))
	return o
}

func (s *scene) nodeNames() []string {
	s.t.Helper()
	var list corev1.NodeList
	if err := s.api.List(s.t.Context(), &list); err != nil {
		s.t.Fatal(err)
	}
	var names []string
	for _, n := range list.Items {
		names = append(names, n.Name)
	}
	return names
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
