package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/request"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// supersededRetry is how long a step waits whose situation has changed meanwhile.
const supersededRetry = time.Second

// recordReconciler owns FixedIPs, and the release of the owned entries of pools. A request names
// an identity: the namespace and the name of its pod, which is also the name of its FixedIP.
//
// Every reconcile makes one step that plan.Decide found, and every step changes what the watches
// show, so that the next one follows. A step that takes something away is preceded by a look at
// the API server itself: caches may be old, and what is given up can't be had back.
type recordReconciler struct {
	ledger *ledger.Ledger
	writer *ciliumpool.Writer
	cached client.Reader
	live   client.Client
	// kinds are those whose pods may have fixed addresses, and workloads the objects of these kinds.
	kinds     identity.Kinds
	workloads workloadStore
	events    events.EventRecorder
	clock     clock.Clock
	// failover is what the arguments of the scheduler say of identities that say nothing.
	failover v1alpha1.Failover
	// poolsSeen tells whether the ledger has all pools that stood at the start, and ready whether all else
	// is known that stood then: before that nothing can be said of anybody.
	poolsSeen toolscache.InformerSynced
	ready     []toolscache.InformerSynced
	// leaving is told of nodes on which addresses of deleted FixedIPs go back.
	leaving *source.Feed
	idle    idleTimes
	// finishing is told of identities whose records are to be seen off.
	finishing *source.Feed
	underway  *underway
	// deadline is that of releaseReconciler.
	deadline time.Duration
	// silence is Config.AgentSilence.
	silence time.Duration
	// sweep is how often an identity is looked at without an event; of a workload with slots, how often
	// all are.
	sweep time.Duration
}

func (r *recordReconciler) setup(mgr manager.Manager, feed *source.Feed) error {
	return builder.ControllerManagedBy(mgr).
		Named("record").
		For(&v1alpha1.FixedIP{}, builder.WithPredicates(source.BesideLedger)).
		WatchesRawSource(feed.Resynced(source.Resync{
			Clock: r.clock, Period: r.sweep,
			All:   func() []string { return source.Identities(r.ledger) },
			Ready: r.ready,
		})).
		Watches(&corev1.Pod{}, newEndsFirst(r.ofPod), builder.WithPredicates(source.AfterStart)).
		WithOptions(source.Workers(32)).
		Complete(r)
}

// ofPod asks for the identity of a pod, if it has or had one.
func (r *recordReconciler) ofPod(ctx context.Context, obj client.Object) []reconcile.Request {
	pod := obj.(*corev1.Pod)
	_, fixed, err := identity.Of(pod, r.kinds, identity.NoControllers)
	key := pool.OwnerKey(pod.Namespace, pod.Name)
	marks := len(r.ledger.Held(key)) + len(r.ledger.Away(key)) + len(r.ledger.Arriving(key))
	if (err != nil || !fixed) && marks == 0 && !r.recorded(ctx, pod) {
		return nil
	}
	return source.Request(key)
}

// recorded tells whether a pod has a FixedIP: one without a workload may, and lack its entry.
func (r *recordReconciler) recorded(ctx context.Context, pod *corev1.Pod) bool {
	var record v1alpha1.FixedIP
	return r.cached.Get(ctx, client.ObjectKeyFromObject(pod), &record, client.UnsafeDisableDeepCopy) == nil
}

// Reconcile makes the next step about one identity.
func (r *recordReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	result, err := r.advance(ctx, req)
	if err == nil {
		// What has come first once (see endsFirst) is not urgent the next time.
		result.Priority = ptr.To(0)
	}
	return result, err
}

func (r *recordReconciler) advance(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if r.underway.has(pool.OwnerKey(req.Namespace, req.Name)) {
		// It is asked for again. Until then the watches may show the pool without the address and not yet
		// that the record is deleted, which would be asked of the API server.
		return reconcile.Result{}, nil
	}
	s, err := r.situation(ctx, r.cached, req.NamespacedName)
	if err != nil {
		return untilKnown(ctx, err)
	}
	s.Idle = r.idle.look(req.String(), s.Record != nil, s.Pod, s.Now)
	next := plan.Decide(s)
	if node := returnsOn(s, next); node != "" {
		r.leaving.Add(nodeRequest(node))
		return reconcile.Result{}, nil
	}
	if destroys(next.Step) || next.Step == plan.ProjectEntries {
		// The caches suggest to give something up: ask the API server whether it is so.
		if s, err = r.situation(ctx, r.live, req.NamespacedName); err != nil {
			return untilKnown(ctx, err)
		}
		next = plan.Decide(s)
	}
	if next.Why != "" {
		if err := r.tellContested(ctx, pool.OwnerKey(req.Namespace, req.Name), s, next.Why); err != nil {
			return reconcile.Result{}, err
		}
	}
	if err := r.make(ctx, req.NamespacedName, s, next); err != nil {
		if errors.Is(err, errSuperseded) || apierrors.IsConflict(err) {
			// The world has moved on, which the watches will show, or have shown already.
			klog.FromContext(ctx).V(3).Info("Step superseded", "step", next.Step, "err", err)
			return reconcile.Result{RequeueAfter: supersededRetry}, nil
		}
		return reconcile.Result{}, fmt.Errorf("%s of %s: %w", next.Step, req, err)
	}
	metrics.Reconciled("record", r.clock.Now())
	if next.Step == plan.Bar {
		// The mark names nobody, so that no watch asks for the identity, and it goes when it has cooled down.
		return reconcile.Result{RequeueAfter: supersededRetry}, nil
	}
	if next.At.IsZero() || s.Record == nil && len(s.Held)+len(s.Arriving)+len(s.Away) == 0 {
		return reconcile.Result{}, nil
	}
	return untilSwept(next.At.Sub(r.clock.Now()), r.sweep), nil
}

// untilSwept asks for an identity again after some time, if no sweep does so before.
func untilSwept(after, interval time.Duration) reconcile.Result {
	if after > interval {
		return reconcile.Result{}
	}
	return reconcile.Result{RequeueAfter: max(time.Second, after)}
}

func destroys(s plan.Step) bool {
	switch s {
	case plan.DeleteRecord, plan.ReplaceRecord, plan.ReleaseEntries, plan.Depart, plan.Bar, plan.ReleaseHome:
		return true
	}
	// FinishRecord: a record that is being deleted stays so, and to see it off takes nothing from anybody.
	return false
}

// situation gathers what is known of an identity from a reader: the caches, or the API server.
// What the pools say always comes from the ledger; whoever writes to a pool tests what he saw.
func (r *recordReconciler) situation(ctx context.Context, from client.Reader, key types.NamespacedName) (plan.Situation, error) {
	owner := pool.OwnerKey(key.Namespace, key.Name)
	s := plan.Situation{
		Held:     r.ledger.Held(owner),
		Arriving: r.ledger.Arriving(owner),
		Away:     r.ledger.Away(owner),
		Failover: r.failover,
		Now:      r.clock.Now(),
		Deadline: r.deadline,
	}
	contested, err := r.contests(ctx, owner, s.Held)
	if err != nil {
		return s, err
	}
	s.Contested = contested
	var gk schema.GroupKind
	var record v1alpha1.FixedIP
	switch err := from.Get(ctx, key, &record); {
	case err == nil && record.Spec.Slot:
		// slotReconciler's.
		return plan.Situation{}, nil
	case err == nil:
		s.Record = &record
		gk, s.Workload.OwnerReference = identity.OwnerOf(&record).GroupKind(), record.Spec.Owner
	case !apierrors.IsNotFound(err):
		return s, fmt.Errorf("read FixedIP %s: %w", key, err)
	case len(s.Held) > 0:
		label, name, ok := r.ledger.WorkloadOf(s.Held[0])
		kind, known := r.kinds.Labelled(label)
		if ok && known && kind.Identity != identity.PodName {
			// It is the holder of a slot.
			return plan.Situation{}, nil
		}
		if ok && known && kind.GroupKind() != identity.StatefulSets {
			gk, s.Workload.OwnerReference = kind.GroupKind(), v1alpha1.OwnerReference{Kind: kind.Kind, Name: name}
		}
		// Otherwise whose it is shows when the pod was read.
	case len(s.Arriving)+len(s.Away) > 0:
		// Marks name the pod alone.
		name, ok := identity.StatefulSetOf(key.Name)
		if !ok {
			return plan.Situation{}, nil
		}
		gk, s.Workload.OwnerReference = identity.StatefulSets, v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: name}
	default:
		return s, nil
	}
	var pod corev1.Pod
	switch err := from.Get(ctx, key, &pod); {
	case err == nil:
		s.Pod = &pod
	case !apierrors.IsNotFound(err):
		return s, fmt.Errorf("read pod %s: %w", key, err)
	}
	if s.Record == nil && s.Workload.Name == "" {
		resource := r.ledger.ResourceOf(s.Held[0])
		owner, ok := plan.Claimant(key.Name, resource, s.Pod)
		if !ok {
			return plan.Situation{}, nil
		}
		gk, s.Workload.OwnerReference = identity.StatefulSets, owner
		s.Guessed = !plan.Names(resource, owner)
	}
	places, err := r.places(ctx, s.Record)
	if err != nil {
		return s, err
	}
	s.Places = places
	if s.Workload.Kind == podKind {
		r.ofItself(&s)
		return s, nil
	}
	workload, err := r.workload(ctx, from, gk, key, &s.Workload)
	if workload != nil {
		// A pod that opted out says nothing of the next of its name: its workload may want that otherwise by now.
		s.Asked = s.Pod != nil && request.Asks(s.Pod.Annotations, workload.Annotations)
	}
	return s, err
}

// unheld tells that no FixedIP holds any of the addresses. A claim may have taken an address that
// rests while the record of its former owner is still on its way out: two records never hold one
// address, not even for that moment.
func (r *recordReconciler) unheld(ctx context.Context, ips []string) error {
	for _, ip := range ips {
		a, err := address.Parse(ip)
		if err != nil {
			return err
		}
		holders, err := index.FixedIPsWithIP(ctx, r.cached, a)
		if err != nil {
			return err
		}
		if len(holders) > 0 {
			return fmt.Errorf("FixedIP %s still holds %s: %w", client.ObjectKeyFromObject(holders[0]), a, errSuperseded)
		}
	}
	return nil
}

// podKind is the kind of workload of a pod that has none.
const podKind = "Pod"

// ofItself describes the workload of an identity that is a pod of its own.
func (r *recordReconciler) ofItself(s *plan.Situation) {
	if s.Pod == nil {
		return
	}
	s.Workload.Exists, s.Workload.UID = true, s.Pod.UID
	s.Asked = request.Asks(s.Pod.Annotations, nil)
	policy, err := identity.PodReclaim(s.Pod.Annotations)
	if err != nil {
		r.events.Eventf(s.Pod, nil, corev1.EventTypeWarning, "InvalidAnnotation", "ReadPolicy", "%v; its address is kept as before", err)
		if s.Record != nil {
			return
		}
		policy = identity.NamedReclaim()
	}
	s.Workload.Reclaim = &policy
}

// make makes one step.
func (r *recordReconciler) make(ctx context.Context, key types.NamespacedName, s plan.Situation, next plan.Next) error {
	logger := klog.FromContext(ctx)
	switch next.Step {
	case plan.Nothing:
		return nil
	case plan.CreateRecord:
		if err := r.unheld(ctx, next.Spec.IPs); err != nil {
			return err
		}
		record := &v1alpha1.FixedIP{Spec: next.Spec}
		record.Namespace, record.Name = key.Namespace, key.Name
		controllerutil.AddFinalizer(record, v1alpha1.Finalizer)
		if err := r.live.Create(ctx, record); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		logger.Info("Claim recorded", "ips", next.Spec.IPs, "node", next.Spec.NodeName)
		return nil
	case plan.UpdateRecord:
		record := s.Record.DeepCopy()
		record.Spec = next.Spec
		controllerutil.AddFinalizer(record, v1alpha1.Finalizer)
		metav1.SetMetaDataAnnotation(&record.ObjectMeta, v1alpha1.AnnotationUID, string(record.UID))
		// Update carries the resourceVersion that was read.
		if err := r.live.Update(ctx, record); err != nil {
			return err
		}
		if from, to := s.Record.Spec.NodeName, next.Spec.NodeName; from != "" && from != to {
			logger.Info("Address moved", "ips", next.Spec.IPs, "from", from, "to", to)
			about := []client.Object{s.Record}
			if s.Pod != nil {
				about = append(about, s.Pod)
			}
			for _, o := range about {
				r.events.Eventf(o, nil, corev1.EventTypeNormal, "Moved", "FollowPod", "Address %v moved from node %s to node %s", next.Spec.IPs, from, to)
			}
		}
		return nil
	case plan.UpdateStatus:
		record := s.Record.DeepCopy()
		record.Status = next.Status
		if err := r.live.Status().Update(ctx, record); err != nil {
			return err
		}
		r.tellObstacles(s.Record, next.Status.Conditions)
		return nil
	case plan.ProjectEntries:
		return r.project(ctx, s, next)
	case plan.DeleteRecord:
		return deleteRecord(ctx, r.live, r.events, s)
	case plan.ReplaceRecord:
		r.events.Eventf(s.Pod, nil, corev1.EventTypeNormal, "Reassigned", "ReplaceRecord", "It has other addresses on node %s; address %v, which was on node %s, goes back", s.Pod.Spec.NodeName, s.Record.Spec.IPs, s.Record.Spec.NodeName)
		err := r.live.Delete(ctx, s.Record, client.Preconditions{UID: &s.Record.UID, ResourceVersion: &s.Record.ResourceVersion})
		return client.IgnoreNotFound(err)
	case plan.ReleaseEntries:
		return r.release(ctx, key, s, next)
	case plan.Depart:
		return r.depart(ctx, key, next)
	case plan.Bar:
		return r.bar(ctx, key, next)
	case plan.ReleaseHome:
		return r.releaseHome(ctx, key, next)
	case plan.FinishRecord:
		if !r.finishing.Add(reconcile.Request{NamespacedName: key}) {
			return fmt.Errorf("nobody sees records off yet: %w", errSuperseded)
		}
		return nil
	}
	return fmt.Errorf("unknown step %v", next.Step)
}

// deleteRecord deletes the FixedIP of a situation, provided that it is the one that was read. The event is
// on the workload: there it is found when the FixedIP is gone, and those of a thousand pods are one event
// with a count, and not a thousand requests.
func deleteRecord(ctx context.Context, api client.Client, events events.EventRecorder, s plan.Situation) error {
	owner := identity.OwnerOf(s.Record)
	workload := &identity.Workload{GroupKind: owner.GroupKind(), APIVersion: owner.APIVersion, Namespace: s.Record.Namespace, Name: owner.Name, UID: owner.UID}
	events.Eventf(objectOf(workload), nil, corev1.EventTypeNormal, "Reclaimed", "DeleteRecord", "Address %v of pod %s goes back: the pod is gone, and the workload is gone, has no such replica or opted out", s.Record.Spec.IPs, s.Record.Name)
	err := api.Delete(ctx, s.Record, client.Preconditions{UID: &s.Record.UID, ResourceVersion: &s.Record.ResourceVersion})
	return client.IgnoreNotFound(err)
}
