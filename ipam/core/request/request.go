// Package request reads which addresses a pod asks for: from the annotations of the pod and of its
// workload, in our words or in Calico's.
//
// It is pure: it reads Kubernetes objects as values. Whether an address can be had is not its
// concern: it may not read a pool, a cache or an API.
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
	// AnnotationBy says how the pods share the list: ordinal or set.
	AnnotationBy = "fixedip.io/ips-assignment"
	// AnnotationCalico on a pod is a JSON list of addresses. Calico documents it under "Use a
	// specific IP address with a pod".
	AnnotationCalico = identity.AnnotationCalico
)

// The values of AnnotationBy.
const (
	// byOrdinal gives the n-th address of each family to the n-th replica. It is what our own
	// annotation means by default where pods have ordinals.
	byOrdinal = "ordinal"
	// bySet lets each pod take any free address of the list. It is what Calico's annotation means
	// by default: there the list is for the pod that carries it, whatever its ordinal.
	bySet = "any"
)

// Asked is what one pod asks for. In a family that has no addresses here any will do.
type Asked struct {
	Addresses
	// Source says where it is asked for, for messages: "annotation fixedip.io/ips".
	Source string
}

// String is what is asked for and where: "10.240.1.10 (annotation fixedip.io/ips)".
func (a Asked) String() string { return fmt.Sprintf("%s (%s)", a.Addresses, a.Source) }

// Relevant tells whether two versions of a workload may ask for different addresses.
func Relevant(before, after identity.Workload) bool {
	return before.UID != after.UID || before.FirstOrdinal != after.FirstOrdinal ||
		before.Annotations[AnnotationIPs] != after.Annotations[AnnotationIPs] ||
		before.Annotations[AnnotationBy] != after.Annotations[AnnotationBy]
}

// Of is what a pod of the workload asks for; ok is false where it asks for nothing. The pod's
// annotations come before the workload's, and ours before Calico's. unnumbered: the pods of the workload have
// no ordinals, since their names don't last, or there is only the one. Errors are written for people, as what the pod does: "asks
// for …".
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
			return Asked{}, false, fmt.Errorf("asks for addresses by %s, which is %q; write %q or %q", where, wanted, byOrdinal, bySet)
		}
		if wanted == byOrdinal && unnumbered {
			return Asked{}, false, fmt.Errorf("asks for addresses by %s, which is %q, and pods of a %s have no ordinals; write %q", where, wanted, workload.Kind, bySet)
		}
		by = wanted
	}
	addrs, err := parse(text)
	if err != nil {
		return Asked{}, false, fmt.Errorf("asks for addresses by %s, which can't be read: %w", source, err)
	}
	asked = Asked{Addresses: addrs, Source: source}
	if by == bySet {
		return asked, true, nil
	}
	ordinal, ok := identity.Ordinal(pod.Name, workload.Name)
	if !ok {
		return Asked{}, false, fmt.Errorf("asks for addresses by ordinal, which its name has none of: %q is not %s- and a number", pod.Name, workload.Name)
	}
	var own []netip.Addr
	for _, f := range addrs.Families() {
		n := int64(ordinal) - int64(workload.FirstOrdinal)
		a, ok := addrs.Nth(f, uint64(max(0, n)))
		if n < 0 || !ok {
			return Asked{}, false, fmt.Errorf("asks for addresses %s, which have no %s address for ordinal %d (the first is for ordinal %d); add one or scale down", asked, f, ordinal, workload.FirstOrdinal)
		}
		own = append(own, a)
	}
	asked.Addresses = Exactly(own...)
	return asked, true, nil
}

// Asks tells whether a pod asks for addresses at all, whatever they are.
func Asks(pod, workload map[string]string) bool {
	for _, where := range []struct {
		annotations map[string]string
		key         string
	}{{pod, AnnotationIPs}, {workload, AnnotationIPs}, {pod, AnnotationCalico}} {
		if _, ok := where.annotations[where.key]; ok {
			return true
		}
	}
	return false
}

// lookup finds an annotation on the pod or else on its workload.
func lookup(pod *corev1.Pod, workload identity.Workload, key string) (text, source string, ok bool) {
	if text, ok := pod.Annotations[key]; ok {
		return text, "annotation " + key, true
	}
	text, ok = workload.Annotations[key]
	return text, fmt.Sprintf("annotation %s of %s %s", key, workload.Kind, workload.Name), ok
}
