// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"fmt"
	"net/netip"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	coreaddress "fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/subnetplan"
)

func (w *World) node(i int) *corev1.Node {
	name := NodeName(i)
	has := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("250"),
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

// subnet returns the subnet of a node.
func subnet(i int) netip.Prefix { return netip.PrefixFrom(address(i, 0), 24) }

// NewNode returns a node as its kubelet creates it.
func (w *World) NewNode(i int) *corev1.Node {
	node := w.node(i)
	node.UID, node.CreationTimestamp = "", metav1.Time{}
	return node
}

// NewCiliumNode returns a CiliumNode as the agent of a new node creates it, without a subnet or a pool.
func (w *World) NewCiliumNode(i int, node types.UID) *ciliumv2.CiliumNode {
	cn := w.CiliumNode(i)
	cn.UID, cn.CreationTimestamp, cn.Generation, cn.OwnerReferences[0].UID = "", metav1.Time{}, 0, node
	cn.Spec.Addresses, cn.Spec.HealthAddressing.IPv4 = cn.Spec.Addresses[:1], ""
	cn.Spec.IPAM, cn.Status = ipamtypes.IPAMSpec{}, ciliumv2.NodeStatus{}
	return cn
}

// FreeAddress returns the highest address of node i that has a free dynamic entry.
func (w *World) FreeAddress(i int) netip.Addr { return address(i, w.dynamicEntries(i)) }

// dynamicEntries returns the number of dynamic entries of a node: one for each unreserved pod on it, those that the node
// uses itself, and the free ones.
func (w *World) dynamicEntries(i int) int {
	ordinary := w.Ordinary / w.Nodes
	if i < w.Ordinary%w.Nodes {
		ordinary++
	}
	return ownEntries + ordinary + freeEntries
}

// nodeSubnet returns the NodeSubnet of a node.
func (w *World) nodeSubnet(i int) *v1alpha1.NodeSubnet {
	node := w.node(i)
	cidr := subnet(i)
	assigned := metav1.Condition{
		Type: v1alpha1.ConditionAssigned, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAssigned, ObservedGeneration: 1,
		Message: fmt.Sprintf("node %s has the subnet", node.Name), LastTransitionTime: w.since,
	}
	ready := assigned
	ready.Type = v1alpha1.ConditionReady
	return &v1alpha1.NodeSubnet{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeSubnet"},
		ObjectMeta: metav1.ObjectMeta{Name: coreaddress.SubnetName(cidr), UID: uid('b', i), CreationTimestamp: w.since, Generation: 1},
		Spec:       v1alpha1.NodeSubnetSpec{CIDR: cidr.String(), NodeName: node.Name, NodeUID: node.UID, CiliumNodeUID: uid('c', i)},
		Status: v1alpha1.NodeSubnetStatus{
			NodeConstraints: ptr.To(subnetplan.ConstraintsOf(node)),
			Conditions:      []metav1.Condition{assigned, ready},
		},
	}
}

// CiliumNode returns a CiliumNode with the pool that our controller would write: owned entries for the highest addresses,
// used and free dynamic entries for the lowest. The pool of each of the first w.Searching nodes also has the entry of a slot.
func (w *World) CiliumNode(i int) *ciliumv2.CiliumNode {
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
	cn.Spec.IPAM.PodCIDRs = []string{subnet(i).String()}
	cn.Spec.IPAM.Pool, cn.Status.IPAM.Used = ipamtypes.AllocationMap{}, ipamtypes.AllocationMap{}
	for j, own := range []string{"router", "health"} {
		cn.Status.IPAM.Used[address(i, 1+j).String()] = ipamtypes.AllocationIP{Owner: own}
	}
	for j := i; j < w.Fixed+w.Absent; j += w.Nodes {
		p := w.FixedPod(j)
		owner := p.Namespace + "/" + p.Name
		cn.Spec.IPAM.Pool[p.Address.String()] = ipamtypes.AllocationIP{Owner: owner, Resource: p.Namespace + "/" + p.Kind + "/" + p.Workload}
		if j < w.Fixed {
			cn.Status.IPAM.Used[p.Address.String()] = ipamtypes.AllocationIP{Owner: owner}
		}
	}
	if i < w.Searching {
		cn.Spec.IPAM.Pool[address(i, slotAddress).String()] = ipamtypes.AllocationIP{
			Owner: fmt.Sprintf("%s/%s-old%02d", NamespaceName(0), slotReplicaSet, i), Resource: NamespaceName(0) + "/Deployment/" + slotDeployment,
		}
	}
	for j := i; j < w.Ordinary; j += w.Nodes {
		p := w.OrdinaryPod(j)
		cn.Status.IPAM.Used[p.Address.String()] = ipamtypes.AllocationIP{Owner: p.Namespace + "/" + p.Name}
	}
	for j := range w.dynamicEntries(i) {
		cn.Spec.IPAM.Pool[address(i, 1+j).String()] = ipamtypes.AllocationIP{}
	}
	return cn
}
