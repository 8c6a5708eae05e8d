// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package packed

import (
	"time"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// fixedIPRecord is a complete FixedIP, because the controller writes whole FixedIPs.
type fixedIPRecord struct {
	// meta is the header and the metadata as packMeta encodes it, and rest contains the other fields except the conditions, as
	// a Writer encodes them.
	meta, rest string
	// conditions are the conditions of the status.
	conditions []condition
}

// condition is a condition of a status. since is the time of its last transition in Unix seconds, the precision of metav1.Time.
type condition struct {
	text  unique.Handle[conditionText]
	since int64
}

// conditionText is the part of a condition that most FixedIPs have in common.
type conditionText struct {
	kind               string
	status             metav1.ConditionStatus
	observedGeneration int64
	reason, message    string
}

func packFixedIP(f *v1alpha1.FixedIP) (fixedIPRecord, error) {
	meta, err := packMeta(f.ObjectMeta)
	if err != nil {
		return fixedIPRecord{}, err
	}
	var w Writer
	for _, text := range texts(&f.Spec, &f.Status) {
		w.Text(*text)
	}
	w.Number(f.Spec.Reclaim.TTLSeconds)
	w.Number(f.Status.ObservedGeneration)
	var expires int64
	if at := f.Status.ExpiresAt; at != nil {
		expires = at.Unix()
	}
	w.Number(expires)
	for _, ip := range f.Spec.IPs {
		w.Text(ip)
	}
	r := fixedIPRecord{meta: string(append(header(f.ObjectMeta), meta...)), rest: string(w)}
	if n := len(f.Status.Conditions); n > 0 {
		r.conditions = make([]condition, n)
	}
	for i, c := range f.Status.Conditions {
		r.conditions[i] = condition{unique.Make(conditionText{c.Type, c.Status, c.ObservedGeneration, c.Reason, c.Message}), c.LastTransitionTime.Unix()}
	}
	return r, nil
}

// Unpack returns the FixedIP. Its texts refer to the memory of the record.
func (r fixedIPRecord) Unpack() client.Object {
	meta := Reader(r.meta)
	h := meta.header()
	f := &v1alpha1.FixedIP{ObjectMeta: unpackMeta(h, string(meta))}
	in := Reader(r.rest)
	for _, text := range texts(&f.Spec, &f.Status) {
		*text = in.Text()
	}
	f.Spec.Reclaim.TTLSeconds, f.Status.ObservedGeneration = in.Number(), in.Number()
	if expires := in.Number(); expires != 0 {
		f.Status.ExpiresAt = &metav1.Time{Time: time.Unix(expires, 0)}
	}
	for in != "" {
		f.Spec.IPs = append(f.Spec.IPs, in.Text())
	}
	if n := len(r.conditions); n > 0 {
		f.Status.Conditions = make([]metav1.Condition, n)
	}
	for i, c := range r.conditions {
		t := c.text.Value()
		f.Status.Conditions[i] = metav1.Condition{
			Type: t.kind, Status: t.status, ObservedGeneration: t.observedGeneration, Reason: t.reason, Message: t.message, LastTransitionTime: metav1.Unix(c.since, 0),
		}
	}
	return f
}

func (r fixedIPRecord) GetObjectMeta() metav1.Object { return readHeader(r.meta) }

// Key implements Record.
func (r fixedIPRecord) Key() string { return keyIn(r.meta) }

// texts returns pointers to the text fields of a spec and a status, in the order in which a record contains these fields.
func texts(spec *v1alpha1.FixedIPSpec, status *v1alpha1.FixedIPStatus) [14]*string {
	return [...]*string{
		&spec.NodeName, &spec.PodName, (*string)(&spec.AssignedTo), (*string)(&spec.Failover),
		&spec.Owner.APIVersion, &spec.Owner.Kind, &spec.Owner.Name, (*string)(&spec.Owner.UID),
		(*string)(&spec.Reclaim.WhenDeleted), (*string)(&spec.Reclaim.WhenScaled),
		(*string)(&status.PodUID), &status.VacatedBy, (*string)(&status.MovableFor), (*string)(&status.MismatchPodUID),
	}
}
