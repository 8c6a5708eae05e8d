// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/core/identity"
)

const (
	// AnnotationIPs on a pod, or on its workload, lists addresses, ranges and CIDRs.
	AnnotationIPs = identity.AnnotationIPs
	// AnnotationBy defines how pods share the list: ordinal or any.
	AnnotationBy = "fixedip.io/ips-assignment"
	// AnnotationCalico on a pod is a JSON list of addresses ("Use a specific IP address with a pod" in Calico's
	// documentation).
	AnnotationCalico = identity.AnnotationCalico
)

// Values of AnnotationBy.
const (
	// byOrdinal gives the n-th address of each family to the n-th replica. It is the default of AnnotationIPs if pods
	// have ordinals.
	byOrdinal = "ordinal"
	// bySet lets each pod take any free address of the list. It is the default of Calico's annotation, whose list is for
	// the pod that has it.
	bySet = "any"
)

// Asked is the request of one pod. In a family without requested addresses any address will do.
type Asked struct {
	Addresses
	// Source names the annotation for messages: "annotation fixedip.io/ips".
	Source string
}

// String returns the request and its source: "10.240.1.10 (annotation fixedip.io/ips)".
func (a Asked) String() string { return fmt.Sprintf("%s (%s)", a.Addresses, a.Source) }

// Relevant reports whether two versions of a workload may request different addresses.
func Relevant(before, after identity.Workload) bool {
	return before.UID != after.UID || before.FirstOrdinal != after.FirstOrdinal ||
		before.Annotations[AnnotationIPs] != after.Annotations[AnnotationIPs] ||
		before.Annotations[AnnotationBy] != after.Annotations[AnnotationBy]
}

// Of returns the request of a pod; ok is false if it requests nothing. Annotations of the pod take precedence over those
// of the workload, and AnnotationIPs over Calico's. unnumbered is true if the pods of the workload have no ordinals.
// Errors complete a sentence about the pod: "requests addresses …".
func Of(pod *corev1.Pod, workload identity.Workload, unnumbered bool) (asked Asked, ok bool, err error) {
	text, source, ok := lookup(pod, workload, AnnotationIPs)
	parse, by := Parse, byOrdinal
	if !ok {
		text, ok = pod.Annotations[AnnotationCalico]
		parse, by, source = ParseJSON, bySet, "annotation "+AnnotationCalico
	}
	if !ok {
		return Asked{}, false, nil
	}
	if unnumbered {
		by = bySet
	}
	if wanted, where, given := lookup(pod, workload, AnnotationBy); given {
		if wanted != byOrdinal && wanted != bySet {
			return Asked{}, false, fmt.Errorf("requests addresses by %s, which is %q; write %q or %q", where, wanted, byOrdinal, bySet)
		}
		if wanted == byOrdinal && unnumbered {
			return Asked{}, false, fmt.Errorf("requests addresses by %s, which is %q, and pods of a %s have no ordinals; write %q", where, wanted, workload.Kind, bySet)
		}
		by = wanted
	}
	addrs, err := parse(text)
	if err != nil {
		return Asked{}, false, fmt.Errorf("requests addresses by %s, which is invalid: %w", source, err)
	}
	asked = Asked{Addresses: addrs, Source: source}
	if by == bySet {
		return asked, true, nil
	}
	ordinal, ok := identity.Ordinal(pod.Name, workload.Name)
	if !ok {
		return Asked{}, false, fmt.Errorf("requests addresses by ordinal, but its name %q is not %s- and a number", pod.Name, workload.Name)
	}
	var own []netip.Addr
	for _, f := range addrs.Families() {
		n := int64(ordinal) - int64(workload.FirstOrdinal)
		a, ok := addrs.Nth(f, uint64(max(0, n)))
		if n < 0 || !ok {
			return Asked{}, false, fmt.Errorf("requests addresses %s, which have no %s address for ordinal %d (the first is for ordinal %d); add one or scale down", asked, f, ordinal, workload.FirstOrdinal)
		}
		own = append(own, a)
	}
	asked.Addresses = Exactly(own...)
	return asked, true, nil
}

// lookup returns an annotation of the pod or, if it has none, of its workload.
func lookup(pod *corev1.Pod, workload identity.Workload, key string) (text, source string, ok bool) {
	if text, ok := pod.Annotations[key]; ok {
		return text, "annotation " + key, true
	}
	text, ok = workload.Annotations[key]
	return text, fmt.Sprintf("annotation %s of %s %s", key, workload.Kind, workload.Name), ok
}
