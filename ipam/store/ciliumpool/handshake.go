// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumpool

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	ipamoption "github.com/cilium/cilium/pkg/ipam/option"
	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
)

const releaseIPsPath = "/status/ipam/release-ips"

// spelling is how Cilium spells the states of the release handshake.
var spelling = map[pool.Handshake]ipamtypes.IPReleaseStatus{
	pool.MarkedForRelease: ipamoption.IPAMMarkForRelease,
	pool.ReadyForRelease:  ipamoption.IPAMReadyForRelease,
	pool.Released:         ipamoption.IPAMReleased,
	pool.DoNotRelease:     ipamoption.IPAMDoNotRelease,
}

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
		state := pool.OtherState
		for known, spelled := range spelling {
			if spelled == status {
				state = known
			}
		}
		if states == nil {
			states = map[netip.Addr]pool.Handshake{}
		}
		states[a] = state
	}
	return states
}

// ChangeHandshakes applies all marks to the release handshakes of a node in one write, or none of them. The handshakes are in the
// status, which is written separately from the pool. It returns what Edit does.
func (p *Client) ChangeHandshakes(ctx context.Context, n pool.NodePool, marks []pool.HandshakeChange) (pool.NodePool, error) {
	data, err := encodeMarks(n, marks)
	if err != nil {
		return pool.NodePool{}, err
	}
	return p.send(ctx, n, data, func(ctx context.Context, obj client.Object, patch client.Patch) error {
		return p.api.Status().Patch(ctx, obj, patch)
	})
}

// encodeMarks returns the patch for the marks. It applies only to the CiliumNode that n was read from, and only if every
// handshake has the state that its mark requires and every entry whose release is asked for is still a dynamic one.
func encodeMarks(n pool.NodePool, marks []pool.HandshakeChange) ([]byte, error) {
	ops := []operation{{"test", "/metadata/uid", n.UID}}
	if !n.HasHandshakes {
		ops = append(ops,
			operation{"test", releaseIPsPath, nil},
			operation{"add", releaseIPsPath, map[string]ipamtypes.IPReleaseStatus{}})
	}
	for _, m := range marks {
		path := releaseIPsPath + "/" + m.Addr.String()
		if from, ok := spelling[m.From]; ok {
			ops = append(ops, operation{"test", path, from})
		} else {
			ops = append(ops, operation{"test", path, nil})
		}
		switch m.To {
		case pool.MarkedForRelease:
			ops = append(ops, operation{"test", poolPath + "/" + m.Addr.String(), ipamtypes.AllocationIP{Resource: n.Resources[m.Addr]}})
		case pool.Released:
			ops = append(ops, operation{"test", poolPath + "/" + m.Addr.String(), nil})
		}
		if to, ok := spelling[m.To]; ok {
			ops = append(ops, operation{"add", path, to})
		} else {
			ops = append(ops, operation{"remove", path, nil})
		}
	}
	data, err := json.Marshal(ops)
	if err != nil {
		return nil, fmt.Errorf("encode the release handshakes of CiliumNode %s: %w", n.Name, err)
	}
	return data, nil
}
