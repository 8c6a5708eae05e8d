// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/subnetplan"
)

const (
	// rememberedVolumes is the maximum number of pods whose volumes are remembered.
	rememberedVolumes = 4096
	// rereadVolumes is the time after which the volumes of a pod are read again: a PersistentVolumeClaim may be deleted and
	// created again while its pod waits.
	rereadVolumes = time.Minute
)

// podVolumes contains the volumes of a pod and the time at which they were read.
type podVolumes struct {
	volumes []subnetplan.Volume
	read    time.Time
}

// limitingVolumes returns the volumes that limit the choice of the node that inherits an orphan: those of the waiting pods
// that must not leave the node of their addresses (Rules.Pinned). The controller does not watch volumes: it needs only the
// volumes of pods that wait for an orphaned subnet, and only when a node is about to inherit that subnet. The volumes of a
// pod are read once a minute at most.
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

// volumesOf returns the volumes of a pod. It leaves out a PersistentVolumeClaim that does not exist, has no volume, or whose
// volume does not exist.
func (c *Controller) volumesOf(ctx context.Context, pod *corev1.Pod) (volumes []subnetplan.Volume, err error) {
	c.mu.Lock()
	if c.volumes == nil {
		c.volumes = lru.New(rememberedVolumes)
	}
	remembered, ok := c.volumes.Get(pod.UID)
	c.mu.Unlock()
	if now := c.Clock.Now(); ok && now.Before(remembered.(podVolumes).read.Add(rereadVolumes)) {
		return remembered.(podVolumes).volumes, nil
	}
	for _, name := range podutil.Claims(pod) {
		claim, err := index.Get[corev1.PersistentVolumeClaim](ctx, c.API, client.ObjectKey{Namespace: pod.Namespace, Name: name})
		if err != nil {
			return nil, err
		}
		if claim == nil || claim.Spec.VolumeName == "" {
			continue
		}
		volume, err := index.Get[corev1.PersistentVolume](ctx, c.API, client.ObjectKey{Name: claim.Spec.VolumeName})
		if err != nil {
			return nil, err
		}
		if volume == nil {
			continue
		}
		volumes = append(volumes, subnetplan.Volume{Pod: pod.Namespace + "/" + pod.Name, Claim: name, Volume: volume})
	}
	c.mu.Lock()
	c.volumes.Add(pod.UID, podVolumes{volumes, c.Clock.Now()})
	c.mu.Unlock()
	return volumes, nil
}

// orphanForNewNode returns the orphan that a node without subnets, or a chosen node, inherits; ok is false if there is none.
// It leaves out orphans whose volumes cannot be read, because an error of these reads must not delay the subnet of the node.
func (c *Controller) orphanForNewNode(ctx context.Context, h subnetplan.CandidateNode, orphans []subnetplan.OrphanedSubnets) (o subnetplan.OrphanedSubnets, ok bool) {
	now := c.Clock.Now()
	for {
		o, ok = c.Rules.OrphanForNewNode(h, orphans, now)
		if !ok || o.Chosen(h) || o.AllNominatedTo(h.Name) {
			return o, ok
		}
		var err error
		if o.Volumes, err = c.limitingVolumes(ctx, o); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to read the volumes of the pods that wait for an orphaned subnet; this node does not inherit it", "node", h.Name, "lost", o.Node)
		} else if _, ok := c.Rules.OrphanForNewNode(h, []subnetplan.OrphanedSubnets{o}, now); ok {
			return o, true
		}
		orphans = slices.DeleteFunc(slices.Clone(orphans), func(other subnetplan.OrphanedSubnets) bool {
			return len(other.Subnets) > 0 && other.Subnets[0].CIDR == o.Subnets[0].CIDR
		})
	}
}

// explainExcluded adds an explanation to the conditions of the FixedIPs of an orphan: the node does not inherit the subnets,
// because it cannot use the volume v. The condition of a FixedIP in another namespace than that of the pod does not name the
// pod and its volume.
func (s *snapshot) explainExcluded(o subnetplan.OrphanedSubnets, node string, v *subnetplan.Volume) {
	// explained contains the FixedIPs that have the explanation already. A FixedIP is in Reserved once for each address.
	explained := map[client.ObjectKey]bool{}
	for _, k := range o.Reserved {
		if explained[k.Record] {
			continue
		}
		explained[k.Record] = true
		what := "the volume of a waiting pod of another namespace"
		if namespace, _, _ := strings.Cut(v.Pod, "/"); namespace == k.Record.Namespace {
			what = fmt.Sprintf("volume %s (claim %s) of pod %s", v.Volume.Name, v.Claim, v.Pod)
		}
		want := s.available[k.Record]
		want.Message += fmt.Sprintf("; node %s does not inherit the subnet, because it cannot use %s; add, repair or uncordon a node that can use the volume, so that it inherits the subnet", node, what)
		s.available[k.Record] = want
	}
}
