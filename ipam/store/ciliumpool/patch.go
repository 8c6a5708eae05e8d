// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumpool

import (
	"net/netip"
	"slices"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/core/pool"
)

const (
	uidPath        = "/metadata/uid"
	releaseIPsPath = "/status/ipam/release-ips"
	poolPath       = "/spec/ipam/pool"
	podCIDRsPath   = "/spec/ipam/podCIDRs"
	usedPath       = "/status/ipam/used"
	versionPath    = "/metadata/resourceVersion"
	trackingPath   = "/metadata/managedFields"
)

// operation is one step of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// encode returns the patch for the edits. It applies only to the CiliumNode that n was read from, if its subnets are
// unchanged and every edited entry is as its edit requires. With requireUnchangedSpec, the whole spec must be unchanged
// too. podCIDRs, if not nil, are published in the same patch. With stripManagedFields, the patch removes managedFields.
func encode(n pool.NodePool, podCIDRs []string, edits []pool.EntryChange, requireUnchangedSpec, stripManagedFields bool) []operation {
	ops := []operation{
		{"test", uidPath, n.UID},
		{"test", podCIDRsPath, nullable(n.PodCIDRs, n.PodCIDRs == nil)},
	}
	if requireUnchangedSpec {
		ops = append(ops, operation{"test", "/metadata/generation", n.Generation})
	}
	if !n.HasUsed && slices.ContainsFunc(edits, func(e pool.EntryChange) bool { return e.RequireUnused }) {
		// A test of a path below a missing used map always fails. Test the resourceVersion instead, which any report of the
		// agent changes.
		ops = append(ops, operation{"test", versionPath, n.ResourceVersion})
	}
	if stripManagedFields {
		// A list with one empty entry is the documented way to clear managedFields.
		ops = append(ops, operation{"add", trackingPath, []metav1.ManagedFieldsEntry{{}}})
	}
	if podCIDRs != nil {
		ops = append(ops, operation{"add", podCIDRsPath, podCIDRs})
	}
	if !n.HasPool && len(edits) > 0 {
		ops = append(ops,
			operation{"test", poolPath, nil},
			operation{"add", poolPath, ipamtypes.AllocationMap{}})
	}
	edited := map[netip.Addr]bool{}
	for _, e := range edits {
		path := poolPath + "/" + e.Addr.String()
		var resource string
		if e.From != nil {
			resource = EncodeEntry(*e.From).Resource
			if written, other := n.Resources[e.Addr]; other && !edited[e.Addr] {
				resource = written
			}
		}
		edited[e.Addr] = true
		ops = append(ops, expect(path, e.From, resource)...)
		if e.RequireUnused && n.HasUsed {
			ops = append(ops, operation{"test", usedPath + "/" + e.Addr.String(), nil})
		}
		switch {
		case e.To != nil:
			ops = append(ops, operation{"add", path, EncodeEntry(*e.To)})
		case e.From != nil:
			ops = append(ops, operation{"remove", path, nil})
		}
	}
	return ops
}

// expect returns the operations that test that an entry is unchanged. e is the entry; nil: there must be no entry.
// resource is the resource of the entry as the CiliumNode has it. The fields of an entry with an owner are tested one
// by one. A user may have written an empty resource, which is decoded like a missing one, and a test of the whole entry
// would then fail.
func expect(path string, e *pool.Entry, resource string) []operation {
	switch {
	case e == nil:
		return []operation{{"test", path, nil}}
	case e.Kind == pool.Dynamic:
		return []operation{{"test", path, ipamtypes.AllocationIP{Resource: resource}}}
	}
	ops := []operation{{"test", path + "/owner", EncodeEntry(*e).Owner}}
	if resource != "" {
		ops = append(ops, operation{"test", path + "/resource", resource})
	}
	return ops
}

// nullable returns the value that a test has to require of a field: null if it is missing.
func nullable(value any, missing bool) any {
	if missing {
		return nil
	}
	return value
}

// encodeWithdrawal returns the patch that removes the keys of release handshakes. The patch applies only if each handshake
// has the same state as in n.
func encodeWithdrawal(n pool.NodePool, addrs []netip.Addr) []operation {
	ops := []operation{{"test", uidPath, n.UID}}
	for _, a := range addrs {
		path := releaseIPsPath + "/" + a.String()
		ops = append(ops, operation{"test", path, n.Handshakes[a]}, operation{"remove", path, nil})
	}
	return ops
}

// statusOperations returns the first operations of a patch of release-ips: the test of the UID, and the creation of the map
// if it is missing.
func statusOperations(n pool.NodePool) []operation {
	ops := []operation{{"test", uidPath, n.UID}}
	if !n.HasHandshakes {
		ops = append(ops,
			operation{"test", releaseIPsPath, nil},
			operation{"add", releaseIPsPath, map[string]ipamtypes.IPReleaseStatus{}})
	}
	return ops
}

// probeOwner is the owner of a probe in status.ipam.used. It has a dot before the slash, which no namespace has.
const probeOwner = "fixedip.io/agent-barrier"

// encodeProbe returns the JSON patch that adds a probe to a CiliumNode with a report of the agent.
func encodeProbe(n pool.NodePool, probe netip.Addr) any {
	return append(statusOperations(n),
		operation{"add", releaseIPsPath + "/" + probe.String(), pool.Released},
		operation{"add", usedPath + "/" + probe.String(), ipamtypes.AllocationIP{Owner: probeOwner}})
}

// encodeFirstProbe returns the merge patch that adds a probe to a CiliumNode without a report. The probe makes the
// agent report: after its CiliumNode was deleted and created again, an agent that was not restarted reports only when
// an allocation changes. A JSON patch cannot create a status that may or may not exist.
func encodeFirstProbe(n pool.NodePool, probe netip.Addr) any {
	return map[string]any{
		"metadata": map[string]any{"resourceVersion": n.ResourceVersion},
		"status": map[string]any{"ipam": map[string]any{
			"release-ips": map[string]any{probe.String(): pool.Released},
			"used":        ipamtypes.AllocationMap{probe.String(): {Owner: probeOwner}},
		}},
	}
}
