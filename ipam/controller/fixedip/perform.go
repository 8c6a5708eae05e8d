// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/allocate"
	"fixedip.io/fixedip/ipam/controller/internal/gather"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/controller/release"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/agentview"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reclaim"
	"fixedip.io/fixedip/ipam/core/reservation"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// errRefused means that the API server forbids the creation of a FixedIP, usually because of a ResourceQuota or an admission
// policy.
var errRefused = errors.New("the FixedIP is refused")

// errBusy means that FinishRecord has to wait because parallelFinishes finalizers are being removed already.
var errBusy = errors.New("the maximum number of finalizers is being removed")

// perform performs an action for an identity or a slot. again is the reconcile request that is queued when an agent answers a
// barrier request.
func (c *Controller) perform(ctx context.Context, again ctrl.Request, s reclaim.State, a reclaim.Action) error {
	// The pool entries name the holder.
	key := client.ObjectKey{Namespace: again.Namespace, Name: s.Holder}
	if a.Why != "" {
		if err := c.reportBlocked(ctx, pool.OwnerKey(key.Namespace, key.Name), s, a.Why); err != nil {
			return err
		}
	}
	var evidence agentview.Evidence
	if a.Type.NeedsEvidence() {
		var err error
		if evidence, err = c.prove(ctx, again, key, s, a); err != nil {
			return err
		}
	}
	switch a.Type {
	case reclaim.Nothing:
		return nil
	case reclaim.CreateRecord:
		return c.createRecord(ctx, key, s, a)
	case reclaim.UpdateRecord:
		return c.updateRecord(ctx, s, a)
	case reclaim.UpdateStatus, reclaim.Vacate, reclaim.AllowMove:
		return c.updateStatus(ctx, s, a)
	case reclaim.Allocate, reclaim.Withdraw, reclaim.Own:
		return c.allocate(ctx, s, a, evidence)
	case reclaim.DeleteRecord:
		return release.DeleteRecord(ctx, c.Live, c.Events, s)
	case reclaim.ReplaceRecord:
		if err := c.Live.Delete(ctx, s.Record, client.Preconditions{UID: &s.Record.UID, ResourceVersion: &s.Record.ResourceVersion}); err != nil {
			return client.IgnoreNotFound(err)
		}
		c.Events.Eventf(s.Pod, nil, corev1.EventTypeNormal, "Reassigned", "ReplaceRecord", "The pod has other IPs on node %s; the IPs that were reserved for it (%s) are released", s.Pod.Spec.NodeName, strings.Join(s.Record.Spec.IPs, ", "))
		return nil
	case reclaim.ReleaseEntries:
		return c.releaseEntries(ctx, key, s, a)
	case reclaim.MarkLeaving, reclaim.FenceTarget, reclaim.ReleaseHome:
		return c.releaseMoved(ctx, key, a)
	case reclaim.FinishRecord:
		if !c.finishing.begin(again) {
			return errBusy
		}
		defer func() { c.IdentityRequests.Add(c.finishing.end()...) }()
		return release.Finish(ctx, c.Live, s.Record)
	}
	return fmt.Errorf("unknown action %v", a.Type)
}

// createRecord creates the FixedIP of a claim. The FixedIP of a slot is named after the workload and the first address.
func (c *Controller) createRecord(ctx context.Context, key client.ObjectKey, s reclaim.State, a reclaim.Action) error {
	for i, ip := range a.Spec.IPs {
		addr, err := address.Parse(ip)
		if err != nil {
			return err
		}
		if i == 0 && a.Spec.AssignedTo == v1alpha1.Slot {
			key.Name = identity.SlotName(a.Spec.Owner.Name, addr)
		}
		if err := c.notNamed(ctx, addr, ""); err != nil {
			return err
		}
	}
	record := &v1alpha1.FixedIP{Spec: a.Spec}
	record.Namespace, record.Name = key.Namespace, key.Name
	record.LabelFromSpec()
	controllerutil.AddFinalizer(record, v1alpha1.Finalizer)
	switch err := c.Live.Create(ctx, record); {
	case apierrors.IsForbidden(err):
		if s.Pod != nil {
			c.Events.Eventf(s.Pod, nil, corev1.EventTypeWarning, "FixedIPRefused", "RecordClaim", "No FixedIP reserves the IPs of the pod (%s): %v; if node %s is deleted, the pod loses these IPs; check the quotas and the admission policies of the namespace; the controller retries every %v", strings.Join(a.Spec.IPs, ", "), err, a.Spec.NodeName, whileRefused)
		}
		return fmt.Errorf("%w: %w", errRefused, err)
	case apierrors.IsAlreadyExists(err):
		// The cache did not show the FixedIP yet. Its event queues the identity again.
		return nil
	case err != nil:
		return err
	}
	klog.FromContext(ctx).Info("Claim recorded", "ips", a.Spec.IPs, "node", a.Spec.NodeName)
	return nil
}

// notNamed returns an error that matches gather.ErrSuperseded if a FixedIP other than the one with the given UID names the
// address. A claim may take an address whose former FixedIP is still being removed, and two FixedIPs must not name the same
// address.
func (c *Controller) notNamed(ctx context.Context, addr netip.Addr, except types.UID) error {
	records, err := index.FixedIPsWithIP(ctx, c.Cached, addr)
	if err != nil {
		return err
	}
	for _, r := range records {
		if r.UID != except {
			return fmt.Errorf("FixedIP %s still has IP %s: %w", client.ObjectKeyFromObject(r), addr, gather.ErrSuperseded)
		}
	}
	return nil
}

func (c *Controller) updateRecord(ctx context.Context, s reclaim.State, a reclaim.Action) error {
	for _, ip := range a.Spec.IPs {
		if slices.Contains(s.Record.Spec.IPs, ip) {
			continue
		}
		// The pod has got an address of a further family.
		addr, err := address.Parse(ip)
		if err != nil {
			return err
		}
		if err := c.notNamed(ctx, addr, s.Record.UID); err != nil {
			return err
		}
	}
	record := s.Record.DeepCopy()
	record.Spec = a.Spec
	record.LabelFromSpec()
	controllerutil.AddFinalizer(record, v1alpha1.Finalizer)
	metav1.SetMetaDataAnnotation(&record.ObjectMeta, v1alpha1.AnnotationUID, string(record.UID))
	// Update carries the resourceVersion that was read.
	if err := c.Live.Update(ctx, record); err != nil {
		return err
	}
	c.replaced.add(s.Record, record, s.Now)
	from, to := s.Record.Spec.NodeName, a.Spec.NodeName
	if from == "" || from == to {
		return nil
	}
	klog.FromContext(ctx).Info("The node of an address has changed", "ips", a.Spec.IPs, "from", from, "to", to)
	about := []client.Object{s.Record}
	if s.Pod != nil {
		about = append(about, s.Pod)
	}
	for _, o := range about {
		c.Events.Eventf(o, nil, corev1.EventTypeNormal, "Moved", "FollowPod", "The node of IP %s is now %s instead of %s", strings.Join(a.Spec.IPs, ", "), to, from)
	}
	return nil
}

func (c *Controller) updateStatus(ctx context.Context, s reclaim.State, a reclaim.Action) error {
	record := s.Record.DeepCopy()
	record.Status = a.Status
	if err := c.Live.Status().Update(ctx, record); err != nil {
		return err
	}
	c.replaced.add(s.Record, record, s.Now)
	now := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionAllocated)
	before := meta.FindStatusCondition(s.Record.Status.Conditions, v1alpha1.ConditionAllocated)
	if now != nil && now.Status == metav1.ConditionFalse && (before == nil || before.Reason != now.Reason) {
		c.Events.Eventf(s.Record, nil, corev1.EventTypeWarning, "AllocationBlocked", "AllocateEntries", "%s", now.Message)
	}
	return nil
}

// reportBlocked records events with the reason why addresses of an identity are not released: on its FixedIP, and on the pods
// that use the addresses, which a user may have to delete.
func (c *Controller) reportBlocked(ctx context.Context, owner string, s reclaim.State, why string) error {
	if s.Record != nil {
		c.Events.Eventf(s.Record, nil, corev1.EventTypeWarning, "ReleaseBlocked", "ReleaseEntries", "%s", why)
	}
	for _, b := range s.Blockers {
		namespace, name, ok := pool.SplitOwnerKey(b.User)
		if !ok {
			continue
		}
		pod, err := index.Get[corev1.Pod](ctx, c.Cached, client.ObjectKey{Namespace: namespace, Name: name})
		if err != nil {
			return err
		}
		if pod != nil {
			named := pool.RedactOwner(owner, b.User)
			if named == owner {
				named = "pod " + owner
			}
			c.Events.Eventf(pod, nil, corev1.EventTypeWarning, "WrongPodAddress", "Verify",
				"The Cilium agent reports that this pod uses IP %s, which is reserved for %s and cannot be released before that use ends; if the pod runs with that IP, delete the pod", b.Addr, named)
		}
	}
	return nil
}

// allocate writes the entries of reserved addresses into the pool of their home node, or withdraws dynamic entries. It does
// not report a blocker: the next decision finds the blocker and reports it.
func (c *Controller) allocate(ctx context.Context, s reclaim.State, a reclaim.Action, evidence agentview.Evidence) error {
	r := allocate.Request{Node: a.Node, Addrs: a.Addrs, Entry: reservation.EntryOf(s.Record), Pod: s.Pod, Seen: evidence.Entries}
	if a.Type == reclaim.Withdraw {
		return c.Allocator.Withdraw(ctx, r)
	}
	if err := c.Allocator.Allocate(ctx, r); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Entries written", "ips", a.Addrs, "node", a.Node)
	c.Events.Eventf(s.Record, nil, corev1.EventTypeNormal, "Allocated", "AllocateEntries", "Reserved in the pool of node %s: IP %s", a.Node, address.Join(a.Addrs))
	return nil
}

// releaseEntries puts addresses of an identity on one node into cooldown. It returns ErrSuperseded if the pod is bound to
// the node and may use the addresses, or if the pool has an owned entry that the state does not have. If the pod was bound to
// the node during the write and may use the addresses, the release is undone, and the error is ErrSuperseded as well.
func (c *Controller) releaseEntries(ctx context.Context, key client.ObjectKey, s reclaim.State, a reclaim.Action) error {
	owner, at := pool.OwnerKey(key.Namespace, key.Name), c.Clock.Now()
	released, err := c.Writer.Apply(ctx, ciliumpool.Change{
		WriteRequest: ciliumpool.WriteRequest{Node: a.Node, FromAPIServer: true, Decide: func(n pool.NodePool) ([]pool.EntryChange, error) {
			edits := n.Release(owner, a.Addrs, at)
			switch {
			case release.MayUse(s.Pod, a.Node, edits):
				return nil, fmt.Errorf("pod %s is bound to node %s: %w", key, a.Node, gather.ErrSuperseded)
			case slices.ContainsFunc(edits, func(e pool.EntryChange) bool { return e.From.Kind == pool.Owned && !s.HoldsOn(a.Node, e.Addr) }):
				// In the state, the move of this address to the node is only prepared. The move has been completed meanwhile, so
				// that no other pool has an owned entry for the address.
				return nil, fmt.Errorf("the pool of node %s now has an owned entry for pod %s: %w", a.Node, key, gather.ErrSuperseded)
			}
			return edits, nil
		}},
		Confirm: func(ctx context.Context, written []pool.EntryChange) ([]pool.EntryChange, error) {
			pod, err := index.Get[corev1.Pod](ctx, c.Live, key)
			if err != nil || !release.MayUse(pod, a.Node, written) {
				return nil, err
			}
			return written, nil
		},
	})
	switch {
	case errors.Is(err, ciliumpool.ErrGone):
		return nil
	case errors.Is(err, ciliumpool.ErrUndone):
		return fmt.Errorf("pod %s was bound to node %s during the release and keeps its address: %w: %w", key, a.Node, gather.ErrSuperseded, err)
	case err != nil:
		return fmt.Errorf("release the entries of pod %s on node %s: %w", key, a.Node, err)
	}
	klog.FromContext(ctx).Info("Address released", "node", a.Node, "entries", len(released))
	metrics.Released(causeOf(s), len(released))
	return nil
}

// causeOf returns the cause of a release, for the metric releases_total.
func causeOf(s reclaim.State) metrics.Cause {
	switch {
	case s.Record == nil:
		return metrics.Unrecorded
	case s.Record.DeletionTimestamp != nil:
		return metrics.Deleted
	}
	return metrics.Superseded
}

// releaseMoved performs one step of the release of moved addresses: MarkLeaving, FenceTarget or ReleaseHome. Their order is
// documented at State.release in package reclaim.
func (c *Controller) releaseMoved(ctx context.Context, key client.ObjectKey, a reclaim.Action) error {
	owner, at := pool.OwnerKey(key.Namespace, key.Name), c.Clock.Now()
	err := c.Writer.Write(ctx, ciliumpool.WriteRequest{Node: a.Node, FromAPIServer: true, RequireUnchangedSpec: a.Type == reclaim.ReleaseHome, Decide: func(n pool.NodePool) ([]pool.EntryChange, error) {
		switch a.Type {
		case reclaim.MarkLeaving:
			return pool.Move{Owner: owner, From: a.From, Addrs: a.Addrs}.MarkLeaving(n)
		case reclaim.FenceTarget:
			return n.FenceTarget(owner, a.Addrs, at), nil
		}
		if n.Generation != a.Generation {
			return nil, fmt.Errorf("CiliumNode %s was written in the meantime: %w", n.Name, gather.ErrSuperseded)
		}
		return n.ReturnHome(owner, a.From, a.Addrs, at), nil
	}})
	switch {
	case errors.Is(err, pool.ErrUndecided):
		return fmt.Errorf("%w: %w", err, gather.ErrSuperseded)
	case err != nil && !errors.Is(err, ciliumpool.ErrGone):
		return fmt.Errorf("%s of IP %s of pod %s in the pool of node %s: %w", a.Type, address.Join(a.Addrs), key, a.Node, err)
	}
	return nil
}

// prove returns the evidence for an action if the evidence is sufficient, and otherwise the error of gather.Prove. again is the
// reconcile request that is queued when the agent answers a barrier request.
func (c *Controller) prove(ctx context.Context, again ctrl.Request, key client.ObjectKey, s reclaim.State, a reclaim.Action) (agentview.Evidence, error) {
	requests, owner := c.IdentityRequests, ""
	if isWorkload(again) {
		requests = c.SlotRequests
	}
	if a.Type == reclaim.Own {
		owner = pool.OwnerKey(key.Namespace, key.Name)
	}
	about := []any{a.Type, key}
	if s.Record != nil {
		about = append(about, s.Record.UID)
	}
	if s.Pod != nil {
		about = append(about, s.Pod.UID)
	}
	return c.Prove(ctx, a.Node, a.Addrs, owner, func() { requests.Add(again) }, about...)
}
