// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package packed

import (
	"encoding/binary"
	"time"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// fixedIPRecord is a complete FixedIP, because the controller writes whole FixedIPs.
type fixedIPRecord struct {
	// meta is the metadata as packMeta encodes them, and rest contains the other fields except the conditions, as a writer
	// encodes them.
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
	var w writer
	for _, text := range texts(&f.Spec, &f.Status) {
		w.text(*text)
	}
	w.number(f.Spec.Reclaim.TTLSeconds)
	w.number(f.Status.ObservedGeneration)
	var expires int64
	if at := f.Status.ExpiresAt; at != nil {
		expires = at.Unix()
	}
	w.number(expires)
	for _, ip := range f.Spec.IPs {
		w.text(ip)
	}
	r := fixedIPRecord{meta: string(meta), rest: string(w)}
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
	meta, _ := splitMeta([]byte(r.meta))
	f := &v1alpha1.FixedIP{ObjectMeta: unpackMeta(meta)}
	in := reader(r.rest)
	for _, text := range texts(&f.Spec, &f.Status) {
		*text = in.text()
	}
	f.Spec.Reclaim.TTLSeconds, f.Status.ObservedGeneration = in.number(), in.number()
	if expires := in.number(); expires != 0 {
		f.Status.ExpiresAt = &metav1.Time{Time: time.Unix(expires, 0)}
	}
	for in != "" {
		f.Spec.IPs = append(f.Spec.IPs, in.text())
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

func (r fixedIPRecord) GetObjectMeta() metav1.Object {
	meta, _ := splitMeta([]byte(r.meta))
	m := unpackMeta(meta)
	return &m
}

// texts returns the fields of a spec and of a status that are texts, in the order in which a record contains them.
func texts(spec *v1alpha1.FixedIPSpec, status *v1alpha1.FixedIPStatus) [14]*string {
	return [...]*string{
		&spec.NodeName, &spec.PodName, (*string)(&spec.AssignedTo), (*string)(&spec.Failover),
		&spec.Owner.APIVersion, &spec.Owner.Kind, &spec.Owner.Name, (*string)(&spec.Owner.UID),
		(*string)(&spec.Reclaim.WhenDeleted), (*string)(&spec.Reclaim.WhenScaled),
		(*string)(&status.PodUID), &status.VacatedBy, (*string)(&status.MovableFor), (*string)(&status.MismatchPodUID),
	}
}

// writer encodes texts and numbers one after another: the length of a text as a varint and the text, and a number as a varint.
type writer []byte

func (w *writer) text(t string) {
	*w = append(binary.AppendUvarint(*w, uint64(len(t))), t...)
}

func (w *writer) number(n int64) { *w = binary.AppendVarint(*w, n) }

// reader is the part of the result of a writer that has not been read yet.
type reader string

func (r *reader) text() string {
	length := r.uvarint()
	t := (*r)[:length]
	*r = (*r)[length:]
	return string(t)
}

// number decodes what binary.AppendVarint has encoded.
func (r *reader) number() int64 {
	u := r.uvarint()
	n := int64(u >> 1)
	if u&1 != 0 {
		n = ^n
	}
	return n
}

// uvarint is binary.Uvarint for a text.
func (r *reader) uvarint() (n uint64) {
	for i, shift := 0, 0; ; i, shift = i+1, shift+7 {
		b := (*r)[i]
		n |= uint64(b&0x7f) << shift
		if b < 0x80 {
			*r = (*r)[i+1:]
			return n
		}
	}
}
