// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// quota creates a ResourceQuota of one FixedIP, and sets the number of used FixedIPs as the quota controller does.
func (s *scene) quota(used int) {
	s.t.Helper()
	q := &corev1.ResourceQuota{Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/fixedips.fixedip.io": resource.MustParse("1")}}}
	q.Namespace, q.Name = s.ns, "addresses"
	s.create(q)
	s.usesOfQuota(used)
}

// usesOfQuota sets the number of used FixedIPs, and waits until the scheduler's watch shows it.
func (s *scene) usesOfQuota(used int) {
	s.t.Helper()
	q := &corev1.ResourceQuota{}
	q.Namespace, q.Name = s.ns, "addresses"
	patch := fmt.Sprintf(`{"status":{"hard":{"count/fixedips.fixedip.io":"1"},"used":{"count/fixedips.fixedip.io":"%d"}}}`, used)
	s.must(s.api.Status().Patch(within(s.t), q, client.RawPatch(types.MergePatchType, []byte(patch))))
	s.until(fmt.Sprintf("the scheduler's watch shows %d used FixedIPs in the quota", used), func() bool {
		seen, err := s.cachedQuotas.ResourceQuotas(s.ns).Get(q.Name)
		if err != nil {
			return false
		}
		now, ok := seen.Status.Used["count/fixedips.fixedip.io"]
		return ok && now.Value() == int64(used)
	})
}

// TestQuota checks that no address is claimed while the quota of the namespace allows no further FixedIP (finding R4
// in docs/project/findings.md).
func TestQuota(t *testing.T) {
	play(t, map[string]row{
		"a pod waits for the quota of its namespace without a claim": {
			world: oneNode,
			steps: append([]step{
				{at: preFilter, before: func(s *scene) { s.quota(1) }, answer: "UnschedulableAndUnresolvable: gets no fixed address: ResourceQuota addresses of namespace * is used up*"},
				{rest: map[string]string{"web-0": "Unschedulable: 0/1 nodes are available: gets no fixed address: ResourceQuota addresses of namespace * is used up (count/fixedips.fixedip.io: 1 of 1 used); raise the quota, or delete FixedIPs that no pod needs*"},
					before: func(s *scene) { s.usesOfQuota(0) }},
			}, placed()...),
		},
		"a pod that has a FixedIP is not affected by the quota": {
			world: func(s *scene) {
				s.node("a", "10.1.0.0/29")
				s.createFixedIP("web-0", "web", "a", "10.1.0.6")
				s.statefulSet("web")
			},
			steps: append([]step{{at: preFilter, before: func(s *scene) { s.quota(1) }}}, placed()...),
		},
		"a quota of other resources limits nothing": {
			world: func(s *scene) {
				q := &corev1.ResourceQuota{Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("9")}}}
				q.Namespace, q.Name = s.ns, "pods"
				s.create(q)
				oneNode(s)
			},
			steps: placed(),
		},
	})
}
