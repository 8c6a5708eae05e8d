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

// Agents makes barrier requests to Cilium agents: see barrier.Service.
type Agents interface {
	Ask(node, key string, notify func()) (evidence agentview.Evidence, answered time.Time)
	Forget(node, key string)
}

// ErrAsked is the error of Prove while the agent has not answered.
var ErrAsked = errors.New("the agent has not answered yet")

// NotProvedError is the error of Prove if a pod other than the owner, or the node itself, may use one of the addresses,
// according to the answer or the last report of the agent, or to the pods on the node. The evidence may become sufficient
// without an event.
type NotProvedError struct {
	Why string
	// Answered is the time at which the agent answered; the current time if the agent reports one of the addresses as used.
	Answered time.Time
}

func (e *NotProvedError) Error() string { return "the evidence is not sufficient yet: " + e.Why }

// minRetry is the minimum of RetryAfter.
const minRetry = 5 * time.Second

// RetryAfter returns the time after which Prove should be called again: the age of the answer, at least minRetry. If a pod on
// the node is the reason, Answered stays the same, so that the interval doubles each time. A pod that cannot start may have no
// address for hours. If the agent reports one of the addresses as used, Answered is the current time and the interval is
// minRetry.
func (e *NotProvedError) RetryAfter(now time.Time) time.Duration {
	return max(minRetry, now.Sub(e.Answered))
}

// Prove returns the evidence of the agent of a node if the evidence shows that no pod other than owner uses the addresses. If
// owner is empty, no pod at all may use them. If the agent has not answered yet, the error is ErrAsked, and notify is called
// when it has answered. If the evidence is not sufficient, the error is a *NotProvedError. about contains everything that the
// answer depends on besides the CiliumNode and the entries of the addresses, such as the UID of a pod.
func (g *Gatherer) Prove(ctx context.Context, node string, addrs []netip.Addr, owner string, notify func(), about ...any) (agentview.Evidence, error) {
	n, _ := g.Ledger.Node(node)
	for _, a := range addrs {
		if user := n.Used[a]; owner != "" && user != "" && user != owner {
			// The agent reports the end of that use without a request. A pod that cannot start may wait for hours, and
			// repeated requests would write the CiliumNode again and again.
			return agentview.Evidence{}, &NotProvedError{Why: fmt.Sprintf("the agent of node %s reports IP %s as used by %s", node, a, user), Answered: g.Clock.Now()}
		}
	}
	parts := append(about, n.UID)
	for _, a := range addrs {
		parts = append(parts, a, n.Entries[a])
	}
	key := fmt.Sprint(parts...)
	evidence, answered := g.Agents.Ask(node, key, notify)
	if answered.IsZero() {
		return evidence, ErrAsked
	}
	for _, a := range addrs {
		if user, used := evidence.Used[a]; used && user != owner {
			// No change of the pods can make this answer sufficient. Drop it when the report in the ledger no longer
			// shows the same use, so that the next Prove makes a new request.
			if reported, still := n.Used[a]; !still || reported != user {
				g.Agents.Forget(node, key)
			}
			return evidence, &NotProvedError{Why: evidence.Judge(a, owner, nil).Why, Answered: g.Clock.Now()}
		}
	}
	// Evidence.Judge requires pods that were read after the answer.
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
			return evidence, &NotProvedError{Why: v.Why, Answered: answered}
		}
	}
	return evidence, nil
}
