// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command patcher is a kube-scheduler with one more plugin, PatchOne, which patches the CiliumNode of the chosen node before
// each pod is bound. It does nothing else: a scheduler plugin that writes one custom resource per pod cannot be faster.
package main

import (
	"context"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/component-base/cli"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// name is the name of the plugin.
const name = "PatchOne"

// addressAnnotation is the annotation of a pod with the address for which the plugin writes an entry.
const addressAnnotation = "bench.fixedip.io/address"

var ciliumNodes = schema.GroupVersionResource{Group: "cilium.io", Version: "v2", Resource: "ciliumnodes"}

func main() {
	os.Exit(cli.Run(app.NewSchedulerCommand(app.WithPlugin(name, newPatchOne))))
}

type patchOne struct{ api dynamic.Interface }

func newPatchOne(_ context.Context, _ runtime.Object, h framework.Handle) (framework.Plugin, error) {
	api, err := dynamic.NewForConfig(h.KubeConfig())
	if err != nil {
		return nil, fmt.Errorf("create a client: %w", err)
	}
	return patchOne{api}, nil
}

func (patchOne) Name() string { return name }

// PreBindPreFlight implements framework.PreBindPlugin.
func (patchOne) PreBindPreFlight(context.Context, fwk.CycleState, *corev1.Pod, string) *fwk.Status {
	return nil
}

// PreBind implements framework.PreBindPlugin.
func (p patchOne) PreBind(ctx context.Context, _ fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	patch := fmt.Appendf(nil, `[{"op":"add","path":"/spec/ipam/pool/%s","value":{"owner":%q,"resource":%q}}]`,
		pod.Annotations[addressAnnotation], pod.Namespace+"/"+pod.Name, pod.Namespace+"/StatefulSet/"+pod.Name)
	if _, err := p.api.Resource(ciliumNodes).Patch(ctx, node, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		return fwk.AsStatus(fmt.Errorf("patch CiliumNode %s for pod %s/%s: %w", node, pod.Namespace, pod.Name, err))
	}
	return nil
}
