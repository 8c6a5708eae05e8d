package controller

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/pool"
)

// freed has the ledger show that the first pod holds nothing any more.
func (s *stage) freed() {
	node, _ := s.records.ledger.Node("n")
	s.records.ledger.SetNode(node.With(node.Release("db/web-0", nil, begin)))
}

// A record goes when the pools show that nothing names its pod any more, and when nobody is about to look
// whether the pod counts on its address after all.
func TestFinish(t *testing.T) {
	deleted := objects(recordOf(0, true))
	for name, c := range map[string]struct {
		api, cached []client.Object
		held        bool
		underway    bool
		gone        bool
	}{
		"its address has gone back":         {api: deleted, cached: deleted, gone: true},
		"its address is held":               {api: deleted, cached: deleted, held: true},
		"its address is being taken back":   {api: deleted, cached: deleted, underway: true},
		"it stands":                         {api: objects(recordOf(0, false)), cached: objects(recordOf(0, false))},
		"it is gone already":                {cached: deleted, gone: true},
		"nobody knows it, and it was asked": {gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, c.api, c.cached)
			if !c.held {
				s.freed()
			}
			s.records.underway.set(func(yield func(string) bool) { yield("db/web-0") }, c.underway)
			if _, err := (&finishReconciler{s.records}).Reconcile(t.Context(), source.Request("db/web-0")[0]); err != nil {
				t.Fatal(err)
			}
			var record v1alpha1.FixedIP
			err := s.api.Get(t.Context(), client.ObjectKey{Namespace: "db", Name: "web-0"}, &record)
			if client.IgnoreNotFound(err) != nil || apierrors.IsNotFound(err) != c.gone {
				t.Errorf("%v, finalizers %v", err, record.Finalizers)
			}
		})
	}
}

// The pool may be seen without the address before the record is seen to be deleted. While that is under way
// the API server is not asked what to make of it.
func TestNothingIsAskedWhileAnAddressIsTakenBack(t *testing.T) {
	s := newStage(t, objects(recordOf(0, true)), objects(recordOf(0, false)))
	// The clients of a stage can't be compared.
	s.records.live = &struct{ client.Client }{s.api}
	s.freed()
	owner := pool.OwnerKey("db", "web-0")
	for _, underway := range []bool{true, false} {
		s.records.underway.set(func(yield func(string) bool) { yield(owner) }, underway)
		s.looks = 0
		if _, err := s.records.Reconcile(t.Context(), source.Request(owner)[0]); err != nil {
			t.Fatal(err)
		}
		if asked := s.looks > 0; asked == underway {
			t.Errorf("under way: %t; the API server was asked %d times for the workload", underway, s.looks)
		}
	}
}
