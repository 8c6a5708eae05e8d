// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/scheme"
	"fixedip.io/fixedip/test/gen"
)

// secrets are texts in the cluster that reported returns. No redacted archive may contain them.
var secrets = []string{"acme", "shop", "gpu-box", "cart", "10.0.1.", "10.0.0.0", "192.0.2.", "hunter2", "alice", "registry.example.com", "10-0-1-0", "tier-gold", "zone-x", "corp-lan", "victim"}

// reported returns a cluster whose objects, logs, events and errors contain the texts in secrets.
func reported(t *testing.T) *cluster {
	t.Helper()
	kinds, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	objects := installed()
	for _, o := range objects {
		o.SetLabels(merged(o.GetLabels(), "customer", "acme"))
		if lease, ok := o.(*coordinationv1.Lease); ok && lease.Name == "fixedip-scheduler" {
			lease.Spec.HolderIdentity = ptr.To("gpu-box.corp-lan_1234")
		}
		if pod, ok := o.(*corev1.Pod); ok {
			pod.Spec.NodeName = "gpu-box"
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: strings.TrimSuffix(pod.Name, "-1"), RestartCount: 1}}
		}
	}
	slot := gen.FixedIP("cart-0", gen.Owner("cart"), func(f *v1alpha1.FixedIP) {
		f.Namespace, f.Spec.NodeName, f.Spec.IPs = "acme-shop", "gpu-box", []string{"10.0.1.254"}
		f.Annotations = map[string]string{"kubectl.kubernetes.io/last-applied-configuration": "hunter2"}
		f.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "NodeGone", Message: "node gpu-box is gone; pod other-acme/victim-0 uses the address"}}
	})
	cn := gen.CiliumNode("gpu-box", "10.0.1.0/24")
	cn.Spec.InstanceID = "hunter2"
	cn.Spec.IPAM.Pool = ipamtypes.AllocationMap{"10.0.1.254": ipamtypes.AllocationIP{Owner: "acme-shop/cart-0", Resource: "acme-shop/StatefulSet/cart"}}
	cn.Status.IPAM.Used = ipamtypes.AllocationMap{"10.0.1.2": ipamtypes.AllocationIP{Owner: "acme-shop/tier-gold"}}
	subnet := &v1alpha1.NodeSubnet{
		ObjectMeta: metav1.ObjectMeta{Name: "10-0-1-0-24"}, Spec: v1alpha1.NodeSubnetSpec{CIDR: "10.0.1.0/24", NodeName: "gpu-box"},
		Status: v1alpha1.NodeSubnetStatus{NodeConstraints: &v1alpha1.NodeConstraints{Zone: "zone-x"}},
	}
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "acme-shop", Name: "cart-0.1"},
		InvolvedObject: corev1.ObjectReference{Kind: "FixedIP", Namespace: "acme-shop", Name: "cart-0"},
		Type:           "Warning", Reason: "NodeGone", Message: "IP 10.0.1.254 of pod acme-shop/cart-0: node gpu-box is gone", LastTimestamp: metav1.Time{Time: now},
	}
	builder := fake.NewClientBuilder().WithScheme(kinds).WithRESTMapper(testrestmapper.TestOnlyStaticRESTMapper(kinds)).
		WithObjects(objects...).WithObjects(slot, cn, subnet, event).
		WithIndex(&corev1.Event{}, "involvedObject.kind", func(o client.Object) []string { return []string{o.(*corev1.Event).InvolvedObject.Kind} }).
		WithIndex(&corev1.Event{}, "reportingComponent", func(o client.Object) []string { return []string{o.(*corev1.Event).ReportingController} }).
		WithIndex(&corev1.Event{}, "involvedObject.name", func(o client.Object) []string { return []string{o.(*corev1.Event).InvolvedObject.Name} })
	return &cluster{
		api:           builder.Build(),
		serverVersion: func() (string, error) { return "v1.34.9", nil },
		logs: func(_ context.Context, pod *corev1.Pod, container string, previous bool) ([]byte, error) {
			if previous && pod.Name == "fixedip-scheduler-1" {
				return nil, errors.New(`pods "fixedip-scheduler-1" is forbidden: User "alice" cannot get resource "pods/log"`)
			}
			return []byte("\"Released\" pod=\"acme-shop/cart-9\" node=\"gpu-box\" ip=\"10.0.1.254\" from=\"192.0.2.7:443\" container=\"" + container + "\"\n"), nil
		},
	}
}

func merged(labels map[string]string, key, value string) map[string]string {
	out := map[string]string{key: value}
	for k, v := range labels {
		out[k] = v
	}
	return out
}

// TestReport checks which files a report has, that one name has the same token in all files, and that no file except README.txt
// contains one of the secrets.
func TestReport(t *testing.T) {
	r := reported(t).report(t.Context(), system, 0)
	files, err := r.files(false)
	if err != nil {
		t.Fatal(err)
	}
	wantFiles := []string{
		"README.txt", "check.yaml", "cilium-config.yaml", "configuration/fixedip-config/config.yaml", "errors.txt", "events.txt",
		"logs/fixedip-controller-1_fixedip-controller.log", "logs/fixedip-controller-1_fixedip-controller_previous.log", "logs/fixedip-scheduler-1_fixedip-scheduler.log",
		"objects/agents.yaml", "objects/ciliumnodes.yaml", "objects/deployments.yaml", "objects/fixedips.yaml", "objects/leases.yaml", "objects/nodesubnets.yaml", "objects/pods.yaml",
		"status.txt", "status.yaml", "version.yaml",
	}
	if diff := cmp.Diff(wantFiles, sortedKeys(files)); diff != "" {
		t.Errorf("files (-want +got): %s", diff)
	}
	for path, content := range files {
		for _, s := range secrets {
			if i := strings.Index(string(content), s); i >= 0 && path != "README.txt" {
				t.Errorf("%s contains %q: %s", path, s, content[max(0, i-40):min(len(content), i+40)])
			}
		}
	}
	for path, want := range map[string]string{
		"logs/fixedip-scheduler-1_fixedip-scheduler.log": "\"Released\" pod=\"namespace-1/pod-4\" node=\"node-1\" ip=\"subnet-1+254\" from=\"address-ipv4-1:443\" container=\"fixedip-scheduler\"\n",
		"events.txt": "2026-11-21T12:00:00Z Warning x1 FixedIP/namespace-1/pod-1 NodeGone: IP subnet-1+254 of pod namespace-1/pod-1: node node-1 is gone ()\n",
		"errors.txt": "read the log of container fixedip-scheduler of pod fixedip-system/fixedip-scheduler-1: pods \"fixedip-scheduler-1\" is forbidden: User \"(removed)\" cannot get resource \"pods/log\"\n",
	} {
		if diff := cmp.Diff(want, string(files[path])); diff != "" {
			t.Errorf("%s (-want +got): %s", path, diff)
		}
	}
	golden(t, "report-ciliumnodes.yaml", files["objects/ciliumnodes.yaml"])
	golden(t, "report-pods.yaml", files["objects/pods.yaml"])
}

// TestReportWithoutRedaction checks that a report with --no-redact contains names and addresses, but neither values of
// environment variables nor labels of other programs.
func TestReportWithoutRedaction(t *testing.T) {
	files, err := reported(t).report(t.Context(), system, 0).files(true)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(files["objects/fixedips.yaml"]); !strings.Contains(got, "acme-shop") || !strings.Contains(got, "10.0.1.254") {
		t.Errorf("objects/fixedips.yaml lacks the namespace acme-shop or the address 10.0.1.254, want both: %s", got)
	}
	for path, content := range files {
		for _, s := range []string{"hunter2", "customer"} {
			if strings.Contains(string(content), s) {
				t.Errorf("%s contains %q, want no such text", path, s)
			}
		}
	}
	if !strings.Contains(string(files["README.txt"]), notRedacted) {
		t.Error("README.txt does not say that names are not replaced")
	}
}

// TestReportGoesOn checks that a report contains the objects that can be read, and that errors.txt names the requests that
// failed.
func TestReportGoesOn(t *testing.T) {
	world := reported(t)
	broken := failing(t, world, &ciliumv2.CiliumNodeList{}, &meta.NoKindMatchError{})
	broken.logs, broken.serverVersion = world.logs, func() (string, error) { return "", errors.New("connection refused") }
	files, err := broken.report(t.Context(), system, 0).files(false)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"read the version of the API server: connection refused", "list CiliumNodes: the API server does not serve this kind; install Cilium"} {
		if !strings.Contains(string(files["errors.txt"]), want) {
			t.Errorf("errors.txt does not contain %q: %s", want, files["errors.txt"])
		}
	}
	if files["objects/fixedips.yaml"] == nil || files["status.txt"] == nil || files["objects/ciliumnodes.yaml"] != nil {
		t.Errorf("the report has the files %v, want everything but CiliumNodes", sortedKeys(files))
	}
}

// TestSaveReport checks what the command writes for an archive in a file and for one on the standard output. It says on the
// standard error output that a report is incomplete.
func TestSaveReport(t *testing.T) {
	const incomplete = "The report is incomplete; number of errors: 1. The file errors.txt in the report lists them.\n"
	path := filepath.Join(t.TempDir(), "report.tar.gz")
	for name, c := range map[string]struct {
		file        string
		errs        []error
		out, errOut string
	}{
		"a file":                          {file: path, out: "The report is in " + path + ". Look through it before you publish it.\n"},
		"a file, incomplete":              {file: path, errs: []error{errors.New("forbidden")}, out: "The report is in " + path + ". Look through it before you publish it.\n", errOut: incomplete},
		"the standard output":             {file: "-"},
		"the standard output, incomplete": {file: "-", errs: []error{errors.New("forbidden")}, errOut: incomplete},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			r := &report{errs: c.errs}
			if err := r.save(genericiooptions.IOStreams{Out: &out, ErrOut: &errOut}, c.file, "folder", now, false); err != nil {
				t.Fatal(err)
			}
			if c.file == "-" {
				if _, err := gzip.NewReader(&out); err != nil {
					t.Errorf("the standard output is no gzip archive: %v", err)
				}
			} else {
				if out.String() != c.out {
					t.Errorf("got output %q, want %q", out.String(), c.out)
				}
				if err := os.Remove(c.file); err != nil {
					t.Error(err)
				}
			}
			if errOut.String() != c.errOut {
				t.Errorf("got errors %q, want %q", errOut.String(), c.errOut)
			}
		})
	}
}

// TestArchive checks that saveArchive writes all files, creates an archive that only the user can read, and does not overwrite
// an existing file.
func TestArchive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.tar.gz")
	files := map[string][]byte{"a.txt": []byte("one"), "logs/b.log": []byte("two")}
	if err := saveArchive(path, "folder", now, files); err != nil {
		t.Fatal(err)
	}
	if err := saveArchive(path, "folder", now, files); !errors.Is(err, os.ErrExist) {
		t.Errorf("got the error %v for a file that exists, want %v", err, os.ErrExist)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("got mode %v, want 0600", info.Mode())
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	unzipped, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]byte{}
	for archive := tar.NewReader(unzipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if got[strings.TrimPrefix(header.Name, "folder/")], err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(files, got); diff != "" {
		t.Errorf("files (-want +got): %s", diff)
	}
}
