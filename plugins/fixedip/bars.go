// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// bar is a node on which a pod without a fixed address would come to have one that another pod has.
type bar struct {
	node  string
	why   string
	helps cause
}

// bars are the nodes that can't take a pod without a fixed address yet: their pools keep something for its name, which
// the agent gives to it, and which another pod has or may come to have (see occupied).
func (p *Plugin) bars(pod *corev1.Pod) []bar {
	if pod.Spec.HostNetwork {
		return nil
	}
	owner := pool.OwnerKey(pod.Namespace, pod.Name)
	var bars []bar
	for _, h := range p.world.ledger.Held(owner) {
		if why, helps := p.occupiedOn(h.Node, h.Addrs, owner, pod.UID, pod.CreationTimestamp.Time); why != "" {
			bars = append(bars, bar{node: h.Node, why: why, helps: helps})
		}
	}
	return bars
}

// stillFree looks at the API server whether bars knew what the pool of a node keeps for the name of a pod that opted
// out: the one before it may have come to keep something there which the watch has yet to show, even where it shows
// nothing. Where it did not, why says so, and helps what would help.
func (p *Plugin) stillFree(ctx context.Context, pod *corev1.Pod, c *cycle, node string) (why string, helps cause, err error) {
	if !c.optsOut {
		return "", cause{}, nil
	}
	n, err := p.world.stored.Get(ctx, node)
	switch {
	case errors.Is(err, ciliumpool.ErrGone):
		return "", cause{}, nil
	case err != nil:
		return "", cause{}, fmt.Errorf("look at what the pool of node %s keeps for the name of pod %s/%s: %w", node, pod.Namespace, pod.Name, err)
	}
	owner := pool.OwnerKey(pod.Namespace, pod.Name)
	has := n.Owns(owner)
	if len(has) == 0 {
		return "", cause{}, nil
	}
	helps = cause{owner: owner, node: node}
	if err := p.world.confirm(n, ledger.Claim{Owner: owner, Node: node, Addrs: has}); err != nil {
		return err.Error(), helps, nil
	}
	why, helps.at = p.unheard(node, has, c.made)
	return why, helps, nil
}
