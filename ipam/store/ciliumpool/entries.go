// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumpool

import (
	"strings"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"

	"fixedip.io/fixedip/ipam/core/pool"
)

// The owners of marker entries. They have a dot before the slash, which no namespace has, so that no pod's name ever
// equals one and no agent gives the address to a pod.
const (
	cooldownOwner   = "fixedip.io/cooldown"
	movedOwner      = "fixedip.io/moved"
	moveTargetOwner = "fixedip.io/move-target"
)

// The resource of a marker is a list of fields, separated by ";": a word, or a key and a value. Unknown fields are ignored,
// so that later versions may add some. The agent does not read resources (Cilium fact 1).
const (
	sinceField   = "since"
	ownerField   = "owner"
	nodeField    = "node"
	podField     = "pod"
	leavingField = "leaving"
)

// barePod is the resource of an entry for a pod without a controller.
const barePod = "bare-pod"

// DecodeEntry reads an entry. canonical is false if EncodeEntry would write another resource.
func DecodeEntry(raw ipamtypes.AllocationIP) (e pool.Entry, canonical bool) {
	switch raw.Owner {
	case cooldownOwner:
		fields := parseFields(raw.Resource)
		e = pool.Entry{Kind: pool.Cooldown, Pod: podKey(fields[ownerField]), Since: parseTime(fields[sinceField])}
	case movedOwner:
		fields := parseFields(raw.Resource)
		_, leaving := fields[leavingField]
		e = pool.Entry{Kind: pool.Moved, Node: fields[nodeField], Pod: podKey(fields[podField]), Leaving: leaving}
	case moveTargetOwner:
		e = pool.Entry{Kind: pool.MoveTarget, Pod: podKey(parseFields(raw.Resource)[podField])}
	default:
		if e = pool.ForOwner(raw.Owner); e.Kind == pool.Owned {
			decodePurpose(&e, raw.Resource)
		}
	}
	return e, EncodeEntry(e).Resource == raw.Resource
}

// decodePurpose reads the resource of an owned entry: "namespace/Kind/name" or bare-pod, and ";since=TIME".
func decodePurpose(e *pool.Entry, resource string) {
	purpose, rest, more := strings.Cut(resource, ";")
	if more {
		e.Since = parseTime(parseFields(rest)[sinceField])
	}
	namespace, _, _ := pool.SplitOwnerKey(e.Owner)
	kind, name, ok := pool.SplitWorkloadKey(purpose)
	switch {
	case purpose == barePod:
		e.Purpose = pool.ForBarePod
	case ok && kind == pool.UnreservedKind:
		e.Purpose = pool.Unreserved
	case ok && strings.HasPrefix(purpose, namespace+"/"):
		e.Purpose, e.Workload = pool.ForWorkload, purpose
	case ok:
		// The workload of a pod is in its namespace, whatever is written.
		e.Purpose, e.Workload = pool.ForWorkload, pool.WorkloadKey(namespace, kind, name)
	}
}

// EncodeEntry is the inverse of DecodeEntry in fixedip's own spelling. A Foreign entry has no resource: it is never written.
func EncodeEntry(e pool.Entry) ipamtypes.AllocationIP {
	var fields []string
	add := func(key, value string) {
		if value != "" {
			fields = append(fields, key+"="+value)
		}
	}
	raw := ipamtypes.AllocationIP{Owner: e.Owner}
	switch e.Kind {
	case pool.Cooldown:
		raw.Owner = cooldownOwner
		add(sinceField, formatTime(e.Since))
		add(ownerField, e.Pod)
	case pool.Moved:
		raw.Owner = movedOwner
		add(nodeField, e.Node)
		add(podField, e.Pod)
		if e.Leaving {
			fields = append(fields, leavingField)
		}
	case pool.MoveTarget:
		raw.Owner = moveTargetOwner
		add(podField, e.Pod)
	case pool.Owned:
		fields = append(fields, encodePurpose(e))
		add(sinceField, formatTime(e.Since))
	}
	raw.Resource = strings.Join(fields, ";")
	return raw
}

func encodePurpose(e pool.Entry) string {
	switch e.Purpose {
	case pool.ForWorkload:
		return e.Workload
	case pool.ForBarePod:
		return barePod
	case pool.Unreserved:
		namespace, podName, _ := pool.SplitOwnerKey(e.Owner)
		return pool.WorkloadKey(namespace, pool.UnreservedKind, podName)
	}
	return ""
}

// parseFields reads the fields of a resource. Of a key that is there twice the first counts.
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

// podKey returns a field that names a pod, and "" for any other text.
func podKey(text string) string {
	if !pool.IsPodKey(text) {
		return ""
	}
	return text
}

// parseTime reads a time in Unix seconds; 0 if it can't be read: that counts as long ago.
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
