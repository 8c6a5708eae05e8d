// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var (
	ciliumEndpoints = &kind{gvk: ciliumv2.SchemeGroupVersion.WithKind(ciliumv2.CEPKindDefinition), resource: ciliumv2.SchemeGroupVersion.WithResource("ciliumendpoints"), make: func() client.Object { return &ciliumv2.CiliumEndpoint{} }}
	// configMaps has no objects: the product looks for the configuration of Cilium and finds none.
	configMaps = &kind{gvk: corev1.SchemeGroupVersion.WithKind("ConfigMap"), resource: corev1.SchemeGroupVersion.WithResource("configmaps"), make: func() client.Object { return &corev1.ConfigMap{} }}
)

const (
	// endpointInterval is the interval at which an agent checks the CiliumEndpoint of an endpoint, and endpointRetry is the
	// pause after an error.
	endpointInterval, endpointRetry = 10 * time.Second, time.Second
	// endpointTermination is the time after which the keeper removes the finalizers of a CiliumEndpoint that is being deleted.
	// It is shorter than restAfter.
	endpointTermination = 3 * time.Minute
)

// endpointSetup defines how CiliumEndpoints are maintained in one run.
type endpointSetup struct {
	// on is true if agents make CiliumEndpoints and the controller maintains them.
	on bool
	// remade is true if an agent makes its CiliumEndpoint again after another client has deleted it, as Cilium does from
	// v1.18.6 on (Cilium fact 14).
	remade bool
	// collected is true if the garbage collector and Cilium's operator also remove CiliumEndpoints, namely those of pods that
	// have ended or do not exist any more. Otherwise only the agents and the keeper remove CiliumEndpoints.
	collected bool
}

func drawEndpoints(from *rand.Rand) endpointSetup {
	return endpointSetup{on: from.IntN(3) == 0, remade: from.IntN(2) == 0, collected: from.IntN(2) == 0}
}

// endpointAgent is the part of an agent that writes CiliumEndpoints (pkg/endpointmanager/endpointsynchronizer.go). The
// endpoints in known are on the disk of the node: they survive a restart of the agent, but not a reboot.
type endpointAgent struct {
	// known are the endpoints of the sandboxes. Key: the UID of the pod.
	known map[types.UID]*agentEndpoint
	// ended are the CiliumEndpoints to delete after a CNI DEL. leftover are the CiliumEndpoints of the node that had no
	// endpoint when the agent started (pkg/endpointcleanup).
	ended, leftover []endpointRef
}

// endpointRef identifies one CiliumEndpoint. key is namespace/name.
type endpointRef struct {
	key string
	uid types.UID
}

// agentEndpoint is the agent's state of one endpoint.
type agentEndpoint struct {
	pod types.UID
	key string
	ips []string
	// id is the number of the endpoint, and revision counts the changes of its status.
	id, revision int64
	// uid is the UID of the CiliumEndpoint that the agent has created or taken over; empty if there is none yet.
	uid types.UID
	// stored is true if uid is on the disk.
	stored bool
	// begins is true if the agent has to find or create the CiliumEndpoint. first is true if it may find an outdated version
	// of the CiliumEndpoint in its cache.
	begins, first bool
	// local is true if the status of the pod names this node, which an agent requires before it takes over a CiliumEndpoint.
	local bool
	// sent is true if the status is written.
	sent bool
	// wroteAt is the last time at which the agent found or wrote the CiliumEndpoint. dueAt is the earliest time of the next
	// check.
	wroteAt, dueAt time.Time
}

// hostIP returns the IP of the node.
func (m *machine) hostIP() string { return "192.0.2." + strings.TrimPrefix(m.name, "n") }

// drawFault draws whether a fault of an agent happens now, with probability 1/n. It returns false after the end of all
// faults, and if the run excludes the fault.
func (w *world) drawFault(name string, n int) bool {
	if w.faultsEnded || w.excluded(name) || w.choose(n) != 0 {
		return false
	}
	w.stats[name]++
	w.logf("  %s", name)
	return true
}

// addEndpoint adds the endpoint of a sandbox. It is part of the CNI ADD.
func (m *machine) addEndpoint(b *sandbox) {
	if !m.w.setup.endpoints.on {
		return
	}
	if m.cep.known == nil {
		m.cep.known = map[types.UID]*agentEndpoint{}
	}
	m.w.endpointIDs++
	m.cep.known[b.uid] = &agentEndpoint{pod: b.uid, key: b.key, ips: b.ips, id: m.w.endpointIDs, begins: true, first: true}
}

// endEndpoint removes the endpoint of a pod. It is part of the CNI DEL. If the agent is not ready, restoreEndpoints
// removes the endpoint when the agent starts.
func (m *machine) endEndpoint(uid types.UID) {
	e := m.cep.known[uid]
	if e == nil || !m.ready {
		return
	}
	delete(m.cep.known, uid)
	// An agent that does not know the UID does not delete the CiliumEndpoint.
	if e.uid != "" {
		m.cep.ended = append(m.cep.ended, endpointRef{e.key, e.uid})
	}
}

// restoreEndpoints is called when an agent has restored its sandboxes. It removes endpoints whose sandbox has stopped or was
// not restored, syncs the others again, and notes the leftover CiliumEndpoints of the node.
func (m *machine) restoreEndpoints() {
	names := map[string]bool{}
	for _, uid := range slices.Sorted(maps.Keys(m.cep.known)) {
		e, sandbox := m.cep.known[uid], m.sandboxes[uid]
		switch {
		case sandbox == nil:
			delete(m.cep.known, uid)
			if e.uid != "" {
				m.cep.ended = append(m.cep.ended, endpointRef{e.key, e.uid})
			}
		case !sandbox.held:
			m.w.stats["endpoint not restored"]++
			delete(m.cep.known, uid)
		default:
			names[e.key] = true
			e.begins, e.first, e.sent, e.dueAt = true, true, false, time.Time{}
		}
	}
	for _, cep := range all[*ciliumv2.CiliumEndpoint](m.w.server, ciliumEndpoints) {
		if nodeOf(cep) == m.hostIP() && !names[keyOf(cep)] {
			m.cep.leftover = append(m.cep.leftover, endpointRef{keyOf(cep), cep.UID})
		}
	}
}

// stopEndpoints drops the state that an agent loses when it ends: its pending deletions, and sometimes the UIDs that
// are not on the disk.
func (m *machine) stopEndpoints() {
	m.cep.ended, m.cep.leftover = nil, nil
	for _, uid := range slices.Sorted(maps.Keys(m.cep.known)) {
		if e := m.cep.known[uid]; e.uid != "" && !e.stored && m.w.drawFault("agent ends before it has stored the UID of a CiliumEndpoint", 2) {
			e.uid = ""
		}
	}
}

// endpointActions returns the possible actions of the kubelet and the agent that concern CiliumEndpoints.
func (m *machine) endpointActions(now time.Time) []action {
	if !m.w.setup.endpoints.on {
		return nil
	}
	var d []action
	add := func(name string, do func()) { d = append(d, action{m.name + " " + name, do}) }
	up := m.ipam != nil && m.ready
	if m.cut {
		if up && len(m.cep.ended) > 0 {
			add("agent can't delete CiliumEndpoint "+m.cep.ended[0].key, func() {
				m.w.stats["CiliumEndpoint not deleted in a partition"]++
				m.cep.ended = m.cep.ended[1:]
			})
		}
		return d
	}
	for _, key := range slices.Sorted(maps.Keys(m.pods)) {
		pod := m.pods[key]
		if current, ok := one[*corev1.Pod](m.w.server, pods, keyOf(pod)); ok && current.UID == pod.UID && current.Status.HostIP == "" && !now.Before(m.podStatusAfter) {
			add("kubelet reports the node of "+key, func() {
				change(m.w.server, pods, keyOf(pod), "kubelet", func(p *corev1.Pod) { p.Status.HostIP = m.hostIP() })
			})
		}
	}
	if !up {
		return d
	}
	for _, uid := range slices.Sorted(maps.Keys(m.cep.known)) {
		if e := m.cep.known[uid]; !now.Before(e.dueAt) && (e.begins || !e.sent || m.w.setup.endpoints.remade && m.lost(e, now)) {
			add("agent syncs CiliumEndpoint "+e.key, func() { m.syncEndpoint(e) })
		}
	}
	if len(m.cep.ended) > 0 {
		add("agent deletes CiliumEndpoint "+m.cep.ended[0].key, func() {
			ref := m.cep.ended[0]
			m.cep.ended = m.cep.ended[1:]
			if !m.w.drawFault("CiliumEndpoint not deleted after an error", 4) {
				_ = m.w.server.remove(ciliumEndpoints, ref.key, &metav1.Preconditions{UID: &ref.uid}, true, "agent "+m.name)
			}
		})
	}
	if len(m.cep.leftover) > 0 {
		add("agent cleans up CiliumEndpoint "+m.cep.leftover[0].key, func() {
			ref := m.cep.leftover[0]
			m.cep.leftover = m.cep.leftover[1:]
			m.w.stats["CiliumEndpoint cleaned up by an agent"]++
			_ = m.w.server.remove(ciliumEndpoints, ref.key, &metav1.Preconditions{UID: &ref.uid}, true, "agent "+m.name)
		})
	}
	return d
}

// lost reports whether the CiliumEndpoint of an endpoint does not exist or names another node, although the agent found or
// wrote it at least endpointInterval ago. After that time a lag of the agent's watch is not the cause.
func (m *machine) lost(e *agentEndpoint, now time.Time) bool {
	cep, ok := one[*ciliumv2.CiliumEndpoint](m.w.server, ciliumEndpoints, e.key)
	return now.Sub(e.wroteAt) >= endpointInterval && (!ok || nodeOf(cep) != m.hostIP())
}

// syncEndpoint runs the agent's controller of an endpoint once.
func (m *machine) syncEndpoint(e *agentEndpoint) {
	now := time.Now()
	e.dueAt = now.Add(endpointRetry)
	switch {
	case e.begins:
		m.beginEndpoint(e, now)
	case !e.sent:
		m.sendEndpoint(e, now)
	default:
		m.w.stats["CiliumEndpoint made again by its agent"]++
		e.begins = true
	}
}

// beginEndpoint finds, takes over or creates the CiliumEndpoint of an endpoint. The agent refuses a CiliumEndpoint with
// another UID than the one that it knows.
func (m *machine) beginEndpoint(e *agentEndpoint, now time.Time) {
	cep, found := one[*ciliumv2.CiliumEndpoint](m.w.server, ciliumEndpoints, e.key)
	if history := m.w.server.history[ciliumEndpoints]; e.first && m.w.drawFault("CiliumEndpoint read from a cache that is behind", 6) {
		cep, found = m.w.server.at(ciliumEndpoints, max(0, len(history)-1-m.w.choose(6)))[e.key].(*ciliumv2.CiliumEndpoint)
	}
	e.first = false
	if pod := m.podOf(e.pod); pod != nil && pod.Status.HostIP == m.hostIP() {
		e.local = true
	}
	switch {
	case !found:
		made, err := m.w.server.create(ciliumEndpoints, m.endpointObject(e), "agent "+m.name)
		if err != nil || m.w.drawFault("answer about a new CiliumEndpoint lost", 8) {
			return
		}
		e.uid, e.stored, e.sent = made.GetUID(), false, true
	case e.uid == cep.UID:
		e.sent = equality.Semantic.DeepEqual(cep.Status, m.endpointStatus(e))
	case !e.local:
		return
	case e.uid != "":
		m.w.stats["CiliumEndpoint of another refused by the agent"]++
		e.dueAt = now.Add(endpointInterval)
		return
	default:
		m.w.stats["CiliumEndpoint taken over by the agent"]++
		m.w.logf("  %s takes over CiliumEndpoint %s (%s)", m.name, e.key, cep.UID)
		e.uid, e.stored = cep.UID, true
		e.sent = equality.Semantic.DeepEqual(cep.Status, m.endpointStatus(e))
	}
	e.begins, e.wroteAt, e.dueAt = false, now, now
}

// sendEndpoint writes the status of the CiliumEndpoint if the CiliumEndpoint still has the UID that the agent knows.
// Otherwise the agent has to find or create it again.
func (m *machine) sendEndpoint(e *agentEndpoint, now time.Time) {
	if cep, ok := one[*ciliumv2.CiliumEndpoint](m.w.server, ciliumEndpoints, e.key); !ok || cep.UID != e.uid {
		e.begins = true
		return
	}
	change(m.w.server, ciliumEndpoints, e.key, "agent "+m.name, func(cep *ciliumv2.CiliumEndpoint) { cep.Status = m.endpointStatus(e) })
	e.sent, e.stored, e.wroteAt = true, true, now
	if m.w.drawFault("answer about the status of a CiliumEndpoint lost", 12) {
		e.begins = true
	}
}

func (m *machine) endpointObject(e *agentEndpoint) *ciliumv2.CiliumEndpoint {
	ns, name, _ := strings.Cut(e.key, "/")
	return &ciliumv2.CiliumEndpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: name, UID: e.pod}}},
		Status:     m.endpointStatus(e),
	}
}

func (m *machine) endpointStatus(e *agentEndpoint) ciliumv2.EndpointStatus {
	pair := &ciliumv2.AddressPair{}
	for _, ip := range e.ips {
		if strings.Contains(ip, ":") {
			pair.IPV6 = ip
		} else {
			pair.IPV4 = ip
		}
	}
	return ciliumv2.EndpointStatus{ID: e.id, Identity: &ciliumv2.EndpointIdentity{ID: e.revision}, Networking: &ciliumv2.EndpointNetworking{NodeIP: m.hostIP(), Addressing: ciliumv2.AddressPairList{pair}}}
}

// nodeOf returns the node IP in a CiliumEndpoint; empty if there is none.
func nodeOf(cep *ciliumv2.CiliumEndpoint) string {
	if cep.Status.Networking == nil {
		return ""
	}
	return cep.Status.Networking.NodeIP
}

// addressesOf returns the sorted addresses in a CiliumEndpoint.
func addressesOf(cep *ciliumv2.CiliumEndpoint) []string {
	var ips []string
	if n := cep.Status.Networking; n != nil {
		for _, pair := range n.Addressing {
			ips = append(ips, pair.IPV4, pair.IPV6)
		}
	}
	ips = slices.DeleteFunc(ips, func(ip string) bool { return ip == "" })
	slices.Sort(ips)
	return ips
}

// ownerOf returns the UID in the first owner reference of a CiliumEndpoint; empty if there is none.
func ownerOf(cep *ciliumv2.CiliumEndpoint) types.UID {
	if len(cep.OwnerReferences) == 0 {
		return ""
	}
	return cep.OwnerReferences[0].UID
}

// endpointAspects returns the fields of a CiliumEndpoint that the history shows. Key: the name of the field.
func endpointAspects(cep *ciliumv2.CiliumEndpoint) map[string]string {
	a := map[string]string{
		"uid": string(cep.UID), "owner": string(ownerOf(cep)), "at": nodeOf(cep), "ips": strings.Join(addressesOf(cep), " "), "id": strconv.FormatInt(cep.Status.ID, 10),
	}
	if len(cep.Finalizers) > 0 {
		a["finalizers"] = fmt.Sprint(cep.Finalizers)
	}
	return a
}
