package controller

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

const (
	// liveCalls bounds the calls to the API server for one node that are under way at once.
	liveCalls = 32
	// releaseRetry bounds the pause between two tries on one node.
	releaseRetry = 30 * time.Second
)

// releaseReconciler takes addresses back: it deletes the FixedIPs whose time has come, and frees the
// entries of those that are deleted. A request names a node: all that go back there go in one write.
// Which those are it reads from the ledger and the caches anew each time, and looks at the API server
// before and after the write, since what is given up can't be had back.
//
// The addresses rest in the pool under a mark that no pod matches; nodeReconciler removes the mark
// when they have cooled down and the agent has let go of them. finishReconciler sees the record off
// when the pools show that nothing names its pod any more.
type releaseReconciler struct {
	writer *ciliumpool.Writer
	live   client.Client
	events events.EventRecorder
	clock  clock.Clock
	cached client.Reader
	// situation is what a reader knows of an identity.
	situation func(ctx context.Context, from client.Reader, key types.NamespacedName) (plan.Situation, error)
	workloads workloadStore
	absences  *absences
	gathered  *gatherings
	// owners are the pods that hold an address on a node.
	owners func(node string) []string
	// deadline is how long after the deletion of a record its finalizer goes at the latest where the
	// pool can't be written.
	deadline time.Duration
	underway *underway
	// done asks for identities whose release has come to an end.
	done *source.Feed
}

// underway are the identities whose addresses are being taken back: between the looks before and
// after the write. Their records stay until then. A scheduler claims nothing for a pod whose record
// is on its way out, so that whoever is bound in between can only count on what was taken.
type underway struct {
	mu sync.Mutex
	// owners are the identities. Key: as pools name them.
	owners map[string]bool
}

func (u *underway) set(owners iter.Seq[string], is bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for o := range owners {
		if is {
			u.owners[o] = true
		} else {
			delete(u.owners, o)
		}
	}
}

func (u *underway) has(owner string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.owners[owner]
}

func (r *releaseReconciler) setup(mgr manager.Manager, nodes *source.Feed, l *ledger.Ledger, poolsSeen toolscache.InformerSynced) error {
	options := source.Workers(32)
	options.RateLimiter = workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](gathering, releaseRetry)
	return builder.ControllerManagedBy(mgr).
		Named("release").
		// recordReconciler may have asked before there was a queue.
		WatchesRawSource(nodes.Source(poolsSeen, func() []reconcile.Request {
			var all []reconcile.Request
			for _, n := range l.Nodes() {
				all = append(all, nodeRequest(n.Name))
			}
			return all
		})).
		WithOptions(options).
		Complete(r)
}

// Reconcile takes back what goes back on one node.
func (r *releaseReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	node := req.Name
	if wait, err := r.gather(ctx, node); wait > 0 || err != nil {
		return reconcile.Result{RequeueAfter: wait}, err
	}
	leaving, err := r.leaving(ctx, node)
	if err != nil || len(leaving) == 0 {
		return reconcile.Result{}, err
	}
	from, err := r.lookFirst(ctx, node, leaving)
	if err != nil {
		return reconcile.Result{}, err
	}
	if err := r.confirm(ctx, leaving, from); err != nil {
		return reconcile.Result{}, err
	}
	r.underway.set(maps.Keys(leaving), true)
	err = r.release(ctx, node, leaving, from.pods)
	r.underway.set(maps.Keys(leaving), false)
	for owner := range leaving {
		r.done.Add(source.Request(owner)...)
	}
	metrics.Reconciled("release", r.clock.Now())
	switch {
	case errors.Is(err, ciliumpool.ErrGone):
		// With the node the entries are gone, as the ledger will learn.
		return reconcile.Result{}, nil
	case err != nil:
		err = fmt.Errorf("take back addresses on node %s: %w", node, err)
		return reconcile.Result{}, errors.Join(err, r.tell(ctx, leaving, err))
	}
	return reconcile.Result{}, nil
}

// leaving are the FixedIPs whose addresses go back on the node, as the caches show it: those that are
// deleted and those that are to be. Key: the owner in the pool.
func (r *releaseReconciler) leaving(ctx context.Context, node string) (map[string]*v1alpha1.FixedIP, error) {
	leaving := map[string]*v1alpha1.FixedIP{}
	for _, owner := range r.owners(node) {
		for _, req := range source.Request(owner) {
			s, err := r.situation(ctx, r.cached, req.NamespacedName)
			if err != nil {
				return nil, err
			}
			if returnsOn(s, plan.Decide(s)) == node {
				leaving[owner] = s.Record
			}
		}
	}
	return leaving, nil
}

// lookFirst lists the pods on the node, as the API server says, and has it asked at the same time for the
// workloads of the FixedIPs that are to be deleted, which confirm then knows: where it is busy, one call
// after another is what takes the time.
func (r *releaseReconciler) lookFirst(ctx context.Context, node string, leaving map[string]*v1alpha1.FixedIP) (look, error) {
	from := look{Reader: r.cached, live: r.live, node: node, workloads: map[absence]*identity.Workload{}, absences: r.absences}
	calls, ctx := errgroup.WithContext(ctx)
	calls.SetLimit(liveCalls)
	calls.Go(func() (err error) {
		from.pods, err = r.podsOn(ctx, node)
		return err
	})
	asked := map[absence]bool{}
	for _, record := range leaving {
		owner := identity.OwnerOf(record)
		if record.DeletionTimestamp == nil && owner.Kind != podKind {
			asked[absence{owner.GroupKind(), types.NamespacedName{Namespace: record.Namespace, Name: owner.Name}}] = true
		}
	}
	var mu sync.Mutex
	for key := range asked {
		calls.Go(func() error {
			w, err := look{absences: r.absences}.workload(ctx, r.workloads, key.kind, key.key.Namespace, key.key.Name)
			if err == nil {
				mu.Lock()
				from.workloads[key] = w
				mu.Unlock()
			}
			return err
		})
	}
	err := calls.Wait()
	return from, err
}

// returnsOn is the node on which releaseReconciler is to take addresses back as the next step about an
// identity; empty: that is not the next step.
func returnsOn(s plan.Situation, next plan.Next) string {
	switch {
	case s.Record == nil || len(s.Held) == 0 || len(s.Arriving)+len(s.Away) > 0:
		// What was moved goes back in an order of its own.
		return ""
	case next.Step == plan.ReleaseEntries && s.Record.DeletionTimestamp != nil:
		return next.Node
	case next.Step == plan.DeleteRecord:
		return s.Held[0].Node
	}
	return ""
}

// confirm keeps of the FixedIPs those that are being deleted, as the API server says, and deletes
// those that are to be, if what it says of pods and workloads is what the caches say. One that was
// made anew under the name keeps its address.
func (r *releaseReconciler) confirm(ctx context.Context, leaving map[string]*v1alpha1.FixedIP, from look) error {
	var mu sync.Mutex
	stays := map[string]bool{}
	calls, ctx := errgroup.WithContext(ctx)
	calls.SetLimit(liveCalls)
	for owner, record := range leaving {
		calls.Go(func() error {
			confirm := r.stillDeleted
			if record.DeletionTimestamp == nil {
				confirm = r.delete(from)
			}
			goes, err := confirm(ctx, record)
			if !goes {
				mu.Lock()
				stays[owner] = true
				mu.Unlock()
			}
			return err
		})
	}
	err := calls.Wait()
	maps.DeleteFunc(leaving, func(owner string, _ *v1alpha1.FixedIP) bool { return stays[owner] })
	return err
}

// stillDeleted tells whether the API server says that a FixedIP is being deleted.
func (r *releaseReconciler) stillDeleted(ctx context.Context, record *v1alpha1.FixedIP) (bool, error) {
	var now v1alpha1.FixedIP
	err := r.live.Get(ctx, client.ObjectKeyFromObject(record), &now)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("read FixedIP %s: %w", client.ObjectKeyFromObject(record), err)
	}
	return err == nil && now.UID == record.UID && now.DeletionTimestamp != nil, nil
}

// delete deletes a FixedIP if it is still so that its time has come.
func (r *releaseReconciler) delete(from client.Reader) func(ctx context.Context, record *v1alpha1.FixedIP) (bool, error) {
	return func(ctx context.Context, record *v1alpha1.FixedIP) (bool, error) {
		key := client.ObjectKeyFromObject(record)
		s, err := r.situation(ctx, from, key)
		if err != nil || s.Record == nil || s.Record.UID != record.UID || plan.Decide(s).Step != plan.DeleteRecord {
			// Whatever it is now, the watches will show it.
			return false, err
		}
		err = deleteRecord(ctx, r.live, r.events, s)
		if apierrors.IsConflict(err) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("delete FixedIP %s: %w", key, err)
		}
		return true, nil
	}
}

// release puts the addresses into their cooldown. A pod that was bound to the node during the write has its entry
// again.
func (r *releaseReconciler) release(ctx context.Context, node string, leaving map[string]*v1alpha1.FixedIP, pods map[string]*corev1.Pod) error {
	at := r.clock.Now()
	released, err := r.writer.Apply(ctx, ciliumpool.Change{
		Request: ciliumpool.Request{Node: node, Decide: func(n pool.Node) ([]pool.Edit, error) {
			var edits []pool.Edit
			for _, owner := range slices.Sorted(maps.Keys(leaving)) {
				if entries := n.Release(owner, nil, at); !needs(pods[owner], entries) {
					edits = append(edits, entries...)
				}
			}
			return edits, nil
		}},
		Confirm: func(ctx context.Context, written []pool.Edit) ([]pool.Edit, error) {
			pods, err := r.podsOn(ctx, node)
			if err != nil {
				return nil, err
			}
			return slices.DeleteFunc(slices.Clone(written), func(e pool.Edit) bool { return !counts(pods[e.From.Owner], e) }), nil
		},
	})
	metrics.Released(metrics.Deleted, len(released))
	if len(released) > 0 {
		klog.FromContext(ctx).Info("Addresses released", "node", node, "entries", len(released))
	}
	if errors.Is(err, ciliumpool.ErrUndone) {
		return nil
	}
	return err
}

// podsOn are the pods that are bound to a node, as the API server says. Key: as pools name them.
func (r *releaseReconciler) podsOn(ctx context.Context, node string) (map[string]*corev1.Pod, error) {
	var list corev1.PodList
	if err := r.live.List(ctx, &list, client.MatchingFields{"spec.nodeName": node}); err != nil {
		return nil, fmt.Errorf("list the pods on node %s: %w", node, err)
	}
	pods := make(map[string]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		p := &list.Items[i]
		pods[pool.OwnerKey(p.Namespace, p.Name)] = p
	}
	return pods, nil
}

// needs tells whether a pod that is bound to the node may have one of the edited addresses.
func needs(pod *corev1.Pod, edits []pool.Edit) bool {
	var addrs []netip.Addr
	for _, e := range edits {
		addrs = append(addrs, e.Addr)
	}
	return pod != nil && !plan.Spares(pod, addrs)
}

// counts tells whether a pod that is bound to the node by now counts on an address that was taken. One
// that has opted out does not, unless it was given the address all the same.
func counts(pod *corev1.Pod, taken pool.Edit) bool {
	if pod != nil && identity.OptsOut(pod.Annotations) && len(pod.Status.PodIPs) == 0 {
		return false
	}
	return needs(pod, []pool.Edit{taken})
}

// tell says on each FixedIP what keeps its address from going back, and lets those go that are
// overdue: a finalizer must not keep a namespace for ever. Their entries stand until the pool can be
// written; then they go as any that no workload claims.
func (r *releaseReconciler) tell(ctx context.Context, leaving map[string]*v1alpha1.FixedIP, cause error) error {
	var errs []error
	for _, record := range leaving {
		due := r.clock.Now().Add(r.deadline)
		if at := record.DeletionTimestamp; at != nil {
			due = at.Add(r.deadline)
		}
		if r.clock.Now().Before(due) {
			r.events.Eventf(record, nil, corev1.EventTypeWarning, "ReleaseFailed", "ReleaseEntries", "Address %v can't be taken back, and it is tried again until %s: %v", record.Spec.IPs, due.UTC().Format(time.RFC3339), cause)
			continue
		}
		r.events.Eventf(record, nil, corev1.EventTypeWarning, "ReleaseForced", "FinishRecord", "Address %v could not be taken back for %s; the FixedIP goes, and the entry when the pool can be written: %v", record.Spec.IPs, r.deadline, cause)
		if err := finish(ctx, r.live, record); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
