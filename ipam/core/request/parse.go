// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"

	"fixedip.io/fixedip/ipam/core/address"
)

const (
	// maxElements is the maximum number of elements of a list, so that parsing it in a scheduling cycle is cheap. A
	// range or CIDR is one element.
	maxElements = 64
	// maxElementLength is longer than two IPv6 addresses with a dash. Longer elements are not repeated in messages.
	maxElementLength = 90
)

// Parse parses a comma-separated list of addresses, ranges and CIDRs. A CIDR stands for the addresses that pods may have
// in it, as if it were the subnet of a node. Errors name the element and the expected form.
func Parse(text string) (Addresses, error) {
	if strings.TrimSpace(text) == "" {
		return Addresses{}, errors.New("it is empty; list addresses, such as 10.240.1.10,10.240.1.11, or remove the annotation")
	}
	// One more than the maximum is enough to detect that there are too many.
	return collect(strings.SplitN(text, ",", maxElements+1), element)
}

// ParseJSON parses a JSON list of single addresses, the format of Calico.
func ParseJSON(text string) (Addresses, error) {
	var elements []string
	if err := json.Unmarshal([]byte(text), &elements); err != nil || len(elements) == 0 {
		return Addresses{}, errors.New(`it is not a JSON list of addresses; write ["10.240.1.10"]`)
	}
	return collect(elements, func(s string) (netipx.IPRange, error) {
		a, err := single(s)
		return netipx.IPRangeFrom(a, a), err
	})
}

// collect parses the elements one by one.
func collect(elements []string, read func(string) (netipx.IPRange, error)) (Addresses, error) {
	if len(elements) > maxElements {
		return Addresses{}, fmt.Errorf("it has more than %d elements; write ranges, such as 10.240.1.10-10.240.1.20, or CIDRs", maxElements)
	}
	var out Addresses
	for i, e := range elements {
		e = strings.TrimSpace(e)
		if e == "" {
			return Addresses{}, fmt.Errorf("element %d is empty; write an address there or remove the comma", i+1)
		}
		if len(e) > maxElementLength {
			return Addresses{}, fmt.Errorf("element %d is %d characters long; %s", i+1, len(e), allowed)
		}
		// Quoting would make such a character up to four times as long.
		if at := strings.IndexFunc(e, foreign); at >= 0 {
			return Addresses{}, fmt.Errorf("element %d contains %q; %s", i+1, []rune(e[at:])[0], allowed)
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

// foreign reports whether a character cannot be part of a list of addresses and would be escaped in a message.
func foreign(r rune) bool {
	switch r {
	case '\t', '\n':
		return false // YAML may break a range at its dash
	}
	return r < ' ' || r > '~' || r == '"' || r == '\\'
}

const allowed = "write an address (10.240.1.10), a range (10.240.1.10-10.240.1.20) or a CIDR (10.240.1.16/28)"

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
	a, err := single(s)
	return netipx.IPRangeFrom(a, a), err
}

// span parses a range such as "10.240.1.10-10.240.1.20".
func span(s string) (netipx.IPRange, error) {
	first, last, _ := strings.Cut(s, "-")
	from, err := single(strings.TrimSpace(first))
	if err != nil {
		return netipx.IPRange{}, fmt.Errorf("range %q: %w", s, err)
	}
	to, err := single(strings.TrimSpace(last))
	switch {
	case err != nil:
		return netipx.IPRange{}, fmt.Errorf("range %q: %w", s, err)
	case address.Of(from) != address.Of(to):
		return netipx.IPRange{}, fmt.Errorf("range %q begins with an %s address and ends with an %s one; write one range for each family", s, address.Of(from), address.Of(to))
	case to.Less(from):
		return netipx.IPRange{}, fmt.Errorf("range %q ends before it begins; write %s-%s", s, to, from)
	}
	return netipx.IPRangeFrom(from, to), nil
}

func single(s string) (netip.Addr, error) {
	if _, err := netip.ParseAddr(s); err != nil {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address; %s", s, allowed)
	}
	return address.Parse(s)
}
