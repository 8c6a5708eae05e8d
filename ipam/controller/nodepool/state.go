// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"context"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"fixedip.io/fixedip/ipam/controller/config"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/nodepool"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
)

// defaultPodCapacity is that of a node which does not say how many pods it takes, as a kubelet's.
const defaultPodCapacity = 110

// duty is what the pool of one node has to be, by its Node and its pods.
type duty struct {
	cfg config.Config
	now time.Time
	// strict: the pool holds owned entries only.
	strict bool
	// capacity is how many pods the node takes.
	capacity int64
	// silent: nothing is heard of the node, so that nobody says what runs there. heard is since when it has been heard
	// of otherwise; zero: that is not known, or the node does not exist any more.
	silent bool
	heard  time.Time
	// waiting are the pods that are bound to the node and of which no address is known, as entries
	// name them.
	waiting []string
	// counting are those of them that may count on what was fixed for their name: they don't opt out.
	counting []string
	// taken are the addresses that pods on the node have, by their statuses: the agent's word is late.
	taken []netip.Addr
	// occupants are the pods that have or need an address there.
	occupants []nodepool.PodAddresses
	// held tells whether a pod on the node has an address.
	held func(netip.Addr) bool
	// kept tells whether a FixedIP keeps an address.
	kept func(netip.Addr) bool
	// lingers tells whether another node's pool still has something of an address that is at home on this one.
	lingers func(netip.Addr) bool
	// stays tells whether the pod of an ordinary entry needs it.
	stays func(namespace, name string) bool
	// live: the pods are as the API server has them. Only then is anything taken from where a pod
	// may have it.
	live bool
	// gone are the owners of ordinary entries whose pods are gone, as the API server says.
	gone map[string]bool
	// late are the handshakes whose answer is not waited for any longer, and answerDue is when there may be
	// more of them; zero: there can't.
	late      []turn
	answerDue time.Time
}

// dutyFor gathers it from the caches.
func (r *Reconciler) dutyFor(ctx context.Context, n pool.Node) (*duty, error) {
	d := &duty{cfg: r.Config, now: r.Clock.Now(), capacity: defaultPodCapacity, held: r.podHas(ctx, n.Name), kept: r.Ledger.Kept}
	d.lingers = func(a netip.Addr) bool { return n.Home(a) && r.Ledger.Lingers(a, n.Name) }
	node, err := r.nodeOf(ctx, n.Name)
	if err != nil {
		return nil, err
	}
	if node != nil {
		d.strict = r.Config.StrictNodes.Matches(labels.Set(node.Labels))
		if pods, ok := node.Status.Allocatable[corev1.ResourcePods]; ok {
			d.capacity = pods.Value()
		}
	}
	d.hear(node)
	d.late, d.answerDue = r.answers.look(n)
	if len(d.late) > 0 && (node == nil || !nodeutil.IsReady(node)) {
		// Nobody is there to answer, whatever is written. A node that comes back is no reason to look at its pool.
		d.late, d.answerDue = nil, sooner(d.answerDue, d.now.Add(answerWithin))
	}
	d.stays = func(namespace, name string) bool {
		stays, err := needsEntry(ctx, r.Cached, r.Kinds, n.Name, namespace, name)
		return err != nil || stays
	}
	pods, err := index.PodsOnNode(ctx, r.Cached, n.Name)
	if err != nil {
		return nil, err
	}
	if d.strict {
		d.occupants, err = r.occupants(ctx, pods)
	}
	for i := range pods {
		pod := &pods[i]
		if podutil.AwaitsIP(pod) {
			d.waiting = append(d.waiting, pool.OwnerKey(pod.Namespace, pod.Name))
			if !identity.OptsOut(pod.Annotations) {
				d.counting = append(d.counting, pool.OwnerKey(pod.Namespace, pod.Name))
			}
		}
		if podutil.HoldsIPs(pod) {
			d.taken = append(d.taken, podutil.IPs(pod)...)
		}
	}
	return d, err
}

// hear takes in what a Node says of itself; nil: there is none, and nothing runs there.
func (d *duty) hear(node *corev1.Node) {
	d.silent, d.heard = false, time.Time{}
	if node != nil {
		since, ok := nodeutil.ReadySince(node)
		d.silent, d.heard = !ok, since
	}
}

// without counts the owners that the pool gives no address of their own.
func without(n pool.Node, owners []string) int {
	has := map[string]bool{}
	for _, e := range n.Entries {
		has[e.Owner] = true
	}
	count := 0
	for _, o := range owners {
		if !has[o] {
			count++
		}
	}
	return count
}

// lookLive replaces what the caches say of the node and its pods by what the API server has.
func (d *duty) lookLive(ctx context.Context, r *Reconciler, n pool.Node) error {
	node, err := index.Node(ctx, r.Live, n.Name)
	if err != nil {
		return err
	}
	d.hear(node)
	here, err := r.livePods(ctx, n.Name)
	if err != nil {
		return err
	}
	cached := d.held
	d.held = func(a netip.Addr) bool {
		return cached(a) || slices.ContainsFunc(here, func(pod corev1.Pod) bool {
			return podutil.HoldsIPs(&pod) && slices.Contains(podutil.IPs(&pod), a)
		})
	}
	if d.strict {
		running, err := r.occupants(ctx, here)
		if err != nil {
			return err
		}
		// Pods that a DaemonSet made for the node are not there yet.
		for _, o := range d.occupants {
			if len(o.Addrs) == 0 && !slices.ContainsFunc(running, func(l nodepool.PodAddresses) bool { return l.Namespace == o.Namespace && l.Name == o.Name }) {
				running = append(running, o)
			}
		}
		d.occupants = running
	}
	d.gone = map[string]bool{}
	for _, e := range nodepool.StaleUnreserved(n, d.stays) {
		namespace, name, _ := pool.SplitOwnerKey(e.Owner)
		stays, err := needsEntry(ctx, r.Live, r.Kinds, n.Name, namespace, name)
		if err != nil {
			return err
		}
		d.gone[e.Owner] = !stays
	}
	d.live = true
	return nil
}

// watermark is that of one family.
func (d *duty) watermark(n pool.Node, f address.Family) nodepool.Watermark {
	if d.strict {
		return nodepool.NoDynamic
	}
	size := int64(0)
	for _, s := range n.Subnets {
		if address.Of(s.Addr()) == f {
			size += min(address.Size(s), math.MaxInt32)
		}
	}
	w := d.cfg.Watermark.ForNode(d.capacity, size)
	// More pods than the watermark at once: the agent tells of them when it has given out what there
	// is, up to 15 s later, and again for each next portion.
	if waiting := without(n, d.waiting); waiting > 0 {
		w.Free = max(w.Free, waiting+d.untold(n))
	}
	return w
}

// untold is how many addresses the node may have taken for itself of which its agent has not told yet.
// Until it does they count as free.
func (d *duty) untold(n pool.Node) int {
	told := 0
	for _, owner := range n.Used {
		if pool.ForOwner(owner).Kind == pool.NodeOwned {
			told++
		}
	}
	return len(pool.NodeOwners) - told
}

// FirstEntries returns what the first pool of a node needs beside the addresses that are reserved or in use.
func (r *Reconciler) FirstEntries(ctx context.Context, n pool.Node) (func(pool.Node) []pool.Edit, error) {
	d, err := r.dutyFor(ctx, n)
	if err != nil {
		return nil, err
	}
	return d.first, nil
}

// first makes the entries of a fresh pool.
func (d *duty) first(n pool.Node) []pool.Edit {
	if d.strict {
		edits, _ := nodepool.Strict(n, d.occupants, d.kept)
		return edits
	}
	n = d.asTaken(n)
	var edits []pool.Edit
	for _, f := range address.Families {
		if n.HasFamily(f) {
			added, _ := nodepool.FillDynamic(n, f, d.watermark(n, f), d.kept)
			edits = append(edits, added...)
		}
	}
	return edits
}

// asTaken is the node as its agent will report it: with the addresses in use that pods have by now.
func (d *duty) asTaken(n pool.Node) pool.Node {
	used := maps.Clone(n.Used)
	for _, a := range d.taken {
		if _, ok := used[a]; !ok && used != nil {
			used[a] = ""
		}
	}
	n.Used = used
	return n
}

// lingersAgain is how soon it is looked again whether another node still has something of an address that rests at home:
// nobody tells of other nodes here.
const lingersAgain = 10 * time.Second

// rested ends the rest of addresses. On a node of which nothing is heard none ends: a pod that was deleted from it by
// force may run on, whose address its agent never listed. Nor does that of an address which came home while the node
// where it was has something of it: an agent there that is behind gives it to whoever comes under the name.
func (d *duty) rested(n pool.Node) (edits []pool.Edit, next time.Time) {
	if d.silent {
		return nil, time.Time{}
	}
	counted, lingered := d.counted(n), false
	edits, next = nodepool.ExpireCooldowns(n, d.now, d.cfg.CoolDown, d.heard, func(a netip.Addr) bool {
		lingers := d.lingers(a)
		lingered = lingered || lingers
		return lingers || counted(a)
	})
	if lingered {
		next = sooner(next, d.now.Add(lingersAgain))
	}
	return edits, next
}

// edits makes all edits that the pool needs.
func (d *duty) edits(n pool.Node) []pool.Edit {
	edits, _ := d.rested(n)
	if d.live {
		for a, e := range nodepool.StaleUnreserved(n, func(namespace, name string) bool { return !d.gone[pool.OwnerKey(namespace, name)] }) {
			if !d.held(a) {
				edits = append(edits, n.Set(a, pool.CooldownEntry("", d.now)))
				klog.V(3).InfoS("An ordinary pod is gone", "node", n.Name, "owner", e.Owner, "ip", a)
			}
		}
	}
	n = n.With(edits)
	for _, f := range address.Families {
		out := nodepool.RemoveReleased(n, f, d.watermark(n, f), d.held, d.kept, d.unanswered)
		edits, n = append(edits, out...), n.With(out)
	}
	return append(edits, d.first(n)...)
}

// marks makes the next marks of the release handshakes.
func (d *duty) marks(n pool.Node) []pool.Mark {
	var marks []pool.Mark
	for _, f := range address.Families {
		marks = append(marks, nodepool.ReleaseExcess(n, f, d.watermark(n, f), d.held, d.kept, d.unanswered)...)
	}
	return marks
}

// unanswered tells whether the agent is not waited for in the handshake over an address.
func (d *duty) unanswered(a netip.Addr) bool {
	return slices.ContainsFunc(d.late, func(t turn) bool { return t.addr == a })
}

// sooner is the earlier of two times, of which either may be zero: never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// tell says what the pool lacks that no edit can give it.
func (d *duty) tell(r *Reconciler, n pool.Node) {
	if d.strict {
		if _, short := nodepool.Strict(n, d.occupants, d.kept); short > 0 {
			r.warn(n, "SubnetFull", "FillPool", "The node is strict, %d addresses are needed for it and its pods, and subnets %v have none left", short, n.PodCIDRs)
		}
		return
	}
	n = d.asTaken(n)
	for _, f := range address.Families {
		if _, short := nodepool.FillDynamic(n, f, d.watermark(n, f), d.kept); short > 0 && n.HasFamily(f) {
			r.warn(n, "SubnetFull", "FillPool", "The pool lacks %d free %s addresses and subnets %v have none left", short, f, n.PodCIDRs)
		}
	}
}
