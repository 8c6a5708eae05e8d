// Package witness watches a cluster from outside, as a stranger would, and holds what it sees
// against what fixedip promises: a pod keeps its address, no two have the same one, and a claim
// stands before its pod is bound. The demo and the integration tests share it.
//
// It only reads, and shares no code with the product but the types of its API: what it says is
// worth something because it was found out independently.
package witness

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

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

// Placement is the first placement of an identity, as etcd ordered it.
type Placement struct {
	Pod, Node, Address string
	// Claimed is the version of the CiliumNode in which the entry first named the pod, Bound that
	// of the pod in which it first had a node. Versions are revisions of one etcd: the lower one
	// was written first.
	Claimed, Bound uint64
}

// Witness is what was seen so far. Its methods may be called from several goroutines.
type Witness struct {
	mu sync.Mutex
	// pods are the pods that exist. Key: namespace/name. Value: the last version seen.
	pods map[string]*corev1.Pod
	// nodes are the CiliumNodes that exist. Key: their name.
	nodes map[string]*ciliumv2.CiliumNode
	// records are the FixedIPs that exist. Key: namespace/name.
	records map[string]*v1alpha1.FixedIP
	// first are the first placements since the identity had no claim anywhere. Key: namespace/name
	// of the pod.
	first map[string]*Placement
	// promised are the addresses that an identity must keep: those of its record. Key:
	// namespace/name. It goes with the record.
	promised map[string]promise
	// ran has the address that each incarnation of a pod ran with. Key: the pod's UID.
	ran map[types.UID]string
	// boundAt is the version of each incarnation of a pod in which it first had a node. Key: the
	// pod's UID.
	boundAt map[types.UID]uint64
	// suspicions are pods that ran with another address than the one that was kept for them as far
	// as seen. Key: namespace/name.
	suspicions map[string]suspicion
	// early are binds that came before their claims as far as seen.
	early []suspicion
	// farewells are the FixedIPs that were asked to go. Key: namespace/name of the pod.
	farewells map[string][]farewell
	// violations are the broken promises, in the order seen.
	violations []string
	history    history
	// anyOrder: claims may follow their binds.
	anyOrder bool
	// changed is closed and made anew at each event.
	changed chan struct{}
}

// blank is a witness that has seen nothing.
func blank() *Witness {
	return &Witness{
		pods:       map[string]*corev1.Pod{},
		nodes:      map[string]*ciliumv2.CiliumNode{},
		records:    map[string]*v1alpha1.FixedIP{},
		first:      map[string]*Placement{},
		promised:   map[string]promise{},
		ran:        map[types.UID]string{},
		boundAt:    map[types.UID]uint64{},
		suspicions: map[string]suspicion{},
		farewells:  map[string][]farewell{},
		history:    newHistory(),
		changed:    make(chan struct{}),
	}
}

// Start makes a witness that watches until ctx ends. It has seen all that stands when it returns.
func Start(ctx context.Context, cfg *rest.Config) (*Witness, error) {
	kinds, err := scheme.New()
	if err != nil {
		return nil, err
	}
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(reconnect.Transport)
	watches, err := cache.New(cfg, cache.Options{Scheme: kinds})
	if err != nil {
		return nil, fmt.Errorf("make a cache: %w", err)
	}
	w := blank()
	go func() {
		if err := watches.Start(ctx); err != nil {
			w.violate("the witness could not watch: %v", err)
		}
	}()
	for obj, see := range map[client.Object]func(obj any, gone bool){
		&corev1.Pod{}:          func(obj any, gone bool) { w.seePod(obj.(*corev1.Pod), gone) },
		&ciliumv2.CiliumNode{}: func(obj any, gone bool) { w.seeNode(obj.(*ciliumv2.CiliumNode), gone) },
		&v1alpha1.FixedIP{}:    func(obj any, gone bool) { w.seeRecord(obj.(*v1alpha1.FixedIP), gone) },
	} {
		informer, err := watches.GetInformer(ctx, obj)
		if err != nil {
			return nil, fmt.Errorf("watch %T: %w", obj, err)
		}
		seen := func(obj any, gone bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			see(obj, gone)
			close(w.changed)
			w.changed = make(chan struct{})
		}
		registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { seen(obj, false) },
			UpdateFunc: func(_, obj any) { seen(obj, false) },
			DeleteFunc: func(obj any) {
				if tombstone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
					obj = tombstone.Obj
				}
				seen(obj, true)
			},
		})
		if err != nil {
			return nil, fmt.Errorf("watch %T: %w", obj, err)
		}
		if !toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
			return nil, fmt.Errorf("watch %T: %w", obj, context.Cause(ctx))
		}
	}
	return w, nil
}

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
	if want, ok := w.promised[key]; ok && !within(want.ips, ips) && !w.reassigns(key) {
		w.suspicions[key] = suspicion{
			text: fmt.Sprintf("pod %s runs with %s, and %s is kept for it", key, ips, want.ips),
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

// order compares the claim of a first placement with the bind, once both were seen.
func (w *Witness) order(key string) {
	p, now := w.first[key], w.pods[key]
	if p == nil || p.Bound != 0 || now == nil || now.DeletionTimestamp != nil || w.boundAt[now.UID] == 0 {
		return
	}
	p.Bound = w.boundAt[now.UID]
	if p.Claimed >= p.Bound {
		// The controller may have taken the claim away that stood at the bind, and have given it back when it saw
		// the pod: it looks at the pods once more after the write.
		if stood := w.history.named(place{p.Node, p.Address}, key, p.Bound); stood != nil && now.Spec.NodeName == p.Node {
			p.Claimed = stood.from
		}
	}
	if p.Claimed >= p.Bound && !w.anyOrder {
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
	for ip, e := range cn.Spec.IPAM.Pool {
		if gone || !pod(e.Owner) || before != nil && before.Spec.IPAM.Pool[ip].Owner == e.Owner {
			continue
		}
		// The owner is new on this address. That an ordinary pod has an entry is promised on strict nodes,
		// not that it had it before its bind: another scheduler may have placed it.
		if p := w.first[e.Owner]; p == nil && !strings.Contains(e.Resource, "/Pod/") {
			w.first[e.Owner] = &Placement{Pod: e.Owner, Node: cn.Name, Address: ip, Claimed: version(cn)}
			w.order(e.Owner)
		}
		for other, o := range w.nodes {
			if e, exists := o.Spec.IPAM.Pool[ip]; exists && other != cn.Name && !mark(e.Owner) {
				w.violate("the address %s is in the pools of %s and %s", ip, cn.Name, other)
			}
		}
	}
	if before == nil {
		return
	}
	// An identity that has no entry left anywhere starts anew with its next claim. One whose entries went with
	// their node has its record still: what another node inherits is no claim.
	for ip, e := range before.Spec.IPAM.Pool {
		if gone && w.recorded(e.Owner) {
			continue
		}
		if pod(e.Owner) && (gone || cn.Spec.IPAM.Pool[ip].Owner != e.Owner) && len(w.entries(e.Owner)) == 0 && !w.away(e.Owner) {
			delete(w.first, e.Owner)
		}
	}
}

// recorded tells whether a FixedIP keeps anything for a pod.
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
		// A slot that passes to another pod promises nothing to the one before.
		delete(w.promised, holder(before))
	}
	w.seeFarewell(fip)
	if gone {
		delete(w.records, key)
		if version(fip) < w.suspicions[holder(fip)].seen {
			delete(w.suspicions, holder(fip))
		}
		return
	}
	w.records[key] = fip
	// A record without addresses promises to keep what the pod will get.
	if len(fip.Spec.IPs) > 0 {
		w.promised[holder(fip)] = promise{strings.Join(fip.Spec.IPs, ","), fip.UID}
	}
	for _, ip := range fip.Spec.IPs {
		for other, o := range w.records {
			if other != key && slices.Contains(o.Spec.IPs, ip) {
				w.violate("FixedIPs %s and %s hold the same address %s", key, other, ip)
			}
		}
	}
}

// away tells whether an address of the owner is on its way: no pool gives it to the pod, and a mark
// keeps it.
func (w *Witness) away(owner string) bool {
	for _, cn := range w.nodes {
		for _, e := range cn.Spec.IPAM.Pool {
			if e.Owner == "fixedip.io/moved" && slices.Contains(strings.Split(e.Resource, ";"), "pod="+owner) {
				return true
			}
		}
	}
	return false
}

// reassigns tells whether an identity may get another address, on another node than its record's.
func (w *Witness) reassigns(key string) bool {
	r, p := w.records[key], w.pods[key]
	return r != nil && p != nil && r.Spec.Failover == v1alpha1.Reassign && r.Spec.NodeName != p.Spec.NodeName
}

// entries are "node/address" of all pool entries of an owner.
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

// Violations are the promises that were seen broken, in words.
func (w *Witness) Violations() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append(slices.Clone(w.violations), w.suspects()...)
}

// Placements are the first placements whose pods are bound, by pod.
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

// holder is the namespace/name of the pod that a record is for. It has the record's name, but for a
// slot, which passes from pod to pod.
func holder(fip *v1alpha1.FixedIP) string {
	if fip.Spec.Slot {
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

// live tells whether a pod has its addresses for sure: its containers run and were not asked to
// stop. One that is stopping may have given its addresses back already.
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

// within tells whether all addresses of one list are in another. A record that names one family only
// learns the other from its pod.
func within(few, many string) bool {
	have := strings.Split(many, ",")
	return !slices.ContainsFunc(strings.Split(few, ","), func(a string) bool { return !slices.Contains(have, a) })
}

// mark tells whether an owner in a pool is a mark of fixedip's, which offers the address to nobody.
func mark(owner string) bool { return strings.HasPrefix(owner, "fixedip.io/") }

// pod tells whether an owner in a pool is a pod: the others are the node's own and marks.
func pod(owner string) bool {
	namespace, name, ok := strings.Cut(owner, "/")
	return ok && name != "" && !strings.Contains(namespace, ".")
}

// Forgive drops the suspicion against a pod that has the name of an identity and is another: a test
// that makes one says so.
func (w *Witness) Forgive(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.suspicions, key)
}

// AnyOrder lets claims follow their binds, as they do where pods of other schedulers are adopted.
// Call it before there are any.
func (w *Witness) AnyOrder() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.anyOrder = true
}

// Seen is the version in which an object was last seen: a pod, a CiliumNode or a FixedIP; 0: it does not exist
// as far as seen.
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

// Incarnations is how many pods were seen to run.
func (w *Witness) Incarnations() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.ran)
}
