// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/cilium/cilium/api/v1/models"
	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

const (
	// replicas is the number of pods of each StatefulSet and ReplicaSet.
	replicas = 10
	// namespaces is the number of namespaces of the workloads.
	namespaces = 200
	// freeEntries is the number of free dynamic entries of a pool: the sum of the defaults of --min-free-ips and
	// --max-surplus-ips.
	freeEntries = 16
	// ownEntries is the number of dynamic entries that the node itself uses: router and health.
	ownEntries = 2
)

// world is a cluster in which no controller has work to do: every object is in the state in which Kubernetes, Cilium and our
// controller leave it. Pods 0 to fixed-1 have fixed addresses, the others are unreserved. Each of these two groups is
// distributed evenly over the nodes, beginning with the first node.
type world struct {
	nodes, pods, fixed int
	since              metav1.Time
}

func newWorld(nodes, pods, fixed int) (*world, error) {
	w := &world{nodes: nodes, pods: pods, fixed: fixed, since: metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))}
	switch {
	case nodes < 1 || nodes > 1<<16:
		return nil, fmt.Errorf("-nodes=%d: must be between 1 and %d, the number of /24 subnets of 10.0.0.0/8", nodes, 1<<16)
	case fixed < 0 || fixed > pods:
		return nil, fmt.Errorf("-fixedips=%d: must be between 0 and the number of pods, %d", fixed, pods)
	case (pods+nodes-1)/nodes+freeEntries+ownEntries > 250:
		return nil, fmt.Errorf("-pods=%d: the subnets of %d nodes do not have enough addresses", pods, nodes)
	}
	return w, nil
}

// uid returns a UID that differs for each kind of object and number.
func uid(kind byte, i int) types.UID {
	return types.UID(fmt.Sprintf("%02x%06x-%04x-4%03x-a%03x-%012x", kind, i, (i*40503)&0xffff, (i*2654435)&0xfff, (i*97)&0xfff, uint64(i)*0x9e3779b97f4a&0xffffffffffff))
}

func nodeName(i int) string { return fmt.Sprintf("worker-%05d.example.internal", i) }
func nodeIP(i int) string   { return fmt.Sprintf("172.16.%d.%d", i>>8, i&255) }

// address returns an address in the /24 of a node.
func address(node, last int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(node >> 8), byte(node), byte(last)})
}

// place contains the name, workload, node and address of pod i.
type place struct {
	i                               int
	node                            int
	namespace, name, workload, kind string
	workloadUID                     types.UID
	addr                            netip.Addr
	fixed                           bool
}

func (w *world) place(i int) place {
	p := place{i: i, node: i % w.nodes, fixed: i < w.fixed}
	group := i / replicas
	if p.fixed {
		p.namespace, p.kind, p.workload = fmt.Sprintf("team-%03d", group%namespaces), "StatefulSet", fmt.Sprintf("database-%05d", group)
		p.name = fmt.Sprintf("%s-%d", p.workload, i%replicas)
		p.workloadUID = uid('s', group)
		p.addr = address(p.node, 254-i/w.nodes)
		return p
	}
	i -= w.fixed
	group = i / replicas
	// The distribution of unreserved pods begins with the first node again.
	p.namespace, p.kind, p.workload = fmt.Sprintf("team-%03d", group%namespaces), "ReplicaSet", fmt.Sprintf("service-%05d-%08x", group, uint32(group)*2654435761)
	p.name = fmt.Sprintf("%s-%05x", p.workload, i)
	p.workloadUID = uid('r', group)
	p.node = i % w.nodes
	p.addr = address(p.node, 1+ownEntries+i/w.nodes)
	return p
}

// fields returns an entry of managedFields. paths are members of a FieldsV1 object, in JSON.
func fields(manager, operation, subresource string, at metav1.Time, paths ...string) metav1.ManagedFieldsEntry {
	var b strings.Builder
	b.WriteString("{")
	for i, p := range paths {
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString(p)
	}
	b.WriteString("}")
	return metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationType(operation), APIVersion: "v1", Time: &at, FieldsType: "FieldsV1", Subresource: subresource, FieldsV1: &metav1.FieldsV1{Raw: []byte(b.String())}}
}

const (
	podFields       = `"f:metadata":{"f:annotations":{".":{},"f:checksum/config":{},"f:prometheus.io/port":{},"f:prometheus.io/scrape":{}},"f:generateName":{},"f:labels":{".":{},"f:app.kubernetes.io/instance":{},"f:app.kubernetes.io/name":{},"f:app.kubernetes.io/part-of":{},"f:app.kubernetes.io/version":{},"f:pod-template-hash":{}},"f:ownerReferences":{".":{},"k:{\"uid\":\"%s\"}":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"main\"}":{".":{},"f:env":{".":{},"k:{\"name\":\"DATABASE_HOST\"}":{".":{},"f:name":{},"f:value":{}},"k:{\"name\":\"LOG_LEVEL\"}":{".":{},"f:name":{},"f:value":{}},"k:{\"name\":\"POD_NAME\"}":{".":{},"f:name":{},"f:valueFrom":{".":{},"f:fieldRef":{}}}},"f:image":{},"f:imagePullPolicy":{},"f:livenessProbe":{".":{},"f:failureThreshold":{},"f:httpGet":{".":{},"f:path":{},"f:port":{},"f:scheme":{}},"f:periodSeconds":{},"f:successThreshold":{},"f:timeoutSeconds":{}},"f:name":{},"f:ports":{".":{},"k:{\"containerPort\":8080,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{},"f:name":{},"f:protocol":{}}},"f:resources":{".":{},"f:limits":{".":{},"f:memory":{}},"f:requests":{".":{},"f:cpu":{},"f:memory":{}}},"f:terminationMessagePath":{},"f:terminationMessagePolicy":{},"f:volumeMounts":{".":{},"k:{\"mountPath\":\"/etc/config\"}":{".":{},"f:mountPath":{},"f:name":{}}}}},"f:dnsPolicy":{},"f:enableServiceLinks":{},"f:restartPolicy":{},"f:schedulerName":{},"f:securityContext":{},"f:terminationGracePeriodSeconds":{},"f:volumes":{".":{},"k:{\"name\":\"config\"}":{".":{},"f:configMap":{".":{},"f:defaultMode":{},"f:name":{}},"f:name":{}}}}`
	podStatusFields = `"f:status":{"f:conditions":{"k:{\"type\":\"ContainersReady\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}},"k:{\"type\":\"Initialized\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}},"k:{\"type\":\"PodReadyToStartContainers\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}},"k:{\"type\":\"Ready\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}}},"f:containerStatuses":{},"f:hostIP":{},"f:hostIPs":{},"f:phase":{},"f:podIP":{},"f:podIPs":{".":{},"k:{\"ip\":\"%s\"}":{".":{},"f:ip":{}}},"f:startTime":{}}`
	endpointFields  = `"f:metadata":{"f:labels":{".":{},"f:app.kubernetes.io/instance":{},"f:app.kubernetes.io/name":{},"f:app.kubernetes.io/part-of":{},"f:app.kubernetes.io/version":{},"f:pod-template-hash":{}},"f:ownerReferences":{".":{},"k:{\"uid\":\"%s\"}":{}}},"f:status":{".":{},"f:encryption":{},"f:external-identifiers":{".":{},"f:cni-attachment-id":{},"f:container-id":{},"f:k8s-namespace":{},"f:k8s-pod-name":{},"f:pod-name":{}},"f:id":{},"f:identity":{".":{},"f:id":{},"f:labels":{}},"f:named-ports":{},"f:networking":{".":{},"f:addressing":{},"f:node":{}},"f:state":{}}`
)

func (p place) labels() map[string]string {
	return map[string]string{
		"app.kubernetes.io/name": p.workload, "app.kubernetes.io/instance": p.workload, "app.kubernetes.io/part-of": "platform",
		"app.kubernetes.io/version": "1.27.3", "pod-template-hash": "7d9f8b6c5d",
	}
}

func (w *world) pod(p place) *corev1.Pod {
	scheduler := "default-scheduler"
	if p.fixed {
		scheduler = "fixedip-scheduler"
	}
	condition := func(t corev1.PodConditionType) corev1.PodCondition {
		return corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: w.since}
	}
	quantities := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	probe := &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080), Scheme: "HTTP"}},
		PeriodSeconds: 10, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: 3,
	}
	var env []corev1.EnvVar
	for _, name := range []string{"DATABASE_HOST", "DATABASE_PORT", "LOG_LEVEL", "OTEL_EXPORTER_OTLP_ENDPOINT", "FEATURE_FLAGS", "CACHE_SIZE_MB", "REGION"} {
		env = append(env, corev1.EnvVar{Name: name, Value: "value-of-" + strings.ToLower(name)})
	}
	env = append(env, corev1.EnvVar{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.name"}}})
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.namespace, Name: p.name, GenerateName: p.workload + "-", UID: uid('p', p.i), CreationTimestamp: w.since, Labels: p.labels(), Generation: 1,
			Annotations:     map[string]string{"prometheus.io/scrape": "true", "prometheus.io/port": "8080", "checksum/config": strings.Repeat("3f8a91bc", 8)},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: p.kind, Name: p.workload, UID: p.workloadUID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)}},
			ManagedFields: []metav1.ManagedFieldsEntry{
				fields("kube-controller-manager", "Update", "", w.since, fmt.Sprintf(podFields, p.workloadUID)),
				fields("kubelet", "Update", "status", w.since, fmt.Sprintf(podStatusFields, p.addr)),
			},
		},
		Spec: corev1.PodSpec{
			NodeName: nodeName(p.node), SchedulerName: scheduler, ServiceAccountName: "default", DeprecatedServiceAccount: "default",
			RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSClusterFirst, TerminationGracePeriodSeconds: ptr.To[int64](30),
			SecurityContext: &corev1.PodSecurityContext{}, Priority: ptr.To[int32](0), EnableServiceLinks: ptr.To(true), PreemptionPolicy: ptr.To(corev1.PreemptLowerPriority),
			Containers: []corev1.Container{{
				Name: "main", Image: "registry.example.com/platform/" + p.workload + ":1.27.3", ImagePullPolicy: corev1.PullIfNotPresent, Env: env,
				Ports:     []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
				Resources: corev1.ResourceRequirements{Requests: quantities("100m", "128Mi"), Limits: quantities("1", "512Mi")}, LivenessProbe: probe, ReadinessProbe: probe,
				TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: corev1.TerminationMessageReadFile,
				VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/etc/config"}, {Name: "kube-api-access", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true}},
			}},
			Tolerations: []corev1.Toleration{
				{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](300)},
				{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](300)},
			},
			Volumes: []corev1.Volume{
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: p.workload}, DefaultMode: ptr.To[int32](420)}}},
				{Name: "kube-api-access", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{DefaultMode: ptr.To[int32](420), Sources: []corev1.VolumeProjection{
					{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{ExpirationSeconds: ptr.To[int64](3607), Path: "token"}},
					{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}, Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}},
				}}}},
			},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, QOSClass: corev1.PodQOSBurstable, StartTime: &w.since,
			HostIP: nodeIP(p.node), HostIPs: []corev1.HostIP{{IP: nodeIP(p.node)}}, PodIP: p.addr.String(), PodIPs: []corev1.PodIP{{IP: p.addr.String()}},
			Conditions: []corev1.PodCondition{condition("PodReadyToStartContainers"), condition(corev1.PodInitialized), condition(corev1.PodReady), condition(corev1.ContainersReady), condition(corev1.PodScheduled)},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "main", Ready: true, Started: ptr.To(true), Image: "registry.example.com/platform/" + p.workload + ":1.27.3",
				ImageID:     "registry.example.com/platform/" + p.workload + "@sha256:" + strings.Repeat("9c1e55d0", 8),
				ContainerID: fmt.Sprintf("containerd://%064x", p.i), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: w.since}},
			}},
		},
	}
}

func (w *world) endpoint(p place) *ciliumv2.CiliumEndpoint {
	var labels []string
	for key, value := range p.labels() {
		labels = append(labels, "k8s:"+key+"="+value)
	}
	labels = append(labels, "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name="+p.namespace, "k8s:io.cilium.k8s.policy.cluster=default",
		"k8s:io.cilium.k8s.policy.serviceaccount=default", "k8s:io.kubernetes.pod.namespace="+p.namespace)
	return &ciliumv2.CiliumEndpoint{
		TypeMeta: metav1.TypeMeta{APIVersion: ciliumv2.SchemeGroupVersion.String(), Kind: "CiliumEndpoint"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.namespace, Name: p.name, UID: uid('e', p.i), CreationTimestamp: w.since, Labels: p.labels(), Generation: 1,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.name, UID: uid('p', p.i)}},
			ManagedFields:   []metav1.ManagedFieldsEntry{fields("cilium-agent", "Update", "", w.since, fmt.Sprintf(endpointFields, uid('p', p.i)))},
		},
		Status: ciliumv2.EndpointStatus{
			ID: int64(p.i % 4000), State: string(models.EndpointStateReady),
			ExternalIdentifiers: &models.EndpointIdentifiers{
				ContainerID: fmt.Sprintf("%064x", p.i), CniAttachmentID: fmt.Sprintf("%064x:eth0", p.i),
				PodName: p.namespace + "/" + p.name, K8sNamespace: p.namespace, K8sPodName: p.name,
			},
			Identity:   &ciliumv2.EndpointIdentity{ID: int64(1000 + p.i/replicas), Labels: labels},
			NamedPorts: models.NamedPorts{{Name: "http", Port: 8080, Protocol: "TCP"}},
			Networking: &ciliumv2.EndpointNetworking{Addressing: ciliumv2.AddressPairList{{IPV4: p.addr.String()}}, NodeIP: nodeIP(p.node)},
		},
	}
}

func (w *world) record(p place) *v1alpha1.FixedIP {
	return &v1alpha1.FixedIP{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "FixedIP"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.namespace, Name: p.name, UID: uid('f', p.i), CreationTimestamp: w.since, Finalizers: []string{v1alpha1.Finalizer}, Generation: 1,
			ManagedFields: []metav1.ManagedFieldsEntry{fields("fixedip-controller", "Update", "", w.since, `"f:metadata":{"f:finalizers":{".":{},"v:\"fixedip.io/pool-entry\"":{}}},"f:spec":{".":{},"f:ips":{},"f:nodeName":{},"f:owner":{".":{},"f:apiVersion":{},"f:kind":{},"f:name":{},"f:uid":{}},"f:podName":{},"f:reclaim":{".":{},"f:whenDeleted":{},"f:whenScaled":{}}}`)},
		},
		Spec: v1alpha1.FixedIPSpec{
			IPs: []string{p.addr.String()}, NodeName: nodeName(p.node), PodName: p.name,
			Owner:   v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: p.kind, Name: p.workload, UID: p.workloadUID},
			Reclaim: v1alpha1.ReclaimPolicy{WhenDeleted: v1alpha1.Delete, WhenScaled: v1alpha1.Retain},
		},
		Status: v1alpha1.FixedIPStatus{
			Phase: v1alpha1.PhaseInUse, PodUID: uid('p', p.i),
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionAllocated, Status: metav1.ConditionTrue, Reason: "Allocated", Message: "Every address has its entry in the pool of a node", LastTransitionTime: w.since}},
		},
	}
}

func (w *world) statefulSet(group int) *appsv1.StatefulSet {
	p := w.place(group * replicas)
	pod := w.pod(p)
	return &appsv1.StatefulSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "StatefulSet"},
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: p.workload, UID: p.workloadUID, CreationTimestamp: w.since, Labels: p.labels(), Generation: 1},
		Spec: appsv1.StatefulSetSpec{
			Replicas: ptr.To[int32](replicas), ServiceName: p.workload, Selector: &metav1.LabelSelector{MatchLabels: p.labels()}, PodManagementPolicy: appsv1.ParallelPodManagement,
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations}, Spec: pod.Spec},
		},
	}
}

func (w *world) node(i int) *corev1.Node {
	name := nodeName(i)
	has := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("110"),
		corev1.ResourceEphemeralStorage: resource.MustParse("200Gi"),
	}
	var images []corev1.ContainerImage
	for j := range 30 {
		images = append(images, corev1.ContainerImage{Names: []string{fmt.Sprintf("registry.example.com/platform/service-%05d:1.27.3", i*7+j)}, SizeBytes: 123456789})
	}
	condition := func(t corev1.NodeConditionType, s corev1.ConditionStatus) corev1.NodeCondition {
		return corev1.NodeCondition{Type: t, Status: s, LastHeartbeatTime: w.since, LastTransitionTime: w.since, Reason: "Kubelet", Message: "kubelet has set this condition"}
	}
	return &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid('n', i), CreationTimestamp: w.since, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux", corev1.LabelInstanceTypeStable: "m6i.4xlarge",
			corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%3), corev1.LabelTopologyRegion: "region-1", "node.example.com/pool": "general",
		}},
		Status: corev1.NodeStatus{
			Capacity: has, Allocatable: has, Images: images, Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeIP(i)}, {Type: corev1.NodeHostName, Address: name}},
			Conditions: []corev1.NodeCondition{condition(corev1.NodeMemoryPressure, "False"), condition(corev1.NodeDiskPressure, "False"), condition(corev1.NodePIDPressure, "False"), condition(corev1.NodeReady, "True")},
		},
	}
}

// ciliumNode returns a CiliumNode with the pool that our controller would write: owned entries for the highest addresses,
// used and free dynamic entries for the lowest.
func (w *world) ciliumNode(i int) *ciliumv2.CiliumNode {
	node := w.node(i)
	cn := &ciliumv2.CiliumNode{
		TypeMeta: metav1.TypeMeta{APIVersion: ciliumv2.SchemeGroupVersion.String(), Kind: ciliumv2.CNKindDefinition},
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, UID: uid('c', i), CreationTimestamp: w.since, Labels: node.Labels, Generation: 7,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
		},
	}
	cn.Spec.Addresses = []ciliumv2.NodeAddress{{Type: "InternalIP", IP: nodeIP(i)}, {Type: "CiliumInternalIP", IP: address(i, 1).String()}}
	cn.Spec.HealthAddressing.IPv4 = address(i, 2).String()
	cn.Spec.IPAM.PodCIDRs = []string{netip.PrefixFrom(address(i, 0), 24).String()}
	cn.Spec.IPAM.Pool, cn.Status.IPAM.Used = ipamtypes.AllocationMap{}, ipamtypes.AllocationMap{}
	for j, own := range []string{"router", "health"} {
		cn.Status.IPAM.Used[address(i, 1+j).String()] = ipamtypes.AllocationIP{Owner: own}
	}
	for j := i; j < w.fixed; j += w.nodes {
		p := w.place(j)
		owner := p.namespace + "/" + p.name
		cn.Spec.IPAM.Pool[p.addr.String()] = ipamtypes.AllocationIP{Owner: owner, Resource: p.namespace + "/" + p.kind + "/" + p.workload}
		cn.Status.IPAM.Used[p.addr.String()] = ipamtypes.AllocationIP{Owner: owner}
	}
	last := ownEntries
	for j := w.fixed + i; j < w.pods; j += w.nodes {
		p := w.place(j)
		cn.Status.IPAM.Used[p.addr.String()] = ipamtypes.AllocationIP{Owner: p.namespace + "/" + p.name}
		last++
	}
	for j := range last + freeEntries {
		cn.Spec.IPAM.Pool[address(i, 1+j).String()] = ipamtypes.AllocationIP{}
	}
	return cn
}
