package pool_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// Since when an entry is its owner's is in what the pool says of it, and nothing else is taken for that.
func TestSpelling(t *testing.T) {
	const owner, resource = "db/mysql-0", "db/StatefulSet/mysql"
	at := time.Date(2026, 11, 24, 8, 0, 0, 0, time.UTC)
	adopted := pool.Owned("db", "mysql-0", "StatefulSet", "mysql")
	adopted.Since = at.Unix()
	for spelling, want := range map[[2]string]pool.Entry{
		{owner, resource}: {Owner: owner, Resource: resource},
		{owner, resource + " since 2026-11-24T08:00:00Z"}:            adopted,
		{owner, " since 2026-11-24T08:00:00Z"}:                       {Owner: owner, Since: at.Unix()},
		{owner, resource + " since 2026-11-24T09:00:00+01:00"}:       {Owner: owner, Resource: resource + " since 2026-11-24T09:00:00+01:00"},
		{owner, resource + " since yesterday"}:                       {Owner: owner, Resource: resource + " since yesterday"},
		{owner, resource + " since 1970-01-01T00:00:00Z"}:            {Owner: owner, Resource: resource + " since 1970-01-01T00:00:00Z"},
		{"", resource + " since 2026-11-24T08:00:00Z"}:               {Resource: resource + " since 2026-11-24T08:00:00Z"},
		{"fixedip.io/away", "node-1/x/y since 2026-11-24T08:00:00Z"}: {Owner: "fixedip.io/away", Resource: "node-1/x/y since 2026-11-24T08:00:00Z"},
	} {
		got := pool.Spelled(spelling[0], spelling[1])
		if got != want || got.Spelling() != spelling[1] {
			t.Errorf("%q is %+v, which is spelled %q, want %+v", spelling, got, got.Spelling(), want)
		}
	}
	if kind, name, ok := adopted.Workload(); !ok || kind != "StatefulSet" || name != "mysql" {
		t.Errorf("it is for %s %s, %t", kind, name, ok)
	}
}

func TestEntryKinds(t *testing.T) {
	at := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		entry                        pool.Entry
		dynamic, pod, node, released bool
	}{
		"dynamic":            {entry: pool.Entry{}, dynamic: true},
		"owned":              {entry: pool.Owned("db", "mysql-0", "StatefulSet", "mysql"), pod: true},
		"released":           {entry: pool.Released(at), released: true},
		"released, no time":  {entry: pool.Entry{Owner: "fixedip.io/released", Resource: "soon"}, released: true},
		"router":             {entry: pool.Entry{Owner: "router"}, node: true},
		"a name without /":   {entry: pool.Entry{Owner: "somebody"}},
		"a mark of somebody": {entry: pool.Entry{Owner: "example.com/mark"}},
		"too many parts":     {entry: pool.Entry{Owner: "a/b/c"}},
	} {
		_, _, pod := c.entry.Pod()
		_, released := c.entry.ReleasedAt()
		if c.entry.Dynamic() != c.dynamic || pod != c.pod || c.entry.Node() != c.node || released != c.released {
			t.Errorf("%s: dynamic %v, pod %v, node %v, released %v", name, c.entry.Dynamic(), pod, c.entry.Node(), released)
		}
	}
	if got, _ := pool.Released(at).ReleasedAt(); !got.Equal(at) {
		t.Errorf("released at %v, want %v", got, at)
	}
	for name, c := range map[string]struct {
		entry    pool.Entry
		from     string
		reusable bool
	}{
		"from nobody":          {entry: pool.Released(at), reusable: true},
		"from a pod":           {entry: pool.ReleasedFrom("db/mysql-0", at), from: "db/mysql-0", reusable: true},
		"from a pod, unlisted": {entry: pool.ReleasedFrom("db/mysql-0", at).Unlisted(), from: "db/mysql-0"},
		"unlisted":             {entry: pool.Released(at).Unlisted()},
		"anew":                 {entry: pool.ReleasedFrom("db/mysql-0", at.Add(-time.Hour)).Unlisted().Anew(at), from: "db/mysql-0", reusable: true},
		"anew, from nobody":    {entry: pool.Released(at.Add(-time.Hour)).Unlisted().Anew(at), reusable: true},
		"from what is no pod":  {entry: pool.ReleasedFrom("router", at), reusable: true},
	} {
		got, ok := c.entry.ReleasedAt()
		from, has := c.entry.ReleasedFrom()
		if !ok || !got.Equal(at) || has != (c.from != "") || has && from != c.from || c.entry.Reusable() != c.reusable {
			t.Errorf("%s: released at %v, from %q %v, reusable %v", name, got, from, has, c.entry.Reusable())
		}
	}
	if from, ok := (pool.Entry{Owner: "db/mysql-0", Resource: "x from db/mysql-0"}).ReleasedFrom(); ok {
		t.Errorf("an owned entry was released from %q", from)
	}
	for name, c := range map[string]struct {
		entry       pool.Entry
		node, owner string
		away        bool
		arriving    bool
	}{
		"away":                 {entry: pool.Away("node-2", "db/mysql-0"), node: "node-2", owner: "db/mysql-0", away: true},
		"away, called so":      {entry: pool.Away("node-2", "db/leaving"), node: "node-2", owner: "db/leaving", away: true},
		"leaving, called so":   {entry: pool.Leaving("node-2", "db/leaving"), node: "node-2", owner: "db/leaving", away: true},
		"away, nowhere":        {entry: pool.Entry{Owner: "fixedip.io/away"}, away: true},
		"away, no pod":         {entry: pool.Entry{Owner: "fixedip.io/away", Resource: "node-2"}, away: true},
		"arriving":             {entry: pool.Arriving("db/mysql-0"), owner: "db/mysql-0", arriving: true},
		"arriving, unreadable": {entry: pool.Entry{Owner: "fixedip.io/arriving", Resource: "mysql-0"}, arriving: true},
		"released":             {entry: pool.Released(at)},
		"owned":                {entry: pool.Owned("db", "mysql-0", "StatefulSet", "mysql")},
	} {
		node, owner, away := c.entry.AwayAt()
		announced, arriving := c.entry.ArrivingFor()
		if node != c.node || owner+announced != c.owner || away != c.away || arriving != c.arriving {
			t.Errorf("%s: at %q for %q, away %v; announced for %q, arriving %v", name, node, owner, away, announced, arriving)
		}
		if _, _, pod := c.entry.Pod(); (c.away || c.arriving) && (pod || c.entry.Dynamic() || c.entry.Node()) {
			t.Errorf("%s: the agent would offer it", name)
		}
	}
	if kind, name, ok := pool.Owned("db", "mysql-0", "StatefulSet", "mysql").Workload(); kind != "StatefulSet" || name != "mysql" || !ok {
		t.Errorf("workload %s %s %v", kind, name, ok)
	}
}

func TestClaim(t *testing.T) {
	mine := pool.Owned("db", "mysql-0", "StatefulSet", "mysql")
	n := pool.Node{
		Name: "n", PodCIDRs: []string{"10.0.1.0/24", "fd00::/64"}, Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24"), netip.MustParsePrefix("fd00::/64")},
		Entries: map[netip.Addr]pool.Entry{
			addr("10.0.1.1"): {}, addr("fd00::2"): mine, addr("10.0.1.3"): {Owner: "db/other-0"},
			addr("10.0.1.4"): pool.Released(time.Unix(1, 0)), addr("10.0.1.5"): pool.Released(time.Unix(1, 0)), addr("10.0.1.6"): {Owner: "router"},
			addr("10.0.1.9"): pool.Released(time.Unix(1, 0)).Unlisted(),
		},
		Used: map[netip.Addr]string{addr("10.0.1.5"): "db/other-1", addr("10.0.1.7"): "db/other-2", addr("10.0.1.8"): "db/mysql-0"},
	}
	for name, c := range map[string]struct {
		want  []string
		edits int
		taken bool
	}{
		"a free one":               {[]string{"10.0.1.200"}, 1, false},
		"its own":                  {[]string{"fd00::2"}, 0, false},
		"its own and the other":    {[]string{"fd00::2", "10.0.1.200"}, 1, false},
		"another beside its own":   {[]string{"fd00::3"}, 0, true},
		"one that rests":           {[]string{"10.0.1.4"}, 1, false},
		"one that it still uses":   {[]string{"10.0.1.8"}, 1, false},
		"one that rests and works": {[]string{"10.0.1.5"}, 0, true},
		"one that may work":        {[]string{"10.0.1.9"}, 0, true},
		"one that is used":         {[]string{"10.0.1.7"}, 0, true},
		"a dynamic one":            {[]string{"10.0.1.1"}, 0, true},
		"another pod's":            {[]string{"10.0.1.3"}, 0, true},
		"the router's":             {[]string{"10.0.1.6"}, 0, true},
		"another node's":           {[]string{"10.0.2.1"}, 0, true},
		"one of two is taken":      {[]string{"10.0.1.200", "10.0.1.3"}, 0, true},
	} {
		var want []netip.Addr
		for _, a := range c.want {
			want = append(want, addr(a))
		}
		edits, err := n.Claim(want, mine)
		if len(edits) != c.edits || errors.Is(err, pool.ErrTaken) != c.taken {
			t.Errorf("%s: %d edits, %v", name, len(edits), err)
		}
	}
}

// However claims, releases and fillings follow one another, an address that names a pod goes to
// another only by way of a release.
func TestNoHijack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := pool.Node{Name: "n", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/29")}, Entries: map[netip.Addr]pool.Entry{}, Used: map[netip.Addr]string{}}
		addrs := slices.Collect(address.Up(n.Subnets[0]))
		pick := rapid.SampledFrom(addrs)
		pods := rapid.SampledFrom([]string{"mysql-0", "mysql-1", "mysql-2"})
		t.Repeat(map[string]func(*rapid.T){
			"claim": func(t *rapid.T) {
				want := rapid.SliceOfNDistinct(pick, 1, 2, rapid.ID[netip.Addr]).Draw(t, "addrs")
				entry := pool.Owned("db", pods.Draw(t, "pod"), "StatefulSet", "mysql")
				edits, err := n.Claim(want, entry)
				if err != nil {
					return
				}
				for _, e := range edits {
					if _, _, taken := n.Entries[e.Addr].Pod(); taken {
						t.Fatalf("%s went from %q to %q", e.Addr, n.Entries[e.Addr].Owner, entry.Owner)
					}
				}
				n = n.With(edits)
				for _, a := range want {
					if n.Entries[a] != entry {
						t.Fatalf("%s is not the claimant's after its claim", a)
					}
				}
			},
			"release": func(t *rapid.T) {
				owner := "db/" + pods.Draw(t, "pod")
				n = n.With(n.Release(owner, nil, time.Unix(1, 0)))
				for a, e := range n.Entries {
					if e.Owner == owner {
						t.Fatalf("%s is still %s's", a, owner)
					}
				}
			},
			"used": func(t *rapid.T) {
				a := pick.Draw(t, "addr")
				if _, used := n.Used[a]; used {
					delete(n.Used, a)
				} else {
					n.Used[a] = "db/" + pods.Draw(t, "pod")
				}
			},
		})
	})
}

// Who has an address is told by name within his namespace only.
func TestTold(t *testing.T) {
	for _, c := range [][3]string{
		{"db/mysql-0", "db/web-0", "db/mysql-0"},
		{"db/mysql-0", "shop/web-0", "a pod of another namespace"},
		{"db/mysql-0", "", "db/mysql-0"},
		{"router", "shop/web-0", "router"},
		{"fixedip.io/away", "shop/web-0", "fixedip.io/away"},
	} {
		if got := pool.Told(c[0], c[1]); got != c[2] {
			t.Errorf("%s is told of %s as %s, want %s", c[1], c[0], got, c[2])
		}
	}
	n := pool.Node{Name: "n", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}, Entries: map[netip.Addr]pool.Entry{addr("10.0.1.3"): {Owner: "db/mysql-0"}}, Used: map[netip.Addr]string{addr("10.0.1.4"): "db/mysql-1"}}
	for a, want := range map[string]string{"10.0.1.3": "10.0.1.3 on node n belongs to a pod of another namespace", "10.0.1.4": "10.0.1.4 on node n is used by a pod of another namespace"} {
		if _, err := n.Claim([]netip.Addr{addr(a)}, pool.Owned("shop", "web-0", "StatefulSet", "web")); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
