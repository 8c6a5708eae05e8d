// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/test/gen"
)

// TestBinds checks for which pods the time from the bind to an address is measured.
func TestBinds(t *testing.T) {
	pod := func(uid types.UID, node, ip string, change ...func(*corev1.Pod)) *corev1.Pod {
		return gen.Pod("web-0", append([]func(*corev1.Pod){func(p *corev1.Pod) {
			p.UID, p.Spec.NodeName, p.Status.PodIPs = uid, node, nil
			if ip != "" {
				p.Status.PodIPs = []corev1.PodIP{{IP: ip}}
			}
		}}, change...)...)
	}
	hostNetwork := func(p *corev1.Pod) { p.Spec.HostNetwork = true }
	failed := func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }
	// change is the versions of a pod before and after an event; the events are one second apart.
	type change struct{ before, after *corev1.Pod }
	for name, c := range map[string]struct {
		changes []change
		// want is the measured time; zero: none is measured.
		want time.Duration
	}{
		"a pod gets an address": {[]change{
			{pod("a", "", ""), pod("a", "n", "")}, {pod("a", "n", ""), pod("a", "n", "")}, {pod("a", "n", ""), pod("a", "n", "10.0.0.1")},
		}, 2 * time.Second},
		"later changes do not count": {[]change{
			{pod("a", "", ""), pod("a", "n", "")}, {pod("a", "n", ""), pod("a", "n", "10.0.0.1")}, {pod("a", "n", "10.0.0.1"), pod("a", "n", "10.0.0.1")},
		}, time.Second},
		"the bind was not seen":               {[]change{{pod("a", "n", ""), pod("a", "n", "10.0.0.1")}}, 0},
		"a pod of the host network":           {[]change{{pod("a", "", "", hostNetwork), pod("a", "n", "", hostNetwork)}, {pod("a", "n", "", hostNetwork), pod("a", "n", "10.0.0.1", hostNetwork)}}, 0},
		"a pod that fails without an address": {[]change{{pod("a", "", ""), pod("a", "n", "")}, {pod("a", "n", ""), pod("a", "n", "", failed)}}, 0},
		"the next pod of the name": {[]change{
			{pod("a", "", ""), pod("a", "n", "")}, {pod("a", "n", ""), pod("b", "n", "")}, {pod("b", "n", ""), pod("b", "n", "10.0.0.1")},
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var b binds
			var got time.Duration
			for i, e := range c.changes {
				if took, measured := b.changed(e.before, e.after, time.Unix(int64(i), 0)); measured {
					got += took
				}
			}
			if got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
	t.Run("a bounded number of pods", func(t *testing.T) {
		var b binds
		for i := range maxBinds + 5 {
			uid := types.UID(fmt.Sprint(i))
			b.changed(pod(uid, "", ""), pod(uid, "n", ""), time.Unix(0, 0))
		}
		if len(b.at) != maxBinds {
			t.Errorf("got %d pods, want %d", len(b.at), maxBinds)
		}
		b.changed(pod("0", "n", ""), nil, time.Unix(0, 0))
		if len(b.at) != maxBinds-1 {
			t.Errorf("after a deletion: got %d pods, want %d", len(b.at), maxBinds-1)
		}
	})
}

// TestAddressTime checks that the time from the bind to an address is measured only for pods with a fixed address.
func TestAddressTime(t *testing.T) {
	s := newStage(t)
	s.addUnreserved("plain-0")
	for name, c := range map[string]struct {
		pod  string
		want bool
	}{
		"a pod with a fixed address":           {"web-0", true},
		"an unreserved pod with an entry":      {"plain-0", false},
		"a pod without an entry in the ledger": {"other-0", false},
	} {
		t.Run(name, func(t *testing.T) {
			pending, bound, ready := gen.Pod(c.pod), gen.Pod(c.pod, gen.On("n")), gen.Pod(c.pod, gen.On("n", "10.0.1.9"))
			if _, measured := s.c.addressTime(pending, bound); measured {
				t.Error("a time is measured at the bind, want none")
			}
			s.Clock.Step(2 * time.Second)
			took, measured := s.c.addressTime(bound, ready)
			if measured != c.want || measured && took != 2*time.Second {
				t.Errorf("got time %v, measured %v; want 2s, measured %v", took, measured, c.want)
			}
		})
	}
}
