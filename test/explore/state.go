// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"
	"net/netip"
	"time"

	"fixedip.io/fixedip/ipam/core/pool"
)

// The size of the model. Nodes, addresses and names are indexes, so that a state is a small comparable value.
const (
	nodeCount      = 2
	addrCount      = 3
	nameCount      = 2
	podsPerName    = 2
	schedulerCount = 2
)

// none means no node, no address, no name or no pod.
const none int8 = -1

var (
	addrs     = [addrCount]netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("10.0.1.2")}
	subnets   = [nodeCount]netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("10.0.1.0/24")}
	nodeNames = [nodeCount]string{"node-0", "node-1"}
	// homes contains the node whose subnet contains the address. Index: an address.
	homes = [addrCount]int8{0, 0, 1}
	// owners contains the owner text that pool entries have for the pods of a name. Index: a name.
	owners = [nameCount]string{"db/web-0", "db/web-1"}
)

// slot is the index of a pool entry in interned; 0 means no entry. It is unrelated to the slots of workloads.
type slot uint8

// interned contains all entries that were ever written, from index 1 on. Searches run one after the other, so it needs no
// lock.
var interned = []pool.Entry{{}}

func intern(e pool.Entry) slot {
	for i, known := range interned[1:] {
		if known == e {
			return slot(i + 1)
		}
	}
	interned = append(interned, e)
	return slot(len(interned) - 1)
}

func (s slot) entry() pool.Entry { return interned[s] }

// entries contains the entries of one pool. Index: an address.
type entries [addrCount]slot

// owned returns the address whose entry is owned by the name, or none.
func (e entries) owned(name int8) int8 {
	for i, s := range e {
		if s != 0 && s.entry().OwnedBy(owners[name]) {
			return int8(i)
		}
	}
	return none
}

// usage contains the name that uses an address, or none. Index: an address.
type usage [addrCount]int8

var unused = usage{none, none, none}

// object is a CiliumNode at the API server.
type object struct {
	entries entries
	used    usage
	// complete is true if used contains the address of the router, which shows that the agent had restored its endpoints.
	complete bool
	probe    probe
	// acknowledged contains the entries of the version that the agent had processed when it acknowledged the probe.
	acknowledged entries
}

// probe is the state of the agent barrier of one node. In a real CiliumNode, a probe that the agent has acknowledged is
// absent. The model keeps probeAcknowledged until the controller has used the answer.
type probe uint8

const (
	noProbe probe = iota
	probeSent
	probeAcknowledged
)

// agent is a Cilium agent.
type agent struct {
	// seen and probe are the entries and the probe of the version of the CiliumNode that the agent has processed.
	seen  entries
	probe probe
	// allocated is the state of the agent's allocator.
	allocated usage
	// restoring is true from the start of the agent until the agent has restored its endpoints.
	restoring bool
}

// pod is a pod at the API server.
type pod struct {
	exists, deleting bool
	// node is the node that the pod is bound to, or none.
	node int8
	// addr is the address in status.podIPs, or none while no address is reported.
	addr int8
}

// sandbox is the sandbox of one pod on its node. It outlives the pod at the API server if the pod is deleted by force.
type sandbox struct {
	state      sandboxState
	node, addr int8
	// endpoint is true if the agent has an endpoint for the sandbox. A sandbox whose endpoint the agent could not restore
	// keeps running without one.
	endpoint bool
	// freed is true if the CNI plugin has released the address, because the agent refused the endpoint of another pod with
	// the same address.
	freed bool
}

type sandboxState uint8

const (
	// absent means that the kubelet has not started the pod yet, or not since the last reboot of the node. If node is set,
	// the kubelet may start the pod there.
	absent sandboxState = iota
	running
	stopped
)

// record is a FixedIP.
type record struct {
	exists, deleting bool
	addr             int8
	// takeable is true if the controller has found that the pod of this slot has stopped.
	takeable bool
}

// scheduler is one replica of the scheduler.
type scheduler struct {
	phase schedulerPhase
	// pools, used and records are the copy of the caches from which the scheduler decides. Each part is cleared as soon as
	// it does not matter any more.
	pools   [nodeCount]entries
	used    [nodeCount]usage
	records [nameCount]record
	// name and serial identify the pod that the scheduler places. node and addr are the decision.
	name, serial, node, addr int8
	// entryExists is true if the cache already shows the entry, so that the scheduler writes nothing.
	entryExists bool
}

type schedulerPhase uint8

const (
	idle schedulerPhase = iota
	looked
	decided
	claimed
)

// task is a task that the controller has begun and not finished.
type task struct {
	kind       taskKind
	phase      uint8
	name       int8
	node, addr int8
	// before is the entry of the address when the task began. A write of the task replaces it, and an undo writes it again.
	before slot
}

type taskKind uint8

const (
	noTask taskKind = iota
	release
	restore
	expire
	adopt
	own
	judgeSlot
)

var noTaskNow = task{name: none, node: none, addr: none}

// state is one state of the world.
type state struct {
	nodes  [nodeCount]object
	agents [nodeCount]agent
	// pods contains the newest pod of each name, and serial the number of that pod.
	pods       [nameCount]pod
	serial     [nameCount]int8
	boxes      [nameCount][podsPerName]sandbox
	records    [nameCount]record
	schedulers [schedulerCount]scheduler
	task       task
	// wanted is true if the workload of the name exists, so that its pods are created.
	wanted [nameCount]bool
	// remade is true if the workload was deleted and created again.
	remade [nameCount]bool
	// crashes, reboots, removals and stale are the numbers of events that may still happen; see scope.
	crashes, reboots, removals, stale uint8
}

var (
	noPod       = pod{node: none, addr: none}
	noBox       = sandbox{node: none, addr: none}
	noRecord    = record{addr: none}
	idleReplica = scheduler{used: [nodeCount]usage{unused, unused}, records: [nameCount]record{noRecord, noRecord}, name: none, serial: none, node: none, addr: none}
)

// initial returns the state before the first step.
func initial(sc scope) state {
	s := state{task: noTaskNow, crashes: sc.crashes, reboots: sc.reboots, removals: sc.removals, stale: sc.stale}
	for n := range s.nodes {
		s.nodes[n] = object{used: unused, complete: true}
		s.agents[n] = agent{allocated: unused}
	}
	for _, a := range sc.dynamic {
		s.nodes[homes[a]].entries[a] = intern(pool.Entry{})
	}
	for _, a := range sc.nodeOwned {
		s.nodes[homes[a]].entries[a] = intern(pool.ForOwner("router"))
	}
	for n := range s.agents {
		s.agents[n].seen = s.nodes[n].entries
	}
	for i := range s.pods {
		s.pods[i], s.serial[i], s.records[i], s.wanted[i] = noPod, none, noRecord, sc.pods[i] > 0
		for j := range s.boxes[i] {
			s.boxes[i][j] = noBox
		}
	}
	for i := range s.schedulers {
		s.schedulers[i] = idleReplica
	}
	return s
}

// poolOf converts a pool of the model to a NodePool, the type that the product's core reads.
func poolOf(node int8, e entries, used usage) pool.NodePool {
	n := pool.NodePool{
		Name: nodeNames[node], UID: nodeNames[node], Generation: 1, HasPool: true, HasUsed: true,
		Subnets: []netip.Prefix{subnets[node]}, PodCIDRs: []string{subnets[node].String()},
		Entries: map[netip.Addr]pool.Entry{}, Used: map[netip.Addr]string{},
	}
	for i, s := range e {
		if s != 0 {
			n.Entries[addrs[i]] = s.entry()
		}
	}
	for i, name := range used {
		if name != none {
			n.Used[addrs[i]] = owners[name]
		}
	}
	return n
}

// apply writes edits as the API server applies their patch: all edits, or no edit if a test of one of them fails. It reports
// whether the edits were written.
func (o *object) apply(edits []pool.EntryChange) bool {
	next := o.entries
	for _, e := range edits {
		i := indexOf(e.Addr)
		now := o.entries[i]
		if (now != 0) != (e.From != nil) || now != 0 && now.entry() != *e.From || e.RequireUnused && o.used[i] != none {
			return false
		}
		next[i] = 0
		if e.To != nil {
			next[i] = intern(*e.To)
		}
	}
	o.entries = next
	return true
}

func indexOf(a netip.Addr) int {
	for i := range addrs {
		if addrs[i] == a {
			return i
		}
	}
	panic(fmt.Sprintf("address %s is outside the scope", a))
}

// releaseTime returns the time of a release from a pod. There are no clocks in this model: the time only distinguishes
// releases from different pods of one name.
func releaseTime(serial int8) time.Time { return time.Unix(int64(serial)+2, 0) }

func ownedEntry(name int8) pool.Entry {
	return pool.OwnedEntry("db", owners[name][len("db/"):], "StatefulSet", "web")
}
