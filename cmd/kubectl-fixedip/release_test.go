// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/test/gen"
)

// nameInto returns a function that adds the name of an object to names.
func nameInto(names *[]string) func(runtime.Object) error {
	return func(o runtime.Object) error {
		*names = append(*names, o.(client.Object).GetName())
		return nil
	}
}

// TestReleaseCommand checks the output of release, and which pods and FixedIPs exist afterwards.
func TestReleaseCommand(t *testing.T) {
	const plan = "FixedIP db/web-0: 10.0.1.6\n  Pod db/web-0 on node node-1 keeps 10.0.1.6 and runs on. When the pod is deleted, 10.0.1.6 is released; until then the FixedIP is in deletion.\n  StatefulSet web exists: the next pod web-0 gets another address.\n" +
		"FixedIP db/web-1: 10.0.1.7\n  Pod db/web-1 does not exist. 10.0.1.7 is released, and available to other pods after the cooldown.\n  StatefulSet web exists: the next pod web-1 gets another address.\n"
	for name, c := range map[string]struct {
		names   []string
		restart bool
		// bare is true if pod web-0 is a bare pod that runs with 10.0.1.9.
		bare bool
		o    changes
		want result
		// left contains the names of the pods, and then those of the FixedIPs, that exist afterwards.
		left string
	}{
		"no terminal": {
			names: []string{"web-0", "web-1"},
			want:  result{ErrOut: plan, Error: "cannot ask for confirmation, because the standard input is not a terminal; add --yes to confirm, or --dry-run to see what would change: nothing was changed"}, left: "web-0 web-0 web-1",
		},
		"a dry run": {
			names: []string{"web-0", "web-1"}, o: changes{dryRun: true},
			want: result{Out: plan + "Dry run: nothing was changed.\n"}, left: "web-0 web-0 web-1",
		},
		"confirmed": {
			names: []string{"web-0", "web-1"}, o: changes{yes: true},
			want: result{ErrOut: plan, Out: "FixedIP db/web-0 deleted\nFixedIP db/web-1 deleted\n"}, left: "web-0",
		},
		"with the pod": {
			names: []string{"web-0"}, o: changes{yes: true}, restart: true,
			want: result{
				ErrOut: "FixedIP db/web-0: 10.0.1.6\n  Pod db/web-0 is deleted. When it has stopped, 10.0.1.6 is released.\n  StatefulSet web exists: the next pod web-0 gets another address.\n",
				Out:    "FixedIP db/web-0 deleted\nPod db/web-0 deleted\n",
			}, left: "web-1",
		},
		"with the pod, which is a bare pod and runs with another address": {
			names: []string{"web-0"}, o: changes{yes: true}, restart: true, bare: true,
			want: result{
				ErrOut: "FixedIP db/web-0: 10.0.1.6\n  Pod db/web-0 does not run with 10.0.1.6. 10.0.1.6 is released.\n",
				Out:    "FixedIP db/web-0 deleted\n",
			}, left: "web-0 web-1",
		},
		"as JSON": {
			names: []string{"web-1"}, o: changes{dryRun: true, output: inJSON},
			want: result{Out: `{
  "items": [
    {
      "fixedIP": "db/web-1",
      "ips": [
        "10.0.1.7"
      ],
      "effects": [
        "Pod db/web-1 does not exist. 10.0.1.7 is released, and available to other pods after the cooldown.",
        "StatefulSet web exists: the next pod web-1 gets another address."
      ],
      "released": false
    }
  ]
}
`}, left: "web-0 web-0 web-1",
		},
		"one does not exist": {
			names: []string{"web-0", "absent"}, o: changes{yes: true},
			want: result{Error: "FixedIP db/absent does not exist; kubectl fixedip get lists FixedIPs"}, left: "web-0 web-0 web-1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			second := gen.FixedIP("web-1", gen.Owner("web"), func(f *v1alpha1.FixedIP) { f.Spec.IPs, f.UID = []string{"10.0.1.7"}, "uid-1" })
			first := gen.FixedIP("web-0", gen.Owner("web"), func(f *v1alpha1.FixedIP) { f.UID = "uid-0" })
			pod := gen.Pod("web-0", gen.On("node-1", "10.0.1.6"), gen.Running, gen.Controlled("web", "1"))
			if c.bare {
				first.Spec.Owner, pod.OwnerReferences = v1alpha1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "web-0"}, nil
				pod.Status.PodIPs[0].IP = "10.0.1.9"
			}
			cluster := fakeCluster(t, first, second, pod, gen.StatefulSet("db", "web", 2))
			cluster.namespace = "db"
			streams, out, errOut := streamsFor()
			plans, err := cluster.planRelease(t.Context(), c.names, c.restart)
			if err == nil {
				err = cluster.releaseAll(t.Context(), streams, plans, c.o)
			}
			if diff := cmp.Diff(c.want, resultOf(out, errOut, err)); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
			var left []string
			for _, list := range []client.ObjectList{&corev1.PodList{}, &v1alpha1.FixedIPList{}} {
				if err := cluster.api.List(t.Context(), list); err != nil {
					t.Fatal(err)
				}
				if err := meta.EachListItem(list, nameInto(&left)); err != nil {
					t.Fatal(err)
				}
			}
			if got := strings.Join(left, " "); got != c.left {
				t.Errorf("objects after the release: got %s, want %s", got, c.left)
			}
		})
	}
}

// TestReleaseOfAnotherPod checks that release does not delete a pod that was created again after the user saw the plan.
func TestReleaseOfAnotherPod(t *testing.T) {
	cluster := fakeCluster(t, gen.FixedIP("web-0", gen.Owner("web")), gen.Pod("web-0", gen.On("node-1", "10.0.1.6"), gen.Running))
	cluster.namespace = "db"
	plans, err := cluster.planRelease(t.Context(), []string{"web-0"}, true)
	if err != nil {
		t.Fatal(err)
	}
	plans[0].pod.UID = "uid-of-an-earlier-pod"
	// The fake API server ignores preconditions, so the interceptor checks the UID.
	cluster.api = interceptor.NewClient(cluster.api.(client.WithWatch), interceptor.Funcs{Delete: func(ctx context.Context, api client.WithWatch, o client.Object, options ...client.DeleteOption) error {
		var given client.DeleteOptions
		given.ApplyOptions(options)
		now := o.DeepCopyObject().(client.Object)
		if err := api.Get(ctx, client.ObjectKeyFromObject(o), now); err != nil {
			return err
		}
		if given.Preconditions == nil || given.Preconditions.UID == nil || *given.Preconditions.UID != now.GetUID() {
			return apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, o.GetName(), errors.New("the UID differs"))
		}
		return api.Delete(ctx, o, options...)
	}})
	streams, _, _ := streamsFor()
	const want = "delete pod db/web-0: another object has this name now, and was not deleted; run the command again: "
	if err := cluster.releaseAll(t.Context(), streams, plans, changes{yes: true}); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got the error %v, want %s", err, want)
	}
	if pod, err := get(t.Context(), cluster, "db", "web-0", &corev1.Pod{}); err != nil || pod == nil {
		t.Errorf("got the pod %v and the error %v, want the pod", pod, err)
	}
}
