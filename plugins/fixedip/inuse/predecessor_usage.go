// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package inuse

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/plugins/fixedip/cache"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// predecessorUsage decides whether an address that the agent of a ready node does not list as used is really unused by
// the former pod of a name. It is in two cases: the agent listed the address when the former pod was gone, and does
// not any more; or the former pod has been gone for as long as any agent takes to report. The former pod was gone when
// the next one of the name was created.
//
// What the agent listed then is read from the API server (see liveReader): the watch of CiliumNodes may be behind that
// of pods, and show the listing of an earlier pod.
type predecessorUsage struct {
	// timeout is how long an agent takes to report.
	timeout time.Duration
	pods    corelisters.PodLister

	mu sync.Mutex
	// listed are the addresses that agents listed while a pod waited for them. Key: the UID of the pod, and an address.
	// Value: the node. Invariant: a pod is in it only while pods has it, and has it unbound.
	listed map[types.UID]map[netip.Addr]string
}

func newPredecessorUsage(timeout time.Duration, pods corelisters.PodLister) *predecessorUsage {
	return &predecessorUsage{timeout: timeout, pods: pods, listed: map[types.UID]map[netip.Addr]string{}}
}

// until returns when it is certain that the former pod of a name does not use the addresses on the node; zero: it is
// certain now. Otherwise, unlisted are the addresses that the agent is not known to have listed since.
func (u *predecessorUsage) until(s Subject, now time.Time) (at time.Time, unlisted []netip.Addr) {
	if at = u.ends(s.Created, now); at.IsZero() {
		return time.Time{}, nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, a := range s.Addrs {
		if u.listed[s.UID][a] != s.Node {
			unlisted = append(unlisted, a)
		}
	}
	if len(unlisted) == 0 {
		return time.Time{}, nil
	}
	return at, unlisted
}

// ends returns when any agent would have reported what the former pod had; zero: that time is over.
func (u *predecessorUsage) ends(created, now time.Time) time.Time {
	if at := created.Add(u.timeout); now.Before(at) {
		return at
	}
	return time.Time{}
}

// note records which of the addresses the agent of a node lists, which was read from the API server after the pod was
// created. It reports whether any of that is new.
func (u *predecessorUsage) note(s Subject, n pool.Node, addrs []netip.Addr) (news bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	namespace, name, _ := pool.SplitOwnerKey(s.Owner)
	if now, err := u.pods.Pods(namespace).Get(name); err != nil || now.UID != s.UID || now.Spec.NodeName != "" {
		return false
	}
	for _, a := range addrs {
		if !n.InUse(a) || u.listed[s.UID][a] == n.Name {
			continue
		}
		if u.listed[s.UID] == nil {
			u.listed[s.UID] = map[netip.Addr]string{}
		}
		u.listed[s.UID][a] = n.Name
		news = true
	}
	return news
}

// forget removes a pod that is bound or deleted.
func (u *predecessorUsage) forget(uid types.UID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.listed, uid)
}

// fenceOf returns what a node says about the pods that were deleted from it; nil: the node does not exist. The
// out-of-service taint is an administrator's word that nothing runs there.
func fenceOf(node *corev1.Node) pool.Fence {
	switch {
	case node == nil, slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService }):
		return pool.Down
	case nodeutil.IsReady(node):
		return pool.Reported
	}
	return pool.Unfenced
}

// ByPredecessor says why the former pod of the name may still use the addresses on the node. moves tells that they are to
// be used on another node, so that it also counts what the agent has not had the time to report.
func (j *Judge) ByPredecessor(s Subject, moves bool) Verdict {
	node, err := j.nodes.Get(s.Node)
	if err != nil && !apierrors.IsNotFound(err) {
		return Verdict{Reason: err.Error()}
	}
	if apierrors.IsNotFound(err) {
		node = nil
	}
	fence := fenceOf(node)
	if fence == pool.Unfenced {
		return Verdict{Reason: fmt.Sprintf("node %s is not ready; delete the node or taint it %s", s.Node, corev1.TaintNodeOutOfService)}
	}
	n, known := j.cache.Ledger.Node(s.Node)
	if fence == pool.Reported && !known {
		return Verdict{Reason: fmt.Sprintf("node %s has no CiliumNode that says what it uses", s.Node)}
	}
	var at time.Time
	if fence == pool.Reported && moves {
		var unlisted []netip.Addr
		at, unlisted = j.predecessors.until(s, time.Now())
		if slices.ContainsFunc(unlisted, n.InUse) {
			j.reader.ask(s.Node, string(s.UID), func(n pool.Node) {
				if j.predecessors.note(s, n, unlisted) {
					j.cache.Notify(requeue.Event{Node: n.Name})
				}
			})
		}
	}
	// Whatever the reason is, when it ends the agent may not have had the time to report.
	var wake requeue.WakeOn
	if moves {
		wake.At = j.predecessors.ends(s.Created, time.Now())
	}
	for _, a := range s.Addrs {
		if fence.Keeps(n, a) != nil {
			return Verdict{Reason: fmt.Sprintf("the agent on node %s still lists %s as used", s.Node, a), WakeOn: wake}
		}
	}
	if at.IsZero() {
		return Verdict{}
	}
	return Verdict{Reason: fmt.Sprintf("the agent on node %s has not listed %s since this pod was created, and may take until %s to do so", s.Node, address.Join(s.Addrs), at.UTC().Format(time.RFC3339)), WakeOn: wake}
}

// Fence returns what the API server says about the node that addresses are about to leave, and what it means that its
// agent does not list them.
func (j *Judge) Fence(ctx context.Context, s Subject) (pool.Fence, error) {
	node, err := j.client.CoreV1().Nodes().Get(ctx, s.Node, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return pool.Down, nil
	case err != nil:
		return pool.Unfenced, fmt.Errorf("read node %s: %w", s.Node, err)
	}
	fence := fenceOf(node)
	if fence != pool.Reported {
		return fence, nil
	}
	if at, _ := j.predecessors.until(s, time.Now()); at.IsZero() {
		return fence, nil
	}
	n, err := j.cache.Pools.Read(ctx, s.Node)
	if err != nil && !errors.Is(err, cache.ErrNodeGone) {
		return pool.Unfenced, err
	}
	j.predecessors.note(s, n, s.Addrs)
	if at, _ := j.predecessors.until(s, time.Now()); !at.IsZero() {
		return pool.Unheard, nil
	}
	return fence, nil
}
