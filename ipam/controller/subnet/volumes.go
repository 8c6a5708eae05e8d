// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/subnetplan"
)

// rememberedVolumes is the number of pods whose volumes are remembered.
const rememberedVolumes = 4096

// limitingVolumes returns the volumes of the waiting pods of an orphan that limit the choice of the node that inherits it.
// The controller does not watch volumes, because it needs only those of pods that wait for an orphaned subnet, and these only
// when a node is about to inherit it. The volumes of a pod are read once: a claim that is bound stays bound to its volume.
func (c *Controller) limitingVolumes(ctx context.Context, o subnetplan.OrphanedSubnets) ([]subnetplan.Volume, error) {
	var all []subnetplan.Volume
	for _, pod := range c.Rules.Pinned(o) {
		volumes, err := c.volumesOf(ctx, pod)
		if err != nil {
			return nil, err
		}
		all = append(all, volumes...)
	}
	if len(all) == 0 {
		return nil, nil
	}
	var nodes corev1.NodeList
	if err := c.Cached.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Nodes from the cache: %w", err)
	}
	return subnetplan.LimitingVolumes(all, nodes.Items), nil
}

// volumesOf returns the volumes of a pod. It leaves out claims that are not bound.
func (c *Controller) volumesOf(ctx context.Context, pod *corev1.Pod) (volumes []subnetplan.Volume, err error) {
	c.mu.Lock()
	if c.volumes == nil {
		c.volumes = lru.New(rememberedVolumes)
	}
	remembered, ok := c.volumes.Get(pod.UID)
	c.mu.Unlock()
	if ok {
		return remembered.([]subnetplan.Volume), nil
	}
	bound := true
	for _, name := range podutil.Claims(pod) {
		claim, err := index.Get[corev1.PersistentVolumeClaim](ctx, c.API, client.ObjectKey{Namespace: pod.Namespace, Name: name})
		if err != nil {
			return nil, err
		}
		if claim == nil || claim.Spec.VolumeName == "" {
			bound = false
			continue
		}
		volume, err := index.Get[corev1.PersistentVolume](ctx, c.API, client.ObjectKey{Name: claim.Spec.VolumeName})
		if err != nil {
			return nil, err
		}
		if volume == nil {
			bound = false
			continue
		}
		volumes = append(volumes, subnetplan.Volume{Pod: pod.Namespace + "/" + pod.Name, Claim: name, Volume: volume})
	}
	if bound {
		c.mu.Lock()
		c.volumes.Add(pod.UID, volumes)
		c.mu.Unlock()
	}
	return volumes, nil
}

// orphanForNewNode returns the orphan that a node without subnets, or a chosen node, inherits; ok is false if there is none.
func (c *Controller) orphanForNewNode(ctx context.Context, h subnetplan.CandidateNode, orphans []subnetplan.OrphanedSubnets) (o subnetplan.OrphanedSubnets, ok bool, err error) {
	now := c.Clock.Now()
	for {
		o, ok = c.Rules.OrphanForNewNode(h, orphans, now)
		if !ok || o.AllNominatedTo(h.Name) {
			return o, ok, nil
		}
		if o.Volumes, err = c.limitingVolumes(ctx, o); err != nil {
			return o, false, err
		}
		if _, ok := c.Rules.OrphanForNewNode(h, []subnetplan.OrphanedSubnets{o}, now); ok {
			return o, true, nil
		}
		orphans = slices.DeleteFunc(slices.Clone(orphans), func(other subnetplan.OrphanedSubnets) bool {
			return len(other.Subnets) > 0 && other.Subnets[0].CIDR == o.Subnets[0].CIDR
		})
	}
}

// explainExcluded adds to the conditions of the FixedIPs of an orphan that a node does not inherit it because of a volume.
func (s *snapshot) explainExcluded(o subnetplan.OrphanedSubnets, node string, v *subnetplan.Volume) {
	for _, k := range o.Reserved {
		want := s.available[k.Record]
		want.Message += fmt.Sprintf("; node %s does not inherit the subnet, because it cannot use volume %s (claim %s) of pod %s; add, repair or uncordon a node that can use the volume, so that it inherits the subnet", node, v.Volume.Name, v.Claim, v.Pod)
		s.available[k.Record] = want
	}
}
