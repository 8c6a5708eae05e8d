// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package request_test

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/request"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestParse(t *testing.T) {
	const allowed = "write an address (10.240.1.10), a range (10.240.1.10-10.240.1.20) or a CIDR (10.240.1.16/28)"
	many := strings.TrimSuffix(strings.Repeat("10.0.0.1,", 65), ",")
	for text, c := range map[string]struct{ want, wantErr string }{
		"10.0.1.10":                  {want: "10.0.1.10"},
		"10.0.1.10,fd00::a":          {want: "10.0.1.10, fd00::a"},
		" 10.0.1.10 ,\n10.0.1.12 ":   {want: "10.0.1.10, 10.0.1.12"},
		"10.0.1.10-10.0.1.19":        {want: "10.0.1.10-10.0.1.19"},
		"10.0.1.10 - 10.0.1.19":      {want: "10.0.1.10-10.0.1.19"},
		"10.0.1.10 -\n\t10.0.1.19":   {want: "10.0.1.10-10.0.1.19"},
		"10.0.1.10-10.0.1.10":        {want: "10.0.1.10"},
		"10.0.1.0/28":                {want: "10.0.1.1-10.0.1.14"},
		"10.0.1.4/31":                {want: "10.0.1.4-10.0.1.5"},
		"10.0.1.4/32":                {want: "10.0.1.4"},
		"fd00::/64":                  {want: "fd00::1-fd00::ffff:ffff:ffff:ffff"},
		"fd00::1-fd00:1::":           {want: "fd00::1-fd00:1::"},
		"10.0.1.9,10.0.1.1,10.0.1.5": {want: "10.0.1.9, 10.0.1.1, 10.0.1.5"},
		"10.0.1.0/28,10.0.1.15":      {want: "10.0.1.1-10.0.1.14, 10.0.1.15"},
		"10.0.0.1,10.0.0.3,10.0.0.5,10.0.0.7,10.0.0.9,fd00::1": {want: "10.0.0.1, 10.0.0.3, 10.0.0.5, 10.0.0.7 and 2 more"},

		"":                          {wantErr: "the value is empty; list addresses, such as 10.240.1.10,10.240.1.11, or remove the annotation"},
		" \n":                       {wantErr: "the value is empty; list addresses, such as 10.240.1.10,10.240.1.11, or remove the annotation"},
		"10.0.1.10,":                {wantErr: "element 2 is empty; write an address there, or remove the element"},
		"10.0.1.10;10.0.1.11":       {wantErr: `"10.0.1.10;10.0.1.11" is not an IP address; ` + allowed},
		`["10.0.1.10"]`:             {wantErr: "element 1 contains '\"'; " + allowed},
		"10.0.1.10,\x97-web":        {wantErr: "element 2 contains '\ufffd'; " + allowed},
		"web-0":                     {wantErr: `range "web-0": "web" is not an IP address; ` + allowed},
		"10.0.1.300":                {wantErr: `"10.0.1.300" is not an IP address; ` + allowed},
		"FD00::1":                   {wantErr: `"FD00::1" is not in canonical form; write fd00::1`},
		"::ffff:10.0.0.1":           {wantErr: `"::ffff:10.0.0.1" is an IPv4 address mapped into IPv6; write 10.0.0.1`},
		"fe80::1%eth0":              {wantErr: `"fe80::1%eth0" has a zone; a pod address has none`},
		"10.0.1.5/28":               {wantErr: `"10.0.1.5/28" has host bits set; the network is 10.0.1.0/28`},
		"10.0.1.0/33":               {wantErr: `"10.0.1.0/33" is not a CIDR such as 10.240.0.0/16 or fd00:240::/48`},
		"FD00::/64":                 {wantErr: `"FD00::/64" is not in canonical form; write fd00::/64`},
		"::ffff:10.0.0.0/120":       {wantErr: `"::ffff:10.0.0.0/120" begins with an IPv4 address mapped into IPv6; write an IPv4 CIDR such as 10.240.0.0/16`},
		"::/80":                     {wantErr: `"::/80" has IPv4 addresses mapped into IPv6; write a CIDR that does not overlap ::ffff:0:0/96`},
		"::-ffff::":                 {wantErr: `range "::-ffff::" has IPv4 addresses mapped into IPv6; write ranges that do not overlap ::ffff:0:0/96`},
		"10.0.1.9-10.0.1.1":         {wantErr: `range "10.0.1.9-10.0.1.1" ends before it begins; write 10.0.1.1-10.0.1.9`},
		"10.0.1.9-":                 {wantErr: `range "10.0.1.9-": "" is not an IP address; ` + allowed},
		"10.0.1.9-fd00::1":          {wantErr: `range "10.0.1.9-fd00::1" begins with an IPv4 address and ends with an IPv6 one; write one range for each family`},
		"10.0.1.9-FD00::1":          {wantErr: `range "10.0.1.9-FD00::1": "FD00::1" is not in canonical form; write fd00::1`},
		"10.0.1.1,10.0.1.1":         {wantErr: `"10.0.1.1" repeats addresses of an earlier element; write each address once`},
		"10.0.1.0/28,10.0.1.9":      {wantErr: `"10.0.1.9" repeats addresses of an earlier element; write each address once`},
		"fd00::5-fd00::9,fd00::/64": {wantErr: `"fd00::/64" repeats addresses of an earlier element; write each address once`},
		many:                        {wantErr: "the value has more than 64 elements; write ranges, such as 10.240.1.10-10.240.1.20, or CIDRs, in annotation fixedip.io/ips"},
		strings.Repeat("1", 101):    {wantErr: "element 1 is 101 bytes long; " + allowed},
	} {
		got, err := request.Parse(text)
		if got.String() != c.want || message(err) != c.wantErr {
			t.Errorf("Parse(%q) returns %s, error %q; want %s, error %q", text, got, message(err), c.want, c.wantErr)
		}
	}
}

func TestParseJSON(t *testing.T) {
	const notAList = `the value is not a JSON list of one or more addresses; write a list such as ["10.240.1.10"]`
	for text, c := range map[string]struct{ want, wantErr string }{
		`["10.0.1.10"]`:              {want: "10.0.1.10"},
		`["10.0.1.10", "fd00::1"]`:   {want: "10.0.1.10, fd00::1"},
		`10.0.1.10`:                  {wantErr: notAList},
		`[]`:                         {wantErr: notAList},
		`null`:                       {wantErr: notAList},
		`[10]`:                       {wantErr: notAList},
		`[""]`:                       {wantErr: "element 1 is empty; write an address there, or remove the element"},
		`["10.0.1.0/28"]`:            {wantErr: `"10.0.1.0/28" is not an IP address; write an address (10.240.1.10)`},
		`["10.0.1.10", "10.0.1.10"]`: {wantErr: `"10.0.1.10" repeats addresses of an earlier element; write each address once`},
	} {
		got, err := request.ParseJSON(text)
		if got.String() != c.want || message(err) != c.wantErr {
			t.Errorf("ParseJSON(%q) returns %s, error %q; want %s, error %q", text, got, message(err), c.want, c.wantErr)
		}
	}
}

func TestNthAcrossLargeRanges(t *testing.T) {
	const text = "fd00::ffff:ffff:ffff:fffe-fd00:0:0:1::1,fd01::5,fd02::/16,10.0.0.0/30"
	requested, err := request.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[uint64]string{
		0: "fd00::ffff:ffff:ffff:fffe", 1: "fd00::ffff:ffff:ffff:ffff", 2: "fd00:0:0:1::", 3: "fd00:0:0:1::1",
		4: "fd01::5", 5: "fd02::1", 1 << 63: "fd02::7fff:ffff:ffff:fffc", math.MaxUint64: "fd02::ffff:ffff:ffff:fffb",
	} {
		got, ok := requested.Nth(address.IPv6, n)
		if !ok || got.String() != want {
			t.Errorf("Nth(%d) returns %s, %v; want %s", n, got, ok, want)
		}
	}
}

// drawElement draws one element of a list. It returns the text of the element and the addresses that the element requests.
func drawElement(t *rapid.T) (text string, want []netip.Addr) {
	base := rapid.SampledFrom([]string{"10.0.0.0", "10.0.255.240", "fd00::", "fd00::ffff:ffff:ffff:fff0"}).Draw(t, "base")
	from := addr(base)
	for range rapid.IntRange(0, 40).Draw(t, "offset") {
		from = from.Next()
	}
	switch rapid.IntRange(0, 2).Draw(t, "kind") {
	case 0:
		return from.String(), []netip.Addr{from}
	case 1:
		want = []netip.Addr{from}
		for range rapid.IntRange(0, 9).Draw(t, "length") {
			want = append(want, want[len(want)-1].Next())
		}
		return fmt.Sprintf("%s-%s", from, want[len(want)-1]), want
	default:
		p, _ := from.Prefix(address.Of(from).Bits() - rapid.IntRange(0, 4).Draw(t, "host bits"))
		return p.String(), slices.Collect(address.Up(p))
	}
}

// TestAddresses compares the results of the methods of Addresses with a plain list of all requested addresses, and checks
// that Parse refuses lists with a repeated address.
func TestAddresses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var texts []string
		want := map[address.Family][]netip.Addr{}
		seen, repeated := map[netip.Addr]bool{}, false
		for range rapid.IntRange(1, 4).Draw(t, "elements") {
			text, addrs := drawElement(t)
			texts = append(texts, text)
			for _, a := range addrs {
				want[address.Of(a)] = append(want[address.Of(a)], a)
				repeated = repeated || seen[a]
				seen[a] = true
			}
		}
		requested, err := request.Parse(strings.Join(texts, ","))
		if (err != nil) != repeated {
			t.Fatalf("Parse(%q) returns error %v; want an error: %v", texts, err, repeated)
		}
		if err != nil {
			return
		}
		for _, f := range address.Families {
			if got := slices.Collect(all(requested, f)); !slices.Equal(got, want[f]) {
				t.Fatalf("%q: %s addresses are %v, want %v", texts, f, got, want[f])
			}
			for n, a := range want[f] {
				if got, ok := requested.Nth(f, uint64(n)); !ok || got != a {
					t.Fatalf("%q: Nth(%d) returns %s, %v; want %s", texts, n, got, ok, a)
				}
			}
			if got, ok := requested.Nth(f, uint64(len(want[f]))); ok {
				t.Fatalf("%q: Nth beyond the last address returns %s, want false", texts, got)
			}
			one, single := requested.Single(f)
			if single != (len(want[f]) == 1) || single && one != want[f][0] {
				t.Fatalf("%q: Single(%s) returns %s, %v; the addresses are %v", texts, f, one, single, want[f])
			}
		}
		subnet := rapid.SampledFrom([]string{"10.0.0.0/27", "10.0.0.16/28", "fd00::/123", "10.0.0.4/31"}).Draw(t, "subnet")
		p := netip.MustParsePrefix(subnet)
		var within, wantWithin []netip.Addr
		for _, r := range requested.Within(p) {
			for a := r.To(); ; a = a.Prev() {
				within = append(within, a)
				if a == r.From() {
					break
				}
			}
		}
		for _, a := range slices.Backward(slices.Collect(address.Up(p))) {
			if requested.Contains(a) != seen[a] {
				t.Fatalf("%q: Contains(%s) returns %v, want %v", texts, a, requested.Contains(a), seen[a])
			}
			if seen[a] {
				wantWithin = append(wantWithin, a)
			}
		}
		if !slices.Equal(within, wantWithin) {
			t.Fatalf("%q: Within(%s) returns %v, want %v", texts, subnet, within, wantWithin)
		}
	})
}
