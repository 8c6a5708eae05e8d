// Package request reads which addresses a pod asks for: from the annotations of the pod and of its
// StatefulSet, in our words or in Calico's.
//
// It is pure: it reads Kubernetes objects as values. Whether an address can be had is not its
// concern: it may not read a pool, a cache or an API.
package request

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

const (
	// AnnotationIPs on a pod, or on its StatefulSet, lists addresses, ranges and CIDRs.
	AnnotationIPs = "fixedip.io/ips"
	// AnnotationBy says how the pods share the list: ordinal or set.
	AnnotationBy = "fixedip.io/ips-by"
	// AnnotationCalico on a pod is a JSON list of addresses. Calico documents it under "Use a
	// specific IP address with a pod".
	AnnotationCalico = "cni.projectcalico.org/ipAddrs"
)

// The values of AnnotationBy.
const (
	// byOrdinal gives the n-th address of each family to the n-th replica. It is what our own
	// annotation means by default.
	byOrdinal = "ordinal"
	// bySet lets each pod take any free address of the list. It is what Calico's annotation means
	// by default: there the list is for the pod that carries it, whatever its ordinal.
	bySet = "set"
)

// Asked is what one pod asks for. In a family that has no addresses here any will do.
type Asked struct {
	Addresses
	// Source says where it is asked for, for messages: "annotation fixedip.io/ips".
	Source string
}

// String is what is asked for and where: "10.240.1.10 (annotation fixedip.io/ips)".
func (a Asked) String() string { return fmt.Sprintf("%s (%s)", a.Addresses, a.Source) }

// Relevant tells whether two versions of a StatefulSet may ask for different addresses.
func Relevant(before, after *appsv1.StatefulSet) bool {
	return before.UID != after.UID || firstOrdinal(before) != firstOrdinal(after) ||
		before.Annotations[AnnotationIPs] != after.Annotations[AnnotationIPs] ||
		before.Annotations[AnnotationBy] != after.Annotations[AnnotationBy]
}

// Of is what a pod of the StatefulSet asks for; ok is false where it asks for nothing. The pod's
// annotations come before the StatefulSet's, and ours before Calico's. Errors are written for
// people, as what the pod does: "asks for …".
func Of(pod *corev1.Pod, workload *appsv1.StatefulSet) (asked Asked, ok bool, err error) {
	text, source, ok := lookup(pod, workload, AnnotationIPs)
	parse, by := Parse, byOrdinal
	if !ok {
		text, ok = pod.Annotations[AnnotationCalico]
		parse, by, source = ParseJSON, bySet, "annotation "+AnnotationCalico
	}
	if !ok {
		return Asked{}, false, nil
	}
	if wanted, where, given := lookup(pod, workload, AnnotationBy); given {
		if wanted != byOrdinal && wanted != bySet {
			return Asked{}, false, fmt.Errorf("asks for addresses by %s, which is %q; write %q or %q", where, wanted, byOrdinal, bySet)
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
	ordinal, err := ordinalOf(pod, workload)
	if err != nil {
		return Asked{}, false, err
	}
	var own []netip.Addr
	for _, f := range addrs.Families() {
		n := ordinal - firstOrdinal(workload)
		a, ok := addrs.Nth(f, uint64(max(0, n)))
		if n < 0 || !ok {
			return Asked{}, false, fmt.Errorf("asks for addresses %s, which have no %s address for ordinal %d (the first is for ordinal %d); add one or scale down", asked, f, ordinal, firstOrdinal(workload))
		}
		own = append(own, a)
	}
	asked.Addresses = Exactly(own...)
	return asked, true, nil
}

// lookup finds an annotation on the pod or else on its StatefulSet.
func lookup(pod *corev1.Pod, workload *appsv1.StatefulSet, key string) (text, source string, ok bool) {
	if text, ok := pod.Annotations[key]; ok {
		return text, "annotation " + key, true
	}
	text, ok = workload.Annotations[key]
	return text, fmt.Sprintf("annotation %s of StatefulSet %s", key, workload.Name), ok
}

// firstOrdinal is the ordinal of the first replica: spec.ordinals.start.
func firstOrdinal(workload *appsv1.StatefulSet) int {
	if o := workload.Spec.Ordinals; o != nil {
		return int(o.Start)
	}
	return 0
}

// ordinalOf is the number at the end of the pod's name, after that of its StatefulSet.
func ordinalOf(pod *corev1.Pod, workload *appsv1.StatefulSet) (int, error) {
	digits, found := strings.CutPrefix(pod.Name, workload.Name+"-")
	ordinal, err := strconv.ParseUint(digits, 10, 31)
	if !found || err != nil {
		return 0, fmt.Errorf("asks for addresses by ordinal, which its name has none of: %q is not %s- and a number", pod.Name, workload.Name)
	}
	return int(ordinal), nil
}
