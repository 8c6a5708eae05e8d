// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/check"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/redact"
	"fixedip.io/fixedip/ipam/core/status"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// ciliumSettings are the keys of cilium-config that a report contains.
var ciliumSettings = []string{
	"ipam", "routing-mode", "tunnel-protocol", "enable-ipv4", "enable-ipv6", "ipv4-native-routing-cidr", "ipv6-native-routing-cidr",
	"auto-direct-node-routes", "disable-endpoint-crd", "ipam-cilium-node-update-rate", "kube-proxy-replacement", "enable-l2-announcements",
	"enable-bgp-control-plane", "cni-exclusive", "enable-endpoint-routes", "bpf-lb-sock", "enable-wireguard", "enable-ipsec",
}

// report reads the content of a report. If a request fails, report records the error and continues without the files that
// depend on the request. again is the time between the two readings of check.
func (c *cluster) report(ctx context.Context, where installation, again time.Duration) *report {
	r := &report{texts: map[string]string{}, objects: map[string]any{}, names: map[redact.Kind][]string{}}
	versions, err := c.versions(ctx, where)
	if !r.failed(err) {
		r.object("version.yaml", versions)
	}
	if in, err := c.statusInputs(ctx, where); !r.failed(err) {
		r.addStatus(in)
		c.addLogs(ctx, r, in.Pods)
		c.addEvents(ctx, r, in.Pods)
	}
	if problems, err := c.check(ctx, checkTimes{again: again, stuck: check.DefaultStuckAfter}); !r.failed(err) {
		r.object("check.yaml", listOf(problems))
	}
	c.addObjects(ctx, r)
	return r
}

// addStatus adds the status of the installation, and the objects from which it was derived.
func (r *report) addStatus(in status.Inputs) {
	state := status.Of(in)
	r.object("status.yaml", state)
	var text bytes.Buffer
	if !r.failed(writeStatus(&text, state, in.Now)) {
		r.texts["status.txt"] = text.String()
	}
	r.object("objects/deployments.yaml", listOf(in.Deployments))
	r.object("objects/pods.yaml", listOf(in.Pods))
	var leases []*coordinationv1.Lease
	for _, key := range sortedKeys(in.Leases) {
		leases = append(leases, in.Leases[key])
	}
	r.object("objects/leases.yaml", listOf(leases))
	for i := range in.Deployments {
		for _, c := range in.Deployments[i].Spec.Template.Spec.Containers {
			r.name(redact.Other, imageHosts(c.Image)...)
		}
		r.name(redact.Namespace, in.Deployments[i].Namespace)
	}
	for _, p := range state.Programs {
		// The identity of a leader begins with the name of its host, which is that of the node or of the pod.
		host, _, _ := strings.Cut(p.Leader, "_")
		r.name(redact.Node, host)
	}
	for i := range in.Pods {
		r.kept = append(r.kept, in.Pods[i].Name)
		r.name(redact.Namespace, in.Pods[i].Namespace)
		r.name(redact.Node, in.Pods[i].Spec.NodeName)
	}
	for key, cm := range in.ConfigMaps {
		r.addConfiguration(key, cm)
	}
	if in.Agents != nil {
		r.object("objects/agents.yaml", in.Agents.Status)
	}
	if in.CiliumConfig != nil {
		settings := map[string]string{}
		for _, key := range ciliumSettings {
			if value, ok := in.CiliumConfig.Data[key]; ok {
				settings[key] = value
			}
		}
		r.object("cilium-config.yaml", settings)
	}
}

// addConfiguration adds the files of a ConfigMap as objects. key is "namespace/name".
func (r *report) addConfiguration(key string, cm *corev1.ConfigMap) {
	_, name, _ := strings.Cut(key, "/")
	for file, content := range cm.Data {
		encoded, err := yaml.YAMLToJSON([]byte(content))
		var tree any
		if err == nil {
			err = json.Unmarshal(encoded, &tree)
		}
		if err != nil {
			r.failed(fmt.Errorf("decode %s of ConfigMap %s: %w", file, key, err))
			continue
		}
		r.object("configuration/"+name+"/"+file, tree)
	}
}

// addObjects adds FixedIPs, NodeSubnets and the pools of CiliumNodes, and the names in them.
func (c *cluster) addObjects(ctx context.Context, r *report) {
	var records v1alpha1.FixedIPList
	if err := c.api.List(ctx, &records); err != nil {
		r.failed(listError("FixedIPs", err))
	} else {
		r.object("objects/fixedips.yaml", listOf(records.Items))
	}
	for i := range records.Items {
		f := &records.Items[i]
		r.name(redact.Namespace, f.Namespace)
		r.name(redact.Pod, f.Spec.PodName)
		r.name(redact.Workload, f.Spec.Owner.Name)
		r.name(redact.Node, f.Spec.NodeName)
		r.name(redact.Other, f.Name)
	}
	var subnets v1alpha1.NodeSubnetList
	if err := c.api.List(ctx, &subnets); err != nil {
		r.failed(listError("NodeSubnets", err))
	} else {
		r.object("objects/nodesubnets.yaml", listOf(subnets.Items))
	}
	for i := range subnets.Items {
		s := &subnets.Items[i]
		r.name(redact.NodeSubnet, s.Name)
		r.name(redact.Node, s.Spec.NodeName, s.Spec.PreviousNodeName, s.Spec.Successor)
		if k := s.Status.NodeConstraints; k != nil {
			r.name(redact.Other, k.Zone, k.Region)
		}
	}
	var nodes ciliumv2.CiliumNodeList
	if err := c.api.List(ctx, &nodes); err != nil {
		r.failed(listError("CiliumNodes", err))
		return
	}
	var pools []any
	for i := range nodes.Items {
		cn := &nodes.Items[i]
		n := ciliumpool.FromCiliumNode(cn)
		r.subnets = append(r.subnets, n.Subnets...)
		r.name(redact.Node, n.Name)
		for _, e := range n.Entries {
			r.owner(e.Owner())
			r.owner(e.Pod())
			_, workload, _ := e.WorkloadRef()
			r.name(redact.Workload, workload)
			r.name(redact.Node, e.Node())
		}
		for _, owner := range n.Used {
			r.owner(owner)
		}
		// The rest of a CiliumNode says nothing about its pool.
		pools = append(pools, map[string]any{
			"metadata": cn.ObjectMeta,
			"spec":     map[string]any{"addresses": cn.Spec.Addresses, "ipam": cn.Spec.IPAM},
			"status":   map[string]any{"ipam": cn.Status.IPAM},
		})
	}
	r.object("objects/ciliumnodes.yaml", listOf(pools))
}

// owner adds the namespace and the name of a pod to the names that are replaced. key is "namespace/name"; any other text
// is ignored.
func (r *report) owner(key string) {
	if namespace, name, ok := pool.SplitOwnerKey(key); ok {
		r.name(redact.Namespace, namespace)
		r.name(redact.Pod, name)
	}
}

// addEvents adds the events about FixedIPs, NodeSubnets and CiliumNodes, those that the controller has recorded on other
// objects, and those about the pods of both programs.
func (c *cluster) addEvents(ctx context.Context, r *report, pods []corev1.Pod) {
	var found []corev1.Event
	var text strings.Builder
	for _, s := range []struct{ what, field, value string }{
		{"FixedIPs", "involvedObject.kind", "FixedIP"},
		{"NodeSubnets", "involvedObject.kind", "NodeSubnet"},
		{"CiliumNodes", "involvedObject.kind", "CiliumNode"},
		{"the controller", "reportingComponent", "fixedip-controller"},
	} {
		var events corev1.EventList
		if err := c.api.List(ctx, &events, client.MatchingFields{s.field: s.value}); err != nil {
			r.failed(listError("events of "+s.what, err))
			continue
		}
		found = append(found, events.Items...)
	}
	for i := range pods {
		var events corev1.EventList
		if err := c.api.List(ctx, &events, client.InNamespace(pods[i].Namespace), client.MatchingFields{"involvedObject.name": pods[i].Name}); err != nil {
			r.failed(listError("events of pod "+pods[i].Name, err))
			continue
		}
		found = append(found, events.Items...)
	}
	slices.SortStableFunc(found, func(a, b corev1.Event) int {
		return cmp.Or(eventTime(a).Compare(eventTime(b)), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	found = slices.CompactFunc(found, func(a, b corev1.Event) bool { return a.Namespace == b.Namespace && a.Name == b.Name })
	for _, e := range found {
		r.name(redact.Namespace, e.InvolvedObject.Namespace)
		fmt.Fprintf(&text, "%s %s x%d %s/%s %s: %s (%s)\n", eventTime(e).UTC().Format(time.RFC3339), e.Type, max(1, e.Count),
			e.InvolvedObject.Kind, strings.TrimPrefix(e.InvolvedObject.Namespace+"/"+e.InvolvedObject.Name, "/"), e.Reason, e.Message, e.Source.Component+e.ReportingController)
	}
	r.texts["events.txt"] = text.String()
}

// eventTime returns the last time at which an event was observed.
func eventTime(e corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	}
	return e.CreationTimestamp.Time
}

// addLogs adds the last lines of each container of the pods, and of its previous run if there was one.
func (c *cluster) addLogs(ctx context.Context, r *report, pods []corev1.Pod) {
	for i := range pods {
		for _, s := range pods[i].Status.ContainerStatuses {
			for _, previous := range []bool{false, true} {
				if previous && s.RestartCount == 0 {
					continue
				}
				log, err := c.logs(ctx, &pods[i], s.Name, previous)
				if err != nil {
					r.failed(fmt.Errorf("read the log of container %s of pod %s/%s: %w", s.Name, pods[i].Namespace, pods[i].Name, err))
					continue
				}
				path := "logs/" + pods[i].Name + "_" + s.Name
				if previous {
					path += "_previous"
				}
				r.texts[path+".log"] = string(log)
			}
		}
	}
}

// readLogs returns a function that reads the last logLines lines of the log of a container.
func readLogs(kube kubernetes.Interface) func(ctx context.Context, pod *corev1.Pod, container string, previous bool) ([]byte, error) {
	return func(ctx context.Context, pod *corev1.Pod, container string, previous bool) ([]byte, error) {
		options := &corev1.PodLogOptions{Container: container, Previous: previous, TailLines: ptr.To[int64](logLines)}
		return kube.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, options).DoRaw(ctx)
	}
}
