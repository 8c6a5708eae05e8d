package controller

import (
	"context"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// slowReader takes its time for a list.
type slowReader struct {
	client.Reader
	clock *clocktesting.FakeClock
	takes time.Duration
}

func (r slowReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	r.clock.Step(r.takes)
	return r.Reader.List(ctx, list, opts...)
}

// An address whose rest ends while its pool is being looked at is asked for again: when the look began it was
// not due, and when it is over it is, so that neither an edit nor a time would come of it.
func TestRestThatEndsDuringALook(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	s := newStage(t, objects(), objects(node))
	s.fill(map[string]pool.Entry{"10.0.1.9": pool.Released(begin)}, nil)
	s.adopts() // The ledger has the pool then.
	cfg := Config{
		StrictNodes: labels.Nothing(), SubnetSource: ClusterPool, CoolDown: 10 * time.Second,
		ClusterPools: []address.ClusterPool{{CIDR: netip.MustParsePrefix("10.0.0.0/16"), MaskSize: 24}},
		Watermark:    plan.Watermark{Free: 1, Max: 1},
	}
	l := s.records.ledger
	r := &nodeReconciler{
		ledger: l, writer: ciliumpool.NewWriter(t.Context(), ciliumpool.New(s.api), l.Node), live: s.api, events: s.recorder, clock: s.clock, cfg: cfg,
		cached:  slowReader{s.cached, s.clock, 5 * time.Second},
		subnets: &subnetReconciler{cfg: cfg}, kinds: identity.NewKinds(), untracked: map[string]string{}, answers: newAnswers(s.clock),
	}
	s.clock.SetTime(begin.Add(9 * time.Second))
	result, err := r.Reconcile(t.Context(), nodeRequest("n"))
	if err != nil || s.patches > 0 || result.RequeueAfter <= 0 || result.RequeueAfter > time.Second {
		t.Fatalf("after the first look: %v, %v, %d patches; want it to be asked for again at once", result, err, s.patches)
	}
	if _, err := r.Reconcile(t.Context(), nodeRequest("n")); err != nil || s.patches != 1 {
		t.Errorf("after the second look: %v, %d patches; want the one that ends the rest", err, s.patches)
	}
}

// An address rests for as long as a pod of the name that it was taken from waits on the node, which may have been
// bound counting on it. One that has opted out counts on nothing: on a node that has no other address left, each of
// the two would wait for the other.
func TestRestForAPodThatWaits(t *testing.T) {
	for name, c := range map[string]struct {
		annotations map[string]string
		after       time.Duration
		ends        int
	}{
		"it counts on the address":      {nil, time.Minute, 0},
		"nobody has given it that back": {nil, 10 * time.Minute, 1},
		"it has opted out":              {map[string]string{identity.AnnotationEnabled: "false"}, time.Minute, 1},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mysql-0", Annotations: c.annotations}, Spec: corev1.PodSpec{NodeName: "n"}}
			s := newStage(t, objects(), objects(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, pod))
			s.fill(map[string]pool.Entry{"10.0.1.9": pool.ReleasedFrom("db/mysql-0", begin)}, nil)
			s.adopts() // The ledger has the pool then.
			cfg := Config{
				StrictNodes: labels.Nothing(), SubnetSource: ClusterPool, CoolDown: 10 * time.Second,
				ClusterPools: []address.ClusterPool{{CIDR: netip.MustParsePrefix("10.0.0.0/16"), MaskSize: 24}},
			}
			l := s.records.ledger
			r := &nodeReconciler{
				ledger: l, writer: ciliumpool.NewWriter(t.Context(), ciliumpool.New(s.api), l.Node), live: s.api, cached: s.cached, events: s.recorder, clock: s.clock, cfg: cfg,
				subnets: &subnetReconciler{cfg: cfg}, kinds: identity.NewKinds(), untracked: map[string]string{}, answers: newAnswers(s.clock),
			}
			n, _ := l.Node("n")
			d, err := r.dutyFor(t.Context(), n)
			if err != nil {
				t.Fatal(err)
			}
			d.now = begin.Add(c.after)
			edits, _ := plan.Rested(n, d.now, cfg.CoolDown, d.counted(n))
			if len(edits) != c.ends {
				t.Errorf("%d edits end the rest, want %d: %+v", len(edits), c.ends, edits)
			}
			if next := d.lastBack(n); next.IsZero() != (c.ends > 0) {
				t.Errorf("it is looked at again at %v", next)
			}
		})
	}
}
