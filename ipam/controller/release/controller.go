// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/gather"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reclaim"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

const (
	// parallelReads is the maximum number of parallel reads for one node.
	parallelReads = 32
	// minRetry and maxRetry are the minimum and the maximum time between two tries on one node.
	minRetry, maxRetry = 400 * time.Millisecond, 30 * time.Second
)

// Controller releases the batches. A request names a node.
type Controller struct {
	*gather.Gatherer
	Batches *Batches
	Writer  *ciliumpool.Writer
	// Deletions is the maximum number of FixedIPs of one batch that are deleted at the same time; 0 means 1. If it is 1, the
	// order of the requests is that of the identities.
	Deletions int
	// Again receives the identities for which confirm decides not to release the addresses, for the controller of FixedIPs.
	Again    *source.Requests
	notFound notFoundCache
}

// Setup adds the controller to a manager.
func (c *Controller) Setup(mgr ctrl.Manager) error {
	options := source.Workers(32)
	options.RateLimiter = workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](minRetry, maxRetry)
	return ctrl.NewControllerManagedBy(mgr).
		Named("release").
		WatchesRawSource(c.Batches.queue.Source(nil, c.Batches.requests)).
		WithOptions(options).
		Complete(c)
}

// requests returns a request for every node with a batch: identities may have been added before the controller started.
func (b *Batches) requests() []ctrl.Request {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []ctrl.Request
	for node := range b.waiting {
		all = append(all, source.ForName(node))
	}
	return all
}

// Reconcile releases the batch of one node.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	node := req.Name
	terminating, err := c.terminating(ctx, node)
	if err != nil {
		return ctrl.Result{}, err
	}
	if wait := c.Batches.wait(node, terminating); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	identities, landed := c.Batches.take(node)
	defer landed()
	if len(identities) == 0 {
		return ctrl.Result{}, nil
	}
	if err = c.releaseBatch(ctx, node, identities); err != nil {
		// The error makes the queue retry, with increasing delays.
		c.Batches.add(node, identities...)
		return ctrl.Result{}, err
	}
	metrics.Reconciled("release", c.Clock.Now())
	return ctrl.Result{}, nil
}

// terminating returns the identities that have an entry on the node and a pod that is terminating there, and that may join the
// batch when the pod has ended (see expected). Other pods, such as those of a rolling update, delay no batch.
func (c *Controller) terminating(ctx context.Context, node string) (identities []client.ObjectKey, err error) {
	pods, err := index.PodsOnNode(ctx, c.Cached, node)
	if err != nil {
		return nil, err
	}
	owners := c.Gatherer.Ledger.OwnersOn(node)
	for i := range pods {
		key := client.ObjectKeyFromObject(&pods[i])
		if pods[i].DeletionTimestamp == nil || !slices.Contains(owners, pool.OwnerKey(key.Namespace, key.Name)) {
			continue
		}
		expected, err := c.expected(ctx, key)
		if err != nil {
			return nil, err
		}
		if !expected {
			identities = append(identities, key)
		}
	}
	return identities, nil
}

// expected reports whether the caches show that an identity will not join a batch when its pod has ended: its workload
// exists and has such a pod, or there is no FixedIP with the name of the pod. It also returns true if the workloads are not
// known yet. It does not read the reclaim policy, so it returns false also for an identity whose addresses stay reserved,
// such as that of a bare pod with the default policy. The result decides only how long a batch waits.
func (c *Controller) expected(ctx context.Context, key client.ObjectKey) (bool, error) {
	record, err := index.Get[v1alpha1.FixedIP](ctx, c.Cached, key)
	if err != nil || record == nil {
		// Slots, and entries without a FixedIP, are released in no batch.
		return true, err
	}
	if record.DeletionTimestamp != nil {
		return false, nil
	}
	owner := identity.OwnerOf(record)
	if owner.Kind == identity.PodKind {
		return false, nil
	}
	w, err := c.Workloads.Get(owner.GroupKind(), key.Namespace, owner.Name)
	// An error means that the workloads are not known yet.
	return err != nil || w != nil && !w.Excludes(key.Name), nil
}

// releaseBatch decides about the identities again, from the objects that nodeReader returns. It releases the addresses that an
// identity has on the node if the decision is still to release them.
func (c *Controller) releaseBatch(ctx context.Context, node string, identities []client.ObjectKey) error {
	objects := nodeReader{Reader: c.Cached, live: c.Live, node: node}
	calls, callCtx := errgroup.WithContext(ctx)
	calls.SetLimit(parallelReads)
	calls.Go(func() (err error) {
		objects.pods, err = c.podsOn(callCtx, node)
		return err
	})
	// Read the workloads in parallel: sequential reads take too long if the API server is busy.
	keys := c.workloadsOf(ctx, identities).UnsortedList()
	missing := make([]bool, len(keys))
	for i, key := range keys {
		calls.Go(func() error {
			found, err := c.notFound.workload(callCtx, c.Workloads, c.Clock.Now(), key)
			missing[i] = err == nil && found == nil
			return err
		})
	}
	if err := calls.Wait(); err != nil {
		return err
	}
	gone := sets.New[objectKey]()
	for i, key := range keys {
		if missing[i] {
			gone.Insert(key)
		}
	}
	records, err := c.confirm(ctx, objects, gone, identities)
	if err != nil {
		return err
	}
	switch err := c.write(ctx, node, records, objects.pods); {
	case errors.Is(err, ciliumpool.ErrGone):
		// The entries were deleted with the CiliumNode.
		return nil
	case err != nil:
		err = fmt.Errorf("release addresses on node %s: %w", node, err)
		return errors.Join(err, c.reportFailure(ctx, records, err))
	}
	return nil
}

// workloadsOf returns the workloads of the identities whose FixedIPs are not being deleted yet. Bare pods have none.
func (c *Controller) workloadsOf(ctx context.Context, identities []client.ObjectKey) sets.Set[objectKey] {
	found := sets.New[objectKey]()
	for _, key := range identities {
		record, err := index.Get[v1alpha1.FixedIP](ctx, c.Cached, key)
		if err != nil || record == nil || record.DeletionTimestamp != nil {
			continue
		}
		if owner := identity.OwnerOf(record); owner.Kind != identity.PodKind {
			found.Insert(objectKey{owner.GroupKind(), key.Namespace, owner.Name})
		}
	}
	return found
}

// confirm decides about each identity again, from objects. gone contains the workloads that the API server did not find at
// about the time at which the pods in objects were listed; such a workload counts as deleted unless the cache has it. If the
// decision is still to release the addresses of the identity on the node, the result contains the FixedIP of the identity;
// confirm deletes the FixedIP first if it is not being deleted yet. Key: the owner in the pool. confirm adds the other
// identities to c.Again.
func (c *Controller) confirm(ctx context.Context, objects nodeReader, gone sets.Set[objectKey], identities []client.ObjectKey) (map[string]*v1alpha1.FixedIP, error) {
	reader := gather.Reader{Objects: objects, Workload: func(ctx context.Context, gk schema.GroupKind, namespace, name string) (*identity.Workload, error) {
		key := objectKey{gk, namespace, name}
		if gone.Has(key) && notCached(c.Workloads, key) {
			return nil, nil
		}
		return c.notFound.workload(ctx, c.Workloads, c.Clock.Now(), key)
	}}
	// states contains the state of each identity to release, and nil for each of the others.
	states := make([]*reclaim.State, len(identities))
	calls, callCtx := errgroup.WithContext(ctx)
	calls.SetLimit(parallelReads)
	for i, key := range identities {
		calls.Go(func() error {
			s, ok, err := c.Gatherer.Identity(callCtx, reader, key)
			if err == nil && ok && Node(s, reclaim.Decide(s)) == objects.node {
				states[i] = &s
			}
			return err
		})
	}
	if err := calls.Wait(); err != nil {
		return nil, err
	}
	// One deletion waits for one write of etcd, so deletions one after another would delay the pool entries of a large batch.
	deletions, callCtx := errgroup.WithContext(ctx)
	deletions.SetLimit(max(1, c.Deletions))
	for i, key := range identities {
		s := states[i]
		if s == nil || s.Record.DeletionTimestamp != nil {
			continue
		}
		deletions.Go(func() error {
			err := DeleteRecord(callCtx, c.Live, c.Events, *s)
			switch {
			case apierrors.IsConflict(err):
				states[i] = nil
			case err != nil:
				return fmt.Errorf("delete FixedIP %s: %w", key, err)
			}
			return nil
		})
	}
	if err := deletions.Wait(); err != nil {
		return nil, err
	}
	records := map[string]*v1alpha1.FixedIP{}
	for i, key := range identities {
		if states[i] == nil {
			c.Again.Add(ctrl.Request{NamespacedName: key})
			continue
		}
		records[pool.OwnerKey(key.Namespace, key.Name)] = states[i].Record
	}
	return records, nil
}

// Node returns the node in whose batch a Controller performs an action. It returns an empty string if the action does not
// release all entries that an identity with a FixedIP has on a node, or if the identity is a slot or has a moved or
// move-target entry.
func Node(s reclaim.State, a reclaim.Action) string {
	switch {
	case s.Record == nil || s.Slot || len(s.Held) == 0 || len(s.MoveTargets)+len(s.Moved) > 0:
		// Moved addresses are released in a different order.
		return ""
	case a.Type == reclaim.ReleaseEntries && s.Record.DeletionTimestamp != nil && len(a.Addrs) == 0:
		return a.Node
	case a.Type == reclaim.DeleteRecord:
		return s.Held[0].Node
	}
	return ""
}

// DeleteRecord deletes the FixedIP of a state if its version is still the one that was read. It returns nil if the FixedIP was
// deleted already. It records the event on the workload (or bare pod), so that the event remains visible after the deletion of
// the FixedIP and the events of a thousand FixedIPs become one event with a count.
func DeleteRecord(ctx context.Context, api client.Client, events events.EventRecorder, s reclaim.State) error {
	if err := api.Delete(ctx, s.Record, client.Preconditions{UID: &s.Record.UID, ResourceVersion: &s.Record.ResourceVersion}); err != nil {
		return client.IgnoreNotFound(err)
	}
	owner := identity.OwnerOf(s.Record)
	workload := &identity.Workload{GroupKind: owner.GroupKind(), APIVersion: owner.APIVersion, Namespace: s.Record.Namespace, Name: owner.Name, UID: owner.UID}
	events.Eventf(gather.Object(workload), nil, corev1.EventTypeNormal, "AddressReleased", "DeleteRecord", "The IPs of FixedIP %s are released (%s): no pod uses them, and the workload or the bare pod was deleted, was scaled down or opted out", s.Record.Name, strings.Join(s.Record.Spec.IPs, ", "))
	return nil
}

// Finish removes the finalizer of a FixedIP. It returns nil if the FixedIP no longer exists.
func Finish(ctx context.Context, api client.Client, record *v1alpha1.FixedIP) error {
	record = record.DeepCopy()
	controllerutil.RemoveFinalizer(record, v1alpha1.Finalizer)
	if err := api.Update(ctx, record); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("remove the finalizer of FixedIP %s: %w", client.ObjectKeyFromObject(record), err)
	}
	return nil
}

// write puts the addresses of the FixedIPs into cooldown, except those that a pod in pods may use. If a pod that relies on a
// released address was bound to the node during the write, write restores the entry. Key of records and pods: the owner in
// the pool.
func (c *Controller) write(ctx context.Context, node string, records map[string]*v1alpha1.FixedIP, pods map[string]*corev1.Pod) error {
	if len(records) == 0 {
		return nil
	}
	at := c.Clock.Now()
	released, err := c.Writer.Apply(ctx, ciliumpool.Change{
		WriteRequest: ciliumpool.WriteRequest{Node: node, Decide: func(n pool.NodePool) ([]pool.EntryChange, error) {
			var edits []pool.EntryChange
			for _, owner := range slices.Sorted(maps.Keys(records)) {
				if entries := n.Release(owner, nil, at); !MayUse(pods[owner], node, entries) {
					edits = append(edits, entries...)
				}
			}
			return edits, nil
		}},
		Confirm: func(ctx context.Context, written []pool.EntryChange) ([]pool.EntryChange, error) {
			pods, err := c.podsOn(ctx, node)
			if err != nil {
				return nil, err
			}
			return slices.DeleteFunc(slices.Clone(written), func(e pool.EntryChange) bool { return !reliesOn(pods[e.From.Owner()], node, e) }), nil
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

// podsOn returns the pods that are bound to a node, from the API server. Key: namespace/name.
func (c *Controller) podsOn(ctx context.Context, node string) (map[string]*corev1.Pod, error) {
	list, err := index.LivePodsOnNode(ctx, c.Live, node)
	pods := make(map[string]*corev1.Pod, len(list))
	for i := range list {
		pods[pool.OwnerKey(list[i].Namespace, list[i].Name)] = &list[i]
	}
	return pods, err
}

// MayUse reports whether a pod is bound to the node and may use one of the edited addresses. Addresses of move-target entries
// do not count: the agent gives them to no pod. pod may be nil.
func MayUse(pod *corev1.Pod, node string, edits []pool.EntryChange) bool {
	var addrs []netip.Addr
	for _, e := range edits {
		if e.From == nil || e.From.Kind != pool.MoveTarget {
			addrs = append(addrs, e.Addr)
		}
	}
	return pod != nil && pod.Spec.NodeName == node && len(addrs) > 0 && !reclaim.RunsWithout(pod, addrs)
}

// reliesOn reports whether a pod on the node relies on an address that was released. A pod that opted out relies on the
// address only if its status has that address.
func reliesOn(pod *corev1.Pod, node string, taken pool.EntryChange) bool {
	if pod != nil && identity.OptsOut(pod) && len(pod.Status.PodIPs) == 0 {
		return false
	}
	return MayUse(pod, node, []pool.EntryChange{taken})
}

// reportFailure records an event on each FixedIP with the reason why its addresses are not released, and removes the
// finalizers that are overdue. A finalizer must not block the deletion of a namespace forever. The entries of such a
// FixedIP remain until the pool can be written, and are then released like the entries of a claim without a workload.
func (c *Controller) reportFailure(ctx context.Context, records map[string]*v1alpha1.FixedIP, cause error) error {
	var errs []error
	for _, record := range records {
		due := c.Clock.Now().Add(c.Gatherer.Deadline)
		if at := record.DeletionTimestamp; at != nil {
			due = at.Add(c.Gatherer.Deadline)
		}
		if c.Clock.Now().Before(due) {
			c.Events.Eventf(record, nil, corev1.EventTypeWarning, "ReleaseFailed", "ReleaseEntries", "IP %s cannot be released; the release is retried, and the FixedIP is removed at %s even if its pool entries remain: %v", strings.Join(record.Spec.IPs, ", "), due.UTC().Format(time.RFC3339), cause)
			continue
		}
		c.Events.Eventf(record, nil, corev1.EventTypeWarning, "FinalizerForced", "FinishRecord", "IP %s could not be released for %s; the FixedIP is removed now, but its pool entries remain until the pool can be written: %v", strings.Join(record.Spec.IPs, ", "), c.Gatherer.Deadline, cause)
		errs = append(errs, Finish(ctx, c.Live, record))
	}
	return errors.Join(errs...)
}
