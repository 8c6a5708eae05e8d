// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/test/sim/agent"
)

const (
	// updateRate is the value of the agent's --ipam-cilium-node-update-rate.
	updateRate = 15 * time.Second
	// addRetry is the time that a kubelet waits after a failed CNI ADD.
	addRetry = 3 * time.Second
	// restartAfter is the time that a kubelet waits before it restarts an agent that has exited.
	restartAfter = 10 * time.Second
	// minPool is the smallest number of entries of each family with which an agent starts.
	minPool = 2
	// maxLabels is the maximum number of times that an agent writes the labels of its CiliumNode before a report in one run.
	// Without a limit the world might not come to rest.
	maxLabels = 2
)

// machine models a node: its kubelet, its agent, and its running sandboxes.
type machine struct {
	w    *world
	name string
	// zone is the zone of the node; empty if nodes have no zones.
	zone string
	// off is true if the node is powered off; cut is true if it has no connection to the API server.
	off, cut bool
	// lastContact is the last time at which the node had a connection to the API server.
	lastContact time.Time

	// pods are the pods that the kubelet has seen on the node. Key: namespace/name, a space and the UID.
	pods map[string]*corev1.Pod
	// nextPod and nextNode are the indexes of the next writes to process in the histories of pods and CiliumNodes.
	nextPod, nextNode int
	// sandboxes are the running sandboxes. Key: the UID of the pod.
	sandboxes map[types.UID]*sandbox
	// retryAt is the earliest time of the next CNI ADD of a pod. Key: the UID of the pod.
	retryAt map[types.UID]time.Time
	// restartAt is the earliest time at which an agent that has exited starts again.
	restartAt time.Time

	// ipam is the allocator of the agent; nil while the agent is down.
	ipam *agent.Allocator
	// ready is true if the agent has the addresses of the node itself and serves CNI requests.
	ready bool
	// dirty is true if the agent has to write the status, at least updateRate after wroteAt.
	dirty bool
	// wroteAt is the time of the agent's last report; zero if the agent may report at once.
	wroteAt time.Time
	// labels counts the writes of labels before a report.
	labels int
	// These are the earliest times of actions: at startsAfter, pods may start on the node; at podStatusAfter, the kubelet
	// may report started pods; at reportsAfter, the agent may report its allocations; at seesAfter, the agent may see its
	// CiliumNode.
	startsAfter, podStatusAfter, reportsAfter, seesAfter time.Time
	// stopsAfter is the earliest time at which the kubelet stops a pod. restoresAfter is the earliest time at which a
	// starting agent restores its endpoints.
	stopsAfter, restoresAfter time.Time
	// remade is true if a user has deleted the CiliumNode since the agent last completed its start.
	remade bool
	// own are the addresses of the node itself. They are on the disk of the node and survive a reboot.
	own map[ownKey]string
	// cep is the agent's state of CiliumEndpoints.
	cep endpointAgent
}

type ownKey struct {
	owner string
	v6    bool
}

// sandbox is the network of one pod.
type sandbox struct {
	uid types.UID
	// key is the owner for which the addresses were requested.
	key string
	// ips has one address of each family.
	ips []string
	// held is true if the allocator has the addresses; reported is true if the kubelet has reported them.
	held, reported bool
	// forgotten is true if the pod was deleted by force and the CiliumNode was created again, so that neither the API server
	// nor the agent knows the sandbox. Until the kubelet stops the sandbox, the product cannot prevent that other pods get
	// its addresses (ADR 0026).
	forgotten bool
}

var nodeOwners = []string{"router", "health"}

func (w *world) newMachine() *machine { return w.newMachineIn(w.nextZone()) }

// newMachineIn creates a node in a zone. If zone is empty, the node has no zone.
func (w *world) newMachineIn(zone string) *machine {
	w.machinesMade++
	m := &machine{w: w, name: "n" + string(rune('0'+w.machinesMade)), zone: zone, lastContact: time.Now(), pods: map[string]*corev1.Pod{}, sandboxes: map[types.UID]*sandbox{}, retryAt: map[types.UID]time.Time{}, own: map[ownKey]string{}}
	m.nextPod, m.nextNode = len(w.server.history[pods]), len(w.server.history[ciliumNodes])
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name}}
	if w.setup.strict && w.machinesMade%2 == 0 {
		metav1.SetMetaDataLabel(&node.ObjectMeta, strictLabel, "true")
	}
	if zone != "" {
		metav1.SetMetaDataLabel(&node.ObjectMeta, corev1.LabelTopologyZone, zone)
	}
	w.server.mustCreate(nodes, node, "kubelet")
	change(w.server, nodes, m.name, "kubelet", func(n *corev1.Node) {
		n.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("20")}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	})
	w.machines = append(w.machines, m)
	return m
}

func (m *machine) reaches() bool { return !m.off && !m.cut }

// hasHome reports whether an address is in the subnet of a node. If a moved address has no home node, no pool records to
// which node it was moved.
func (w *world) hasHome(ip string) bool {
	return slices.ContainsFunc(all[*ciliumv2.CiliumNode](w.server, ciliumNodes), func(cn *ciliumv2.CiliumNode) bool { return serves(cn, ip) })
}

// serves reports whether an address is in a subnet of a node.
func serves(cn *ciliumv2.CiliumNode, ip string) bool {
	return slices.ContainsFunc(cn.Spec.IPAM.PodCIDRs, func(s string) bool { return mustPrefix(s).Contains(netip.MustParseAddr(ip)) })
}

// action is an event that can happen now.
type action struct {
	name string
	do   func()
}

// seesPod reports whether the history has a write of a pod of the node that the kubelet has not processed. It moves nextPod
// past the writes of other pods.
func (m *machine) seesPod() bool {
	history := m.w.server.history[pods]
	for m.nextPod < len(history) {
		e := history[m.nextPod]
		pod := e.object().(*corev1.Pod)
		if pod.Spec.NodeName == m.name {
			return true
		}
		m.nextPod++
	}
	return false
}

// actions returns the possible actions of the kubelet and the agent.
func (m *machine) actions(now time.Time) []action {
	if m.off {
		return nil
	}
	var d []action
	add := func(name string, do func()) { d = append(d, action{m.name + " " + name, do}) }
	if !m.cut {
		if m.seesPod() {
			add("kubelet sees", m.seePod)
		}
		switch {
		case m.ipam == nil:
			if !now.Before(m.restartAt) {
				add("agent starts", m.agentUp)
			}
		default:
			if m.seesNode() && !now.Before(m.seesAfter) {
				add("agent sees", m.seeNode)
			} else if _, ok := one[*ciliumv2.CiliumNode](m.w.server, ciliumNodes, m.name); !ok && m.ipam.Node == nil && m.remade {
				add("agent makes its CiliumNode again", m.remakeCiliumNode)
			}
			if !m.ready && m.poolIsLarge() && !now.Before(m.restoresAfter) {
				add("agent is ready", func() { m.agentStarted() })
			}
			if m.labels < maxLabels && m.unreported() {
				add("agent labels its CiliumNode", m.label)
			}
			if m.dirty && !now.Before(m.wroteAt.Add(updateRate)) && !now.Before(m.reportsAfter) {
				add("agent reports", m.report)
			}
		}
	}
	d = append(d, m.endpointActions(now)...)
	for _, key := range slices.Sorted(maps.Keys(m.pods)) {
		pod := m.pods[key]
		switch sandbox := m.sandboxes[pod.UID]; {
		case pod.DeletionTimestamp != nil && sandbox == nil && !m.cut:
			add("kubelet removes "+key, func() { m.removed(pod) })
		case pod.DeletionTimestamp == nil && sandbox == nil && m.ready && !ended(pod) && !now.Before(m.retryAt[pod.UID]) && !now.Before(m.startsAfter):
			add("kubelet starts "+key, func() { m.start(pod) })
		case sandbox != nil && !sandbox.reported && !m.cut && !now.Before(m.podStatusAfter):
			add("kubelet reports the IPs of "+key, func() { m.reportPod(pod, sandbox) })
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(m.sandboxes)) {
		sandbox := m.sandboxes[uid]
		if pod := m.podOf(uid); (pod == nil || pod.DeletionTimestamp != nil) && !now.Before(m.stopsAfter) {
			add("kubelet stops "+sandbox.key+" "+string(uid), func() { m.stop(sandbox) })
		}
	}
	return d
}

func (m *machine) podOf(uid types.UID) *corev1.Pod {
	for _, pod := range m.pods {
		if pod.UID == uid {
			return pod
		}
	}
	return nil
}

func (m *machine) seePod() {
	e := m.w.server.history[pods][m.nextPod]
	m.nextPod++
	key := e.key() + " " + string(e.object().GetUID())
	if e.after == nil {
		delete(m.pods, key)
		return
	}
	m.pods[key] = e.after.(*corev1.Pod)
}

// start executes the CNI ADD of a pod. If the allocator has no address, the pod is tried again after addRetry.
func (m *machine) start(pod *corev1.Pod) {
	owner := keyOf(pod)
	var ips []string
	for _, v6 := range m.w.setup.families() {
		ip, err := m.ipam.Next(owner, v6)
		if err != nil {
			m.w.logf("  %s has no address for pod %s", m.name, owner)
			m.release(ips)
			m.retryAt[pod.UID] = time.Now().Add(addRetry)
			return
		}
		ips = append(ips, ip)
	}
	m.w.logf("  pod %s (%s) gets %s on %s", owner, pod.UID, strings.Join(ips, " and "), m.name)
	m.sandboxes[pod.UID] = &sandbox{uid: pod.UID, key: owner, ips: ips, held: true}
	m.dirty = true
	m.addEndpoint(m.sandboxes[pod.UID])
	for _, ip := range ips {
		m.w.started(m, pod, ip)
	}
}

// stop stops the containers of a sandbox and executes its CNI DEL.
func (m *machine) stop(b *sandbox) {
	delete(m.sandboxes, b.uid)
	m.endEndpoint(b.uid)
	if b.held && m.ipam != nil {
		m.release(b.ips)
		m.dirty = true
	}
}

// reportPod writes the addresses of a sandbox into the status of its pod.
func (m *machine) reportPod(pod *corev1.Pod, b *sandbox) {
	b.reported = true
	current, ok := one[*corev1.Pod](m.w.server, pods, keyOf(pod))
	if !ok || current.UID != pod.UID {
		return
	}
	change(m.w.server, pods, keyOf(pod), "kubelet", func(p *corev1.Pod) {
		p.Status.HostIP, p.Status.Phase, p.Status.PodIP, p.Status.PodIPs = m.hostIP(), corev1.PodRunning, b.ips[0], nil
		for _, ip := range b.ips {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
		}
	})
}

// removed deletes the object of a terminating pod that has no sandbox any more, or never had one.
func (m *machine) removed(pod *corev1.Pod) {
	delete(m.pods, keyOf(pod)+" "+string(pod.UID))
	uid := pod.UID
	// The write fails only if a user or the pod garbage collector has already removed the pod.
	_ = m.w.server.remove(pods, keyOf(pod), &metav1.Preconditions{UID: &uid}, true, "kubelet")
}

// powerOff stops the agent and all sandboxes of the node.
func (m *machine) powerOff() {
	m.off, m.sandboxes, m.cep = true, map[types.UID]*sandbox{}, endpointAgent{}
	m.agentDown()
}

// powerOn starts the node. The kubelet lists its pods.
func (m *machine) powerOn() {
	m.off = false
	m.relist()
	for _, pod := range m.pods {
		if pod.DeletionTimestamp == nil {
			m.retryAt[pod.UID] = time.Now()
		}
	}
}

func (m *machine) relist() {
	m.pods, m.nextPod = map[string]*corev1.Pod{}, len(m.w.server.history[pods])
	for _, pod := range all[*corev1.Pod](m.w.server, pods) {
		if pod.Spec.NodeName == m.name {
			m.pods[keyOf(pod)+" "+string(pod.UID)] = pod
		}
	}
}

// uses returns the owners of the sandboxes that run with an address, except those of forgotten sandboxes.
func (m *machine) uses(ip string) []string {
	var keys []string
	for _, uid := range slices.Sorted(maps.Keys(m.sandboxes)) {
		if b := m.sandboxes[uid]; slices.Contains(b.ips, ip) && !b.forgotten {
			keys = append(keys, m.sandboxes[uid].key)
		}
	}
	return keys
}
