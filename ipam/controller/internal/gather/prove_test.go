// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package gather

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"fixedip.io/fixedip/ipam/core/agentview"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

// TestRetryAfter checks that the time until the pods of a node are read again is the age of the agent's answer, at least
// minRetry.
func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	for age, want := range map[time.Duration]time.Duration{0: 5 * time.Second, time.Second: 5 * time.Second, time.Minute: time.Minute} {
		e := &NotProvedError{Why: "pod db/web-1 has no address", Answered: now.Add(-age)}
		if got := e.RetryAfter(now); got != want {
			t.Errorf("RetryAfter %v after the answer: got %v, want %v", age, got, want)
		}
	}
}

// countingAgents answers every barrier request with the same evidence, and counts the new requests.
type countingAgents struct {
	evidence agentview.Evidence
	// answered contains the keys of the earlier requests, which are answered now. asked is the number of new requests.
	answered map[string]bool
	asked    int
}

func (a *countingAgents) Ask(_, key string, _ func()) (agentview.Evidence, time.Time) {
	if !a.answered[key] {
		a.asked++
		a.answered[key] = true
		return agentview.Evidence{}, time.Time{}
	}
	return a.evidence, time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
}

func (a *countingAgents) Forget(_, key string) { delete(a.answered, key) }

// TestProveOfUsedAddress checks that an address that the agent reports as used by another pod causes no repeated barrier
// requests: each of them is a write of the CiliumNode, and a pod that cannot start may wait for hours. Requests are repeated
// only while the report in the ledger does not show the use that the answer shows.
func TestProveOfUsedAddress(t *testing.T) {
	a := netip.MustParseAddr("10.0.0.7")
	for name, c := range map[string]struct {
		owner string
		// reported is the user of the address in the report that the cache shows, and answered the user in the answer.
		reported, answered string
		// asked is the number of barrier requests of ten calls of Prove.
		asked int
	}{
		"another pod has the address of the owner":     {owner: "db/web-0", reported: "db/web-1", answered: "db/web-1"},
		"a pod has an address that no pod may use":     {reported: "db/web-1", answered: "db/web-1", asked: 1},
		"the report is older or newer than the answer": {answered: "db/web-1", asked: 5},
	} {
		node := pool.NodePool{Name: "n", UID: "uid", Used: map[netip.Addr]string{}}
		if c.reported != "" {
			node.Used[a] = c.reported
		}
		agents := &countingAgents{evidence: agentview.Evidence{Node: "n", Used: map[netip.Addr]string{a: c.answered}}, answered: map[string]bool{}}
		g := &Gatherer{Ledger: ledger.New(), Agents: agents, Clock: clocktesting.NewFakeClock(time.Date(2026, 11, 27, 13, 0, 0, 0, time.UTC))}
		g.Ledger.SetNode(node)
		for range 10 {
			_, err := g.Prove(t.Context(), "n", []netip.Addr{a}, c.owner, func() {})
			if notProved := (*NotProvedError)(nil); errors.As(err, &notProved) {
				if after := notProved.RetryAfter(g.Clock.Now()); after != minRetry {
					t.Errorf("%s: retry after %v, want %v", name, after, minRetry)
				}
			} else if !errors.Is(err, ErrAsked) {
				t.Errorf("%s: got error %v, want a NotProvedError or ErrAsked", name, err)
			}
		}
		if agents.asked != c.asked {
			t.Errorf("%s: got %d barrier requests, want %d", name, agents.asked, c.asked)
		}
	}
}
