package sim

import (
	"context"
	oldrand "math/rand"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/scheme"
)

// An agent has not seen a claim, and gives its pod what is for anybody. That is kept for the pod, which the agent does
// not know either when the pod goes and others come; and what others have their kubelets tell late. Nobody ever shares an
// address, each pod comes to have its own, and where it waits for one that is not the product's to restart it says so.
//
// The model does not draw this: where the scheduler is killed just then, or is behind as well, or agents say nothing for
// longer than agentSilence, two pods come to have one address. See docs/proof.md.
func TestKeptBehindTheAgent(t *testing.T) {
	kinds, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	waited, restarted, told := 0, 0, 0
	for seed := range uint64(100) {
		//lint:ignore SA1019 the pauses between tries have a jitter of this source, which no run may share with another
		oldrand.Seed(1)
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			w := newWorld(ctx, kinds, map[string]int{})
			w.settle(seed * 0x9e3779b97f4a7c15)
			others := w.crowd
			if seed%2 == 0 {
				others = func() {
					w.calm(actLasts / 30)
					for range maxJobs {
						w.makeJob()
					}
				}
			}
			if !w.keptBehindTheAgent("c", others) {
				t.Errorf("seed %d: the pod does not run", seed)
			}
			err := w.rest()
			story := strings.Join(w.story, "\n")
			if err != nil {
				t.Errorf("seed %d: %v\n%s", seed, err, story)
			}
			waited += strings.Count(story, "has not reported since")
			restarted += strings.Count(story, "it was evicted to start again with its own")
			told += strings.Count(story, "** a person deletes")
			cancel()
			synctest.Wait()
		})
		if t.Failed() {
			return
		}
	}
	if waited == 0 || restarted == 0 || told == 0 {
		t.Errorf("pods waited %d times, were restarted %d times and were told of %d times, so that this tests nothing", waited, restarted, told)
	}
}

// keptBehindTheAgent has the pod of a new workload go as soon as what it got is kept for it, and others come. It tells
// whether it has run.
func (w *world) keptBehindTheAgent(name string, others func()) bool {
	for _, m := range w.machines {
		m.seesAfter = time.Now().Add(actLasts + time.Second)
	}
	key := keyOf(w.newSet(name, 1, nil)) + "-0"
	w.calm(actLasts)
	pod, ok := one[*corev1.Pod](w.server, pods, key)
	if !ok || len(pod.Status.PodIPs) == 0 {
		return false
	}
	for _, m := range w.machines {
		m.tellsAfter = time.Now().Add(muteFor)
	}
	w.onlyOn(pod.Spec.NodeName)
	w.deletePod(pod, "user")
	others()
	return true
}
