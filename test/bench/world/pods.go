// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"fmt"
	"strings"

	"github.com/cilium/cilium/api/v1/models"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

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

func (p Place) labels() map[string]string {
	return map[string]string{
		"app.kubernetes.io/name": p.Workload, "app.kubernetes.io/instance": p.Workload, "app.kubernetes.io/part-of": "platform",
		"app.kubernetes.io/version": "1.27.3", "pod-template-hash": "7d9f8b6c5d",
	}
}

// Pod returns the object of a pod that runs.
func (w *World) Pod(p Place) *corev1.Pod {
	scheduler := "default-scheduler"
	if p.Fixed() {
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
			Namespace: p.Namespace, Name: p.Name, GenerateName: p.Workload + "-", UID: uid('p', p.serial), CreationTimestamp: w.since, Labels: p.labels(), Generation: 1,
			Annotations:     map[string]string{"prometheus.io/scrape": "true", "prometheus.io/port": "8080", "checksum/config": strings.Repeat("3f8a91bc", 8)},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: p.Kind, Name: p.Workload, UID: p.workloadUID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)}},
			ManagedFields: []metav1.ManagedFieldsEntry{
				fields("kube-controller-manager", "Update", "", w.since, fmt.Sprintf(podFields, p.workloadUID)),
				fields("kubelet", "Update", "status", w.since, fmt.Sprintf(podStatusFields, p.Address)),
			},
		},
		Spec: corev1.PodSpec{
			NodeName: NodeName(p.Node), SchedulerName: scheduler, ServiceAccountName: "default", DeprecatedServiceAccount: "default",
			RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSClusterFirst, TerminationGracePeriodSeconds: ptr.To[int64](30),
			SecurityContext: &corev1.PodSecurityContext{}, Priority: ptr.To[int32](0), EnableServiceLinks: ptr.To(true), PreemptionPolicy: ptr.To(corev1.PreemptLowerPriority),
			Containers: []corev1.Container{{
				Name: "main", Image: "registry.example.com/platform/" + p.Workload + ":1.27.3", ImagePullPolicy: corev1.PullIfNotPresent, Env: env,
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
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: p.Workload}, DefaultMode: ptr.To[int32](420)}}},
				{Name: "kube-api-access", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{DefaultMode: ptr.To[int32](420), Sources: []corev1.VolumeProjection{
					{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{ExpirationSeconds: ptr.To[int64](3607), Path: "token"}},
					{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}, Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}},
				}}}},
			},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, QOSClass: corev1.PodQOSBurstable, StartTime: &w.since,
			HostIP: nodeIP(p.Node), HostIPs: []corev1.HostIP{{IP: nodeIP(p.Node)}}, PodIP: p.Address.String(), PodIPs: []corev1.PodIP{{IP: p.Address.String()}},
			Conditions: []corev1.PodCondition{condition("PodReadyToStartContainers"), condition(corev1.PodInitialized), condition(corev1.PodReady), condition(corev1.ContainersReady), condition(corev1.PodScheduled)},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "main", Ready: true, Started: ptr.To(true), Image: "registry.example.com/platform/" + p.Workload + ":1.27.3",
				ImageID:     "registry.example.com/platform/" + p.Workload + "@sha256:" + strings.Repeat("9c1e55d0", 8),
				ContainerID: fmt.Sprintf("containerd://%064x", p.serial), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: w.since}},
			}},
		},
	}
}

// NewPod returns a pod as a client creates it. Its schedulerName is fixedip-scheduler, even if it is not a StatefulSet pod.
func (w *World) NewPod(p Place) *corev1.Pod {
	pod := w.Pod(p)
	pod.ObjectMeta = metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: pod.Labels, Annotations: pod.Annotations, OwnerReferences: pod.OwnerReferences}
	pod.Spec.NodeName, pod.Spec.SchedulerName, pod.Status = "", "fixedip-scheduler", corev1.PodStatus{}
	return pod
}

func (w *World) endpoint(p Place) *ciliumv2.CiliumEndpoint {
	var labels []string
	for key, value := range p.labels() {
		labels = append(labels, "k8s:"+key+"="+value)
	}
	labels = append(labels, "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name="+p.Namespace, "k8s:io.cilium.k8s.policy.cluster=default",
		"k8s:io.cilium.k8s.policy.serviceaccount=default", "k8s:io.kubernetes.pod.namespace="+p.Namespace)
	return &ciliumv2.CiliumEndpoint{
		TypeMeta: metav1.TypeMeta{APIVersion: ciliumv2.SchemeGroupVersion.String(), Kind: "CiliumEndpoint"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name, UID: uid('e', p.serial), CreationTimestamp: w.since, Labels: p.labels(), Generation: 1,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: uid('p', p.serial)}},
			ManagedFields:   []metav1.ManagedFieldsEntry{fields("cilium-agent", "Update", "", w.since, fmt.Sprintf(endpointFields, uid('p', p.serial)))},
		},
		Status: ciliumv2.EndpointStatus{
			ID: int64(p.serial % 4000), State: string(models.EndpointStateReady),
			ExternalIdentifiers: &models.EndpointIdentifiers{
				ContainerID: fmt.Sprintf("%064x", p.serial), CniAttachmentID: fmt.Sprintf("%064x:eth0", p.serial),
				PodName: p.Namespace + "/" + p.Name, K8sNamespace: p.Namespace, K8sPodName: p.Name,
			},
			Identity:   &ciliumv2.EndpointIdentity{ID: int64(1000 + p.serial/replicas), Labels: labels},
			NamedPorts: models.NamedPorts{{Name: "http", Port: 8080, Protocol: "TCP"}},
			Networking: &ciliumv2.EndpointNetworking{Addressing: ciliumv2.AddressPairList{{IPV4: p.Address.String()}}, NodeIP: nodeIP(p.Node)},
		},
	}
}

// NewEndpoint returns the CiliumEndpoint that an agent creates for a pod that has just started.
func (w *World) NewEndpoint(p Place, pod types.UID) *ciliumv2.CiliumEndpoint {
	cep := w.endpoint(p)
	cep.ObjectMeta = metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: cep.Labels, OwnerReferences: cep.OwnerReferences}
	cep.OwnerReferences[0].UID = pod
	return cep
}
