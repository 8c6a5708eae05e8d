// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	oldrand "math/rand"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/scheme"
)

// TestAgentBehindClaim covers an agent that has not seen the claim of a pod and gives the pod the address of a dynamic
// entry. The pod is deleted, or its workload is scaled to 0. Other pods are created, whose addresses their kubelets report
// late. With half of the seeds a user also ends the reservation of the pod. No two pods may share an address. A dynamic
// entry never gets an owner in this case, and a pod with a wrong address is restarted. So no pod may wait for an agent, and
// no user may have to delete a pod.
func TestAgentBehindClaim(t *testing.T) {
	kinds, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	waits, restarts, userDeletions := 0, 0, 0
	for seed := range uint64(120) {
		//nolint:staticcheck // Retries take their jitter from this source. Each run starts it again.
		oldrand.Seed(1)
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			w := newWorld(ctx, kinds, setup{}, map[string]int{})
			w.startWorkloads(seed * 0x9e3779b97f4a7c15)
			scheduler := schedulerStates[seed%3]
			switch {
			case !w.startBehindAgent("c", scheduler):
				t.Errorf("seed %d: the status of the pod of workload c has no IPs, want IPs of a running pod", seed)
			case seed%2 == 0:
				w.createCompetitors("c", scheduler)
			default:
				w.calm(actLasts / 30)
				for range maxJobs {
					w.makeJob()
				}
			}
			if seed%4 > 1 {
				w.releaseReservation("c", seed%8 > 3)
			}
			w.calm(2 * actLasts)
			err := w.rest()
			history := strings.Join(w.history, "\n")
			if err != nil {
				t.Errorf("seed %d: %v\n%s", seed, err, history)
			}
			waits += strings.Count(history, "have not confirmed yet")
			restarts += strings.Count(history, "; the pod was evicted")
			userDeletions += strings.Count(history, "** a user deletes")
			cancel()
			synctest.Wait()
		})
		if t.Failed() {
			return
		}
	}
	if restarts == 0 || waits > 0 || userDeletions > 0 {
		t.Errorf("restarts of pods: got %d, want at least 1; waits for agents: got %d, want 0; deletions by users: got %d, want 0", restarts, waits, userDeletions)
	}
}

const (
	schedulerKnows  = ""
	schedulerBehind = " and scheduler"
	schedulerKilled = ", scheduler killed"
)

// schedulerStates are the states of a scheduler that has placed a pod whose agent is behind. Its watches are up to
// date, or they have stalled since the bind, or it is killed and a new scheduler starts from the stored objects.
var schedulerStates = []string{schedulerKnows, schedulerBehind, schedulerKilled}

// startBehindAgent creates a workload whose pod gets another address than the claimed one, because its agent is behind. It
// puts the schedulers into the state that scheduler names (schedulerStates). When the pod runs, startBehindAgent cordons the
// other nodes and deletes the pod, or scales the workload to 0 if scheduler is schedulerBehind. It returns false if the pod
// did not run.
func (w *world) startBehindAgent(name, scheduler string) bool {
	for _, m := range w.machines {
		m.startsAfter = time.Now().Add(actLasts)
		m.seesAfter = m.startsAfter.Add(actLasts + time.Second)
	}
	key := keyOf(w.newSet(name, 1, nil)) + "-0"
	w.calm(actLasts)
	if scheduler == schedulerBehind {
		for _, s := range w.schedulers {
			w.stall(s.process, ciliumNodes)
			w.stall(s.process, fixedIPs)
		}
	}
	w.calm(actLasts)
	pod, ok := one[*corev1.Pod](w.server, pods, key)
	if !ok || len(pod.Status.PodIPs) == 0 {
		return false
	}
	for _, m := range w.machines {
		m.podStatusAfter = time.Now().Add(muteFor)
	}
	if scheduler == schedulerKilled {
		for _, s := range w.schedulers {
			s.kill()
		}
	}
	w.onlyOn(pod.Spec.NodeName)
	if scheduler == schedulerBehind {
		w.scale(name, 0)
	} else {
		w.deletePod(pod, "user")
	}
	return true
}

// createCompetitors creates pods that may get the address of the deleted pod. A scheduler with stalled watches would bind
// the next pod of the workload before any other pod. In that case the next pod of the workload is created after the other
// pods have had time to get addresses and the agent has seen the current pool.
func (w *world) createCompetitors(name, scheduler string) {
	if scheduler != schedulerBehind {
		w.fillNodes()
		return
	}
	w.calm(actLasts / 30)
	for range maxJobs {
		w.makeJob()
	}
	w.calm(2 * actLasts)
	w.scale(name, 1)
}

// releaseReservation lets a user end the reservation of the workload's pod. The user deletes the FixedIP. If optsOut is
// true, the user instead sets when-deleted to Retain and makes the next pods opt out. Before that, the agents have time
// to process the owned entry. They do not see later writes until muteFor has passed.
func (w *world) releaseReservation(name string, optsOut bool) {
	w.calm(2 * actLasts)
	for _, m := range w.machines {
		m.seesAfter = time.Now().Add(muteFor)
	}
	key := namespace + "/" + name + "-0"
	r, ok := one[*v1alpha1.FixedIP](w.server, fixedIPs, key)
	switch {
	case optsOut:
		change(w.server, statefulSets, namespace+"/"+name, "user", func(s *appsv1.StatefulSet) {
			s.Annotations = map[string]string{identity.AnnotationWhenDeleted: string(v1alpha1.Retain)}
			w.optOut(s)
		})
	case ok:
		w.released(r)
		_ = w.server.remove(fixedIPs, key, nil, false, "user")
	}
}
