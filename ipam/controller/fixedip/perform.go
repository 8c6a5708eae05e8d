// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/requeue"
	"fixedip.io/fixedip/ipam/controller/release"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reclaim"
)

// errBusy is the error of a FinishRecord that has to wait.
var errBusy = errors.New("as many finalizers are being removed as may be")

// perform performs an action for an identity or a slot. again is the request that it is for.
func (c *Controller) perform(ctx context.Context, again reconcile.Request, s reclaim.State, a reclaim.Action) error {
	// The entries are those of the holder.
	key := types.NamespacedName{Namespace: again.Namespace, Name: s.Holder}
	if a.Why != "" {
		if err := c.reportBlocked(ctx, pool.OwnerKey(key.Namespace, key.Name), s, a.Why); err != nil {
			return err
		}
	}
	if a.Type.NeedsEvidence() {
		if asked, err := c.prove(ctx, again, key, s, a); asked || err != nil {
			return err
		}
	}
	switch a.Type {
	case reclaim.Nothing:
		return nil
	case reclaim.CreateRecord:
		return c.createRecord(ctx, key, a)
	case reclaim.UpdateRecord:
		return c.updateRecord(ctx, s, a)
	case reclaim.Acknowledge:
		return c.acknowledge(ctx, key, a)
	case reclaim.UpdateStatus, reclaim.Vacate, reclaim.AllowMove:
		return c.updateStatus(ctx, s, a)
	case reclaim.Allocate:
		return c.allocate(ctx, s, a)
	case reclaim.DeleteRecord:
		return release.DeleteRecord(ctx, c.Live, c.Events, s)
	case reclaim.ReplaceRecord:
		c.Events.Eventf(s.Pod, nil, corev1.EventTypeNormal, "Reassigned", "ReplaceRecord", "The pod has other addresses on node %s; IP %v, which was on node %s, is released", s.Pod.Spec.NodeName, s.Record.Spec.IPs, s.Record.Spec.NodeName)
		err := c.Live.Delete(ctx, s.Record, client.Preconditions{UID: &s.Record.UID, ResourceVersion: &s.Record.ResourceVersion})
		return client.IgnoreNotFound(err)
	case reclaim.ReleaseEntries:
		return c.releaseEntries(ctx, key, s, a)
	case reclaim.MarkLeaving, reclaim.FenceTarget, reclaim.ReleaseHome:
		return c.releaseMoved(ctx, key, a)
	case reclaim.FinishRecord:
		defer c.finishing.Add(-1)
		if c.finishing.Add(1) > parallelFinishes {
			return errBusy
		}
		return release.Finish(ctx, c.Live, s.Record)
	}
	return fmt.Errorf("unknown action %v", a.Type)
}

// createRecord creates the FixedIP of a claim. That of a slot is named after the workload and an address.
func (c *Controller) createRecord(ctx context.Context, key types.NamespacedName, a reclaim.Action) error {
	for i, ip := range a.Spec.IPs {
		addr, err := address.Parse(ip)
		if err != nil {
			return err
		}
		if i == 0 && a.Spec.Slot {
			key.Name = identity.SlotName(a.Spec.Owner.Name, addr)
		}
		// A claim may take an address whose former FixedIP is still being removed. Two FixedIPs never have one address.
		records, err := index.FixedIPsWithIP(ctx, c.Cached, addr)
		if err != nil {
			return err
		}
		if len(records) > 0 {
			return fmt.Errorf("FixedIP %s still has IP %s: %w", client.ObjectKeyFromObject(records[0]), ip, requeue.ErrSuperseded)
		}
	}
	record := &v1alpha1.FixedIP{Spec: a.Spec}
	record.Namespace, record.Name = key.Namespace, key.Name
	controllerutil.AddFinalizer(record, v1alpha1.Finalizer)
	if err := c.Live.Create(ctx, record); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	klog.FromContext(ctx).Info("Claim recorded", "ips", a.Spec.IPs, "node", a.Spec.NodeName)
	return nil
}

func (c *Controller) updateRecord(ctx context.Context, s reclaim.State, a reclaim.Action) error {
	record := s.Record.DeepCopy()
	record.Spec = a.Spec
	controllerutil.AddFinalizer(record, v1alpha1.Finalizer)
	metav1.SetMetaDataAnnotation(&record.ObjectMeta, v1alpha1.AnnotationUID, string(record.UID))
	// Update carries the resourceVersion that was read.
	if err := c.Live.Update(ctx, record); err != nil {
		return err
	}
	from, to := s.Record.Spec.NodeName, a.Spec.NodeName
	if from == "" || from == to {
		return nil
	}
	klog.FromContext(ctx).Info("Address moved", "ips", a.Spec.IPs, "from", from, "to", to)
	about := []client.Object{s.Record}
	if s.Pod != nil {
		about = append(about, s.Pod)
	}
	for _, o := range about {
		c.Events.Eventf(o, nil, corev1.EventTypeNormal, "Moved", "FollowPod", "IP %v moved from node %s to node %s", a.Spec.IPs, from, to)
	}
	return nil
}

func (c *Controller) updateStatus(ctx context.Context, s reclaim.State, a reclaim.Action) error {
	record := s.Record.DeepCopy()
	record.Status = a.Status
	if err := c.Live.Status().Update(ctx, record); err != nil {
		return err
	}
	now := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionAllocated)
	before := meta.FindStatusCondition(s.Record.Status.Conditions, v1alpha1.ConditionAllocated)
	if now != nil && now.Status == metav1.ConditionFalse && (before == nil || before.Reason != now.Reason) {
		c.Events.Eventf(s.Record, nil, corev1.EventTypeWarning, "AllocationBlocked", "AllocateEntries", "%s", now.Message)
	}
	return nil
}

// reportBlocked says why addresses of an identity are not released: on its FixedIP, and on the pods that have them,
// which a user may have to delete.
func (c *Controller) reportBlocked(ctx context.Context, owner string, s reclaim.State, why string) error {
	if s.Record != nil {
		c.Events.Eventf(s.Record, nil, corev1.EventTypeWarning, "ReleaseBlocked", "ReleaseEntries", "%s", why)
	}
	for _, b := range s.Blockers {
		namespace, name, ok := pool.SplitOwnerKey(b.User)
		if !ok {
			continue
		}
		pod, err := index.Get[corev1.Pod](ctx, c.Cached, types.NamespacedName{Namespace: namespace, Name: name})
		if err != nil {
			return err
		}
		if pod != nil {
			c.Events.Eventf(pod, nil, corev1.EventTypeWarning, "WrongPodAddress", "Verify",
				"The pod runs with IP %s, which is reserved for %s and cannot be released before this pod is gone; delete it", b.Addr, pool.RedactOwner(owner, b.User))
		}
	}
	return nil
}
