// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/subnetmap"
)

// golden compares an output with a golden file. If the environment variable UPDATE_GOLDEN is set, it writes the file.
func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got): %s", file, diff)
	}
}

// nodeMaps returns the maps of the nodes of pools, and of node-5, which has a large subnet and an entry whose owner text
// is HTML.
func nodeMaps() (nodes []subnetmap.Node) {
	l := pools()
	evil := netip.MustParseAddr("fd00:5::1:7")
	l.SetNode(pool.NodePool{
		Name: "node-5", Subnets: []netip.Prefix{netip.MustParsePrefix("fd00:5::/64")}, Unreported: true,
		Entries: map[netip.Addr]pool.Entry{
			evil:                               pool.ForOwner(`"><script>alert(1)</script>`),
			netip.MustParseAddr("10.0.2.9"):    pool.OwnedEntry("db", "guest", "StatefulSet", "guest"),
			netip.MustParseAddr("fd00:5::1:9"): pool.MovedEntry("node-1", "db/away"),
		},
		Used: map[netip.Addr]string{evil: "web/other"},
	})
	l.SetReservation(ledger.Reservation{Record: "db/mysql-1", Owner: "db/mysql-1", Addrs: []netip.Addr{netip.MustParseAddr("10.0.1.250")}})
	for _, n := range l.Nodes() {
		nodes = append(nodes, subnetmap.Of(l, n))
	}
	return nodes
}

// TestMap compares the output of map, in each of its formats, with golden files.
func TestMap(t *testing.T) {
	for file, write := range map[string]func(*bytes.Buffer) error{
		"map.txt":          func(b *bytes.Buffer) error { return writeMap(b, nodeMaps(), false) },
		"map-colour.txt":   func(b *bytes.Buffer) error { return writeMap(b, nodeMaps()[:1], true) },
		"map-no-nodes.txt": func(b *bytes.Buffer) error { return writeMap(b, nil, false) },
		"map.json":         func(b *bytes.Buffer) error { return write(b, inJSON, listOf(nodeMaps()), nil) },
		"map.html":         func(b *bytes.Buffer) error { return writeMapPage(b, nodeMaps(), now) },
	} {
		t.Run(file, func(t *testing.T) {
			var got bytes.Buffer
			if err := write(&got); err != nil {
				t.Fatal(err)
			}
			golden(t, file, got.Bytes())
		})
	}
}

// TestMapPage checks that the page loads nothing, that text from the cluster is escaped, and that every cell has a title.
func TestMapPage(t *testing.T) {
	var b bytes.Buffer
	if err := writeMapPage(&b, nodeMaps(), now); err != nil {
		t.Fatal(err)
	}
	got := b.String()
	for _, loads := range []string{"src=", "href=", "url(", "@import", "<link", "<img", "<iframe"} {
		if strings.Contains(got, loads) {
			t.Errorf("the page contains %q, want a page that loads nothing", loads)
		}
	}
	if n := strings.Count(got, "<script"); n != 1 || strings.Contains(got, "<script>alert") {
		t.Errorf("the page has %d scripts, want only its own", n)
	}
	if !strings.Contains(got, "&lt;script&gt;alert(1)&lt;/script&gt;") {
		t.Error("the page does not contain the owner text with escaped HTML")
	}
	cells, titled := len(regexp.MustCompile(`<td class="a `).FindAllString(got, -1)), len(regexp.MustCompile(`<td class="a \w+" title="[^"]+">[^<]`).FindAllString(got, -1))
	if want := 256 + 256 + 256 + 128 + 64; cells != want || titled != want {
		t.Errorf("the page has %d cells and %d with a title and a symbol, want %d each", cells, titled, want)
	}
}
