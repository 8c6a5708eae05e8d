package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/hack/witness"
)

const (
	ratioScenario = "time to come back"
	ratioRounds   = 60
	maxRatio      = 1.05
)

// ratio measures the time from the deletion of a pod to its readiness, of two StatefulSets that differ in their
// scheduler only. Their pods are on one node and are deleted at the same time, so that whatever else the machine has
// to do befalls both.
//
// The kubelet looks at its containers once a second. A round that began as soon as the one before it was over would
// always begin at the same moment of that second, and a few milliseconds would make a second or nothing: the rounds
// begin at moments that are spread evenly over it.
func ratio(ctx context.Context, s *scene) error {
	for name, scheduler := range map[string]string{"ours": ourScheduler, "stock": stockScheduler} {
		w := workload{name: name, replicas: 1, scheduler: scheduler, nodes: []string{calmNode}}
		if err := s.create(ctx, s.statefulSet(w)); err != nil {
			return err
		}
	}
	before, err := s.settled(ctx, "ours", 1)
	if err != nil {
		return err
	}
	if err := eventually(ctx, func() error {
		_, err := s.running("stock-0")
		return err
	}); err != nil {
		return err
	}
	order := []string{"ours-0", "stock-0"}
	times := map[string][]time.Duration{} // by pod
	for i := range ratioRounds {
		if !wait(ctx, time.Duration(i)*time.Second/ratioRounds) {
			return context.Cause(ctx)
		}
		took, err := s.timeReplacements(ctx, order)
		if err != nil {
			return err
		}
		for name, t := range took {
			times[name] = append(times[name], t)
		}
		slices.Reverse(order) // nobody is always first
	}
	if _, err := s.back(ctx, before, before.names()...); err != nil {
		return err
	}
	ours, stock := median(times["ours-0"]), median(times["stock-0"])
	r := float64(ours) / float64(stock)
	s.note = fmt.Sprintf("%d times each, the median is %s with a fixed address and %s without, a ratio of %.3f",
		ratioRounds, ours.Round(time.Millisecond), stock.Round(time.Millisecond), r)
	if r > maxRatio {
		return fmt.Errorf("the ratio %.3f is more than %.2f", r, maxRatio)
	}
	return nil
}

// timeReplacements deletes pods, and returns how long it took until the one that replaces each was ready. Key: the name.
func (s *scene) timeReplacements(ctx context.Context, names []string) (map[string]time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not so after %s", patience))
	defer cancel()
	before := map[string]types.UID{}
	for _, name := range names {
		if pod := s.witness.Pod(s.namespace, name); pod != nil {
			before[name] = pod.UID
		}
	}
	began := time.Now()
	if err := s.deletePods(ctx, false, names...); err != nil {
		return nil, err
	}
	took := map[string]time.Duration{}
	_, err := s.witness.Await(ctx, s.namespace, func([]witness.Row) bool {
		for _, name := range names {
			pod := s.witness.Pod(s.namespace, name)
			if _, seen := took[name]; !seen && pod != nil && pod.UID != before[name] && isReady(pod) {
				took[name] = time.Since(began)
			}
		}
		return len(took) == len(names)
	})
	return took, err
}

func median(list []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(list))
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
