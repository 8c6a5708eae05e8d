// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/witness"
)

// workload and replicas are the name and the number of pods of the StatefulSet in manifests/examples/web.yaml.
const (
	workload = "web"
	replicas = 3
)

func (d *demo) firstPlacement(ctx context.Context) error {
	d.act("first placement of a StatefulSet",
		"the address is claimed in the CiliumNode before the pod is bound, so that the agent finds it")
	if err := d.cluster.Apply(ctx, filepath.Join(d.manifests, "examples", "web.yaml")); err != nil {
		return err
	}
	rows, err := d.awaitRunning(ctx, nil)
	if err != nil {
		return err
	}
	d.addresses = map[string]string{}
	for _, r := range rows {
		d.addresses[r.Pod] = r.Address
	}
	placements := d.witness.Placements()
	if len(placements) != replicas {
		return fmt.Errorf("saw %d first placements, want %d", len(placements), replicas)
	}
	for _, p := range placements {
		d.printf("   %-14s claim in %s at revision %d, bind at %d", p.Pod, p.Node, p.Claimed, p.Bound)
	}
	return nil
}

func (d *demo) allPodsDeleted(ctx context.Context) error {
	d.act("all pods are deleted at once", "each pod returns to its node with its address, and the spec of no CiliumNode changes")
	uids, err := d.uids()
	if err != nil {
		return err
	}
	before := d.witness.Generations()
	if err := d.deletePods(ctx); err != nil {
		return err
	}
	if err := d.sameAddresses(ctx, uids); err != nil {
		return err
	}
	if after := d.witness.Generations(); !maps.Equal(before, after) {
		return fmt.Errorf("the spec of a CiliumNode was written: generations %v, then %v", before, after)
	}
	return nil
}

func (d *demo) rollingRestart(ctx context.Context) error {
	d.act("kubectl rollout restart", "a new revision of the template does not change addresses")
	uids, err := d.uids()
	if err != nil {
		return err
	}
	patch := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":%q}}}}}`, time.Now().Format(time.RFC3339))
	sts := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: workload}}
	if err := d.api.Patch(ctx, sts, client.RawPatch("application/strategic-merge-patch+json", []byte(patch))); err != nil {
		return fmt.Errorf("restart StatefulSet %s: %w", workload, err)
	}
	return d.sameAddresses(ctx, uids)
}

func (d *demo) bothKilled(ctx context.Context) error {
	d.act("scheduler and controller are killed (SIGKILL) while a pod is being replaced",
		"the state is in the API server: after a restart, the scheduler places the pod on the node that has its address")
	uids, err := d.uids()
	if err != nil {
		return err
	}
	name := workload + "-1"
	if err := d.deletePod(ctx, name); err != nil {
		return err
	}
	for _, p := range []interface{ Kill() error }{d.scheduler, d.controller} {
		if err := p.Kill(); err != nil {
			return err
		}
	}
	rows, err := d.witness.Await(ctx, namespace, func(rows []witness.Row) bool {
		for _, r := range rows {
			if r.Pod == name {
				return r.UID != "" && r.UID != uids[name] && r.Node == ""
			}
		}
		return false
	})
	if err != nil {
		return fmt.Errorf("wait for the new pod %s: %w", name, err)
	}
	d.printf("   both are killed; the new pod %s waits for a scheduler:\n\n%s", name, indent(witness.Table(rows)))
	if err := d.scheduler.Restart(ctx); err != nil {
		return err
	}
	if err := d.controller.Restart(ctx); err != nil {
		return err
	}
	return d.sameAddresses(ctx, map[string]string{name: uids[name]})
}

func (d *demo) controllerStopped(ctx context.Context) error {
	d.act("all pods are deleted while the controller is down", "the scheduler places pods at their addresses without the controller")
	uids, err := d.uids()
	if err != nil {
		return err
	}
	if err := d.controller.Terminate(ctx); err != nil {
		return err
	}
	if err := d.deletePods(ctx); err != nil {
		return err
	}
	if err := d.sameAddresses(ctx, uids); err != nil {
		return err
	}
	return d.controller.Restart(ctx)
}

func (d *demo) statefulSetDeleted(ctx context.Context) error {
	d.act("the StatefulSet is deleted", "its addresses are released: in cooldown for "+coolDown+", then free")
	sts := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: workload}}
	if err := d.api.Delete(ctx, sts, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		return fmt.Errorf("delete StatefulSet %s: %w", workload, err)
	}
	if _, err := d.witness.Await(ctx, namespace, func(rows []witness.Row) bool { return len(rows) == 0 }); err != nil {
		return fmt.Errorf("wait until pods, FixedIPs and owned entries are removed: %w", err)
	}
	d.printf("   pods, FixedIPs and owned entries are removed; the addresses are in cooldown:\n\n%s", indent(d.witness.Pools()))
	if err := d.witness.AwaitPools(ctx, func(p witness.Pool) bool { return p.Other == 0 }); err != nil {
		return fmt.Errorf("wait until the addresses are free: %w", err)
	}
	d.printf("   after the cooldown:\n\n%s", indent(d.witness.Pools()))
	for name, address := range d.addresses {
		for _, node := range nodes {
			if owner, exists := d.witness.Owner(node, address); exists {
				return fmt.Errorf("address %s of pod %s still has an entry in the pool of node %s (owner %q, empty for a dynamic entry)", address, name, node, owner)
			}
		}
	}
	return nil
}

// sameAddresses waits until all pods run and the pods in uids are replaced. It returns an error if the address of a pod
// differs from its address after the first act. Key of uids: the pod name. Value: the UID of the old pod.
func (d *demo) sameAddresses(ctx context.Context, uids map[string]string) error {
	rows, err := d.awaitRunning(ctx, uids)
	if err != nil {
		return err
	}
	for _, r := range rows {
		if r.Address != d.addresses[r.Pod] {
			return fmt.Errorf("pod %s had address %s and now has %s", r.Pod, d.addresses[r.Pod], r.Address)
		}
	}
	d.printf("   same addresses as before.")
	return nil
}

// awaitRunning waits until all pods run and each of them has a FixedIP without a problem. It prints the witness's rows for the
// namespace and returns them. It does not count a pod whose UID is in before. Key of before: the pod name. Value: the UID of
// the old pod.
func (d *demo) awaitRunning(ctx context.Context, before map[string]string) ([]witness.Row, error) {
	began := time.Now()
	rows, err := d.witness.Await(ctx, namespace, func(rows []witness.Row) bool {
		running := 0
		for _, r := range rows {
			if r.Running && r.UID != before[r.Pod] && r.State != "" {
				running++
			}
		}
		return running == replicas
	})
	if err != nil {
		return nil, fmt.Errorf("wait for %d running pods: %w", replicas, err)
	}
	d.printf("%s   after %s", indent(witness.Table(rows)), time.Since(began).Round(10*time.Millisecond))
	return rows, nil
}

func (d *demo) uids() (map[string]string, error) {
	uids := map[string]string{}
	for _, r := range d.witness.State(namespace) {
		uids[r.Pod] = r.UID
	}
	if len(uids) != replicas {
		return nil, fmt.Errorf("there are %d pods, want %d", len(uids), replicas)
	}
	return uids, nil
}

func (d *demo) deletePod(ctx context.Context, name string) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := d.api.Delete(ctx, pod); err != nil {
		return fmt.Errorf("delete pod %s: %w", name, err)
	}
	return nil
}

func (d *demo) deletePods(ctx context.Context) error {
	for i := range replicas {
		if err := d.deletePod(ctx, fmt.Sprintf("%s-%d", workload, i)); err != nil {
			return err
		}
	}
	return nil
}

func indent(s string) string {
	return "   " + strings.ReplaceAll(strings.TrimSuffix(s, "\n"), "\n", "\n   ") + "\n"
}
