// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"

	"fixedip.io/fixedip/hack/realcluster"
)

// previous is the folder with the source of an earlier commit and its programs, as hack/previous.sh writes it.
var previous = os.Getenv("FIXEDIP_PREVIOUS")

// TestUpgrade checks that no pod gets another address while fixedip is upgraded from the chart and the programs of an
// earlier commit, while it is rolled back to them, and while a program of the earlier commit runs beside one of this commit.
// The pods of a StatefulSet are replaced before, during and after the upgrade and the rollback, and while such a mixture of
// programs runs.
func TestUpgrade(t *testing.T) {
	if previous == "" {
		t.Skip("FIXEDIP_PREVIOUS is not set: run make test-upgrade")
	}
	const first, earlier = "1", "previous"
	earlierChart := filepath.Join(previous, "manifests", "charts", "fixedip")
	i := installBy(t, func(o *realcluster.Options) {
		o.Empty = true
		o.Images = append(o.Images, packImagesOf(t, previous, previous, earlier)...)
		o.Product = func(ctx context.Context, c *realcluster.Cluster) error {
			args := append(installCommand(c), "--set", "image.tag="+earlier)
			args[2] = earlierChart
			return helm(ctx, t, c, args...)
		}
	})
	i.runs(earlier, earlier)
	i.createWeb()
	pods := i.web(nil)
	pods = i.roll(pods, "before the upgrade")
	templates := map[string]corev1.PodTemplateSpec{}
	for _, name := range programs {
		templates[name] = i.deployment(name).Spec.Template
	}

	upgrade := func() {
		i.must(helm(within(t), t, i.cluster, "upgrade", "fixedip", chart, "--namespace", system, "--reset-then-reuse-values", "--force-conflicts", "--set", "image.tag=latest"))
	}
	upgrade()
	pods = i.roll(pods, "during the upgrade")
	i.runs("latest", "latest")
	pods = i.roll(pods, "after the upgrade")

	i.must(helm(within(t), t, i.cluster, "rollback", "fixedip", first, "--namespace", system, "--force-conflicts"))
	pods = i.roll(pods, "during the rollback")
	i.runs(earlier, earlier)
	pods = i.roll(pods, "after the rollback")

	// Helm applies the rights, the CustomResourceDefinitions and the configuration of the new chart before its Deployments.
	// So a program of the earlier commit may run with all of these, and beside the other program of this commit.
	for _, name := range programs {
		upgrade()
		i.runs("latest", "latest")
		i.setTemplate(name, templates[name])
		if name == programs[0] {
			i.runs(earlier, "latest")
		} else {
			i.runs("latest", earlier)
		}
		pods = i.roll(pods, "with the earlier "+name)
	}

	upgrade()
	i.runs("latest", "latest")
	i.roll(pods, "at the end")
}

// runs waits for the rollouts of both programs, and checks the tags of their images.
func (i installation) runs(controller, scheduler string) {
	i.t.Helper()
	tags := map[string]string{"fixedip-controller": controller, "fixedip-scheduler": scheduler}
	for _, name := range programs {
		i.rolledOut(name)
		want := name + ":" + tags[name]
		if got := i.deployment(name).Spec.Template.Spec.Containers[0].Image; got != want {
			i.t.Fatalf("Deployment %s has the image %s, want %s", name, got, want)
		}
	}
}

func (i installation) deployment(name string) *appsv1.Deployment {
	i.t.Helper()
	d, err := i.api.AppsV1().Deployments(system).Get(within(i.t), name, metav1.GetOptions{})
	i.must(err)
	return d
}

// setTemplate replaces the template of a Deployment.
func (i installation) setTemplate(name string, template corev1.PodTemplateSpec) {
	i.t.Helper()
	patch, err := json.Marshal([]map[string]any{{"op": "replace", "path": "/spec/template", "value": template}})
	i.must(err)
	_, err = i.api.AppsV1().Deployments(system).Patch(within(i.t), name, types.JSONPatchType, patch, metav1.PatchOptions{})
	i.must(err)
}

// roll replaces all pods of the StatefulSet web as kubectl rollout restart does, and returns the new pods. Until the
// rollout is over, every pod that has an address must have the address and the node of the pod of that name in before.
func (i installation) roll(before []*corev1.Pod, when string) []*corev1.Pod {
	i.t.Helper()
	i.t.Logf("the pods of StatefulSet default/web are replaced %s", when)
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{"metadata": map[string]any{
		"annotations": map[string]string{"rolled": when},
	}}}})
	i.must(err)
	rolled, err := i.api.AppsV1().StatefulSets("default").Patch(within(i.t), "web", types.MergePatchType, patch, metav1.PatchOptions{})
	i.must(err)

	kept := map[string]*corev1.Pod{}
	for _, p := range before {
		kept[p.Name] = p
	}
	reported := sets.New[string]()
	samples := 0
	var last appsv1.StatefulSetStatus
	err = wait.PollUntilContextCancel(within(i.t), 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		pods, err := i.api.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil {
			return false, err
		}
		for _, p := range pods.Items {
			was := kept[p.Name]
			if was == nil {
				return false, fmt.Errorf("pod %s did not exist before the rollout", p.Name)
			}
			if p.Status.PodIP == "" {
				continue
			}
			samples++
			if id := string(p.UID) + p.Status.PodIP; (p.Status.PodIP != was.Status.PodIP || p.Spec.NodeName != was.Spec.NodeName) && !reported.Has(id) {
				reported.Insert(id)
				i.t.Errorf("pod %s, %s: got %s on node %s, want %s on node %s", p.Name, when, p.Status.PodIP, p.Spec.NodeName, was.Status.PodIP, was.Spec.NodeName)
			}
		}
		sts, err := i.api.AppsV1().StatefulSets("default").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		last = sts.Status
		all := *sts.Spec.Replicas
		return last.ObservedGeneration >= rolled.Generation && last.UpdatedReplicas == all && last.ReadyReplicas == all && last.UpdateRevision == last.CurrentRevision, nil
	})
	if err != nil {
		i.t.Fatalf("wait until all pods of StatefulSet default/web are replaced %s: %v; last status: %+v", when, err, last)
	}
	if samples < len(before) {
		i.t.Errorf("%s: got %d samples of addresses, want at least one for each of %d pods", when, samples, len(before))
	}
	return i.web(before)
}
