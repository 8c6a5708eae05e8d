// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumpool

import (
	"context"
	"net/netip"
	"slices"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
)

// handshakes returns the release handshakes in release-ips; nil if there are none. Keys that are not addresses are left
// out, and probes that wait for their answer. The key of another probe was left behind by a write of the labels, which
// makes the agent forget it (Cilium fact 28): it is withdrawn as any handshake without an answer is.
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

// ChangeHandshakes applies all changes to the release handshakes of a node in one write, or none of them. The handshakes
// are in the status, which is written separately from the pool. It returns what Edit does.
func (p *Client) ChangeHandshakes(ctx context.Context, n pool.NodePool, changes []pool.HandshakeChange) (pool.NodePool, error) {
	return p.patch(ctx, n, types.JSONPatchType, encodeHandshakes(n, changes), true)
}

// encodeHandshakes returns the patch for the changes. It applies only to the CiliumNode that n was read from, and only if
// every handshake has the state that its change requires and every entry whose release is asked for is still a dynamic one.
func encodeHandshakes(n pool.NodePool, changes []pool.HandshakeChange) []operation {
	ops := statusOperations(n)
	for _, c := range changes {
		path, entry := releaseIPsPath+"/"+c.Addr.String(), poolPath+"/"+c.Addr.String()
		ops = append(ops, operation{"test", path, nullable(c.From, c.From == pool.NoHandshake)})
		switch c.To {
		case pool.MarkedForRelease:
			ops = append(ops, operation{"test", entry, ipamtypes.AllocationIP{Resource: n.Resources[c.Addr]}})
		case pool.Released:
			ops = append(ops, operation{"test", entry, nil})
		}
		if c.To == pool.NoHandshake {
			ops = append(ops, operation{"remove", path, nil})
		} else {
			ops = append(ops, operation{"add", path, c.To})
		}
	}
	return ops
}

// statusOperations returns the first operations of a patch of release-ips.
func statusOperations(n pool.NodePool) []operation {
	ops := []operation{{"test", uidPath, n.UID}}
	if !n.HasHandshakes {
		ops = append(ops,
			operation{"test", releaseIPsPath, nil},
			operation{"add", releaseIPsPath, map[string]ipamtypes.IPReleaseStatus{}})
	}
	return ops
}
