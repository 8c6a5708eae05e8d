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

// fixedIPCount is the resource by which a ResourceQuota limits the FixedIPs of a namespace.
const fixedIPCount corev1.ResourceName = "count/fixedips.fixedip.io"

// quota creates a ResourceQuota that limits the FixedIPs of the namespace, and waits until the scheduler's watch shows the
// limit. Rows do not write the number of used FixedIPs into the status: the quota controller would correct a wrong number
// at any time.
func (s *scene) quota(limit string) {
	s.t.Helper()
	q := &corev1.ResourceQuota{Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{fixedIPCount: resource.MustParse(limit)}}}
	q.Namespace, q.Name = s.ns, "addresses"
	s.create(q)
	s.limitShown(limit)
}

// limitFixedIPs changes the limit of the quota.
func (s *scene) limitFixedIPs(limit string) {
	s.t.Helper()
	q := &corev1.ResourceQuota{}
	q.Namespace, q.Name = s.ns, "addresses"
	patch := fmt.Sprintf(`{"spec":{"hard":{%q:%q}}}`, fixedIPCount, limit)
	s.must(s.api.Patch(within(s.t), q, client.RawPatch(types.MergePatchType, []byte(patch))))
	s.limitShown(limit)
}

// limitShown waits until the quota controller has written the limit into the status of the quota, and the scheduler's watch
// shows that status.
func (s *scene) limitShown(limit string) {
	s.t.Helper()
	want := resource.MustParse(limit)
	s.until("the scheduler's watch shows a limit of "+limit+" FixedIPs in the status of the quota", func() bool {
		seen, err := s.cachedQuotas.ResourceQuotas(s.ns).Get("addresses")
		if err != nil {
			return false
		}
		got, ok := seen.Status.Hard[fixedIPCount]
		return ok && got.Equal(want)
	})
}

// TestQuota checks that no address is claimed while the quota of the namespace allows no further FixedIP (finding R4
// in docs/project/findings.md).
func TestQuota(t *testing.T) {
	play(t, map[string]row{
		"a pod waits for the quota of its namespace without a claim": {
			world: oneNode,
			steps: append([]step{
				{at: preFilter, before: func(s *scene) { s.quota("0") }, answer: "UnschedulableAndUnresolvable: gets no fixed address: ResourceQuota addresses of namespace * is used up*"},
				{rest: map[string]string{"web-0": "Unschedulable: 0/1 nodes are available: gets no fixed address: ResourceQuota addresses of namespace * is used up (count/fixedips.fixedip.io: 0 of 0 used); raise the quota, or delete FixedIPs that no pod needs*"},
					before: func(s *scene) { s.limitFixedIPs("1") }},
			}, placed()...),
		},
		"a pod that has a FixedIP is not affected by the quota": {
			world: func(s *scene) {
				s.node("a", "10.1.0.0/29")
				s.createFixedIP("web-0", "web", "a", "10.1.0.6")
				s.statefulSet("web")
			},
			steps: append([]step{{at: preFilter, before: func(s *scene) { s.quota("0") }}}, placed()...),
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
