// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package redact_test

import (
	"net/netip"
	"strings"
	"testing"

	"fixedip.io/fixedip/ipam/core/redact"
)

func redactor() *redact.Redactor {
	r := redact.New([]netip.Prefix{netip.MustParsePrefix("10.240.1.0/24"), netip.MustParsePrefix("fd00:240:1::/64"), netip.MustParsePrefix("10.240.0.0/16")})
	r.Add(redact.Namespace, "acme", "kube-system", "default")
	r.Add(redact.Node, "worker-a", "worker-a.acme.example")
	r.Add(redact.Pod, "web-0", "web-1")
	r.Add(redact.Workload, "web")
	return r
}

// TestText checks the replacement of each form of names and addresses.
func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "",
		"pod acme/web-0 on node worker-a":    "pod namespace-1/pod-1 on node node-1",
		"kube-system/coredns, default/web-1": "kube-system/coredns, default/pod-2",
		"web-0.web.acme.svc.cluster.local":   "pod-1.workload-1.namespace-1.svc.cluster.local",
		"worker-a.acme.example is ready.":    "node-2 is ready.",
		"website-0 and mysql-00 are others":  "website-0 and mysql-00 are others",
		"web-00 of a workload":               "workload-1-00 of a workload",
		"StatefulSet/web: web-0.":            "StatefulSet/workload-1: pod-1.",
		"volume data-web-0 of x-web":         "volume data-pod-1 of x-workload-1",
		"acme/StatefulSet/web":               "namespace-1/StatefulSet/workload-1",
		"web-7d9f8b6c5 of web":               "workload-1-7d9f8b6c5 of workload-1",
		"default_web-0_uid":                  "default_pod-1_uid",
		`{"pod":"acme/web-0","n":1}`:         `{"pod":"namespace-1/pod-1","n":1}`,
		"10.240.1.0/24":                      "subnet-1/24",
		"10.240.0.0/16":                      "subnet-3/16",
		"10.240.1.254, 10.240.9.1":           "subnet-1+254, subnet-3+2305",
		"10.240.1.254:9470":                  "subnet-1+254:9470",
		"node 192.0.2.1 and 192.0.2.1":       "node address-ipv4-1 and address-ipv4-1",
		"192.0.2.0/24":                       "address-ipv4-1/24",
		"fd00:240:1::fe":                     "subnet-2+254",
		"fd00:240:1:0:aaaa:bbbb:cccc:dddd":   "address-ipv6-1",
		"[2001:db8::1]:443":                  "[address-ipv6-1]:443",
		"2001:db8::/32":                      "address-ipv6-1/32",
		"::ffff:192.0.2.1":                   "address-ipv6-1",
		"127.0.0.1:9471, ::1 and 0.0.0.0":    "127.0.0.1:9471, ::1 and 0.0.0.0",
		"web-10-240-1-5":                     "workload-1-subnet-1+5",
		"slot of it: api-10-240-1-5":         "slot of it: api-subnet-1+5",
		"10-240-1-0-24":                      "subnet-1-24",
		`pods is forbidden: User "alice@acme.example" cannot list`: `pods is forbidden: User "(removed)" cannot list`,
		`Get "https://api.acme.example:6443/api/v1/pods": EOF`:     `Get "https://(removed):6443/api/v1/pods": EOF`,
		`Get "https://0F3A.gr7.eu-west-1.eks.amazonaws.com/api"`:   `Get "https://(removed)/api"`,
		"Get https://[2001:db8::1]:6443/api":                       "Get https://[address-ipv6-1]:6443/api",
		"Get https://192.0.2.1:6443/api":                           "Get https://address-ipv4-1:6443/api",
		"v1.34.9 and 12:30:45.678":                                 "v1.34.9 and 12:30:45.678",
		"2026-11-21T12:00:00Z":                                     "2026-11-21T12:00:00Z",
		"sha256:0123456789ab":                                      "sha256:0123456789ab",
	} {
		if got := redactor().Text(text); got != want {
			t.Errorf("Text(%q) = %q, want %q", text, got, want)
		}
	}
}

// TestStable checks that one name has one token in all texts, and that different names have different tokens.
func TestStable(t *testing.T) {
	r := redactor()
	first := r.Text("acme/web-0 has 198.51.100.7, acme/web-1 has 198.51.100.8")
	if again := r.Text("acme/web-0 has 198.51.100.7, acme/web-1 has 198.51.100.8"); again != first {
		t.Errorf("the second text is %q, want %q", again, first)
	}
	if want := "namespace-1/pod-1 has address-ipv4-1, namespace-1/pod-2 has address-ipv4-2"; first != want {
		t.Errorf("got %q, want %q", first, want)
	}
}

// TestLearn checks that names of objects that no longer exist are found in log lines.
func TestLearn(t *testing.T) {
	for line, secrets := range map[string][]string{
		`I1121 12:00:00.000000 1 x.go:1] "Released" pod="shop/cart-7" node="gpu-box"`:                        {"shop", "cart-7", "gpu-box"},
		`{"ts":1,"msg":"Released","pod":{"name":"cart-7","namespace":"shop"},"node":"gpu-box"}`:              {"shop", "cart-7", "gpu-box"},
		`{"msg":"Claimed","owner":"shop/cart-7","workload":"shop/StatefulSet/cart"}`:                         {"shop", "cart-7", "cart"},
		`"Reconciler error" err="pod acme/gone-3 has the address" FixedIP="acme/gone-3" namespace="acme"`:    {"gone-3"},
		`IP 10.240.1.5 is still in use by pod acme/gone-3; release is blocked until that pod is deleted.`:    {"gone-3"},
		`"Adopted" ciliumNode="gpu-box" nodeSubnet="10-240-1-0-24" name="gpu-box" statefulSet="shop/cart"`:   {"gpu-box", "shop", "cart", "10-240-1-0-24"},
		`IP 10.240.1.5 is in use by Pod shop/cart-7; node gpu-box is gone, Node "gpu-box-2" is not.`:         {"shop", "cart-7", "gpu-box", "gpu-box-2"},
		`waiting for the Cilium agent on node worker-a to acknowledge 10.240.1.5 of default/gone-4 (at most`: {"gone-4", "worker-a"},
	} {
		r := redactor()
		r.Learn(line)
		got := r.Text(line)
		for _, s := range secrets {
			for _, w := range strings.FieldsFunc(got, func(c rune) bool { return strings.ContainsRune(` "/=,:;{}`, c) }) {
				if w == s {
					t.Errorf("the redacted text of %q still contains %q: %q", line, s, got)
				}
			}
		}
	}
}

// TestKnownWords checks that Learn leaves out words that only look like names: public words, addresses, numbers and verbs.
func TestKnownWords(t *testing.T) {
	r := redactor()
	line := `{"owner":"router","name":"default","object":{"apiVersion":"v1"},"node":"10.240.1.7","pod":"12","msg":"the node is gone, and the pod waits"}`
	r.Learn(line)
	want := `{"owner":"router","name":"default","object":{"apiVersion":"v1"},"node":"subnet-1+7","pod":"12","msg":"the node is gone, and the pod waits"}`
	if got := r.Text(line); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestKeep checks that a kept name is not replaced, even if it is added or learned later.
func TestKeep(t *testing.T) {
	r := redact.New(nil)
	r.Keep("fixedip-scheduler-1")
	r.Add(redact.Pod, "fixedip-scheduler-1", "web-0")
	line := `pod fixedip-system/fixedip-scheduler-1 places pod="web-0"`
	r.Learn(line)
	if got, want := r.Text(line), `pod fixedip-system/fixedip-scheduler-1 places pod="pod-1"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// FuzzText checks that a known name and an address are replaced, whatever text follows them, and that nothing panics.
func FuzzText(f *testing.F) {
	f.Add("acme/web-0 10.240.1.5 fd00:240:1::5")
	f.Add("web-0.web:10.240.1.5/24")
	f.Add("::::/:.-")
	f.Fuzz(func(t *testing.T, text string) {
		r := redactor()
		r.Learn(text)
		r.Text(text)
		surrounded := " acme/web-0 10.240.1.5 " + text
		if got := r.Text(surrounded); !strings.HasPrefix(got, " namespace-1/pod-1 subnet-1+5 ") {
			t.Errorf("Text(%q) = %q, want tokens instead of the name and the address at the beginning", surrounded, got)
		}
	})
}
