// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package packed

import (
	"encoding/json"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// fixedIPRecord is a complete FixedIP, because the controller writes whole FixedIPs.
type fixedIPRecord struct {
	// data is the metadata as packMeta encodes them, and spec and status as JSON, without the conditions.
	data string
	// conditions are the conditions of the status. As JSON they would be longer than everything else.
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

// fixedIPBody is the part of a FixedIP that a fixedIPRecord contains as JSON.
type fixedIPBody struct {
	Spec   v1alpha1.FixedIPSpec   `json:"spec"`
	Status v1alpha1.FixedIPStatus `json:"status"`
}

func packFixedIP(f *v1alpha1.FixedIP) (fixedIPRecord, error) {
	data, err := packMeta(f.ObjectMeta)
	if err != nil {
		return fixedIPRecord{}, err
	}
	body := fixedIPBody{f.Spec, f.Status}
	body.Status.Conditions = nil
	text, err := json.Marshal(body)
	if err != nil {
		return fixedIPRecord{}, err
	}
	r := fixedIPRecord{data: string(append(data, text...))}
	if n := len(f.Status.Conditions); n > 0 {
		r.conditions = make([]condition, n)
	}
	for i, c := range f.Status.Conditions {
		r.conditions[i] = condition{unique.Make(conditionText{c.Type, c.Status, c.ObservedGeneration, c.Reason, c.Message}), c.LastTransitionTime.Unix()}
	}
	return r, nil
}

func (r fixedIPRecord) Unpack() client.Object {
	meta, text := splitMeta([]byte(r.data))
	var body fixedIPBody
	utilruntime.Must(json.Unmarshal(text, &body))
	f := &v1alpha1.FixedIP{ObjectMeta: unpackMeta(meta), Spec: body.Spec, Status: body.Status}
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
	meta, _ := splitMeta([]byte(r.data))
	m := unpackMeta(meta)
	return &m
}
