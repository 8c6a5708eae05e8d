// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"maps"
	"slices"
	"strings"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/cilium/cilium/pkg/node/addressing"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/test/sim/agent"
)

// agentUp starts the agent if its Node exists. The agent creates its CiliumNode, or corrects the owner reference of the
// existing one, and processes the current version of the CiliumNode. agentStarted completes the start.
func (m *machine) agentUp() {
	s := m.w.server
	node, ok := one[*corev1.Node](s, nodes, m.name)
	if !ok {
		return
	}
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: m.name, UID: node.UID}
	if cn, ok := one[*ciliumv2.CiliumNode](s, ciliumNodes, m.name); !ok {
		m.makeCiliumNode(owner)
	} else if len(cn.OwnerReferences) == 0 || cn.OwnerReferences[0].UID != node.UID {
		change(s, ciliumNodes, m.name, "agent "+m.name, func(cn *ciliumv2.CiliumNode) { cn.OwnerReferences = []metav1.OwnerReference{owner} })
	}
	m.ipam, m.ready, m.wroteAt = agent.New(m.w.choose), false, time.Time{}
	cn, _ := one[*ciliumv2.CiliumNode](s, ciliumNodes, m.name)
	m.nextNode = len(s.history[ciliumNodes])
	m.dirty = m.ipam.See(cn)
	for _, b := range m.sandboxes {
		b.held = false
	}
}

// makeCiliumNode creates the CiliumNode with the addresses of the node itself that the agent knows.
func (m *machine) makeCiliumNode(owner metav1.OwnerReference) {
	cn := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: m.name, OwnerReferences: []metav1.OwnerReference{owner}}}
	for _, v6 := range m.w.setup.families() {
		if ip := m.own[ownKey{"router", v6}]; ip != "" {
			cn.Spec.Addresses = append(cn.Spec.Addresses, ciliumv2.NodeAddress{Type: addressing.NodeCiliumInternalIP, IP: ip})
		}
	}
	cn.Spec.HealthAddressing.IPv4, cn.Spec.HealthAddressing.IPv6 = m.own[ownKey{"health", false}], m.own[ownKey{"health", true}]
	m.w.server.mustCreate(ciliumNodes, cn, "agent "+m.name)
}

// remakeCiliumNode creates the CiliumNode again, as an agent does if its local node changes after the CiliumNode was
// deleted (Cilium fact 26). The agent keeps its allocations.
func (m *machine) remakeCiliumNode() {
	if node, ok := one[*corev1.Node](m.w.server, nodes, m.name); ok {
		m.makeCiliumNode(metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: m.name, UID: node.UID})
	}
}

// loseCiliumNode deletes the CiliumNode of a running node, as a user. The agent sees the deletion at once. Call
// loseCiliumNode only if the kubelet has reported the addresses of all pods: an address that only the agent knows is
// lost with the pool.
func (m *machine) loseCiliumNode() {
	m.w.noteLostSlots(m)
	_ = m.w.server.remove(ciliumNodes, m.name, nil, true, "user")
	m.ipam.See(nil)
	m.nextNode, m.remade = len(m.w.server.history[ciliumNodes]), true
}

// reported reports whether the agent is ready and the kubelet has reported the addresses of all running pods.
func (m *machine) reported() bool {
	return m.ipam != nil && m.ready && !slices.ContainsFunc(slices.Collect(maps.Values(m.sandboxes)), func(b *sandbox) bool { return !b.reported })
}

// agentStarted completes the start of the agent if the pool is large enough, and reports whether the pool is large
// enough. The agent restores its sandboxes and allocates the addresses of the node itself. If one of the latter cannot
// be allocated, the agent exits.
func (m *machine) agentStarted() bool {
	if !m.poolIsLarge() {
		return false
	}
	for _, uid := range slices.Sorted(maps.Keys(m.sandboxes)) {
		b := m.sandboxes[uid]
		b.held = m.restore(b)
		pod, ok := one[*corev1.Pod](m.w.server, pods, b.key)
		if b.forgotten = m.remade && !b.held && (!ok || pod.UID != uid); b.forgotten {
			m.w.stats["sandbox that only the kubelet knows"]++
		}
		if m.remade && !b.held && ok && pod.UID == uid && b.reported && !m.predecessorHolds(b) && !slices.ContainsFunc(b.ips, func(ip string) bool { return !m.w.hasHome(ip) }) {
			m.w.violate("durable: the agent of node %s cannot restore pod %s, which runs with IPs %s", m.name, b.key, b.ips)
		}
	}
	m.remade = false
	for _, owner := range nodeOwners {
		for _, v6 := range m.w.setup.families() {
			if ip := m.own[ownKey{owner, v6}]; ip != "" && m.ipam.Take(ip, owner) == nil {
				continue
			}
			ip, err := m.ipam.Next(owner, v6)
			if err != nil {
				// The agent exits and is started again.
				m.ipam, m.restartAt = nil, time.Now().Add(restartAfter)
				return true
			}
			m.own[ownKey{owner, v6}] = ip
		}
	}
	m.ready, m.dirty, m.wroteAt = true, true, time.Time{}
	m.restoreEndpoints()
	return true
}

// predecessorHolds reports whether the agent has restored the sandbox of a former pod with the name and the addresses of b.
// The former pod was deleted by force, and the kubelet has not stopped it yet. The agent then cannot restore b, whatever
// entries the pool has.
func (m *machine) predecessorHolds(b *sandbox) bool {
	for _, o := range m.sandboxes {
		if o != b && o.key == b.key && o.held && slices.Equal(o.ips, b.ips) {
			return true
		}
	}
	return false
}

// poolIsLarge reports whether the pool has at least minPool entries of each family, so that an agent can start.
func (m *machine) poolIsLarge() bool {
	if m.ipam.Node == nil {
		return false
	}
	n := map[bool]int{}
	for ip := range m.ipam.Node.Spec.IPAM.Pool {
		n[agent.IsIPv6(ip)]++
	}
	return !slices.ContainsFunc(m.w.setup.families(), func(v6 bool) bool { return n[v6] < minPool })
}

// restore allocates the addresses of a sandbox again, all of them or none. It reports whether that succeeded.
func (m *machine) restore(b *sandbox) bool {
	for i, ip := range b.ips {
		if m.ipam.Take(ip, b.key+" [restored]") != nil {
			m.release(b.ips[:i])
			return false
		}
	}
	return true
}

func (m *machine) release(ips []string) {
	for _, ip := range ips {
		_ = m.ipam.Release(ip)
	}
}

func (m *machine) agentDown() {
	m.stopEndpoints()
	m.ipam, m.ready, m.dirty = nil, false, false
}

func (m *machine) seesNode() bool {
	history := m.w.server.history[ciliumNodes]
	for m.nextNode < len(history) {
		if history[m.nextNode].key() == m.name {
			return true
		}
		m.nextNode++
	}
	return false
}

func (m *machine) seeNode() {
	e := m.w.server.history[ciliumNodes][m.nextNode]
	m.nextNode++
	if e.after == nil {
		m.ipam.See(nil)
		return
	}
	if m.ipam.See(e.after.(*ciliumv2.CiliumNode)) {
		m.dirty = true
	}
}

// unreported reports whether the agent has answered a handshake in the current version of its CiliumNode, and has not
// written the answer yet.
func (m *machine) unreported() bool {
	cn, ok := one[*ciliumv2.CiliumNode](m.w.server, ciliumNodes, m.name)
	return ok && m.dirty && m.ipam.Node != nil && m.ipam.Node.ResourceVersion == cn.ResourceVersion &&
		!maps.Equal(m.ipam.Node.Status.IPAM.ReleaseIPs, cn.Status.IPAM.ReleaseIPs)
}

// label writes only the labels of the CiliumNode, as an agent does if the labels of its Node change. This write makes the
// agent lose its unwritten answers (Cilium fact 28).
func (m *machine) label() {
	m.w.stats["labels before a report"]++
	m.labels++
	change(m.w.server, ciliumNodes, m.name, "agent "+m.name, func(cn *ciliumv2.CiliumNode) { cn.Labels = map[string]string{"x": cn.ResourceVersion} })
}

// report writes the status as the agent does, based on the version of the CiliumNode that the agent has seen. A restarted
// agent may report before it has restored its endpoints, without their addresses, to answer a handshake (Cilium fact 24).
func (m *machine) report() {
	m.wroteAt = time.Now()
	if m.ipam.Node == nil {
		return
	}
	if !m.ready {
		m.w.stats["report before the restore"]++
	}
	cn := m.ipam.Node.DeepCopy()
	cn.Status.IPAM.Used = m.ipam.Used()
	_, err := m.w.server.update(ciliumNodes, cn, "status", "agent "+m.name)
	m.dirty = err != nil
}

// allocatedTo returns the owner for which the agent has allocated an address; empty if the address is not allocated.
func (m *machine) allocatedTo(ip string) string {
	if m.ipam == nil {
		return ""
	}
	return strings.TrimSuffix(m.ipam.Allocated[ip], " [restored]")
}
