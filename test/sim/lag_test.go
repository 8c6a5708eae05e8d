// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"strings"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
)

// lag is how long an agent owes what the product counts on: that it sees within agentReportTimeout whose an address has become that
// was for anybody, and reports within as much again who else has it. Time in which nothing passes between the machine and
// the API server does not count here, unless it is so long that the node is no longer ready: then all begins anew.
// What is left of agentReportTimeout for that is muteFor.
//
// Whoever says that a node is no longer ready does so in time. While nobody does, nothing that a node says can be counted on.
type lag struct {
	unaware, silent time.Duration
	// at is when that was worked out.
	at time.Time
}

// keepUp has agents do what they have owed for long enough.
func (w *world) keepUp() {
	now := time.Now()
	for _, m := range w.machines {
		passed := now.Sub(m.lag.at)
		m.lag.at = now
		node, exists := one[*corev1.Node](w.server, nodes, m.name)
		switch {
		case !exists || m.off || !isReady(node):
			m.lag.unaware, m.lag.silent = 0, 0
			continue
		case m.cut:
			if now.Sub(m.heard) > unheard {
				w.setReady(m.name, false)
			}
			continue
		}
		if m.lag.unaware += passed; !m.unaware() {
			m.lag.unaware = 0
		}
		if m.lag.silent += passed; !m.silent() {
			m.lag.silent = 0
		}
		if m.lag.unaware < muteFor && m.lag.silent < muteFor {
			continue
		}
		w.tell("%s has been behind for long enough", m.name)
		if m.ipam == nil {
			m.agentUp()
		}
		for m.seesNode() {
			m.seeNode()
		}
		if !m.ready {
			m.agentStarted()
		}
		if m.silent() && m.ready {
			m.report()
		}
	}
}

// unaware tells whether the agent has not seen an entry that says since when it is its owner's.
func (m *machine) unaware() bool {
	cn, ok := one[*ciliumv2.CiliumNode](m.w.server, ciliumNodes, m.name)
	if !ok {
		return false
	}
	for ip, e := range cn.Spec.IPAM.Pool {
		if strings.Contains(e.Resource, ";since=") && (m.ipam == nil || m.ipam.Node == nil || m.ipam.Node.Spec.IPAM.Pool[ip] != e) {
			return true
		}
	}
	return false
}

// silent tells whether the agent has not said that a pod has an address which the pool says to be another's since a time.
func (m *machine) silent() bool {
	cn, ok := one[*ciliumv2.CiliumNode](m.w.server, ciliumNodes, m.name)
	if !ok {
		return false
	}
	for _, b := range m.boxes {
		e := cn.Spec.IPAM.Pool[b.ip]
		if strings.Contains(e.Resource, ";since=") && e.Owner != b.key && strings.TrimSuffix(cn.Status.IPAM.Used[b.ip].Owner, " [restored]") != b.key {
			return true
		}
	}
	return false
}
