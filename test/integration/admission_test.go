// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/request"
)

// annotationReaders contains the parsers of our programs. Key: the annotation.
var annotationReaders = map[string]func(value string) error{
	identity.AnnotationEnabled: podReader(identity.AnnotationEnabled),
	identity.AnnotationStickyMAC: func(v string) error {
		_, err := identity.WantsMAC(annotatedPod(identity.AnnotationStickyMAC, v))
		return err
	},
	identity.AnnotationWhenDeleted: reclaimReader(identity.AnnotationWhenDeleted),
	identity.AnnotationWhenScaled:  reclaimReader(identity.AnnotationWhenScaled),
	identity.AnnotationTTL:         reclaimReader(identity.AnnotationTTL),
	identity.AnnotationFailover:    func(v string) error { _, err := identity.ParseFailover(v); return err },
	identity.AnnotationOnMismatch:  func(v string) error { _, err := identity.ParseOnMismatch(v); return err },
	request.AnnotationIPs:          func(v string) error { _, err := request.Parse(v); return err },
	request.AnnotationBy: func(v string) error {
		pod := annotatedPod(request.AnnotationBy, v)
		pod.Annotations[request.AnnotationIPs] = "10.240.1.10"
		_, _, err := request.Of(pod, identity.Workload{Name: "web"}, identity.Identity{})
		return err
	},
}

func annotatedPod(key, value string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web-0", Annotations: map[string]string{key: value}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}
}

func podReader(key string) func(string) error {
	return func(v string) error {
		_, _, err := identity.Of(annotatedPod(key, v), identity.NewKinds(), identity.NoControllers)
		return err
	}
}

func reclaimReader(key string) func(string) error {
	return func(v string) error {
		_, err := identity.Reclaim(identity.DefaultReclaim(), map[string]string{key: v})
		return err
	}
}

// admit applies the admission policies and waits until the API server enforces the policy about annotations. The other
// policies may take effect later.
func (e *env) admit() {
	e.t.Helper()
	e.must(e.Apply(within(e.t), filepath.Join("..", "..", "manifests", "admission.yaml")))
	e.eventually("the API server to enforce the policies", func() bool {
		return apierrors.IsInvalid(e.dryRunCreate(annotatedPod("fixedip.io/probe", "")))
	})
}

// dryRunCreate creates an object as a dry run, and returns the error of the API server.
func (e *env) dryRunCreate(o client.Object) error {
	return e.api.Create(within(e.t), o, client.DryRunAll)
}

// TestAdmission checks the admission policies in a cluster without our programs. The API server refuses a pod or workload
// with an invalid annotation of fixedip, and the message names the field, the value and the expected form. Pods and
// workloads whose annotations are valid, or that have none, are admitted. The API server refuses to delete a
// CustomResourceDefinition of fixedip until a user has annotated the definition.
func TestAdmission(t *testing.T) {
	t.Parallel()
	e := startCluster(t)
	old := statefulSet("old", 0, annotatedWith(identity.AnnotationFailover, "move"))
	e.create(old)
	e.admit()
	e.part("the API server refuses the values that the parsers refuse", (*env).sameAsReaders)
	e.part("invalid and unknown annotations on a workload and its pod template", (*env).refusedAtAdmission)
	e.part("an object that is older than the policy", func(e *env) { e.ratchet(old) })
	e.part("deletion of the CustomResourceDefinitions", (*env).definitions)
	e.part("text of the policy", (*env).policies)
}

// definitions checks that the CustomResourceDefinitions can be deleted only after a user has annotated them (finding R8 in
// docs/project/findings.md).
func (e *env) definitions() {
	for _, name := range []string{"fixedips.fixedip.io", "nodesubnets.fixedip.io"} {
		crd := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}}
		crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
		// The API server may enforce this policy later than the one for which admit waits.
		e.eventually("the API server to refuse the deletion of "+name+" with the name of the annotation", func() bool {
			err := e.api.Delete(within(e.t), crd, client.DryRunAll)
			return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "fixedip.io/allow-deletion=true")
		})
		e.must(e.api.Patch(within(e.t), crd, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"fixedip.io/allow-deletion":"true"}}}`))))
		if err := e.api.Delete(within(e.t), crd, client.DryRunAll); err != nil {
			e.t.Errorf("delete %s with the annotation: %v", name, err)
		}
	}
}

// sameAsReaders checks that the policy refuses the same values as the parsers of our programs, except for two errors that
// the policy does not detect.
func (e *env) sameAsReaders() {
	values := map[string][]string{}
	for key := range annotationReaders {
		values[key] = []string{"", "true", "false", "True", "T", "1", "yes", "tRuE", "Delete", "Retain", "delete", "Wait", "Migrate", "Reassign", "Restart", "Report", "ordinal", "any", "Retain ", "a\nb", `"`}
	}
	values[identity.AnnotationTTL] = append(values[identity.AnnotationTTL], "0", "30m", "1h30m", "1.5h", ".5s", "5.s", "+5m", "-1s", "1d", "30", "1e3s", "100ns", "1µs", "1us", "h", " 1h")
	values[request.AnnotationIPs] = append(values[request.AnnotationIPs],
		"10.0.1.10", "10.0.1.10,fd00::a", " 10.0.1.10 ,10.0.1.12 ", "10.0.1.10-10.0.1.19", "10.0.1.10 - 10.0.1.19", "10.0.1.0/28", "10.0.1.4/32", "fd00::/64", "0.0.0.0/0", "10.0.1.10,", "10.0.1.10;10.0.1.11", "web-0",
		"10.0.1.300", "FD00::1", "::ffff:10.0.0.1", "fe80::1%eth0", "10.0.1.5/28", "10.0.1.0/33", "FD00::/64", "::ffff:10.0.0.0/120", "10.0.1.9-", "10.0.1.9-fd00::1", "10.0.1.9-FD00::1", "1-2-3", "010.0.0.1", "10.0.1.0/028",
		strings.TrimSuffix(strings.Repeat("10.0.0.1,", 65), ","))
	for key, read := range annotationReaders {
		for _, v := range values[key] {
			parseErr, refusal := read(v), e.dryRunCreate(annotatedPod(key, v))
			if (parseErr == nil) != (refusal == nil) {
				e.t.Errorf("annotation %s with the value %q: got the error %v from the parser and %v from the API server, want both to accept or both to refuse it", key, v, parseErr, refusal)
			}
			if refusal != nil && (!apierrors.IsInvalid(refusal) || !strings.Contains(refusal.Error(), fmt.Sprintf("metadata.annotations[%s]: Invalid value: %q: ", key, v))) {
				e.t.Errorf("annotation %s with the value %q: got %v, want Invalid with the field and the value", key, v, refusal)
			}
		}
	}
	// The policy does not detect these errors. The scheduler reports them on the pod.
	for _, v := range []string{"10.0.1.9-10.0.1.1", "10.0.1.1,10.0.1.1"} {
		if err := e.dryRunCreate(annotatedPod(request.AnnotationIPs, v)); err != nil {
			e.t.Errorf("annotation %s with the value %q: got the error %v from the API server, want none", request.AnnotationIPs, v, err)
		}
		if err := annotationReaders[request.AnnotationIPs](v); err == nil {
			e.t.Errorf("annotation %s with the value %q: got no error from the parser, want one", request.AnnotationIPs, v)
		}
	}
}

// refusedAtAdmission checks that the API server refuses invalid and unknown annotations on a workload and on its pod
// template. The message has to name the field and the value. Annotations of other domains have to be accepted.
func (e *env) refusedAtAdmission() {
	both := statefulSet("web", 1, annotatedWith(identity.AnnotationTTL, "1 day"), onTemplate("fixedip.io/enabled", "maybe"))
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}
	deployment.Spec.Selector, deployment.Spec.Template = both.Spec.Selector, *both.Spec.Template.DeepCopy()
	deployment.Spec.Template.Annotations = map[string]string{"fixedip.io/when-delete": "Retain"}
	foreign := statefulSet("web", 1, onTemplate("example.com/fixedip", "x"))
	foreign.Spec.Template.Spec.SchedulerName = "default-scheduler"
	for name, c := range map[string]struct {
		o    client.Object
		want string
	}{
		"a StatefulSet and its pod template": {both, `metadata.annotations[fixedip.io/retention-ttl]: Invalid value: "1 day": write a duration that is not negative, such as 30m or 24h; spec.template.metadata.annotations[fixedip.io/enabled]: Invalid value: "maybe": write "true" or "false"`},
		"unknown annotation":                 {deployment, `spec.template.metadata.annotations[fixedip.io/when-delete]: Invalid value: "Retain": there is no such annotation of fixedip; correct or remove it`},
		"annotation of another domain":       {foreign, ""},
		"no annotation":                      {statefulSet("web", 1), ""},
	} {
		err := e.dryRunCreate(c.o)
		if c.want == "" && err != nil || c.want != "" && (!apierrors.IsInvalid(err) || !strings.HasSuffix(err.Error(), "denied request: "+c.want)) {
			e.t.Errorf("%s: got the error %v, want Invalid with %q (if empty: no error)", name, err, c.want)
		}
	}
}

// ratchet checks an object that is older than the policy and has an invalid annotation. Its other fields can be changed, and
// the annotation can be corrected. Another invalid annotation is refused.
func (e *env) ratchet(old *appsv1.StatefulSet) {
	for _, c := range []struct {
		patch string
		want  string
	}{
		{`{"metadata":{"labels":{"a":"b"}}}`, ""},
		{`{"metadata":{"annotations":{"fixedip.io/retention-ttl":"soon"}}}`, "fixedip.io/retention-ttl"},
		{`{"metadata":{"annotations":{"fixedip.io/failover":"Wait"}}}`, ""},
	} {
		err := e.api.Patch(within(e.t), old, client.RawPatch(types.MergePatchType, []byte(c.patch)))
		if c.want == "" && err != nil || c.want != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), c.want)) {
			e.t.Errorf("patch %s: got the error %v, want Invalid with %q (if empty: no error)", c.patch, err, c.want)
		}
	}
}

// policies checks that the policy for annotations has a help text for each annotation, and has the failure policy Ignore, so
// that an error in the policy does not block pods.
func (e *env) policies() {
	for _, o := range manifest(e.t, "admission.yaml") {
		policy, ok := o.(*admissionv1.ValidatingAdmissionPolicy)
		if !ok || policy.Name != "annotations.fixedip.io" {
			continue
		}
		if *policy.Spec.FailurePolicy != admissionv1.Ignore {
			e.t.Errorf("policy %s has the failure policy %s, want Ignore", policy.Name, *policy.Spec.FailurePolicy)
		}
		help := policy.Spec.Variables[0].Expression
		for _, key := range slices.Sorted(maps.Keys(annotationReaders)) {
			if !strings.Contains(help, "'"+key+"': ") {
				e.t.Errorf("policy %s has no help text for the annotation %s", policy.Name, key)
			}
		}
		if n := strings.Count(help, "'fixedip.io/"); n != len(annotationReaders) {
			e.t.Errorf("policy %s contains %d annotations, want %d", policy.Name, n, len(annotationReaders))
		}
		return
	}
	e.t.Error("admission.yaml does not contain the policy annotations.fixedip.io")
}
