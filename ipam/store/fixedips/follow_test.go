// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedips

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/test/gen"
)

var created = metav1.NewTime(time.Unix(1000, 0))

func record(change ...func(*v1alpha1.FixedIP)) *v1alpha1.FixedIP {
	first := func(r *v1alpha1.FixedIP) {
		r.UID, r.Generation, r.CreationTimestamp, r.Spec.IPs = "uid-1", 1, created, []string{"10.0.1.6", "fd00::6"}
	}
	return gen.FixedIP("mysql-0", append([]func(*v1alpha1.FixedIP){first}, change...)...)
}

func deleted(r *v1alpha1.FixedIP) { r.DeletionTimestamp = &created }

func TestReservationOf(t *testing.T) {
	both := []netip.Addr{netip.MustParseAddr("10.0.1.6"), netip.MustParseAddr("fd00::6")}
	for name, c := range map[string]struct {
		record *v1alpha1.FixedIP
		want   ledger.Reservation
	}{
		"both families":           {record(), ledger.Reservation{Record: "db/mysql-0", Since: created.Time, Owner: "db/mysql-0", Addrs: both}},
		"being deleted":           {record(deleted), ledger.Reservation{Record: "db/mysql-0", Since: created.Time, Owner: "db/mysql-0", Addrs: both}},
		"no address":              {record(func(r *v1alpha1.FixedIP) { r.Spec.IPs = nil }), ledger.Reservation{Record: "db/mysql-0", Since: created.Time, Owner: "db/mysql-0"}},
		"an invalid address":      {record(func(r *v1alpha1.FixedIP) { r.Spec.IPs[0] = "10.0.1.600" }), ledger.Reservation{Record: "db/mysql-0", Since: created.Time, Owner: "db/mysql-0", Addrs: both[1:]}},
		"a pod with another name": {record(func(r *v1alpha1.FixedIP) { r.Spec.PodName = "web-x7k" }), ledger.Reservation{Record: "db/mysql-0", Since: created.Time, Owner: "db/web-x7k", Addrs: both}},
	} {
		if diff := cmp.Diff(c.want, ReservationOf(c.record), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got): %s", name, diff)
		}
	}
}

func TestHandsOver(t *testing.T) {
	vacated := func(by string) *v1alpha1.FixedIP {
		return record(func(r *v1alpha1.FixedIP) { r.Status.VacatedBy = by })
	}
	movable := func(pod types.UID) *v1alpha1.FixedIP {
		return record(func(r *v1alpha1.FixedIP) { r.Status.MovableFor = pod })
	}
	for name, c := range map[string]struct {
		before, after *v1alpha1.FixedIP
		want          bool
	}{
		"vacated":                  {record(), vacated("web-x"), true},
		"vacated by the same pod":  {vacated("web-x"), vacated("web-x"), false},
		"vacated by another pod":   {vacated("web-x"), vacated("web-y"), true},
		"movable":                  {record(), movable("uid-2"), true},
		"movable for another pod":  {movable("uid-2"), movable("uid-3"), true},
		"another change of status": {record(), record(func(r *v1alpha1.FixedIP) { r.Status.PodUID = "pod-1" }), false},
	} {
		if got := HandsOver(c.before, c.after); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

func TestReserves(t *testing.T) {
	for name, c := range map[string]struct {
		after *v1alpha1.FixedIP
		want  bool
	}{
		"a change of the status":    {record(func(r *v1alpha1.FixedIP) { r.ResourceVersion, r.Status.PodUID = "8", "pod-1" }), false},
		"a change of the spec":      {record(func(r *v1alpha1.FixedIP) { r.Generation = 2 }), true},
		"the deletion begins":       {record(deleted), true},
		"deleted and created again": {record(func(r *v1alpha1.FixedIP) { r.UID = "uid-2" }), true},
	} {
		if got := Reserves(record(), c.after); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}
