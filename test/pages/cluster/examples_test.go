// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/test/pages"
)

// examples contains the preparations for the examples that need more than an installation of fixedip. Key: the name of the
// file, without its extension.
var examples = map[string]struct {
	// families are the IP families of the cluster, joined by a comma; empty means IPv4.
	families string
	// before is a command that prepares the cluster, and after a command that removes the preparation. Both may be empty.
	before, after string
}{
	"deployment-slots": {before: upgrade("'config.workloads[0].apiGroup=apps'", "'config.workloads[0].kind=Deployment'", "'config.workloads[0].identity=Slot'")},
	"strict-nodes":     {before: "kubectl label node node-1 node-2 fixedip.io/strict=true --overwrite", after: "kubectl label node node-1 node-2 fixedip.io/strict-"},
	"dual-stack":       {families: "IPv4,IPv6", before: "kubectl wait node --all --for=condition=Ready --timeout=5m"},
}

// withoutGangs are the examples that TestExamples leaves out, because they need another profile of the scheduler. The page
// docs/tasks/gangs.md applies them after it has changed the profile.
var withoutGangs = []string{"gang"}

// upgrade returns a command that changes values of the chart.
func upgrade(values ...string) string {
	return "helm upgrade fixedip manifests/charts/fixedip -n fixedip-system --reuse-values --wait --set " + strings.Join(values, " --set ")
}

// TestExamples applies each manifest of manifests/examples, except those in withoutGangs. It checks that the pods become ready
// with addresses that FixedIPs reserve, and that the next pods have the same addresses after all pods were deleted. Each address
// must belong to a pod with the same name again, except in the example deployment-slots.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "manifests", "examples", "*.yaml"))
	must(t, err)
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		if slices.Contains(withoutGangs, name) || !selected(t, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			example := examples[name]
			if example.families == "" {
				example.families = pages.DefaultFamilies
			}
			s := on(t, example.families)
			ctx, cancel := context.WithTimeout(t.Context(), pageTimeout)
			defer cancel()
			shell := s.shell(t, "example-"+name)
			defer remove(t, shell, "example-"+name)
			script := func(command string) {
				t.Helper()
				if command == "" {
					return
				}
				if err := within(ctx, func(ctx context.Context) error { return shell.Run(ctx, pages.Step{Command: command}) }); err != nil {
					t.Fatalf("%v\n%s", err, state(shell))
				}
			}
			script(example.before)
			defer script(example.after)
			script("kubectl apply -f manifests/examples/" + filepath.Base(file))
			script(rolledOut)
			before := addresses(ctx, t, shell)
			script("kubectl delete pods --all")
			awaitReady(ctx, t, shell, len(before))
			after := addresses(ctx, t, shell)
			want, got := slices.Sorted(maps.Values(before)), slices.Sorted(maps.Values(after))
			if len(want) == 0 || !slices.Equal(want, got) {
				t.Errorf("the pods had the addresses %v, and have %v after all of them were deleted; want the same addresses, at least one", before, after)
			}
			if name != "deployment-slots" && !maps.Equal(before, after) {
				t.Errorf("the pods had the addresses %v, and have %v after all of them were deleted; want the same addresses for each pod", before, after)
			}
		})
	}
}

// rolledOut is a command that waits until all pods of the workloads of the namespace are ready.
const rolledOut = "for w in $(kubectl get statefulsets,deployments -o name); do kubectl rollout status $w --timeout=4m; done"

// awaitReady waits until count pods of the namespace are ready, and no pod is being deleted. It does not use the status of
// the workloads, which may still count the deleted pods.
func awaitReady(ctx context.Context, t *testing.T, shell pages.Shell, count int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	for {
		var pods corev1.PodList
		get(ctx, t, shell, &pods, "pods")
		ready := 0
		for _, p := range pods.Items {
			if p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			}) {
				ready++
			}
		}
		if ready == count && len(pods.Items) == count {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%d of %d pods are ready, want %d\n%s", ready, len(pods.Items), count, state(shell))
		case <-time.After(time.Second):
		}
	}
}

// addresses returns the addresses of the pods of the namespace that are not being deleted, and checks that each of these pods
// has one FixedIP, which reserves exactly the addresses of the pod. Key: the name of the pod. Value: its addresses, joined by
// a comma.
func addresses(ctx context.Context, t *testing.T, shell pages.Shell) map[string]string {
	t.Helper()
	var pods corev1.PodList
	get(ctx, t, shell, &pods, "pods")
	found := map[string]string{}
	for _, p := range pods.Items {
		var ips []string
		for _, ip := range p.Status.PodIPs {
			ips = append(ips, ip.IP)
		}
		if p.DeletionTimestamp == nil {
			found[p.Name] = strings.Join(ips, ",")
		}
	}
	for pod, ips := range found {
		step := pages.Step{
			Command: fmt.Sprintf("kubectl get fixedips -o jsonpath='{range .items[?(@.spec.podName==%q)]}{.spec.ips}{\"\\n\"}{end}'", pod),
			Output:  []string{fmt.Sprintf(`["%s"]`, strings.ReplaceAll(ips, ",", `","`))},
		}
		if err := shell.Run(ctx, step); err != nil {
			t.Errorf("compare pod %s with its FixedIP: %v", pod, err)
		}
	}
	return found
}

// get reads all objects of a kind in the namespace with kubectl, and decodes the list into the value of into.
func get(ctx context.Context, t *testing.T, shell pages.Shell, into any, kind string) {
	t.Helper()
	command := exec.CommandContext(ctx, "bash", "-c", "kubectl get "+kind+" -o json")
	command.Env, command.Dir = shell.Env, shell.Dir
	out, err := command.Output()
	if err != nil {
		t.Fatalf("kubectl get %s: %v", kind, err)
	}
	must(t, json.Unmarshal(out, into))
}
