// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// This file reports what Kubernetes itself says about a pod: why it is not created, not placed, not started or not evicted.

// workload reports that the workload of a pod that does not exist cannot create it, for example because of a ResourceQuota.
func (e *explanation) workload() {
	i := e.lastEvent(func(ev *corev1.Event) bool {
		return ev.Reason == "FailedCreate" && ev.InvolvedObject.Kind != "Pod" && mentions(ev.Message, e.Name)
	})
	if i < 0 {
		return
	}
	ev := e.Events[i]
	help := "see the message; the workload tries again"
	if strings.Contains(ev.Message, "exceeded quota") {
		help = "raise the ResourceQuota that the message names, or delete pods that are not needed; the workload tries again"
	}
	e.wrong(help, "%s %s cannot create the pod (last event %s ago): %s", ev.InvolvedObject.Kind, ev.InvolvedObject.Name, e.since(eventTime(ev)), ev.Message)
}

// mentions reports whether a message contains a word, such as the name of a pod or an address. It compares whole words,
// because another name or address may begin with the word.
func mentions(message, word string) bool {
	for _, w := range strings.FieldsFunc(message, func(r rune) bool { return strings.ContainsRune(" \"',;/()[]", r) }) {
		if w == word || strings.TrimRight(w, ".:") == word {
			return true
		}
	}
	return false
}

// gates reports the scheduling gates of the pod.
func (e *explanation) gates() {
	var names []string
	for _, g := range e.Pod.Spec.SchedulingGates {
		names = append(names, g.Name)
	}
	if len(names) > 0 {
		e.wrong("the component that set a gate has to remove it", "No scheduler places the pod while it has scheduling gates: %s", strings.Join(names, ", "))
	}
}

// startFailures reports the last warning about a bound pod that has no IP. A warning of the scheduler does not concern the start:
// the pod has been bound since.
func (e *explanation) startFailures() {
	i := e.lastEvent(func(ev *corev1.Event) bool {
		return ev.InvolvedObject.Kind == "Pod" && ev.InvolvedObject.UID == e.Pod.UID && ev.Type == corev1.EventTypeWarning && ev.Reason != "FailedScheduling"
	})
	if i < 0 {
		return
	}
	ev := e.Events[i]
	e.wrong("", "Event %s of the pod, %s ago: %s", ev.Reason, e.since(eventTime(ev)), ev.Message)
}

// budgets reports the PodDisruptionBudgets that keep the controller from evicting the pod.
func (e *explanation) budgets() {
	var names []string
	for i := range e.Budgets {
		if b := &e.Budgets[i]; covers(b, e.Pod) {
			names = append(names, b.Name)
			if b.Status.DisruptionsAllowed == 0 {
				e.wrong("wait until the budget allows a disruption, or change it", "PodDisruptionBudget %s allows no disruption now, so the controller cannot evict the pod", b.Name)
			}
		}
	}
	if len(names) > 1 {
		e.wrong("delete or change PodDisruptionBudgets until only one selects the pod", "The API server evicts no pod with more than one PodDisruptionBudget, and these select the pod: %s", strings.Join(names, ", "))
	}
}

// lastEvent returns the index of the latest event that satisfies the predicate is; -1 if there is none.
func (e *explanation) lastEvent(is func(*corev1.Event) bool) int {
	last := -1
	for i := range e.Events {
		if is(&e.Events[i]) && (last < 0 || eventTime(e.Events[last]).Before(eventTime(e.Events[i]))) {
			last = i
		}
	}
	return last
}

// eventTime returns the time of the last occurrence of an event.
func eventTime(ev corev1.Event) time.Time {
	at := ev.LastTimestamp.Time
	if ev.Series != nil {
		at = ev.Series.LastObservedTime.Time
	}
	for _, other := range []time.Time{ev.EventTime.Time, ev.FirstTimestamp.Time, ev.CreationTimestamp.Time} {
		if at.IsZero() {
			at = other
		}
	}
	return at
}
