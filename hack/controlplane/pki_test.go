// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"strings"
	"testing"
)

// TestEnsurePKI checks that a second start on the same work folder keeps the certificate authority, and replaces the serving
// certificate if and only if it lacks an address.
func TestEnsurePKI(t *testing.T) {
	loopback, other := net.IPv4(127, 0, 0, 1), net.IPv4(10, 0, 0, 1)
	for name, c := range map[string]struct {
		first, second []net.IP
		// noCAKey is true if the first start did not store the key of the authority.
		noCAKey  bool
		replaced bool
		// err is a part of the error of the second start; empty: no error.
		err string
	}{
		"same addresses":                    {first: []net.IP{loopback, other}, second: []net.IP{loopback, other}},
		"fewer addresses":                   {first: []net.IP{loopback, other}, second: []net.IP{other}},
		"another address":                   {first: []net.IP{loopback}, second: []net.IP{loopback, other}, replaced: true},
		"an IPv6 address":                   {first: []net.IP{loopback}, second: []net.IP{net.IPv6loopback}, replaced: true},
		"same addresses, no key of the CA":  {first: []net.IP{loopback}, second: []net.IP{loopback}, noCAKey: true},
		"another address, no key of the CA": {first: []net.IP{loopback}, second: []net.IP{loopback, other}, noCAKey: true, err: "does not cover address 10.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			before, err := ensurePKI(dir, c.first)
			if err != nil {
				t.Fatal(err)
			}
			if c.noCAKey {
				if err := os.Remove(before.caKeyFile); err != nil {
					t.Fatal(err)
				}
			}
			servingBefore, err := os.ReadFile(before.certFile)
			if err != nil {
				t.Fatal(err)
			}
			after, err := ensurePKI(dir, c.second)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Fatalf("got error %v, want %q (empty: no error)", err, c.err)
			}
			if err != nil {
				return
			}
			if !bytes.Equal(after.caPEM, before.caPEM) {
				t.Error("the second start has changed the certificate authority")
			}
			servingAfter, err := os.ReadFile(after.certFile)
			if err != nil {
				t.Fatal(err)
			}
			if replaced := !bytes.Equal(servingAfter, servingBefore); replaced != c.replaced {
				t.Errorf("serving certificate replaced: got %t, want %t", replaced, c.replaced)
			}
			pair, err := tls.LoadX509KeyPair(after.certFile, after.keyFile)
			if err != nil {
				t.Fatal(err)
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(after.caPEM)
			for _, a := range c.second {
				if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: a.String()}); err != nil {
					t.Errorf("address %s: %v", a, err)
				}
			}
		})
	}
}
