// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"fixedip.io/fixedip/hack/witness"
)

// setsPerNode is the number of StatefulSets for each node of TestMassRestart.
const setsPerNode = 6

// TestMassRestart deletes the pods of many StatefulSets at once while the controller is down for a moment. It replays failure
// F4 of docs/project/field-bugs.md at a configurable scale (finding R11 in docs/project/findings.md). It checks that each
// pod runs with its address again and that no address is shared, and logs the requests of both programs.
// FIXEDIP_STATEFULSETS is the number of StatefulSets, each with one pod.
func TestMassRestart(t *testing.T) {
	sets := int(fromEnv(t, "FIXEDIP_STATEFULSETS", 60))
	log := filepath.Join(t.TempDir(), "audit.log")
	e := start(t, options{
		plain: true, controlPlaneArgs: append([]string{"--audit-log=" + log}, keepNodesReady...),
		controllerArgs: []string{"--cluster-pool-ipv4-cidr=10.64.0.0/12", "--cluster-pool-ipv4-mask-size=26", "--enable-leader-election=false"},
	})
	f := e.fakeNodes(0, nil)
	api, _ := e.fast()
	var pods []string
	var creating errgroup.Group
	creating.SetLimit(16)
	for n := range sets {
		if n%setsPerNode == 0 {
			creating.Go(func() error {
				return f.addNode(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("mass-%d", n/setsPerNode)}})
			})
		}
		name := fmt.Sprintf("mass%d", n)
		pods = append(pods, name+"-0")
		creating.Go(func() error {
			_, err := api.AppsV1().StatefulSets(namespace).Create(t.Context(), statefulSet(name, 1), metav1.CreateOptions{})
			return err
		})
	}
	e.must(creating.Wait())
	before := e.allRun(nil, pods)

	began := time.Now()
	e.must(e.controller.Kill())
	var deleting errgroup.Group
	deleting.SetLimit(16)
	for _, pod := range pods {
		deleting.Go(func() error { return api.CoreV1().Pods(namespace).Delete(t.Context(), pod, metav1.DeleteOptions{}) })
	}
	e.must(deleting.Wait())
	e.must(e.controller.Restart(within(t)))
	after := e.allRun(before, pods)
	took := time.Since(began)
	e.sameAddresses(before, after)
	for _, account := range []string{"fixedip-scheduler", "fixedip-controller"} {
		requests := e.requestsSince(log, account, began)
		total := 0
		for _, n := range requests {
			total += n
		}
		t.Logf("%s: %d requests, %.2f for each pod: %v", account, total, float64(total)/float64(sets), requests)
	}
	t.Logf("%d StatefulSets on %d nodes: all pods run again after %s, %.1f ms for each StatefulSet", sets, (sets+setsPerNode-1)/setsPerNode,
		took.Round(100*time.Millisecond), took.Seconds()*1000/float64(sets))
}

// allRun waits until all pods run with other UIDs than in before, and their FixedIPs are in use. It returns their rows. Key:
// the pod name. It fails the test if the number of these pods does not grow for stepTimeout.
func (e *env) allRun(before map[string]witness.Row, pods []string) map[string]witness.Row {
	e.t.Helper()
	found := map[string]witness.Row{}
	last := time.Now()
	for len(found) < len(pods) {
		ran := len(found)
		for _, r := range e.witness.State(namespace) {
			if r.Running && r.State == "InUse" && r.UID != before[r.Pod].UID {
				found[r.Pod] = r
			}
		}
		if len(found) > ran {
			last = time.Now()
		} else if time.Since(last) > stepTimeout {
			e.t.Fatalf("%d of %d pods run with FixedIPs in use, and the number has not grown for %s", len(found), len(pods), stepTimeout)
		}
		time.Sleep(200 * time.Millisecond)
	}
	return found
}

// requestsSince counts the requests, except watches, of an account in the audit log since a time. Key: verb and resource.
func (e *env) requestsSince(log, account string, since time.Time) map[string]int {
	e.t.Helper()
	count, seen := map[string]int{}, map[string]bool{}
	e.audited(log, account, func(event auditv1.Event, resource string) {
		if event.Verb == "watch" || event.RequestReceivedTimestamp.Time.Before(since) || seen[string(event.AuditID)] {
			return
		}
		seen[string(event.AuditID)] = true
		count[event.Verb+" "+resource]++
	})
	return count
}
