// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/status"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

const config = `apiVersion: config.fixedip.io/v1alpha1
kind: FixedIPConfiguration
subnets: {clusterPools: [{cidr: 10.240.0.0/16}]}
`

func template(name string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: status.LabelsOf(name), Annotations: map[string]string{"checksum/config": "1"}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: name, Image: "registry.example.com:5000/" + name + ":v0.1.0@sha256:abc"}},
			Volumes: []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "fixedip-config"},
			}}}},
		},
	}
}

func lease(holder string) *coordinationv1.Lease {
	return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
		HolderIdentity: &holder, AcquireTime: &metav1.MicroTime{Time: now.Add(-time.Hour)}, RenewTime: &metav1.MicroTime{Time: now.Add(-2 * time.Second)},
		LeaseDurationSeconds: ptr.To[int32](15),
	}}
}

func fixedIP(name string, status metav1.ConditionStatus, reason string) v1alpha1.FixedIP {
	f := v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, CreationTimestamp: metav1.Time{Time: now.Add(-time.Hour)}}}
	if status != "" {
		f.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: status, Reason: reason}}
	}
	return f
}

// healthy returns the objects of an installation without a problem.
func healthy() status.Inputs {
	in := status.Inputs{
		ConfigMaps: map[string]*corev1.ConfigMap{"fixedip-system/fixedip-config": {
			ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{
				{Time: &metav1.Time{Time: now.Add(-3 * time.Hour)}, FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:data":{}}`)}},
				{Time: &metav1.Time{Time: now}, FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{}}`)}},
			}},
			Data: map[string]string{"config.yaml": config, "scheduler.yaml": "leaderElection: {leaderElect: true, resourceName: fixedip-scheduler, resourceNamespace: fixedip-system}\n"},
		}},
		Leases:          map[string]*coordinationv1.Lease{"fixedip-system/cilium-ipam-leader": lease("a"), "fixedip-system/fixedip-scheduler": lease("b")},
		CiliumConfig:    &corev1.ConfigMap{Data: map[string]string{"ipam": "crd", "routing-mode": "native"}},
		CiliumNamespace: "kube-system",
		Agents: &appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cilium"},
			Spec:       appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "cilium-agent", Image: "cilium:v1.19.1"}}}}},
			Status:     appsv1.DaemonSetStatus{DesiredNumberScheduled: 2, NumberReady: 2},
		},
		Pools:    ledger.New(),
		FixedIPs: []v1alpha1.FixedIP{fixedIP("web-0", metav1.ConditionTrue, "InUse"), fixedIP("web-1", metav1.ConditionTrue, "Reserved")},
		Now:      now,
	}
	for _, name := range status.ProgramNames {
		in.Deployments = append(in.Deployments, appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "fixedip-system", Name: name, Labels: labelled(name, "v0.0.9")},
			Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](2), Template: template(name)},
			Status:     appsv1.DeploymentStatus{UpdatedReplicas: 2, ReadyReplicas: 2},
		})
		t := template(name)
		p := corev1.Pod{ObjectMeta: t.ObjectMeta, Spec: t.Spec, Status: corev1.PodStatus{StartTime: &metav1.Time{Time: now.Add(-time.Hour)}}}
		p.Namespace, p.Name = "fixedip-system", name+"-1"
		in.Pods = append(in.Pods, p)
	}
	for _, n := range []string{"1", "2"} {
		in.Pools.SetNode(pool.NodePool{Name: "node-" + n, Subnets: []netip.Prefix{netip.MustParsePrefix("10.240." + n + ".0/24")}})
	}
	return in
}

// TestHealthy checks the whole report of a healthy installation.
func TestHealthy(t *testing.T) {
	since := now.Add(-time.Hour)
	program := func(name, leader string) status.Program {
		return status.Program{
			Name: name, Namespace: "fixedip-system", Desired: 2, Updated: 2, Ready: 2,
			Image: "registry.example.com:5000/" + name + ":v0.1.0@sha256:abc", Version: "v0.1.0", Leader: leader, LeaderSince: &since,
		}
	}
	got := status.Of(healthy())
	want := status.Report{
		Healthy:       true,
		Programs:      []status.Program{program(status.Controller, "a"), program(status.Scheduler, "b")},
		Configuration: status.Configuration{State: status.Same, Hash: got.Configuration.Hash},
		Cilium:        status.Cilium{IPAMMode: "crd", RoutingMode: "native", Image: "cilium:v1.19.1", Version: "v1.19.1", Agents: 2, AgentsReady: 2},
		Pools:         status.Pools{Nodes: 2, Families: []status.Family{{Family: "IPv4", Size: 508, Available: 508}}},
		FixedIPs:      status.Counts{Total: 2, Ready: 2, Reasons: map[string]int{"InUse": 1, "Reserved": 1}},
		NotReadable:   []status.Unread{},
		Problems:      []status.Problem{},
	}
	if diff := cmp.Diff(want, got); diff != "" || len(got.Configuration.Hash) != 12 {
		t.Errorf("got hash %q, want a hash of 12 characters; report (-want +got): %s", got.Configuration.Hash, diff)
	}
}

// TestProblems checks the problems that each change of a healthy installation causes.
func TestProblems(t *testing.T) {
	controller := func(in *status.Inputs) *appsv1.Deployment { return &in.Deployments[0] }
	configMap := func(in *status.Inputs) *corev1.ConfigMap { return in.ConfigMaps["fixedip-system/fixedip-config"] }
	for name, c := range map[string]struct {
		change func(in *status.Inputs)
		want   []string
	}{
		"a program is missing": {func(in *status.Inputs) { in.Deployments = in.Deployments[:1] }, []string{"There is no Deployment of fixedip-scheduler"}},
		"a program is missing, and the other has an invalid configuration": {func(in *status.Inputs) {
			in.Deployments = in.Deployments[:1]
			configMap(in).Data["config.yaml"] = "kind: Other"
		}, []string{"There is no Deployment of fixedip-scheduler", "config.yaml of ConfigMap fixedip-system/fixedip-config is not valid: apiVersion is missing; write config.fixedip.io/v1alpha1"}},
		"nothing is installed":    {func(in *status.Inputs) { in.Deployments, in.Pods = nil, nil }, []string{"There is no Deployment of fixedip-controller", "There is no Deployment of fixedip-scheduler"}},
		"a replica is not ready":  {func(in *status.Inputs) { controller(in).Status.ReadyReplicas = 1 }, []string{"1 of 2 replicas of fixedip-controller are ready"}},
		"an update is going on":   {func(in *status.Inputs) { controller(in).Status.UpdatedReplicas = 1 }, []string{"The update of fixedip-controller is not complete: 1 of 2 replicas have the current template"}},
		"an update has not begun": {func(in *status.Inputs) { controller(in).Generation = 1 }, []string{"Kubernetes has not acted on the last change of Deployment fixedip-system/fixedip-controller yet"}},
		"no replicas":             {func(in *status.Inputs) { controller(in).Spec.Replicas = ptr.To[int32](0) }, []string{"Deployment fixedip-system/fixedip-controller has no replicas"}},
		"versions differ": {func(in *status.Inputs) {
			controller(in).Spec.Template.Spec.Containers[0].Image = "fixedip-controller:v0.2.0"
		}, []string{"fixedip-controller has version v0.2.0, and fixedip-scheduler has version v0.1.0"}},
		"an image without a tag has the version of the label": {func(in *status.Inputs) {
			controller(in).Spec.Template.Spec.Containers[0].Image = "registry.example.com:5000/fixedip-controller"
		}, []string{"fixedip-controller has version v0.0.9, and fixedip-scheduler has version v0.1.0"}},
		"the version of one program is unknown": {func(in *status.Inputs) {
			controller(in).Spec.Template.Spec.Containers[0].Image = "fixedip-controller@sha256:1"
			delete(controller(in).Labels, "app.kubernetes.io/version")
		}, nil},
		"no leader": {func(in *status.Inputs) { delete(in.Leases, "fixedip-system/cilium-ipam-leader") },
			[]string{"No replica of fixedip-controller holds Lease fixedip-system/cilium-ipam-leader, so none of them is active"}},
		"the leader does not renew its Lease": {func(in *status.Inputs) {
			in.Leases["fixedip-system/fixedip-scheduler"].Spec.RenewTime = &metav1.MicroTime{Time: now.Add(-16 * time.Second)}
		}, []string{"b holds Lease fixedip-system/fixedip-scheduler and has not renewed it in time, so no replica of fixedip-scheduler is active"}},
		"another Lease of the controller": {func(in *status.Inputs) {
			controller(in).Spec.Template.Spec.Containers[0].Args = []string{"--leader-election-id=mine", "--leader-election-namespace=other"}
		}, []string{"No replica of fixedip-controller holds Lease other/mine, so none of them is active"}},
		"no election": {func(in *status.Inputs) {
			controller(in).Spec.Template.Spec.Containers[0].Args = []string{"--enable-leader-election=false"}
			in.Leases = nil
			configMap(in).Data["scheduler.yaml"] = "leaderElection: {leaderElect: false}"
		}, nil},
		"another Lease of the scheduler": {func(in *status.Inputs) {
			configMap(in).Data["scheduler.yaml"] = "leaderElection: {resourceName: mine}"
		}, []string{"No replica of fixedip-scheduler holds Lease fixedip-system/mine, so none of them is active"}},
		"no ConfigMap": {func(in *status.Inputs) { in.ConfigMaps = nil }, []string{"ConfigMap fixedip-system/fixedip-config, which fixedip-controller mounts, does not exist"}},
		"an invalid configuration": {func(in *status.Inputs) { configMap(in).Data["config.yaml"] = "kind: Other" },
			[]string{"config.yaml of ConfigMap fixedip-system/fixedip-config is not valid: apiVersion is missing; write config.fixedip.io/v1alpha1"}},
		"configurations differ": {func(in *status.Inputs) {
			other := configMap(in).DeepCopy()
			other.Data["config.yaml"] += "mismatchPolicy: Report\n"
			in.ConfigMaps["fixedip-system/other"] = other
			controller(in).Spec.Template.Spec.Volumes[0].ConfigMap.Name = "other"
			in.Pods = nil
		}, []string{"The programs have different configurations"}},
		"configurations with the same effect": {func(in *status.Inputs) {
			other := configMap(in).DeepCopy()
			other.Data["config.yaml"] += "failover: Wait\n"
			in.ConfigMaps["fixedip-system/other"] = other
			controller(in).Spec.Template.Spec.Volumes[0].ConfigMap.Name = "other"
			in.Pods = nil
		}, nil},
		"a pod has another ConfigMap": {func(in *status.Inputs) {
			in.Pods[0].Spec = *in.Pods[0].Spec.DeepCopy()
			in.Pods[0].Spec.Volumes[0].ConfigMap.Name = "older"
		}, []string{"Pods may run with another configuration than that of their Deployment: fixedip-system/fixedip-controller-1"}},
		"a pod has another checksum": {func(in *status.Inputs) { in.Pods[1].Annotations["checksum/config"] = "0" },
			[]string{"Pods may run with another configuration than that of their Deployment: fixedip-system/fixedip-scheduler-1"}},
		"the ConfigMap was edited": {func(in *status.Inputs) { configMap(in).ManagedFields[0].Time = &metav1.Time{Time: now} },
			[]string{"Pods may run with another configuration than that of their Deployment: fixedip-system/fixedip-controller-1, fixedip-system/fixedip-scheduler-1"}},
		"the ConfigMap was edited, and a program has restarted": {func(in *status.Inputs) {
			configMap(in).ManagedFields[0].Time = &metav1.Time{Time: now.Add(-time.Minute)}
			in.Pods[0].Status.ContainerStatuses = []corev1.ContainerStatus{{Name: status.Controller, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Time{Time: now}}}}}
		}, []string{"Pods may run with another configuration than that of their Deployment: fixedip-system/fixedip-scheduler-1"}},
		"another IPAM mode": {func(in *status.Inputs) { in.CiliumConfig.Data["ipam"] = "cluster-pool" }, []string{`The IPAM mode of Cilium is "cluster-pool"`}},
		"no Cilium": {func(in *status.Inputs) {
			in.CiliumConfig, in.Agents, in.Pools, in.MissingKinds = nil, nil, nil, []string{status.CiliumNodes}
		}, []string{"The API server does not serve CiliumNodes, so no node has a pool", "There is no ConfigMap kube-system/cilium-config", "There is no DaemonSet with the label k8s-app=cilium in namespace kube-system"}},
		"an agent is not ready": {func(in *status.Inputs) { in.Agents.Status.NumberReady = 1 }, []string{"1 of 2 agents are not ready"}},
		"no CRD of fixedip":     {func(in *status.Inputs) { in.MissingKinds = []string{status.FixedIPs} }, []string{"The API server does not serve FixedIPs"}},
		"a node has no subnet":  {func(in *status.Inputs) { in.Pools.SetNode(pool.NodePool{Name: "node-3"}) }, []string{"Nodes have no subnet, so their agents do not start: node-3"}},
		"subnets overlap": {func(in *status.Inputs) {
			in.Pools.SetNode(pool.NodePool{Name: "node-3", Subnets: []netip.Prefix{netip.MustParsePrefix("10.240.2.0/25")}})
		}, []string{"Nodes have overlapping subnets, in which no address is claimed: node-2, node-3"}},
		"every node is full": {func(in *status.Inputs) {
			in.Pools = ledger.New()
			in.Pools.SetNode(pool.NodePool{Name: "node-1", Subnets: []netip.Prefix{netip.MustParsePrefix("10.240.1.4/32")}, Entries: map[netip.Addr]pool.Entry{netip.MustParseAddr("10.240.1.4"): {}}})
		}, []string{"No node has a free IPv4 address, so no pod gets a new fixed address"}},
		"FixedIPs are not ready": {func(in *status.Inputs) {
			for _, n := range []string{"a", "b", "c", "d", "e", "f", "g"} {
				in.FixedIPs = append(in.FixedIPs, fixedIP(n, metav1.ConditionFalse, "NodeGone"))
			}
		}, []string{"FixedIPs are not ready: db/a, db/b, db/c, db/d, db/e and 2 more"}},
		"a FixedIP is being deleted": {func(in *status.Inputs) {
			f := fixedIP("a", metav1.ConditionFalse, "Releasing")
			f.DeletionTimestamp = &metav1.Time{Time: now}
			in.FixedIPs = append(in.FixedIPs, f)
		}, nil},
		"a FixedIP has not been reconciled": {func(in *status.Inputs) { in.FixedIPs = append(in.FixedIPs, fixedIP("a", "", "")) }, []string{"The controller has not reconciled FixedIPs: db/a"}},
		"a FixedIP is new": {func(in *status.Inputs) {
			f := fixedIP("a", "", "")
			f.CreationTimestamp = metav1.Time{Time: now}
			in.FixedIPs = append(in.FixedIPs, f)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			in := healthy()
			c.change(&in)
			r := status.Of(in)
			var got []string
			for _, p := range r.Problems {
				got = append(got, p.Text)
				if p.Help == "" {
					t.Errorf("problem %q has no help", p.Text)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" || r.Healthy != (len(c.want) == 0) {
				t.Errorf("got healthy %v, want %v; problems (-want +got): %s", r.Healthy, len(c.want) == 0, diff)
			}
		})
	}
}

// TestNotReadable checks that objects that cannot be read are judged neither as missing nor as healthy.
func TestNotReadable(t *testing.T) {
	for what, change := range map[string]func(in *status.Inputs){
		status.Deployments:    func(in *status.Inputs) { in.Deployments = nil },
		status.Pods:           func(in *status.Inputs) { in.Pods = nil },
		status.Configurations: func(in *status.Inputs) { in.ConfigMaps = nil },
		status.Leases:         func(in *status.Inputs) { in.Leases = nil },
		status.CiliumConfig:   func(in *status.Inputs) { in.CiliumConfig = nil },
		status.Agents:         func(in *status.Inputs) { in.Agents = nil },
		status.CiliumNodes:    func(in *status.Inputs) { in.Pools = nil },
		status.FixedIPs:       func(in *status.Inputs) { in.FixedIPs = nil },
	} {
		t.Run(what, func(t *testing.T) {
			in := healthy()
			in.Unread = []status.Unread{{What: what, Why: "forbidden"}}
			change(&in)
			if r := status.Of(in); r.Healthy || len(r.Problems) > 0 || len(r.NotReadable) != 1 {
				t.Errorf("got healthy %v, problems %v and not readable %v; want healthy false, no problem and one kind that is not readable", r.Healthy, r.Problems, r.NotReadable)
			}
		})
	}
}

// TestUnknownConfiguration checks that the report has neither a hash nor outdated pods if the configuration of one of the
// programs, or of Cilium, is not known. If one of the two Deployments does not exist, the pods of the other one are still judged.
func TestUnknownConfiguration(t *testing.T) {
	const oneDeployment = "one Deployment"
	for name, change := range map[string]func(in *status.Inputs){
		"no ConfigMap":   func(in *status.Inputs) { in.Deployments[1].Spec.Template.Spec.Volumes[0].ConfigMap.Name = "none" },
		"another source": func(in *status.Inputs) { in.Deployments[1].Spec.Template.Spec.Volumes = nil },
		"no Deployment":  func(in *status.Inputs) { in.Deployments = nil },
		"no right to read cilium-config": func(in *status.Inputs) {
			in.CiliumConfig, in.Unread = nil, []status.Unread{{What: status.CiliumConfig, Why: "forbidden"}}
		},
		oneDeployment: func(in *status.Inputs) { in.Deployments = in.Deployments[:1] },
		"an invalid value": func(in *status.Inputs) {
			broken := in.ConfigMaps["fixedip-system/fixedip-config"].DeepCopy()
			broken.Data["config.yaml"] = "kind: Other"
			in.ConfigMaps["fixedip-system/broken"] = broken
			in.Deployments[1].Spec.Template.Spec.Volumes[0].ConfigMap.Name = "broken"
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := healthy()
			// The checksum of a pod of the first program is wrong.
			in.Pods[0].Annotations["checksum/config"] = "0"
			change(&in)
			want := status.Configuration{State: status.Unknown}
			if name == oneDeployment {
				want.Outdated = []string{"fixedip-system/fixedip-controller-1"}
			}
			if diff := cmp.Diff(want, status.Of(in).Configuration); diff != "" {
				t.Errorf("configuration (-want +got): %s", diff)
			}
		})
	}
}

// labelled returns the labels of a program with a version.
func labelled(program, version string) map[string]string {
	labels := status.LabelsOf(program)
	labels["app.kubernetes.io/version"] = version
	return labels
}
