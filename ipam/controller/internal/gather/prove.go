// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package gather

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/agentview"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
)

// Agents asks Cilium agents: see barrier.Service.
type Agents interface {
	Ask(node, question string, notify func()) (evidence agentview.Evidence, answered time.Time)
	Forget(node, question string)
}

// ErrAsked is the error of Prove as long as the agent has not answered.
var ErrAsked = errors.New("the agent has not answered yet")

// NotProvedError is the error of Prove if the agent has answered and the evidence is not sufficient. That may change without
// an event.
type NotProvedError struct {
	Why string
	// Answered is when the agent answered.
	Answered time.Time
}

func (e *NotProvedError) Error() string { return "the evidence is not sufficient yet: " + e.Why }

// minRetry is the minimum of RetryAfter.
const minRetry = 5 * time.Second

// RetryAfter returns how long to wait before the pods of the node are read again: the age of the answer, at least minRetry.
// The interval doubles each time, because a pod that cannot start may have no address for hours.
func (e *NotProvedError) RetryAfter(now time.Time) time.Duration {
	return max(minRetry, now.Sub(e.Answered))
}

// Prove returns the evidence of the agent of a node if it shows that no pod but owner uses the addresses; if owner is empty,
// no pod at all. If the agent has to be asked, the error is ErrAsked, and notify is called when there is an answer. If the
// answer does not prove enough, the error is a *NotProvedError. about lists everything else that the answer depends on,
// besides the CiliumNode and the entries of the addresses, such as the UID of a pod.
func (g *Gatherer) Prove(ctx context.Context, node string, addrs []netip.Addr, owner string, notify func(), about ...any) (agentview.Evidence, error) {
	n, _ := g.Ledger.Node(node)
	parts := append(about, n.UID)
	for _, a := range addrs {
		parts = append(parts, a, n.Entries[a])
	}
	question := fmt.Sprint(parts...)
	evidence, answered := g.Agents.Ask(node, question, notify)
	if answered.IsZero() {
		return evidence, ErrAsked
	}
	// Read after the answer, as Evidence.Judge requires.
	list, err := index.LivePodsOnNode(ctx, g.Live, node)
	if err != nil {
		return evidence, err
	}
	var pods []agentview.Pod
	for i := range list {
		if p := &list[i]; !p.Spec.HostNetwork {
			pods = append(pods, agentview.Pod{Owner: pool.OwnerKey(p.Namespace, p.Name), Addrs: podutil.IPs(p), Stopped: podutil.IsTerminal(p)})
		}
	}
	for _, a := range addrs {
		if v := evidence.Judge(a, owner, pods); v.State != agentview.Clear {
			if user, listed := evidence.Used[a]; listed && user != owner {
				// This answer will never be sufficient, whatever happens to the pods. The next Prove asks the agent again.
				g.Agents.Forget(node, question)
			}
			return evidence, &NotProvedError{Why: v.Why, Answered: answered}
		}
	}
	return evidence, nil
}
