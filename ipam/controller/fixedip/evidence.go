// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/agentview"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reclaim"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// errUnproved is the error of an action that needs evidence, if the agent has answered and the answer does not prove
// enough. That may change without an event for the identity.
var errUnproved = errors.New("not proved yet")

// unproved is an errUnproved with its reason.
type unproved struct {
	why string
	// answered is when the agent answered.
	answered time.Time
}

func (u *unproved) Error() string { return u.why + ": " + errUnproved.Error() }
func (u *unproved) Unwrap() error { return errUnproved }

// lookAgain is how long to wait until the pods of the node are read again. It doubles each time: a pod that cannot start
// has no address for hours.
func (c *Controller) lookAgain(err error) time.Duration {
	after := whileUnproved
	if u := (*unproved)(nil); errors.As(err, &u) {
		after = max(after, c.Clock.Since(u.answered))
	}
	return after
}

// prove returns nil if the agent of the node has confirmed what the action needs. asked is true if it has not answered
// yet; again is queued when it has.
func (c *Controller) prove(ctx context.Context, again ctrl.Request, key client.ObjectKey, s reclaim.State, a reclaim.Action) (asked bool, err error) {
	question := c.question(key, s, a)
	evidence, answered := c.Agents.Ask(a.Node, question, func() { c.requeue(again) })
	if answered.IsZero() {
		return true, nil
	}
	owner := ""
	if a.Type == reclaim.Acknowledge {
		owner = pool.OwnerKey(key.Namespace, key.Name)
	}
	// Read after the answer, as Evidence.Judge requires.
	pods, err := c.podsOn(ctx, a.Node)
	if err != nil {
		return false, err
	}
	for _, addr := range a.Addrs {
		if v := evidence.Judge(addr, owner, pods); v.State != agentview.Clear {
			if user, listed := evidence.Used[addr]; listed && user != owner {
				// This answer will never prove it, whatever becomes of the pods. The agent is asked again when it does not
				// list the address any more.
				c.Agents.Forget(a.Node, question)
			}
			return false, &unproved{why: v.Why, answered: answered}
		}
	}
	return false, nil
}

// question names what the agent is asked, with all that the answer depends on: see barrier.Service.
func (c *Controller) question(key client.ObjectKey, s reclaim.State, a reclaim.Action) string {
	n, _ := c.Ledger.Node(a.Node)
	parts := []any{a.Type, key, n.UID}
	for _, addr := range a.Addrs {
		parts = append(parts, addr, n.Entries[addr])
	}
	if s.Record != nil {
		parts = append(parts, s.Record.UID)
	}
	if s.Pod != nil {
		parts = append(parts, s.Pod.UID)
	}
	return fmt.Sprint(parts...)
}

// podsOn reads the pods that are bound to a node.
func (c *Controller) podsOn(ctx context.Context, node string) (pods []agentview.Pod, err error) {
	list, err := index.LivePodsOnNode(ctx, c.Live, node)
	for i := range list {
		if p := &list[i]; !p.Spec.HostNetwork {
			pods = append(pods, agentview.Pod{Owner: pool.OwnerKey(p.Namespace, p.Name), Addrs: podutil.IPs(p), Stopped: podutil.IsTerminal(p)})
		}
	}
	return pods, err
}

// acknowledge notes in the entries that the agent knows their owner.
func (c *Controller) acknowledge(ctx context.Context, key client.ObjectKey, a reclaim.Action) error {
	owner := pool.OwnerKey(key.Namespace, key.Name)
	err := c.Writer.Write(ctx, ciliumpool.WriteRequest{Node: a.Node, Decide: func(n pool.NodePool) ([]pool.EntryChange, error) {
		return n.Acknowledge(owner, a.Addrs), nil
	}})
	switch {
	case errors.Is(err, ciliumpool.ErrGone):
		return nil
	case err != nil:
		return fmt.Errorf("note on node %s that its agent knows the owner of %v: %w", a.Node, a.Addrs, err)
	}
	klog.FromContext(ctx).V(2).Info("Owner acknowledged by the agent", "ips", a.Addrs, "node", a.Node)
	return nil
}
