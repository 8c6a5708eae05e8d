// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"math"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
)

// Cilium is the state of Cilium.
type Cilium struct {
	// IPAMMode and RoutingMode are ipam and routing-mode of cilium-config; empty if they are unknown.
	IPAMMode    string `json:"ipamMode,omitempty"`
	RoutingMode string `json:"routingMode,omitempty"`
	// Image is the image of the agents, and Version its tag.
	Image   string `json:"image,omitempty"`
	Version string `json:"version,omitempty"`
	// Agents is the desired number of agents, and AgentsReady the number of those that are ready.
	Agents      int32 `json:"agents"`
	AgentsReady int32 `json:"agentsReady"`
}

// Pools is the state of the pools of all nodes.
type Pools struct {
	// Nodes is the number of CiliumNodes.
	Nodes int `json:"nodes"`
	// WithoutSubnet, Overlapping and Unreported are the names of the nodes without a subnet, of those whose subnets overlap those
	// of another node, and of those whose agents have not reported yet (pool.NodePool.Unreported).
	WithoutSubnet []string `json:"withoutSubnet,omitempty"`
	Overlapping   []string `json:"overlapping,omitempty"`
	Unreported    []string `json:"unreported,omitempty"`
	// Families contains one element for each family in which at least one node has a subnet.
	Families []Family `json:"families"`
}

// Family is the number of addresses of one family in the subnets of all nodes.
type Family struct {
	// Family is IPv4 or IPv6.
	Family string `json:"family"`
	// Size is the number of addresses that pods may have, and Available the number of those from which a claim can choose once
	// the agents have reported. Both are at most math.MaxInt64.
	Size      int64 `json:"size"`
	Available int64 `json:"available"`
	// Full are the names of the nodes that have a subnet of the family but no available address in it.
	Full []string `json:"full,omitempty"`
}

// Counts are numbers of FixedIPs.
type Counts struct {
	Total int `json:"total"`
	Ready int `json:"ready"`
	// Reasons are the numbers by reason of the condition Ready. FixedIPs that the controller has not reconciled yet have the
	// key NotVisited.
	Reasons map[string]int `json:"reasons,omitempty"`
	// NotReady are the FixedIPs that have the condition Ready with another status than True and are not being deleted,
	// "namespace/name".
	NotReady []string `json:"notReady,omitempty"`
}

// NotVisited is the key of Counts.Reasons for FixedIPs without the condition Ready.
const NotVisited = "NotVisited"

// visitAfter is the age after which a FixedIP without the condition Ready is a problem. The controller reconciles a new
// FixedIP at once.
const visitAfter = time.Minute

// cilium judges the configuration of Cilium and its agents.
func (j *judge) cilium() {
	if j.reads(CiliumConfig) {
		if j.in.CiliumConfig == nil {
			j.problem("install Cilium, or name its namespace with --cilium-namespace", "There is no ConfigMap %s/cilium-config", j.in.CiliumNamespace)
		} else {
			j.Cilium.IPAMMode, j.Cilium.RoutingMode = j.in.CiliumConfig.Data["ipam"], j.in.CiliumConfig.Data["routing-mode"]
			if j.Cilium.IPAMMode != "crd" {
				j.problem("fixedip needs ipam.mode=crd; the mode of a running cluster cannot be changed without restarting all pods", "The IPAM mode of Cilium is %q", j.Cilium.IPAMMode)
			}
		}
	}
	switch {
	case j.in.Agents != nil:
		j.Cilium.Agents, j.Cilium.AgentsReady = j.in.Agents.Status.DesiredNumberScheduled, j.in.Agents.Status.NumberReady
		if c := container(&j.in.Agents.Spec.Template.Spec, "cilium-agent"); c != nil {
			j.Cilium.Image, j.Cilium.Version = c.Image, versionOf(c.Image, "")
		}
		if missing := j.Cilium.Agents - j.Cilium.AgentsReady; missing > 0 {
			j.problem("kubectl -n "+j.in.Agents.Namespace+" get pods -l k8s-app=cilium -o wide shows them; an agent waits until its node has a subnet", "%d of %d agents are not ready", missing, j.Cilium.Agents)
		}
	case j.reads(Agents):
		j.problem("install Cilium, or name its namespace with --cilium-namespace", "There is no DaemonSet with the label k8s-app=cilium in namespace %s", j.in.CiliumNamespace)
	}
}

// pools judges the subnets and the free addresses of all nodes.
func (j *judge) pools() {
	j.Pools.Families = []Family{}
	if j.in.Pools == nil {
		return
	}
	p := &j.Pools
	nodes := j.in.Pools.Nodes()
	p.Nodes = len(nodes)
	for _, n := range nodes {
		if len(n.Subnets) == 0 {
			p.WithoutSubnet = append(p.WithoutSubnet, n.Name)
			continue
		}
		if n.Unreported {
			p.Unreported = append(p.Unreported, n.Name)
		}
		if _, overlaps := j.in.Pools.OverlapsWith(n.Name); overlaps {
			p.Overlapping = append(p.Overlapping, n.Name)
		}
	}
	for _, f := range address.Families {
		family, with := Family{Family: f.String()}, 0
		for _, n := range nodes {
			if !n.HasFamily(f) {
				continue
			}
			with++
			size, available := j.in.Pools.SubnetSize(n.Name, f), j.in.Pools.Available(n.Name, f)
			family.Size, family.Available = add(family.Size, size), add(family.Available, available)
			if available == 0 {
				family.Full = append(family.Full, n.Name)
			}
		}
		if with == 0 {
			continue
		}
		p.Families = append(p.Families, family)
		if len(family.Full) == with {
			j.problem("add nodes, or delete FixedIPs that are not needed; kubectl fixedip top shows the use of each node", "No node has a free %s address, so no pod gets a new fixed address", f)
		}
	}
	if len(p.WithoutSubnet) > 0 {
		j.problem("look at the events of the Nodes; the cluster pools of the configuration may be used up", "Nodes have no subnet, so their agents do not start: %s", some(p.WithoutSubnet))
	}
	if len(p.Overlapping) > 0 {
		j.problem("kubectl fixedip check names the nodes and what helps", "Nodes have overlapping subnets, in which no address is claimed: %s", some(p.Overlapping))
	}
}

// add returns a + b, at most math.MaxInt64. Neither is negative.
func add(a, b int64) int64 { return a + min(b, math.MaxInt64-a) }

// fixedIPs counts the FixedIPs.
func (j *judge) fixedIPs() {
	c := &j.FixedIPs
	c.Reasons = map[string]int{}
	var unvisited []string
	for i := range j.in.FixedIPs {
		f := &j.in.FixedIPs[i]
		c.Total++
		name := f.Namespace + "/" + f.Name
		ready := meta.FindStatusCondition(f.Status.Conditions, v1alpha1.ConditionReady)
		switch {
		case ready == nil:
			c.Reasons[NotVisited]++
			if j.in.Now.Sub(f.CreationTimestamp.Time) > visitAfter {
				unvisited = append(unvisited, name)
			}
			continue
		case ready.Status == metav1.ConditionTrue:
			c.Ready++
		case f.DeletionTimestamp == nil:
			c.NotReady = append(c.NotReady, name)
		}
		c.Reasons[ready.Reason]++
	}
	if len(c.NotReady) > 0 {
		j.problem("kubectl describe fixedip shows the conditions, and kubectl fixedip explain POD shows what helps", "FixedIPs are not ready: %s", some(c.NotReady))
	}
	if len(unvisited) > 0 {
		j.problem("look at the logs of "+Controller, "The controller has not reconciled FixedIPs: %s", some(unvisited))
	}
}
