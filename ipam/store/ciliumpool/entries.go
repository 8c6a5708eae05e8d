// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumpool

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/cilium/cilium/pkg/node/addressing"
	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
)

// The owners of marker entries. They have a dot before the slash. The name of a namespace has no dot, so that no owner
// text of a pod ever equals one of them, and no agent gives the address to a pod.
const (
	cooldownOwner   = "fixedip.io/cooldown"
	movedOwner      = "fixedip.io/moved"
	moveTargetOwner = "fixedip.io/move-target"
)

// The resource of a marker is a list of fields, separated by ";". Each field is a word, or a key and a value joined by "=".
// Unknown fields are ignored, so that later versions may add some. The agent does not read resources (Cilium fact 1).
const (
	sinceField   = "since"
	ownerField   = "owner"
	nodeField    = "node"
	podField     = "pod"
	leavingField = "leaving"
	// withdrawnField is the word in the resource of a pool.WithdrawnEntry.
	withdrawnField = "withdrawn"
)

// barePod is the resource of an entry for a pod without a controller.
const barePod = "bare-pod"

// DecodeEntry reads an entry. canonical is false if EncodeEntry would write another resource.
func DecodeEntry(raw ipamtypes.AllocationIP) (e pool.Entry, canonical bool) {
	switch raw.Owner {
	case cooldownOwner:
		fields := parseFields(raw.Resource)
		_, withdrawn := fields[withdrawnField]
		e = pool.CooldownEntry(podKey(fields[ownerField]), time.Unix(parseTime(fields[sinceField]), 0))
		e.Leaving = withdrawn
	case movedOwner:
		fields := parseFields(raw.Resource)
		_, leaving := fields[leavingField]
		e = pool.MovedEntry(fields[nodeField], podKey(fields[podField]))
		e.Leaving = leaving
	case moveTargetOwner:
		e = pool.MoveTargetEntry(podKey(parseFields(raw.Resource)[podField]))
	default:
		e = decodeOwned(raw)
	}
	return e, EncodeEntry(e).Resource == raw.Resource
}

// decodeOwned reads an entry that is not a marker. The resource of an Owned entry is "namespace/Kind/name" or bare-pod; a ";" and
// the text after it are ignored. An Owned entry with any other resource has the purpose UnknownPurpose.
func decodeOwned(raw ipamtypes.AllocationIP) pool.Entry {
	purpose, _, _ := strings.Cut(raw.Resource, ";")
	namespace, podName, isPod := pool.SplitOwnerKey(raw.Owner)
	kind, name, isWorkload := pool.SplitWorkloadKey(purpose)
	switch {
	case isPod && purpose == barePod:
		return pool.BarePodEntry(namespace, podName)
	case isPod && isWorkload && kind == pool.UnreservedKind:
		return pool.UnreservedEntry(namespace, podName)
	case isPod && isWorkload:
		// The workload of a pod is in the namespace of the pod, whatever the resource names.
		return pool.OwnedEntry(namespace, podName, kind, name)
	}
	return pool.ForOwner(raw.Owner)
}

// EncodeEntry is the inverse of DecodeEntry, with the canonical resource. It returns a Foreign entry without a resource,
// because such entries are never written.
func EncodeEntry(e pool.Entry) ipamtypes.AllocationIP {
	var fields []string
	add := func(key, value string) {
		if value != "" {
			fields = append(fields, key+"="+value)
		}
	}
	raw := ipamtypes.AllocationIP{Owner: e.Owner()}
	switch e.Kind {
	case pool.Cooldown:
		raw.Owner = cooldownOwner
		add(sinceField, formatTime(e.Since()))
		add(ownerField, e.Pod())
		if e.Leaving {
			fields = append(fields, withdrawnField)
		}
	case pool.Moved:
		raw.Owner = movedOwner
		add(nodeField, e.Node())
		add(podField, e.Pod())
		if e.Leaving {
			fields = append(fields, leavingField)
		}
	case pool.MoveTarget:
		raw.Owner = moveTargetOwner
		add(podField, e.Pod())
	case pool.Owned:
		fields = append(fields, encodePurpose(e))
	}
	raw.Resource = strings.Join(fields, ";")
	return raw
}

func encodePurpose(e pool.Entry) string {
	switch e.Purpose {
	case pool.ForWorkload:
		return e.Workload()
	case pool.ForBarePod:
		return barePod
	case pool.Unreserved:
		namespace, podName, _ := pool.SplitOwnerKey(e.Owner())
		return pool.WorkloadKey(namespace, pool.UnreservedKind, podName)
	}
	return ""
}

// parseFields reads the fields of a resource. If a key occurs twice, its first value counts. Key: the key, or the word of
// a field without a value.
func parseFields(resource string) map[string]string {
	fields := map[string]string{}
	for field := range strings.SplitSeq(resource, ";") {
		key, value, _ := strings.Cut(field, "=")
		if _, twice := fields[key]; !twice {
			fields[key] = value
		}
	}
	return fields
}

// podKey returns text if it names a pod, and "" otherwise.
func podKey(text string) string {
	if !pool.IsPodKey(text) {
		return ""
	}
	return text
}

// parseTime returns a time in RFC 3339 format as Unix seconds. It returns 0, which counts as long ago, if text is not such a
// time.
func parseTime(text string) int64 {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return 0
	}
	return at.Unix()
}

func formatTime(at int64) string {
	if at == 0 {
		return ""
	}
	return time.Unix(at, 0).UTC().Format(time.RFC3339)
}

// restoredSuffix is the text that an agent appends to the owners in status.ipam.used after a restart.
const restoredSuffix = " [restored]"

// FromCiliumNode returns the pool of a node. Malformed describes the podCIDRs and the keys of spec.ipam.pool that cannot be
// parsed, the podCIDRs that contain IPv4-mapped addresses, and those that equal another podCIDR or lie within one. Keys of
// status.ipam.used that cannot be parsed are ignored.
func FromCiliumNode(cn *ciliumv2.CiliumNode) pool.NodePool {
	n := pool.NodePool{
		Name:            cn.Name,
		UID:             string(cn.UID),
		ResourceVersion: cn.ResourceVersion,
		Generation:      cn.Generation,
		PodCIDRs:        cn.Spec.IPAM.PodCIDRs,
		HasPool:         cn.Spec.IPAM.Pool != nil,
		Entries:         make(map[netip.Addr]pool.Entry, len(cn.Spec.IPAM.Pool)),
		Used:            make(map[netip.Addr]string, len(cn.Status.IPAM.Used)),
		HasUsed:         cn.Status.IPAM.Used != nil,
		HasHandshakes:   cn.Status.IPAM.ReleaseIPs != nil,
		Tracked:         len(cn.ManagedFields) > 0,
	}
	n.Subnets, n.Malformed = subnets(cn.Spec.IPAM.PodCIDRs)
	for key, e := range cn.Spec.IPAM.Pool {
		a, err := address.Parse(key)
		if err != nil {
			n.Malformed = append(n.Malformed, fmt.Sprintf("spec.ipam.pool: %v", err))
			continue
		}
		entry, canonical := DecodeEntry(e)
		n.Entries[a] = entry
		if !canonical {
			if n.Resources == nil {
				n.Resources = map[netip.Addr]string{}
			}
			n.Resources[a] = e.Resource
		}
	}
	for key, e := range cn.Status.IPAM.Used {
		switch a, err := address.Parse(key); {
		case err != nil:
		case pool.IsProbe(a):
			n.Probes = append(n.Probes, a)
		default:
			owner := strings.TrimSuffix(e.Owner, restoredSuffix)
			if entry := n.Entries[a]; entry.OwnedBy(owner) {
				// The entry and Used share one string.
				owner = entry.Owner()
			}
			n.Used[a] = owner
		}
	}
	n.Unreported = !pool.ReportsNode(n.Used)
	slices.SortFunc(n.Probes, netip.Addr.Compare)
	n.Handshakes = handshakes(cn.Status.IPAM.ReleaseIPs, n.Probes)
	return n
}

// subnets parses podCIDRs. Of overlapping subnets, it returns only the largest, because the addresses of the smaller ones
// would be counted and assigned twice. malformed describes all other elements.
func subnets(podCIDRs []string) (subnets []netip.Prefix, malformed []string) {
	for _, s := range podCIDRs {
		subnet, err := netip.ParsePrefix(s)
		switch {
		case err != nil:
			malformed = append(malformed, fmt.Sprintf("spec.ipam.podCIDRs: %q is not a CIDR", s))
			continue
		case address.HasMapped(netipx.RangeOfPrefix(subnet)):
			malformed = append(malformed, fmt.Sprintf("spec.ipam.podCIDRs: %q has IPv4 addresses mapped into IPv6", s))
			continue
		}
		subnet = subnet.Masked()
		if i := slices.IndexFunc(subnets, subnet.Overlaps); i >= 0 && subnets[i].Bits() <= subnet.Bits() {
			malformed = append(malformed, fmt.Sprintf("spec.ipam.podCIDRs: %q is contained in %s", s, subnets[i]))
			continue
		}
		subnets = slices.DeleteFunc(subnets, func(smaller netip.Prefix) bool {
			if !subnet.Overlaps(smaller) {
				return false
			}
			malformed = append(malformed, fmt.Sprintf("spec.ipam.podCIDRs: %s is contained in %q", smaller, s))
			return true
		})
		subnets = append(subnets, subnet)
	}
	return subnets, malformed
}

// NodeAddresses returns the addresses of the node itself that a CiliumNode names. Key: the owner with which the agent takes
// the addresses from the pool.
func NodeAddresses(cn *ciliumv2.CiliumNode) map[string][]netip.Addr {
	own := map[string][]netip.Addr{}
	add := func(owner, text string) {
		if a, err := address.Parse(text); err == nil {
			own[owner] = append(own[owner], a)
		}
	}
	for _, a := range cn.Spec.Addresses {
		if a.Type == addressing.NodeCiliumInternalIP {
			add("router", a.IP)
		}
	}
	add("health", cn.Spec.HealthAddressing.IPv4)
	add("health", cn.Spec.HealthAddressing.IPv6)
	add("ingress", cn.Spec.IngressAddressing.IPV4)
	add("ingress", cn.Spec.IngressAddressing.IPV6)
	return own
}

// Reference returns the CiliumNode of n as the object on which events are recorded.
func Reference(n pool.NodePool) *ciliumv2.CiliumNode {
	return &ciliumv2.CiliumNode{
		TypeMeta:   metav1.TypeMeta{APIVersion: ciliumv2.SchemeGroupVersion.String(), Kind: ciliumv2.CNKindDefinition},
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: types.UID(n.UID), ResourceVersion: n.ResourceVersion},
	}
}

// handshakes returns the release handshakes in release-ips; nil if there are none. It leaves out keys that are not
// addresses, and the probes that are also in used: the agent has not acknowledged them yet. If a probe is in release-ips
// only, a write of the labels has made the agent lose that key (Cilium fact 28). Such a probe counts as a handshake, so that
// the controller withdraws it.
func handshakes(keys map[string]ipamtypes.IPReleaseStatus, probes []netip.Addr) map[netip.Addr]pool.Handshake {
	var states map[netip.Addr]pool.Handshake
	for key, status := range keys {
		a, err := address.Parse(key)
		if err != nil || slices.Contains(probes, a) {
			continue
		}
		if states == nil {
			states = map[netip.Addr]pool.Handshake{}
		}
		switch state := pool.Handshake(status); state {
		case pool.MarkedForRelease, pool.ReadyForRelease, pool.Released, pool.DoNotRelease:
			states[a] = state
		default:
			states[a] = pool.OtherState
		}
	}
	return states
}
