// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/reconnect"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/scheme"
)

// Placement is the first placement of an identity.
type Placement struct {
	Pod, Node, Address string
	// Claimed is the revision of the CiliumNode in which the pod first owned the entry. Bound is the revision of the pod in
	// which it first had a node; 0 if it has none. The lower revision was written first.
	Claimed, Bound uint64
}

// Witness records pods, CiliumNodes and FixedIPs, and the violations that they show. Its methods are safe for concurrent
// use.
type Witness struct {
	mu sync.Mutex
	// pods contains the existing pods. Key: namespace/name. Value: the last version seen.
	pods map[string]*corev1.Pod
	// nodes contains the existing CiliumNodes. Key: the name.
	nodes map[string]*ciliumv2.CiliumNode
	// records contains the existing FixedIPs. Key: namespace/name.
	records map[string]*v1alpha1.FixedIP
	// first contains the first placement of each identity that has a claim. A placement is removed with the last entry of
	// the identity, with the exceptions in seeNode, so that the next claim is a first placement again. Key: namespace/name
	// of the pod.
	first map[string]*Placement
	// promised contains the addresses that each pod must keep, which are those of its FixedIP. Key: namespace/name of the
	// pod. A key is removed with its FixedIP, and when another pod takes the slot over.
	promised map[string]promise
	// ran contains the addresses that each pod ran with, separated by commas. Key: the UID of the pod.
	ran map[types.UID]string
	// boundAt contains the revision in which each pod first had a node. Key: the UID of the pod.
	boundAt map[types.UID]uint64
	// suspicions contains the suspicions about pods that ran with another address than their fixed address. Key:
	// namespace/name of the pod.
	suspicions map[string]suspicion
	// tolerated contains the pods that may run with other addresses than their fixed addresses; see Tolerate. Key:
	// namespace/name.
	tolerated map[string]bool
	// early contains the suspicions about pods that were bound before their claim.
	early []suspicion
	// deletions contains the FixedIPs that were seen with a deletionTimestamp. Key: namespace/name of the pod.
	deletions map[string][]deletion
	// violations contains the violations in the order in which they were seen.
	violations []string
	history    history
	// anyOrder reports whether the claim of a pod may be written after the pod is bound; see AnyOrder.
	anyOrder func(*corev1.Pod) bool
	// changed is closed and replaced at each event.
	changed chan struct{}
}

// blank returns a witness that has not seen any object.
func blank() *Witness {
	return &Witness{
		anyOrder:   func(*corev1.Pod) bool { return false },
		pods:       map[string]*corev1.Pod{},
		nodes:      map[string]*ciliumv2.CiliumNode{},
		records:    map[string]*v1alpha1.FixedIP{},
		first:      map[string]*Placement{},
		promised:   map[string]promise{},
		ran:        map[types.UID]string{},
		boundAt:    map[types.UID]uint64{},
		suspicions: map[string]suspicion{},
		tolerated:  map[string]bool{},
		deletions:  map[string][]deletion{},
		history:    newHistory(),
		changed:    make(chan struct{}),
	}
}

// Start starts a witness that watches until ctx ends. It returns when the witness has seen all existing objects.
func Start(ctx context.Context, cfg *rest.Config) (*Witness, error) {
	kinds, err := scheme.New()
	if err != nil {
		return nil, err
	}
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(reconnect.Transport)
	watches, err := cache.New(cfg, cache.Options{Scheme: kinds})
	if err != nil {
		return nil, fmt.Errorf("create a cache: %w", err)
	}
	w := blank()
	go func() {
		if err := watches.Start(ctx); err != nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.violate("the cache of the witness failed: %v", err)
		}
	}()
	for obj, see := range map[client.Object]func(obj any, gone bool){
		&corev1.Pod{}:          func(obj any, gone bool) { w.seePod(obj.(*corev1.Pod), gone) },
		&ciliumv2.CiliumNode{}: func(obj any, gone bool) { w.seeNode(obj.(*ciliumv2.CiliumNode), gone) },
		&v1alpha1.FixedIP{}:    func(obj any, gone bool) { w.seeRecord(obj.(*v1alpha1.FixedIP), gone) },
	} {
		informer, err := watches.GetInformer(ctx, obj)
		if err != nil {
			return nil, fmt.Errorf("get the informer of %T: %w", obj, err)
		}
		seen := func(obj any, gone bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			see(obj, gone)
			close(w.changed)
			w.changed = make(chan struct{})
		}
		registration, err := informer.AddEventHandler(handler(seen))
		if err != nil {
			return nil, fmt.Errorf("add an event handler for %T: %w", obj, err)
		}
		if !toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
			return nil, fmt.Errorf("wait for the informer of %T: %w", obj, context.Cause(ctx))
		}
	}
	return w, nil
}

// handler returns the event handler of an informer. It calls see for each version of an object, and for each deleted object
// with gone set.
func handler(see func(obj any, gone bool)) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { see(obj, false) },
		UpdateFunc: func(before, obj any) {
			// If an object was deleted and created again while the informer did not watch, the next list of the informer
			// reports an update.
			if before.(client.Object).GetUID() != obj.(client.Object).GetUID() {
				see(before, true)
			}
			see(obj, false)
		},
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			see(obj, true)
		},
	}
}

// violate records a violation. w.mu must be locked.
func (w *Witness) violate(format string, args ...any) {
	w.violations = append(w.violations, fmt.Sprintf(format, args...))
}

func (w *Witness) seePod(pod *corev1.Pod, gone bool) {
	w.history.seePod(pod, gone)
	key := pod.Namespace + "/" + pod.Name
	if gone {
		if now := w.pods[key]; now != nil && now.UID == pod.UID {
			delete(w.pods, key)
		}
		return
	}
	w.pods[key] = pod
	if pod.Spec.NodeName != "" && w.boundAt[pod.UID] == 0 {
		w.boundAt[pod.UID] = version(pod)
	}
	w.order(key)
	if !live(pod) || pod.Spec.HostNetwork {
		return
	}
	ips := addresses(pod)
	if before, ok := w.ran[pod.UID]; ok && before != ips {
		w.violate("pod %s changed its address while it ran: %s, then %s", key, before, ips)
	}
	w.ran[pod.UID] = ips
	if want, ok := w.promised[key]; ok && !within(want.ips, ips) && !w.reassigns(key) && !w.tolerated[key] {
		w.suspicions[key] = suspicion{
			text: fmt.Sprintf("pod %s runs with %s, but its FixedIP reserves %s", key, ips, want.ips),
			seen: version(pod), bound: w.boundAt[pod.UID], record: want.record, key: key, node: pod.Spec.NodeName,
		}
	}
	for _, ip := range pod.Status.PodIPs {
		for other, o := range w.pods {
			if other != key && live(o) && !o.Spec.HostNetwork && slices.Contains(o.Status.PodIPs, ip) {
				w.violate("pods %s and %s share the address %s", key, other, ip.IP)
			}
		}
	}
}

// order compares the revisions of the claim and of the bind of a first placement, if both were seen.
func (w *Witness) order(key string) {
	p, now := w.first[key], w.pods[key]
	if p == nil || p.Bound != 0 || now == nil || now.DeletionTimestamp != nil || w.boundAt[now.UID] == 0 {
		return
	}
	p.Bound = w.boundAt[now.UID]
	if p.Claimed >= p.Bound {
		// The controller confirms each release after the write. It may have released an earlier claim and undone the
		// release when it saw the bound pod. In this case the earlier claim counts.
		if earlier := w.history.named(place{p.Node, p.Address}, key, p.Bound); earlier != nil && now.Spec.NodeName == p.Node {
			p.Claimed = earlier.from
		}
	}
	if p.Claimed >= p.Bound && !w.anyOrder(now) {
		w.early = append(w.early, suspicion{
			text: fmt.Sprintf("pod %s was bound at revision %d, before its claim at %d", key, p.Bound, p.Claimed),
			seen: p.Claimed, bound: p.Bound, key: key, node: now.Spec.NodeName,
		})
	}
}

func (w *Witness) seeNode(cn *ciliumv2.CiliumNode, gone bool) {
	before := w.nodes[cn.Name]
	w.history.seeNode(before, cn, gone)
	if gone {
		delete(w.nodes, cn.Name)
	} else {
		w.nodes[cn.Name] = cn
	}
	var was ipamtypes.AllocationMap
	if before != nil {
		was = before.Spec.IPAM.Pool
	}
	for ip, e := range cn.Spec.IPAM.Pool {
		if had, exists := was[ip]; gone || isMarker(e.Owner) || exists && had.Owner == e.Owner {
			continue
		}
		// The entry is new or has a new owner. The entry of an unreserved pod on a strict node is not a first placement, because
		// it may be written after the bind: another scheduler may have placed the pod.
		if p := w.first[e.Owner]; p == nil && pod(e.Owner) && !strings.Contains(e.Resource, "/Pod/") {
			w.first[e.Owner] = &Placement{Pod: e.Owner, Node: cn.Name, Address: ip, Claimed: version(cn)}
			w.order(e.Owner)
		}
		// During a move, one of the two pools has a marker. A node inherits a subnet only after the former node has lost its
		// CiliumNode.
		for other, o := range w.nodes {
			if e, exists := o.Spec.IPAM.Pool[ip]; exists && other != cn.Name && !isMarker(e.Owner) {
				w.violate("the address %s is in the pools of %s and %s", ip, cn.Name, other)
			}
		}
	}
	// If an identity has no entry left and no moved entry names it, its next claim is a first placement again. If its
	// entries were deleted with their CiliumNode and it has a FixedIP, the new entries on the node that inherits the subnet
	// are not a claim.
	for ip, e := range was {
		if gone && w.recorded(e.Owner) {
			continue
		}
		if pod(e.Owner) && (gone || cn.Spec.IPAM.Pool[ip].Owner != e.Owner) && len(w.entries(e.Owner)) == 0 && !w.hasMoved(e.Owner) {
			delete(w.first, e.Owner)
		}
	}
}

// recorded reports whether a pod has a FixedIP.
func (w *Witness) recorded(key string) bool {
	for _, r := range w.records {
		if holder(r) == key {
			return true
		}
	}
	return false
}

func (w *Witness) seeRecord(fip *v1alpha1.FixedIP, gone bool) {
	key := fip.Namespace + "/" + fip.Name
	if before := w.records[key]; before != nil && (gone || holder(before) != holder(fip)) {
		// The FixedIP was deleted, or another pod took its slot over. In both cases the previous pod loses its reservation.
		delete(w.promised, holder(before))
	}
	w.seeDeletion(fip)
	if gone {
		delete(w.records, key)
		// A pod that was seen with other addresses after the deletion had no reservation any more.
		if version(fip) < w.suspicions[holder(fip)].seen {
			delete(w.suspicions, holder(fip))
		}
		return
	}
	w.records[key] = fip
	// A FixedIP without spec.ips reserves no address yet.
	if len(fip.Spec.IPs) > 0 {
		w.promised[holder(fip)] = promise{strings.Join(fip.Spec.IPs, ","), fip.UID}
	}
	for _, ip := range fip.Spec.IPs {
		for other, o := range w.records {
			if other != key && slices.Contains(o.Spec.IPs, ip) {
				w.violate("FixedIPs %s and %s have the same address %s", key, other, ip)
			}
		}
	}
}

// hasMoved reports whether a pool has a moved entry for an address of the owner.
func (w *Witness) hasMoved(owner string) bool {
	for _, cn := range w.nodes {
		for _, e := range cn.Spec.IPAM.Pool {
			if e.Owner == "fixedip.io/moved" && slices.Contains(strings.Split(e.Resource, ";"), "pod="+owner) {
				return true
			}
		}
	}
	return false
}

// reassigns reports whether a pod may have another address because its FixedIP has the failover policy Reassign and the pod
// runs on another node.
func (w *Witness) reassigns(key string) bool {
	r, p := w.records[key], w.pods[key]
	return r != nil && p != nil && r.Spec.Failover == v1alpha1.Reassign && r.Spec.NodeName != p.Spec.NodeName
}

// entries returns node/address of each pool entry of an owner, sorted.
func (w *Witness) entries(owner string) []string {
	var found []string
	for name, cn := range w.nodes {
		for ip, e := range cn.Spec.IPAM.Pool {
			if e.Owner == owner {
				found = append(found, name+"/"+ip)
			}
		}
	}
	slices.Sort(found)
	return found
}

// Violations returns descriptions of all violations, and of the suspicions that are not cleared.
func (w *Witness) Violations() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append(slices.Clone(w.violations), w.suspects()...)
}

// Placements returns the first placements of bound pods, sorted by pod.
func (w *Witness) Placements() []Placement {
	w.mu.Lock()
	defer w.mu.Unlock()
	var found []Placement
	for _, key := range slices.Sorted(maps.Keys(w.first)) {
		if w.first[key].Bound != 0 {
			found = append(found, *w.first[key])
		}
	}
	return found
}

// holder returns the namespace/name of the pod of a FixedIP: the name of the FixedIP or, for a slot, spec.podName.
func holder(fip *v1alpha1.FixedIP) string {
	if fip.Spec.AssignedTo == v1alpha1.Slot {
		return fip.Namespace + "/" + fip.Spec.PodName
	}
	return fip.Namespace + "/" + fip.Name
}

func version(obj client.Object) uint64 {
	v, err := strconv.ParseUint(obj.GetResourceVersion(), 10, 64)
	if err != nil {
		return 0
	}
	return v
}

// live reports whether a pod certainly has the addresses in its status: it runs and is not being deleted. A terminating pod
// may have lost them already.
func live(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil && len(pod.Status.PodIPs) > 0
}

func addresses(pod *corev1.Pod) string {
	var ips []string
	for _, ip := range pod.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	return strings.Join(ips, ",")
}

// within reports whether the list many contains all addresses of the list few; both lists are separated by commas. A pod has
// more addresses than its FixedIP if the FixedIP reserves only one family.
func within(few, many string) bool {
	have := strings.Split(many, ",")
	return !slices.ContainsFunc(strings.Split(few, ","), func(a string) bool { return !slices.Contains(have, a) })
}

// isMarker reports whether an owner in a pool is a marker of fixedip.
func isMarker(owner string) bool { return strings.HasPrefix(owner, "fixedip.io/") }

// pod reports whether an owner in a pool has the form namespace/name of a pod. The owner of a marker has a dot before
// the slash, and the owners of dynamic and node-owned entries have no slash.
func pod(owner string) bool {
	namespace, name, ok := strings.Cut(owner, "/")
	return ok && name != "" && !strings.Contains(namespace, ".")
}

// Forgive removes the suspicion about the addresses of the pod with this namespace/name, but not those about the order of
// its claim and bind. Call it in a test that creates another pod with the name of an identity on purpose.
func (w *Witness) Forgive(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.suspicions, key)
}

// Tolerate allows the pod with this namespace/name to run with other addresses than its FixedIP reserves until end is
// called. It is for tests in which the agent cannot see the entry. Without Tolerate, other tests that share the witness at the
// same time would report the violation.
func (w *Witness) Tolerate(key string) (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tolerated[key] = true
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.tolerated, key)
	}
}

// AnyOrder allows claims that are written after their pod is bound, for tests in which pods of other schedulers are adopted. It
// applies to the pods of the given schedulers; if no scheduler is given, it applies to all pods. Call it before the first claim.
func (w *Witness) AnyOrder(schedulers ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.anyOrder = func(pod *corev1.Pod) bool {
		return len(schedulers) == 0 || slices.Contains(schedulers, pod.Spec.SchedulerName)
	}
}

// Seen returns the last seen revision of a pod, CiliumNode or FixedIP; 0 if the witness knows no such object.
func (w *Witness) Seen(obj client.Object) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := obj.GetNamespace() + "/" + obj.GetName()
	switch obj.(type) {
	case *corev1.Pod:
		if p := w.pods[key]; p != nil {
			return version(p)
		}
	case *ciliumv2.CiliumNode:
		if cn := w.nodes[obj.GetName()]; cn != nil {
			return version(cn)
		}
	case *v1alpha1.FixedIP:
		if r := w.records[key]; r != nil {
			return version(r)
		}
	}
	return 0
}

// Incarnations returns the number of pods that were seen running, except pods on the host network. Pods with one name and
// different UIDs count separately.
func (w *Witness) Incarnations() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.ran)
}
