// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/reservation"
)

// differences returns the changed aspects of an object as text that begins with a colon; empty if no aspect has
// changed.
func differences(before, after client.Object) string {
	a, b := aspects(before), aspects(after)
	keys := map[string]bool{}
	for _, m := range []map[string]string{a, b} {
		for key := range m {
			keys[key] = true
		}
	}
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		x, was := a[key]
		y, is := b[key]
		switch {
		case was && is && x != y:
			parts = append(parts, fmt.Sprintf("%s %s -> %s", key, x, y))
		case !was:
			parts = append(parts, strings.TrimSpace(key+" "+y))
		case !is:
			parts = append(parts, "no "+key)
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return ": " + strings.Join(parts, ", ")
}

// aspects returns the fields of an object that the history shows. Key: the name of the field.
func aspects(o client.Object) map[string]string {
	a := map[string]string{}
	switch o := o.(type) {
	case *corev1.Pod:
		if o == nil {
			break
		}
		a["uid"] = string(o.UID)
		if o.Spec.NodeName != "" {
			a["node"] = o.Spec.NodeName
		}
		if o.Status.PodIP != "" {
			a["ip"] = fmt.Sprint(o.Status.PodIPs)
		}
	case *corev1.Node:
		for _, t := range o.Spec.Taints {
			a["taint"] += t.Key
		}
		a["cordoned"] = fmt.Sprint(o.Spec.Unschedulable)
	case *appsv1.StatefulSet:
		a["replicas"] = fmt.Sprint(*o.Spec.Replicas)
		a["template"] = fmt.Sprint(o.Spec.Template.Labels[templateHash], o.Spec.Template.Annotations)
		a["annotations"] = fmt.Sprint(o.Annotations)
	case *appsv1.ReplicaSet:
		a["replicas"] = fmt.Sprint(*o.Spec.Replicas)
		a["template"] = fmt.Sprint(o.Spec.Template.Annotations)
		a["annotations"] = fmt.Sprint(o.Annotations)
	case *v1alpha1.NodeSubnet:
		if o == nil {
			break
		}
		a["node"], a["cilium node"], a["from"] = o.Spec.NodeName, string(o.Spec.CiliumNodeUID), o.Spec.PreviousNodeName
		if o.Status.OrphanedSince != nil {
			a["orphaned"] = "since " + o.Status.OrphanedSince.UTC().Format("15:04:05")
		}
	case *ciliumv2.CiliumEndpoint:
		return endpointAspects(o)
	case *ciliumv2.CiliumNode:
		if len(o.Spec.IPAM.PodCIDRs) > 0 {
			a["subnets"] = strings.Join(o.Spec.IPAM.PodCIDRs, " ")
		}
		for ip, e := range o.Spec.IPAM.Pool {
			a[ip] = "dynamic"
			if e.Owner != "" {
				a[ip] = fmt.Sprintf("for %s (%s)", e.Owner, e.Resource)
			}
		}
		for ip, e := range o.Status.IPAM.Used {
			a["used "+ip] = "by " + e.Owner
		}
		for ip, s := range o.Status.IPAM.ReleaseIPs {
			a["handshake "+ip] = string(s)
		}
	case *v1alpha1.FixedIP:
		a["ips"] = strings.Join(o.Spec.IPs, " ")
		a["node"] = o.Spec.NodeName
		a["state"] = string(reservation.StateOf(o))
		a["owner"] = string(o.Spec.Owner.UID)
		if o.Spec.AssignedTo == v1alpha1.Slot {
			a["slot of"] = o.Spec.PodName
		}
		a["policy"] = fmt.Sprint(o.Spec.Reclaim.WhenDeleted, " ", o.Spec.Reclaim.WhenScaled, " ", o.Spec.Reclaim.TTLSeconds, " ", o.Spec.Failover)
		if len(o.Finalizers) > 0 {
			a["finalizers"] = fmt.Sprint(o.Finalizers)
		}
		for _, c := range o.Status.Conditions {
			a[c.Type] = fmt.Sprintf("%s %s", c.Status, c.Reason)
		}
	}
	return a
}
