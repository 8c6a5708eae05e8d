package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/hack/witness"
)

const (
	ratioScenario = "time to come back"
	ratioRounds   = 20
	maxRatio      = 1.05
)

// ratio measures the time from the deletion of a pod to its readiness, of two StatefulSets that differ in their
// scheduler only, in turns.
func ratio(ctx context.Context, s *scene) error {
	names := map[string]string{"ours": ourScheduler, "stock": stockScheduler}
	for name, scheduler := range names {
		if err := s.create(ctx, s.statefulSet(workload{name: name, replicas: 2, scheduler: scheduler})); err != nil {
			return err
		}
	}
	before, err := s.settled(ctx, "ours", 2)
	if err != nil {
		return err
	}
	if err := eventually(ctx, func() error {
		for _, name := range podNames("stock", 2) {
			if _, err := s.running(name); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	times := map[string][]time.Duration{}
	for round := range ratioRounds {
		order := []string{"ours", "stock"}
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, set := range order {
			took, err := s.timeReplacements(ctx, podNames(set, 2))
			if err != nil {
				return err
			}
			times[set] = append(times[set], took...)
		}
	}
	if _, err := s.back(ctx, before, before.names()...); err != nil {
		return err
	}
	ours, stock := median(times["ours"]), median(times["stock"])
	r := float64(ours) / float64(stock)
	s.note = fmt.Sprintf("%d times each, the median is %s with a fixed address and %s without, a ratio of %.3f",
		len(times["ours"]), ours.Round(time.Millisecond), stock.Round(time.Millisecond), r)
	if r > maxRatio {
		return fmt.Errorf("the ratio %.3f is more than %.2f", r, maxRatio)
	}
	return nil
}

// timeReplacements deletes pods, and returns how long it took for each until the one that replaces it was ready.
func (s *scene) timeReplacements(ctx context.Context, names []string) ([]time.Duration, error) {
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
	return slices.Collect(maps.Values(took)), err
}

func median(list []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(list))
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
