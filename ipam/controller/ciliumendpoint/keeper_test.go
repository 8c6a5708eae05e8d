// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumendpoint

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/scheme"
	"fixedip.io/fixedip/test/gen"
)

func pod(name string) *corev1.Pod {
	return gen.Pod(name, gen.On("n", fmt.Sprintf("10.0.1.%d", name[len(name)-1]-'0')), gen.Running, func(p *corev1.Pod) { p.Status.HostIP = "192.0.2.1" })
}

func cep(name string) *ciliumv2.CiliumEndpoint {
	return &ciliumv2.CiliumEndpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, UID: types.UID("cep-" + name)},
		Status:     ciliumv2.EndpointStatus{Networking: &ciliumv2.EndpointNetworking{NodeIP: "192.0.2.1", Addressing: ciliumv2.AddressPairList{{IPV4: pod(name).Status.PodIPs[0].IP}}}},
	}
}

func node(ready corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
}

func agent(ready corev1.ConditionStatus) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cilium-x", Labels: map[string]string{"k8s-app": "cilium"}}, Spec: corev1.PodSpec{NodeName: "n"},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
	}
}

func ciliumNode(used ...string) *ciliumv2.CiliumNode {
	n := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	n.Status.IPAM.Used = ipamtypes.AllocationMap{}
	for _, name := range used {
		n.Status.IPAM.Used[pod(name).Status.PodIPs[0].IP] = ipamtypes.AllocationIP{Owner: "db/" + name}
	}
	return n
}

func newClient(t *testing.T, objects ...client.Object) *fake.ClientBuilder {
	t.Helper()
	kinds, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(ciliumv2.SchemeGroupVersion.WithKind(ciliumv2.CEPKindDefinition), meta.RESTScopeNamespace)
	b := fake.NewClientBuilder().WithScheme(kinds).WithRESTMapper(mapper).WithIndex(&ciliumv2.CiliumEndpoint{}, nodeIndex, byNode).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} })
	for _, o := range objects {
		b = b.WithObjects(o.DeepCopyObject().(client.Object))
	}
	return b
}

// newKeeper returns a keeper and its event recorder. The keeper has reconciled the given pods twice, a grace period apart: a
// CiliumEndpoint that does not exist is reported as missing.
func newKeeper(t *testing.T, api, cached client.Client, missing ...string) (*Keeper, *events.FakeRecorder) {
	t.Helper()
	clock, recorder := clocktesting.NewFakeClock(time.Unix(1000, 0)), events.NewFakeRecorder(100)
	k := &Keeper{
		Cached: cached, Live: api, Events: recorder, Clock: clock, Grace: GracePeriods{Termination: time.Hour, Agent: time.Minute},
		MissingRequests: &source.Requests{}, CiliumConfig: types.NamespacedName{Namespace: "kube-system", Name: "cilium-config"},
	}
	for range 2 {
		for _, name := range missing {
			if _, err := k.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(pod(name))}); err != nil {
				t.Fatal(err)
			}
		}
		clock.Step(time.Minute)
	}
	return k, recorder
}

// TestMissingIsConfirmedLive checks that a CiliumEndpoint counts as missing only if the API server does not have it
// either, and that the pod may be evicted only if its node is ready and its agent works (finding C3 in
// docs/project/findings.md).
func TestMissingIsConfirmedLive(t *testing.T) {
	other := pod("web-1")
	other.Name, other.UID = "web-0", "other"
	for name, c := range map[string]struct {
		api     []client.Object
		missing bool
		blocker string
	}{
		"no CiliumEndpoint":                 {api: []client.Object{pod("web-0"), node(corev1.ConditionTrue), ciliumNode("web-0"), agent(corev1.ConditionTrue)}, missing: true},
		"the CiliumEndpoint exists":         {api: []client.Object{pod("web-0"), cep("web-0"), node(corev1.ConditionTrue), ciliumNode("web-0")}},
		"the pod is gone":                   {api: []client.Object{node(corev1.ConditionTrue), ciliumNode("web-0")}},
		"the pod was replaced":              {api: []client.Object{other, node(corev1.ConditionTrue), ciliumNode("web-0")}},
		"the node is not ready":             {api: []client.Object{pod("web-0"), node(corev1.ConditionUnknown), ciliumNode("web-0")}, missing: true, blocker: "node n is not ready"},
		"the agent is not ready":            {api: []client.Object{pod("web-0"), node(corev1.ConditionTrue), ciliumNode("web-0"), agent(corev1.ConditionFalse)}, missing: true, blocker: "the Cilium agent of node n is not ready"},
		"the agent does not report the IP":  {api: []client.Object{pod("web-0"), node(corev1.ConditionTrue), ciliumNode()}, missing: true, blocker: "the Cilium agent of node n does not report IP 10.0.1.0 as used"},
		"there is no CiliumNode":            {api: []client.Object{pod("web-0"), node(corev1.ConditionTrue)}, missing: true, blocker: "node n or its CiliumNode does not exist"},
		"Cilium creates no CiliumEndpoints": {api: []client.Object{pod("web-0"), node(corev1.ConditionTrue), ciliumNode("web-0"), config("true")}},
	} {
		t.Run(name, func(t *testing.T) {
			// The cache has the pod, but not its CiliumEndpoint.
			cached := newClient(t, pod("web-0"), pod("web-9"), cep("web-9")).Build()
			k, _ := newKeeper(t, newClient(t, pod("web-0"), node(corev1.ConditionTrue), ciliumNode("web-0")).Build(), cached, "web-0")
			if !k.Missing(pod("web-0")) {
				t.Fatal("Missing returned false for a pod whose CiliumEndpoint was reported as missing")
			}
			k.Live = newClient(t, c.api...).Build()
			missing, blocker, err := k.Confirm(t.Context(), pod("web-0"))
			if err != nil || missing != c.missing || blocker != c.blocker {
				t.Errorf("Confirm: got missing = %v, blocker %q and error %v; want %v and %q", missing, blocker, err, c.missing, c.blocker)
			}
		})
	}
}

// TestPodReplacedBetweenReads checks that the keeper does not make a former pod the owner of the CiliumEndpoint of the next
// pod if the pod is replaced between the two reads. The model found this fault when the keeper read the pod first: the garbage
// collector then deleted the CiliumEndpoint of a running pod.
func TestPodReplacedBetweenReads(t *testing.T) {
	former, next := pod("web-0"), pod("web-0")
	former.UID = "former"
	owned := func(by types.UID) *ciliumv2.CiliumEndpoint {
		e := cep("web-0")
		e.UID = types.UID("cep-of-" + string(by))
		e.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "web-0", UID: by}}
		return e
	}
	cached := newClient(t, former, owned("before")).Build()
	reads := 0
	api := newClient(t, former, owned("before")).WithInterceptorFuncs(interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
		if reads++; reads == 2 {
			for _, o := range []client.Object{former, owned("before")} {
				if err := c.Delete(ctx, o); err != nil {
					return err
				}
			}
			for _, o := range []client.Object{next.DeepCopy(), owned(next.UID)} {
				if err := c.Create(ctx, o); err != nil {
					return err
				}
			}
		}
		return c.Get(ctx, key, obj, opts...)
	}, Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
		err := c.Patch(ctx, obj, patch, opts...)
		if owner := obj.GetOwnerReferences()[0].UID; err == nil && owner != next.UID {
			t.Errorf("got owner reference to pod %s, want %s", owner, next.UID)
		}
		return err
	}}).Build()
	newKeeper(t, api, cached, "web-0")
	if reads < 2 {
		t.Errorf("got %d reads at the API server, want at least 2", reads)
	}
}

// TestMissingIsReportedInAnEvent checks that an event reports a pod without a CiliumEndpoint. The model found such pods whose
// FixedIP was being released: package conformance does not evict them, and no event reported that their IPs were unknown to
// other nodes.
func TestMissingIsReportedInAnEvent(t *testing.T) {
	api := newClient(t, pod("web-0"), node(corev1.ConditionTrue), ciliumNode("web-0")).Build()
	k, recorder := newKeeper(t, api, api, "web-0")
	if len(recorder.Events) != 1 {
		t.Fatalf("got %d events, want one", len(recorder.Events))
	}
	if e := <-recorder.Events; !strings.HasPrefix(e, "Warning NoCiliumEndpoint ") {
		t.Errorf("got event %q, want reason NoCiliumEndpoint", e)
	}
	// The model also found this case: no pod of the node has a CiliumEndpoint, so that the pod is not evicted. The event is the
	// only report of the problem.
	if missing, blocker, err := k.Confirm(t.Context(), pod("web-0")); err != nil || !missing || blocker != "no CiliumEndpoint names an IP of node n in status.networking.node; its Cilium agent may have just started, or may be configured to create no CiliumEndpoints; check the cilium pod of the node" {
		t.Errorf("no pod of the node has a CiliumEndpoint: got missing = %v, blocker %q and error %v; want true and the blocker that no CiliumEndpoint names an IP of the node", missing, blocker, err)
	}
}

// TestManyMissingPauseEvictions checks that no pod is evicted while many CiliumEndpoints are missing, and that one
// event reports the pause (finding C3 in docs/project/findings.md).
func TestManyMissingPauseEvictions(t *testing.T) {
	var names, used []string
	objects := []client.Object{node(corev1.ConditionTrue), pod("web-9"), cep("web-9")}
	for i := range 6 {
		names = append(names, fmt.Sprintf("web-%d", i))
		objects = append(objects, pod(names[i]))
	}
	used = names
	objects = append(objects, ciliumNode(used...))
	api := newClient(t, objects...).Build()
	k, recorder := newKeeper(t, api, api, names...)
	for range 2 {
		if missing, blocker, err := k.Confirm(t.Context(), pod("web-0")); err != nil || !missing || blocker != "too many pods have no CiliumEndpoint" {
			t.Errorf("six CiliumEndpoints are missing: got missing = %v, blocker %q and error %v; want true and a blocker", missing, blocker, err)
		}
	}
	for _, name := range names {
		if e := <-recorder.Events; !strings.HasPrefix(e, "Warning NoCiliumEndpoint ") {
			t.Errorf("pod %s: got event %q, want reason NoCiliumEndpoint", name, e)
		}
	}
	if len(recorder.Events) != 1 {
		t.Fatalf("got %d further events, want one", len(recorder.Events))
	}
	if e := <-recorder.Events; !strings.HasPrefix(e, "Warning EvictionsPaused 6 pods have no CiliumEndpoint") {
		t.Errorf("got event %q, want reason EvictionsPaused and 6 pods", e)
	}
	if paused := testutil.ToFloat64(metrics.EndpointEvictionsPaused); paused != 1 {
		t.Errorf("six CiliumEndpoints are missing: got %v for the metric of paused evictions, want 1", paused)
	}
	// The agent has created one CiliumEndpoint again. That ends the pause even if Confirm is not called for another pod.
	if err := api.Create(t.Context(), cep("web-5")); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(pod("web-5"))}); err != nil {
		t.Fatal(err)
	}
	if paused := testutil.ToFloat64(metrics.EndpointEvictionsPaused); paused != 0 {
		t.Errorf("five CiliumEndpoints are missing: got %v for the metric of paused evictions, want 0", paused)
	}
	if missing, blocker, err := k.Confirm(t.Context(), pod("web-0")); err != nil || !missing || blocker != "" {
		t.Errorf("five CiliumEndpoints are missing: got missing = %v, blocker %q and error %v; want true and no blocker", missing, blocker, err)
	}
}

func config(disable string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cilium-config"}, Data: map[string]string{"disable-endpoint-crd": disable}}
}

// TestEnabled checks that Enabled is false if the CRD of CiliumEndpoints is absent or Cilium's configuration disables
// them (finding C3 in docs/project/findings.md).
func TestEnabled(t *testing.T) {
	for name, c := range map[string]struct {
		objects []client.Object
		noCRD   bool
		want    bool
	}{
		"no configuration": {want: true},
		"not disabled":     {objects: []client.Object{config("false")}, want: true},
		"no value":         {objects: []client.Object{config("")}, want: true},
		"disabled":         {objects: []client.Object{config("true")}},
		"no CRD":           {noCRD: true},
		"disabled, no CRD": {objects: []client.Object{config("true")}, noCRD: true},
	} {
		b := newClient(t, c.objects...)
		if c.noCRD {
			b = b.WithRESTMapper(meta.NewDefaultRESTMapper(nil))
		}
		if got, err := Enabled(t.Context(), b.Build(), types.NamespacedName{Namespace: "kube-system", Name: "cilium-config"}); err != nil || got != c.want {
			t.Errorf("%s: got %v and error %v, want %v", name, got, err, c.want)
		}
	}
}
