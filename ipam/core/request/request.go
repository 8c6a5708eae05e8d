// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/core/address"
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
	// byOrdinal means that the n-th replica gets the n-th address of each family. It is the default of AnnotationIPs if
	// pods have ordinals.
	byOrdinal = "ordinal"
	// bySet means that each pod gets any free address of the list. It is the default of AnnotationCalico, whose list is for
	// one pod, and of both annotations if pods have no ordinals.
	bySet = "any"
)

// Requested is the request of one pod. In a family without requested addresses, the pod may get any address.
type Requested struct {
	Addresses
	// Source is the text for the annotation in messages, such as "annotation fixedip.io/ips".
	Source string
}

// String returns the text for the request in messages, such as "10.240.1.10 (annotation fixedip.io/ips)".
func (a Requested) String() string { return fmt.Sprintf("%s (%s)", a.Addresses, a.Source) }

// Relevant reports whether two versions of a workload may request different addresses.
func Relevant(before, after identity.Workload) bool {
	return before.UID != after.UID || before.FirstOrdinal != after.FirstOrdinal ||
		before.Annotations[AnnotationIPs] != after.Annotations[AnnotationIPs] ||
		before.Annotations[AnnotationBy] != after.Annotations[AnnotationBy]
}

// Of returns the request of a pod with the identity id; ok is false if the pod requests nothing, and if there is an error.
// Annotations of the pod take precedence over those of the workload. AnnotationIPs, even that of the workload, takes precedence
// over AnnotationCalico, which counts on the pod only. Bare pods and pods with slots have no ordinals. The text of an error
// continues a sentence about the pod: "requests addresses …".
func Of(pod *corev1.Pod, workload identity.Workload, id identity.Identity) (requested Requested, ok bool, err error) {
	text, source, ok := lookup(pod, workload, AnnotationIPs)
	parse, by := Parse, byOrdinal
	if !ok {
		text, ok = pod.Annotations[AnnotationCalico]
		parse, by, source = ParseJSON, bySet, "annotation "+AnnotationCalico
	}
	if !ok {
		return Requested{}, false, nil
	}
	unnumbered := id.Slot || id.IsBarePod()
	if unnumbered {
		by = bySet
	}
	if wanted, where, given := lookup(pod, workload, AnnotationBy); given {
		switch {
		case wanted != bySet && unnumbered:
			return Requested{}, false, fmt.Errorf("requests addresses, but the value %q of %s is invalid for a pod without an ordinal; write %q", wanted, where, bySet)
		case wanted != byOrdinal && wanted != bySet:
			return Requested{}, false, fmt.Errorf("requests addresses, but the value %q of %s is invalid; write %q or %q", wanted, where, byOrdinal, bySet)
		}
		by = wanted
	}
	addrs, err := parse(text)
	if err != nil {
		return Requested{}, false, fmt.Errorf("requests addresses, but the value of %s is invalid: %w", source, err)
	}
	requested = Requested{Addresses: addrs, Source: source}
	if by == bySet {
		return requested, true, nil
	}
	ordinal, ok := identity.Ordinal(pod.Name, workload.Name)
	if !ok {
		return Requested{}, false, fmt.Errorf("requests addresses by ordinal, but its name %q does not have the form %s-ORDINAL; set annotation %s to %q", pod.Name, workload.Name, AnnotationBy, bySet)
	}
	n := int64(ordinal) - int64(workload.FirstOrdinal)
	if n < 0 {
		return Requested{}, false, fmt.Errorf("requests addresses %s, but its ordinal %d is less than %d, the first ordinal of %s %s; delete the pod, or change spec.ordinals.start", requested, ordinal, workload.FirstOrdinal, workload.Kind, workload.Name)
	}
	var own []netip.Addr
	for _, f := range addrs.Families() {
		a, ok := addrs.Nth(f, uint64(n))
		if !ok {
			return Requested{}, false, fmt.Errorf("requests addresses %s, but that list has no %s address for ordinal %d (its first address is for ordinal %d); add addresses to the list, or scale down", requested, f, ordinal, workload.FirstOrdinal)
		}
		own = append(own, a)
	}
	requested.Addresses = Exactly(own...)
	return requested, true, nil
}

// lookup returns the value of an annotation of the pod or, if the pod does not have it, of the workload. source is the text
// for the annotation in messages.
func lookup(pod *corev1.Pod, workload identity.Workload, key string) (text, source string, ok bool) {
	if text, ok := pod.Annotations[key]; ok {
		return text, "annotation " + key, true
	}
	text, ok = workload.Annotations[key]
	return text, fmt.Sprintf("annotation %s of %s %s", key, workload.Kind, workload.Name), ok
}

// Addresses contains requested addresses: the ranges of each family in the order of the list. Ranges do not overlap. A range
// may be as large as IPv6 allows, so no function iterates over a whole range. The zero value requests nothing.
type Addresses struct {
	ranges map[address.Family][]netipx.IPRange
}

// Exactly returns the Addresses that contain exactly the given addresses, which have to be distinct.
func Exactly(addrs ...netip.Addr) Addresses {
	var out Addresses
	for _, a := range addrs {
		out.add(netipx.IPRangeFrom(a, a))
	}
	return out
}

// Ranges returns the ranges of a family in the order of the list.
func (a Addresses) Ranges(f address.Family) []netipx.IPRange { return a.ranges[f] }

// Families returns the families with requested addresses.
func (a Addresses) Families() []address.Family {
	return slices.DeleteFunc(slices.Clone(address.Families[:]), func(f address.Family) bool { return len(a.Ranges(f)) == 0 })
}

// Single returns the requested address of a family, and false unless exactly one is requested.
func (a Addresses) Single(f address.Family) (netip.Addr, bool) {
	ranges := a.Ranges(f)
	if len(ranges) != 1 || ranges[0].From() != ranges[0].To() {
		return netip.Addr{}, false
	}
	return ranges[0].From(), true
}

// Contains reports whether the address is requested.
func (a Addresses) Contains(addr netip.Addr) bool {
	return slices.ContainsFunc(a.Ranges(address.Of(addr)), func(r netipx.IPRange) bool { return r.Contains(addr) })
}

// Nth returns the n-th requested address of a family, counted from 0 in the order of the list, and false if there is no
// such address.
func (a Addresses) Nth(f address.Family, n uint64) (netip.Addr, bool) {
	rest := new(big.Int).SetUint64(n)
	for _, r := range a.Ranges(f) {
		from, to := new(big.Int).SetBytes(r.From().AsSlice()), new(big.Int).SetBytes(r.To().AsSlice())
		at := new(big.Int).Add(from, rest)
		if at.Cmp(to) <= 0 {
			return netip.AddrFromSlice(at.FillBytes(make([]byte, f.Bits()/8)))
		}
		// The rest is counted from the first address of the next range.
		rest = at.Sub(at, to.Add(to, big.NewInt(1)))
	}
	return netip.Addr{}, false
}

// Within returns the parts of the ranges that pods may have in a subnet, highest first.
func (a Addresses) Within(subnet netip.Prefix) []netipx.IPRange {
	first, last := address.Ends(subnet)
	var out []netipx.IPRange
	for _, r := range a.Ranges(address.Of(first)) {
		from, to := r.From(), r.To()
		if from.Less(first) {
			from = first
		}
		if last.Less(to) {
			to = last
		}
		if both := netipx.IPRangeFrom(from, to); both.IsValid() {
			out = append(out, both)
		}
	}
	slices.SortFunc(out, func(x, y netipx.IPRange) int { return y.To().Compare(x.To()) })
	return out
}

// maxShown is the maximum number of ranges in a message. The message counts all further ranges.
const maxShown = 4

// String returns the addresses as text for messages, such as "10.240.1.10-10.240.1.19, fd00:240::1:a".
func (a Addresses) String() string {
	all := slices.Concat(a.ranges[address.IPv4], a.ranges[address.IPv6])
	var parts []string
	for _, r := range all[:min(maxShown, len(all))] {
		if r.From() == r.To() {
			parts = append(parts, r.From().String())
		} else {
			parts = append(parts, r.String())
		}
	}
	text := strings.Join(parts, ", ")
	if more := len(all) - maxShown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func (a *Addresses) add(r netipx.IPRange) {
	if a.ranges == nil {
		a.ranges = map[address.Family][]netipx.IPRange{}
	}
	f := address.Of(r.From())
	a.ranges[f] = append(a.ranges[f], r)
}

const (
	// maxElements is the maximum number of elements of a list, so that parsing it in a scheduling cycle is cheap. A
	// range or CIDR is one element.
	maxElements = 64
	// maxElementLength is the maximum length of an element. It is enough for two IPv6 addresses and a dash. An error does
	// not quote a longer element.
	maxElementLength = 90
)

// Parse parses a comma-separated list of addresses, ranges and CIDRs. A CIDR means the addresses that pods could have if the
// CIDR were the subnet of a node. Errors name the element and the expected form.
func Parse(text string) (Addresses, error) {
	if strings.TrimSpace(text) == "" {
		return Addresses{}, errors.New("the value is empty; list addresses, such as 10.240.1.10,10.240.1.11, or remove the annotation")
	}
	// One element more than the maximum is enough to detect a list that is too long.
	return collect(strings.SplitN(text, ",", maxElements+1), element, allowed)
}

// ParseJSON parses a JSON list of single addresses, the format of Calico.
func ParseJSON(text string) (Addresses, error) {
	var elements []string
	if err := json.Unmarshal([]byte(text), &elements); err != nil || len(elements) == 0 {
		return Addresses{}, errors.New(`the value is not a JSON list of one or more addresses; write a list such as ["10.240.1.10"]`)
	}
	return collect(elements, func(s string) (netipx.IPRange, error) {
		a, err := single(s, allowedJSON)
		return netipx.IPRangeFrom(a, a), err
	}, allowedJSON)
}

// collect parses the elements of a list with the function read. It refuses lists and elements that are too long, elements that
// are empty or have a foreign character, and repeated addresses. help is the part of an error that lists the forms of an
// element.
func collect(elements []string, read func(string) (netipx.IPRange, error), help string) (Addresses, error) {
	if len(elements) > maxElements {
		return Addresses{}, fmt.Errorf("the value has more than %d elements; write ranges, such as 10.240.1.10-10.240.1.20, or CIDRs, in annotation %s", maxElements, AnnotationIPs)
	}
	var out Addresses
	for i, e := range elements {
		e = strings.TrimSpace(e)
		if e == "" {
			return Addresses{}, fmt.Errorf("element %d is empty; write an address there, or remove the element", i+1)
		}
		if len(e) > maxElementLength {
			return Addresses{}, fmt.Errorf("element %d is %d bytes long; %s", i+1, len(e), help)
		}
		// An error must not quote an element with a foreign character: %q writes up to four characters for each byte,
		// so that the error would become too long.
		if at := strings.IndexFunc(e, foreign); at >= 0 {
			return Addresses{}, fmt.Errorf("element %d contains %q; %s", i+1, []rune(e[at:])[0], help)
		}
		r, err := read(e)
		if err != nil {
			return Addresses{}, err
		}
		overlap := func(other netipx.IPRange) bool { return r.Overlaps(other) }
		if known := out.Ranges(address.Of(r.From())); slices.ContainsFunc(known, overlap) {
			return Addresses{}, fmt.Errorf("%q repeats addresses of an earlier element; write each address once", e)
		}
		out.add(r)
	}
	return out, nil
}

// foreign reports whether a character must not occur in an element: it is not printable ASCII, or is a double quote or
// a backslash. Tabs and newlines are allowed.
func foreign(r rune) bool {
	switch r {
	case '\t', '\n':
		return false // YAML may break a line at the dash of a range.
	}
	return r < ' ' || r > '~' || r == '"' || r == '\\'
}

// The parts of errors that list the forms of an element, for Parse and for ParseJSON.
const (
	allowed     = "write an address (10.240.1.10), a range (10.240.1.10-10.240.1.20) or a CIDR (10.240.1.16/28)"
	allowedJSON = "write an address (10.240.1.10)"
)

func element(s string) (netipx.IPRange, error) {
	switch {
	case strings.Contains(s, "-"):
		return span(s)
	case strings.Contains(s, "/"):
		p, err := address.ParseSubnet(s)
		if err != nil {
			return netipx.IPRange{}, err
		}
		if p.String() != s {
			return netipx.IPRange{}, fmt.Errorf("%q is not in canonical form; write %s", s, p)
		}
		return netipx.IPRangeFrom(address.Ends(p)), nil
	}
	a, err := single(s, allowed)
	return netipx.IPRangeFrom(a, a), err
}

// span parses a range such as "10.240.1.10-10.240.1.20".
func span(s string) (netipx.IPRange, error) {
	first, last, _ := strings.Cut(s, "-")
	from, err := single(strings.TrimSpace(first), allowed)
	if err != nil {
		return netipx.IPRange{}, fmt.Errorf("range %q: %w", s, err)
	}
	to, err := single(strings.TrimSpace(last), allowed)
	switch {
	case err != nil:
		return netipx.IPRange{}, fmt.Errorf("range %q: %w", s, err)
	case address.Of(from) != address.Of(to):
		return netipx.IPRange{}, fmt.Errorf("range %q begins with an %s address and ends with an %s one; write one range for each family", s, address.Of(from), address.Of(to))
	case to.Less(from):
		return netipx.IPRange{}, fmt.Errorf("range %q ends before it begins; write %s-%s", s, to, from)
	}
	r := netipx.IPRangeFrom(from, to)
	if address.HasMapped(r) {
		return netipx.IPRange{}, fmt.Errorf("range %q has IPv4 addresses mapped into IPv6; write ranges that do not overlap ::ffff:0:0/96", s)
	}
	return r, nil
}

// single parses one address. help is as for collect.
func single(s, help string) (netip.Addr, error) {
	if _, err := netip.ParseAddr(s); err != nil {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address; %s", s, help)
	}
	return address.Parse(s)
}
