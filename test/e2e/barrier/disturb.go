// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/realcluster"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// disturbance is one way to disturb an agent during a barrier.
type disturbance struct {
	name string
	// calm is true if no pods are created and deleted during the disturbance.
	calm bool
	// run withdraws addresses, writes the probe, and returns when the disturbance is over. The agent cannot answer before
	// the time impossible; the zero time means that the agent can answer at any time.
	run func(ctx context.Context, a *attempt) (impossible time.Time, err error)
}

var disturbances = []disturbance{
	{name: "idle", calm: true, run: quiet},
	{name: "pods", run: quiet},
	{name: "restart", run: restart},
	{name: "labels", run: labels},
	{name: "stopped", run: stopped},
	{name: "partitioned", run: partitioned},
	{name: "no-pool", run: noPool},
}

// choose returns the disturbances with these names; all if names is nil. It returns an error for an unknown name.
func choose(names []string) ([]disturbance, error) {
	if names == nil {
		return disturbances, nil
	}
	var chosen []disturbance
	for _, name := range names {
		i := slices.IndexFunc(disturbances, func(d disturbance) bool { return d.name == strings.TrimSpace(name) })
		if i < 0 {
			return nil, fmt.Errorf("-only: there is no disturbance %q; barrier -help lists the disturbances", name)
		}
		chosen = append(chosen, disturbances[i])
	}
	return chosen, nil
}

// randomWait returns a quarter of the update rate, plus a random duration of less than the update rate plus one second.
func (s *site) randomWait() time.Duration {
	return s.options.updateRate/4 + rand.N(s.options.updateRate+time.Second)
}

// quiet withdraws addresses and writes the probe. It does not disturb the agent.
func quiet(ctx context.Context, a *attempt) (time.Time, error) {
	if err := a.withdraw(ctx); err != nil {
		return time.Time{}, err
	}
	return time.Time{}, a.ask(ctx)
}

// restart kills the agent and starts it again. At random, it kills the agent before the addresses are withdrawn, before the
// probe is written, or after the probe is written.
func restart(ctx context.Context, a *attempt) (impossible time.Time, err error) {
	kill := rand.IntN(3)
	for step, do := range []func(context.Context) error{a.withdraw, a.ask, func(context.Context) error { return nil }} {
		if step == 2 {
			pause(ctx, rand.N(2*time.Second))
		}
		if step == kill {
			if err := a.node.Kill(realcluster.Agent); err != nil {
				return time.Time{}, err
			}
			// The agent starts again even if a write fails, because the next barriers need it.
			defer func() { err = errors.Join(err, a.node.Start(ctx, realcluster.Agent)) }()
		}
		if err := do(ctx); err != nil {
			return time.Time{}, err
		}
	}
	pause(ctx, rand.N(2*time.Second))
	if kill < 2 {
		impossible = time.Now()
	}
	return impossible, nil
}

// labels changes a label of the node repeatedly until the barrier is answered or a time limit is over, so that the agent
// rewrites its CiliumNode again and again.
func labels(ctx context.Context, a *attempt) (time.Time, error) {
	changing, end := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; changing.Err() == nil; i++ {
			patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"fixedip.test/turn":"%d"}}}`, i))
			_ = a.api.Patch(changing, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: a.name}}, patch)
			pause(changing, 200*time.Millisecond+rand.N(400*time.Millisecond))
		}
	}()
	defer func() { end(); <-done }()
	pause(ctx, time.Second)
	if _, err := quiet(ctx, a); err != nil {
		return time.Time{}, err
	}
	select {
	case <-a.answered:
	case <-time.After(3*a.options.updateRate + 30*time.Second):
	case <-ctx.Done():
	}
	return time.Time{}, nil
}

// between withdraws addresses and writes the probe. At random, it calls stop before the addresses are withdrawn, before the
// probe is written, or after the probe is written. It calls resume some time after the probe was written, or at once if a
// write fails.
func between(ctx context.Context, a *attempt, stop, resume func() error) (impossible time.Time, err error) {
	when := rand.IntN(3)
	for step, do := range []func(context.Context) error{a.withdraw, a.ask, func(context.Context) error { return nil }} {
		if step == when {
			if err := stop(); err != nil {
				return time.Time{}, err
			}
		}
		if err := do(ctx); err != nil {
			return time.Time{}, errors.Join(err, resume())
		}
	}
	pause(ctx, a.randomWait())
	if when < 2 {
		impossible = time.Now()
	}
	return impossible, resume()
}

// stopped suspends the process of the agent with SIGSTOP for some time; see between.
func stopped(ctx context.Context, a *attempt) (time.Time, error) {
	agent := a.node.Process(realcluster.Agent)
	return between(ctx, a, func() error { return agent.Signal(syscall.SIGSTOP) }, func() error { return agent.Signal(syscall.SIGCONT) })
}

// partitioned cuts the node off from the network for some time; see between.
func partitioned(ctx context.Context, a *attempt) (time.Time, error) {
	return between(ctx, a, a.node.Partition, a.node.Heal)
}

// noPool removes the pool of the CiliumNode, writes the probe, and restores the pool. An agent without a pool ignores the
// probe, but each report of the agent is an answer, and the agent reports when a pod ends.
func noPool(ctx context.Context, a *attempt) (impossible time.Time, err error) {
	if err := a.withdraw(ctx); err != nil {
		return time.Time{}, err
	}
	n, err := a.get(ctx)
	if err != nil {
		return time.Time{}, err
	}
	if err := a.patchSpec(ctx, map[string]any{"pool": nil}); err != nil {
		return time.Time{}, err
	}
	err = a.ask(ctx)
	if err == nil {
		pause(ctx, a.randomWait())
	}
	entries := ipamtypes.AllocationMap{}
	for addr, e := range n.Entries {
		entries[addr.String()] = ciliumpool.EncodeEntry(e)
	}
	return time.Time{}, errors.Join(err, a.patchSpec(ctx, map[string]any{"pool": entries}))
}
