// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/core/agentview"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

const (
	// withdrawnOwner is the owner of a withdrawn entry. No pod has that name.
	withdrawnOwner = "fixedip.io/withdrawn"
	// hold is the time for which the containers are watched after an answer.
	hold = 2 * time.Second
	// answerTimeout is the time limit for an answer after the disturbance is over, in addition to three report intervals.
	answerTimeout = 90 * time.Second
)

// result is the result of one barrier.
type result struct {
	Node, Disturbance string
	// Latency is the time from the write of the probe to the answer. After is the time from the end of the disturbance to the
	// answer; 0 if the answer came before that end. The probe is written before the disturbance ends.
	Latency, After time.Duration
	// Writes counts the writes of a probe, Conflicts the attempts that failed because the CiliumNode had changed, and
	// Versions the reads of the CiliumNode between the write and the answer.
	Writes, Conflicts, Versions int
	Answered                    bool
	// Last is the last state of the barrier before Complete. Incomplete is true if the barrier was Incomplete at any time,
	// and NoPool is true if it was NoPool at any time.
	Last               string
	Incomplete, NoPool bool
	// Clear, InUse and Unknown count the withdrawn addresses, by the use that the answer shows.
	Clear, InUse int
	Unknown      int
	// Wrong contains a description of each error of the answer.
	Wrong []string
}

// attempt is one barrier and its disturbance.
type attempt struct {
	*site
	result
	// withdrawn contains the addresses that are withdrawn for this barrier.
	withdrawn []netip.Addr
	barrier   agentview.Barrier
	asked     time.Time
	// evidence is the answer. The field at is the time of the answer. Both are set before answered is closed, if Answered is true.
	evidence agentview.Evidence
	at       time.Time
	answered chan struct{}
	giveUp   context.Context
}

// try tries one barrier: it withdraws addresses, writes the probe during the disturbance, checks the answer, and makes the
// withdrawn entries dynamic again.
func (s *site) try(ctx context.Context, d disturbance) (result, error) {
	giveUp, cancel := context.WithCancel(ctx)
	defer cancel()
	a := &attempt{site: s, result: result{Node: s.name, Disturbance: d.name}, answered: make(chan struct{}), giveUp: giveUp}
	impossible, err := d.run(ctx, a)
	if err != nil {
		cancel()
		if !a.asked.IsZero() {
			<-a.answered
		}
		return a.result, err
	}
	over := time.Now()
	select {
	case <-a.answered:
	case <-time.After(3*s.options.updateRate + answerTimeout):
		cancel()
		<-a.answered
	case <-ctx.Done():
		<-a.answered
		return a.result, context.Cause(ctx)
	}
	if a.Answered {
		a.Latency = a.at.Sub(a.asked)
		a.After = max(0, a.at.Sub(over))
		if !impossible.IsZero() && a.at.Before(impossible) {
			a.Wrong = append(a.Wrong, "the barrier was answered before the agent could process the probe")
		}
		if err := a.check(ctx); err != nil {
			return a.result, err
		}
	}
	for _, w := range a.Wrong {
		fmt.Printf("WRONG: %s, %s: %s\n", s.name, d.name, w)
	}
	return a.result, a.edit(ctx, func(n pool.NodePool, addr netip.Addr) pool.EntryChange { return n.Set(addr, pool.Entry{}) })
}

// withdraw writes withdrawnOwner into the dynamic entries of one free address and of one address in use, if they exist.
func (a *attempt) withdraw(ctx context.Context) error {
	n, err := a.get(ctx)
	if err != nil {
		return err
	}
	var free, used []netip.Addr
	for addr, e := range n.Entries {
		owner, inUse := n.Used[addr]
		switch {
		case e.Kind != pool.Dynamic || slices.Contains(pool.NodeOwners[:], owner):
		case inUse:
			used = append(used, addr)
		default:
			free = append(free, addr)
		}
	}
	for _, list := range [][]netip.Addr{free, used} {
		if len(list) > 0 {
			a.withdrawn = append(a.withdrawn, list[rand.IntN(len(list))])
		}
	}
	return a.edit(ctx, func(n pool.NodePool, addr netip.Addr) pool.EntryChange {
		return n.Set(addr, pool.ForOwner(withdrawnOwner))
	})
}

// edit writes the changes of the entries of the withdrawn addresses, and retries if the CiliumNode has changed.
func (a *attempt) edit(ctx context.Context, change func(pool.NodePool, netip.Addr) pool.EntryChange) error {
	for {
		n, err := a.get(ctx)
		if err != nil {
			return err
		}
		var edits []pool.EntryChange
		for _, addr := range a.withdrawn {
			edits = append(edits, change(n, addr))
		}
		if _, err = a.pools.ChangeEntries(ctx, n, edits, false); !errors.Is(err, ciliumpool.ErrChanged) {
			return err
		}
	}
}

// ask writes the probe and starts await.
func (a *attempt) ask(ctx context.Context) error {
	for {
		n, err := a.get(ctx)
		if err != nil {
			return err
		}
		probe := agentview.NewProbe(n)
		asked, err := a.pools.WriteProbe(ctx, n, probe)
		if errors.Is(err, ciliumpool.ErrChanged) {
			a.Conflicts++
			continue
		}
		if err != nil {
			return err
		}
		a.Writes++
		a.asked = time.Now()
		a.barrier = agentview.Barrier{ProbedNode: asked, Probe: probe}
		go a.await()
		return nil
	}
}

// await reads the CiliumNode at once and after each change, until the barrier is answered or giveUp ends.
func (a *attempt) await() {
	defer close(a.answered)
	for {
		n, err := a.get(a.giveUp)
		if err == nil {
			a.Versions++
			evidence, answer := a.barrier.Answer(n)
			a.Incomplete = a.Incomplete || answer == agentview.Incomplete
			a.NoPool = a.NoPool || answer == agentview.NoPool
			if answer == agentview.Complete {
				a.Answered, a.evidence, a.at = true, evidence, time.Now()
				return
			}
			a.Last = answer.String()
		}
		select {
		case <-a.changed:
		case <-time.After(5 * time.Second):
			// The watch of the lab may have missed a change.
		case <-a.giveUp.Done():
			return
		}
	}
}

// check judges the withdrawn addresses, waits for the time hold, compares the answer with the sandboxes that were seen after
// the answer, and adds the errors to Wrong.
func (a *attempt) check(ctx context.Context) error {
	pods, err := a.pods(ctx)
	for err != nil && ctx.Err() == nil {
		pause(ctx, 200*time.Millisecond)
		pods, err = a.pods(ctx)
	}
	if err != nil {
		return err
	}
	verdicts := map[netip.Addr]agentview.AddressUse{}
	for _, addr := range a.withdrawn {
		v := a.evidence.Judge(addr, "", pods)
		verdicts[addr] = v
		switch v.State {
		case agentview.Clear:
			a.Clear++
		case agentview.InUse:
			a.InUse++
		default:
			a.Unknown++
			if offered(a.barrier.ProbedNode, addr) {
				a.Wrong = append(a.Wrong, fmt.Sprintf("the use of %s is unknown (%s), and the version that the agent has processed has no withdrawn entry of that address, although the entry was withdrawn before the probe was written", addr, v.Why))
			}
		}
	}
	pause(ctx, hold)
	now := time.Now()
	for _, box := range a.truth.seen(a.at) {
		for _, addr := range box.addrs {
			v, asked := verdicts[addr]
			switch {
			case asked && v.State == agentview.InUse && v.By == box.pod:
			case asked && box.first.After(a.at):
				a.Wrong = append(a.Wrong, fmt.Sprintf("pod %s got %s after the use of that address was judged %q, although the entry was withdrawn from all pods", box.pod, addr, v.State))
			case asked && v.State == agentview.Clear && box.last.After(now) && a.truth.endpoint(ctx, addr):
				a.Wrong = append(a.Wrong, fmt.Sprintf("pod %s still has %s, although the use of that address was judged %q", box.pod, addr, v.State))
			case !asked && box.first.Before(a.asked) && !has(a.evidence.Used, addr) && a.truth.endpoint(ctx, addr):
				a.Wrong = append(a.Wrong, fmt.Sprintf("pod %s has had %s since before the probe was written, but the answer does not report that address as used", box.pod, addr))
			}
		}
	}
	return nil
}

// offered reports whether n has a pool whose entry of the address is dynamic or missing.
func offered(n pool.NodePool, a netip.Addr) bool {
	entry, exists := n.Entries[a]
	return n.HasPool && (!exists || entry.Kind == pool.Dynamic)
}

func has(used map[netip.Addr]string, a netip.Addr) bool {
	_, ok := used[a]
	return ok
}

// pods returns the pods that are bound to the node.
func (s *site) pods(ctx context.Context) ([]agentview.Pod, error) {
	var list corev1.PodList
	if err := s.api.List(ctx, &list, client.MatchingFields{"spec.nodeName": s.name}); err != nil {
		return nil, fmt.Errorf("list the pods of node %s: %w", s.name, err)
	}
	var pods []agentview.Pod
	for i := range list.Items {
		p := &list.Items[i]
		pod := agentview.Pod{Owner: pool.OwnerKey(p.Namespace, p.Name), Stopped: podutil.IsTerminal(p)}
		for _, ip := range p.Status.PodIPs {
			if a, err := netip.ParseAddr(ip.IP); err == nil {
				pod.Addrs = append(pod.Addrs, a)
			}
		}
		pods = append(pods, pod)
	}
	return pods, nil
}
