// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/store/packed"
)

// record is a FixedIP that trim has returned, in a form that takes about a quarter of the memory (see BenchmarkStore).
type record struct {
	common unique.Handle[common]
	node   unique.Handle[string]
	// created and deleted are Unix times in seconds, which is the precision of metav1.Time. deleted is 0 if the FixedIP is
	// not being deleted.
	created, deleted, generation int64
	// texts contains the name, resourceVersion and UID, the name and UID of the owner, podName, vacatedBy, movableFor and the
	// IPs, as a packed.Writer encodes them.
	texts string
}

// common is the part of a FixedIP that many FixedIPs of a namespace have in common.
type common struct {
	namespace string
	// apiVersion and kind are those of the owner.
	apiVersion, kind string
	assignedTo       v1alpha1.Assignee
	reclaim          v1alpha1.ReclaimPolicy
	failover         v1alpha1.Failover
	// condition is the type of the only condition; empty: there is none.
	condition, reason string
	status            metav1.ConditionStatus
}

var (
	_ packed.Record  = &record{}
	_ runtime.Object = &record{}
)

// pack returns the record of a FixedIP that trim has returned, and any other object unchanged.
func pack(obj any) (any, error) {
	fip, ok := obj.(*v1alpha1.FixedIP)
	if !ok {
		return obj, nil
	}
	c := common{
		namespace: fip.Namespace, apiVersion: fip.Spec.Owner.APIVersion, kind: fip.Spec.Owner.Kind,
		assignedTo: fip.Spec.AssignedTo, reclaim: fip.Spec.Reclaim, failover: fip.Spec.Failover,
	}
	for _, condition := range fip.Status.Conditions {
		c.condition, c.status, c.reason = condition.Type, condition.Status, condition.Reason
	}
	r := &record{common: unique.Make(c), node: unique.Make(fip.Spec.NodeName), created: fip.CreationTimestamp.Unix(), generation: fip.Generation}
	if fip.DeletionTimestamp != nil {
		r.deleted = fip.DeletionTimestamp.Unix()
	}
	var texts packed.Writer
	for _, text := range append([]string{
		fip.Name, fip.ResourceVersion, string(fip.UID), fip.Spec.Owner.Name, string(fip.Spec.Owner.UID), fip.Spec.PodName, fip.Status.VacatedBy, string(fip.Status.MovableFor),
	}, fip.Spec.IPs...) {
		texts.Text(text)
	}
	r.texts = string(texts)
	return r, nil
}

// Unpack returns the FixedIP. Its texts refer to the memory of the record.
func (r *record) Unpack() client.Object {
	c, in := r.common.Value(), packed.Reader(r.texts)
	fip := &v1alpha1.FixedIP{}
	fip.Namespace, fip.Generation, fip.CreationTimestamp = c.namespace, r.generation, metav1.Unix(r.created, 0)
	if r.deleted != 0 {
		deleted := metav1.Unix(r.deleted, 0)
		fip.DeletionTimestamp = &deleted
	}
	fip.Name, fip.ResourceVersion, fip.UID = in.Text(), in.Text(), types.UID(in.Text())
	owner := v1alpha1.OwnerReference{APIVersion: c.apiVersion, Kind: c.kind, Name: in.Text(), UID: types.UID(in.Text())}
	fip.Spec = v1alpha1.FixedIPSpec{NodeName: r.node.Value(), Owner: owner, AssignedTo: c.assignedTo, Reclaim: c.reclaim, Failover: c.failover, PodName: in.Text()}
	fip.Status.VacatedBy, fip.Status.MovableFor = in.Text(), types.UID(in.Text())
	if c.condition != "" {
		fip.Status.Conditions = []metav1.Condition{{Type: c.condition, Status: c.status, Reason: c.reason}}
	}
	for in != "" {
		fip.Spec.IPs = append(fip.Spec.IPs, in.Text())
	}
	return fip
}

// Key returns the namespace and the name of the FixedIP.
func (r *record) Key() string {
	in := packed.Reader(r.texts)
	return r.common.Value().namespace + "/" + in.Text()
}

// GetObjectMeta returns the namespace, the name and the resourceVersion of the FixedIP.
func (r *record) GetObjectMeta() metav1.Object {
	m, in := &metav1.ObjectMeta{Namespace: r.common.Value().namespace}, packed.Reader(r.texts)
	m.Name, m.ResourceVersion = in.Text(), in.Text()
	return m
}

// GetObjectKind returns an empty kind, like that of a decoded FixedIP.
func (r *record) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns the record itself, because a record does not change.
func (r *record) DeepCopyObject() runtime.Object { return r }
