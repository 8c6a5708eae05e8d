// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package request_test

import (
	"encoding/json"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/request"
)

// written returns the set of the addresses in a list. It parses the elements without the package under test.
func written(t *testing.T, elements []string) *netipx.IPSet {
	t.Helper()
	var b netipx.IPSetBuilder
	for _, e := range elements {
		e = strings.TrimSpace(e)
		from, to, isRange := strings.Cut(e, "-")
		switch {
		case isRange:
			b.AddRange(netipx.IPRangeFrom(netip.MustParseAddr(strings.TrimSpace(from)), netip.MustParseAddr(strings.TrimSpace(to))))
		case strings.Contains(e, "/"):
			b.AddPrefix(netip.MustParsePrefix(e))
		default:
			b.Add(netip.MustParseAddr(e))
		}
	}
	set, err := b.IPSet()
	if err != nil {
		t.Fatalf("the package parses %q, which is not a list of addresses: %v", elements, err)
	}
	return set
}

// all iterates over the requested addresses of a family in the order of the list.
func all(requested request.Addresses, f address.Family) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for _, r := range requested.Ranges(f) {
			for at := r.From(); ; at = at.Next() {
				if !yield(at) {
					return
				}
				if at == r.To() {
					break
				}
			}
		}
	}
}

// checkAddresses checks that a parsed list contains only addresses of set, each once, and that Nth, Contains and Single
// agree with Ranges.
func checkAddresses(t *testing.T, got request.Addresses, set *netipx.IPSet) {
	t.Helper()
	if len(got.Families()) == 0 {
		t.Fatal("the parsed list has no addresses, want an error")
	}
	for _, f := range address.Families {
		ranges := got.Ranges(f)
		for i, r := range ranges {
			if !r.IsValid() || address.Of(r.From()) != f || !set.ContainsRange(r) {
				t.Fatalf("%s contains range %s, which is invalid, of another family than %s, or not in the list", got, r, f)
			}
			if slices.ContainsFunc(ranges[:i], r.Overlaps) {
				t.Fatalf("%s contains addresses of range %s twice", got, r)
			}
		}
		n := uint64(0)
		for a := range all(got, f) {
			if nth, ok := got.Nth(f, n); !ok || nth != a || !got.Contains(a) || !set.Contains(a) {
				t.Fatalf("%s: Nth(%d) returns %s, want %s, which must be in the list", got, n, nth, a)
			}
			if n++; n > 300 {
				break
			}
		}
		if _, ok := got.Nth(f, n); ok != (n > 300) {
			t.Fatalf("%s: Nth(%d) finds an address: %v, want %v", got, n, ok, n > 300)
		}
		if one, ok := got.Single(f); ok && (n != 1 || !got.Contains(one)) {
			t.Fatalf("%s: Single returns %s, but there are %d addresses", got, one, n)
		}
	}
}

// text formats parsed addresses as a list for Parse.
func text(a request.Addresses) string {
	var parts []string
	for _, f := range address.Families {
		for _, r := range a.Ranges(f) {
			parts = append(parts, r.String())
		}
	}
	return strings.Join(parts, ",")
}

// FuzzParse checks that a parsed list contains only addresses of the text and parses to the same list after formatting,
// and that errors have one line.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"10.240.1.10", "10.240.1.10,fd00:240::1:a", " 10.0.1.10 ,\n10.0.1.12 ", "10.0.1.10 - 10.0.1.19", "10.0.1.0/28,10.0.1.15", "fd00::/64", "0.0.0.0/0", "::/0", "::/80",
		"0.0.0.0-255.255.255.255", "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "10.0.1.4/31,10.0.1.6/32", "::ffff:10.0.0.1", "fe80::1%eth0", "10.0.1.5/28", "10.0.1.9-10.0.1.1",
		"10.0.1.9-fd00::1", "10.0.1.1,10.0.1.1", "10.0.1.0/28,10.0.1.9", "web-0", "", ",", "10.0.1.1,", "fd00::fffe-fd00::1:1", "::-ffff::",
		"255.255.255.255", "fe80::1%a-b", "::ffff:1.2.3.4/120", "-", "/", "1-2-3", "\u0000", strings.Repeat("10.0.0.1,", 65),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, list string) {
		got, err := request.Parse(list)
		if err != nil {
			oneLine(t, list, err)
			return
		}
		checkAddresses(t, got, written(t, strings.Split(list, ",")))
		again, err := request.Parse(text(got))
		if err != nil || text(again) != text(got) {
			t.Errorf("%q parses to %s, which parses to %s, error %v", list, text(got), text(again), err)
		}
	})
}

// FuzzParseJSON checks that a parsed JSON list contains only addresses of the list.
func FuzzParseJSON(f *testing.F) {
	for _, seed := range []string{`["10.0.1.10"]`, `["10.0.1.10", "fd00::1"]`, `[]`, `null`, `["10.0.1.0/24"]`, `[" 10.0.1.1"]`, `["10.0.1.1","10.0.1.1"]`, `[1]`, `{"a":"b"}`, `["\u0031.1.1.1"]`, `["1.1.1.1"] x`, `["::ffff:1.1.1.1"]`, `["\u0000"]`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, list string) {
		got, err := request.ParseJSON(list)
		if err != nil {
			oneLine(t, list, err)
			return
		}
		var elements []string
		if err := json.Unmarshal([]byte(list), &elements); err != nil {
			t.Fatalf("ParseJSON accepts %q, which is not a JSON list of strings: %v", list, err)
		}
		checkAddresses(t, got, written(t, elements))
	})
}

// oneLine checks that an error has one line and is short enough for a status, an event and a log.
func oneLine(t *testing.T, list string, err error) {
	t.Helper()
	if message := err.Error(); strings.ContainsAny(message, "\n\r") || len(message) > 600 {
		t.Errorf("error for %.80q has %d bytes, want one line with at most 600 bytes: %q", list, len(message), message)
	}
}

// FuzzOf checks that Of returns the whole list of addresses, or one address of each family if pods get their addresses
// by ordinal, and that errors begin with "requests addresses".
func FuzzOf(f *testing.F) {
	for _, s := range []struct {
		ips, by, calico, pod string
		onPod                bool
		first                int32
	}{
		{ips: "10.0.1.10-10.0.1.19", pod: "web-3"},
		{ips: "10.0.1.10,fd00::/64", pod: "web-3", onPod: true, first: 2},
		{ips: "10.0.1.10", by: "any", pod: "web-x"},
		{ips: "10.0.1.0/30", by: "ordinal", pod: "web-2147483647", first: -2147483648},
		{ips: "::/64", pod: "web-2147483647", first: -2147483648},
		{ips: "10.0.1.10", by: "Set", pod: "web-0"},
		{calico: `["10.0.1.10"]`, pod: "web-0", onPod: true},
		{calico: `["10.0.1.10"]`, by: "ordinal", pod: "web-1", onPod: true, first: 1},
		{ips: "10.0.1.10", pod: "web-00"},
		{ips: "10.0.1.10", pod: "web--1"},
		{ips: strings.Repeat("\x97", 80) + "-", pod: "web-0"},
		{ips: strings.Repeat("a", 88) + "-", pod: "web-0"},
	} {
		f.Add(s.ips, s.by, s.calico, s.pod, s.onPod, s.first, false)
		f.Add(s.ips, s.by, s.calico, s.pod, s.onPod, s.first, true)
	}
	f.Fuzz(func(t *testing.T, ips, by, calico, name string, onPod bool, first int32, unnumbered bool) {
		annotations := map[string]string{}
		for key, value := range map[string]string{request.AnnotationIPs: ips, request.AnnotationBy: by, request.AnnotationCalico: calico} {
			if value != "" {
				annotations[key] = value
			}
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name}}
		workload := identity.Workload{Namespace: "db", Name: "web", FirstOrdinal: first, Annotations: annotations}
		if onPod {
			pod.Annotations, workload.Annotations = annotations, nil
		}
		got, ok, err := request.Of(pod, workload, identity.Identity{Slot: unnumbered})
		if requests := identity.RequestsIPs(pod.Annotations, workload.Annotations); requests != (ok || err != nil) {
			t.Fatalf("RequestsIPs returns %v, but Of returns %s, %v, error %v", requests, got, ok, err)
		}
		if err != nil {
			if !strings.HasPrefix(err.Error(), "requests addresses") {
				t.Errorf("error %q does not begin with \"requests addresses\"", err)
			}
			oneLine(t, name+ips+by+calico, shortened{err, by, name})
			if !strings.Contains(err.Error(), "address for ordinal") {
				return
			}
			all, parseErr := request.Parse(ips)
			if ips == "" {
				all, parseErr = request.ParseJSON(calico)
			}
			ordinal, _ := identity.Ordinal(name, "web")
			lacks := slices.ContainsFunc(all.Families(), func(f address.Family) bool {
				_, there := all.Nth(f, uint64(int64(ordinal)-int64(first)))
				return ordinal < first || !there
			})
			if parseErr != nil || !lacks {
				t.Errorf("%s has an address for ordinal %d (the first is for ordinal %d), but Of returns error %v", all, ordinal, first, err)
			}
			return
		}
		if !ok {
			return
		}
		whole, parse := ips, request.Parse
		if ips == "" {
			whole, parse = calico, request.ParseJSON
		}
		all, err := parse(whole)
		if err != nil {
			t.Fatalf("Of accepts the list %q, which can't be parsed: %v", whole, err)
		}
		ordinal, numbered := identity.Ordinal(name, "web")
		bySet := unnumbered || by == "any" || by == "" && ips == ""
		if bySet {
			if text(got.Addresses) != text(all) {
				t.Errorf("Of returns %s, want the whole list %s", got, all)
			}
			return
		}
		if !numbered {
			t.Fatalf("Of returns %s by ordinal for pod %q, which has no ordinal", got, name)
		}
		for _, fam := range address.Families {
			one, ok := got.Single(fam)
			want, there := all.Nth(fam, uint64(int64(ordinal)-int64(first)))
			if int64(ordinal) < int64(first) || ok != there || one != want {
				t.Errorf("ordinal %d (the first is %d) gets the %s address %s of %s, want %s", ordinal, first, fam, one, all, want)
			}
		}
	})
}

// shortened is an error without the quoted values of by and name, whose length is not limited.
type shortened struct {
	error
	by, name string
}

func (s shortened) Error() string {
	message := strings.ReplaceAll(s.error.Error(), fmt.Sprintf("%q", s.by), "")
	return strings.ReplaceAll(message, fmt.Sprintf("%q", s.name), "")
}
