package fixedip

import (
	"net/netip"
	"testing"
	"time"

	"fixedip.io/fixedip/ipam/core/pool"
)

// A pod that was deleted by force before its agent had told of it may run on: that the agent says nothing
// proves nothing until it has had the time to.
func TestSilenceOfAnAgent(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.1.6"), netip.MustParseAddr("fd00::6")
	made := time.Unix(1000, 0)
	// report is what the agent of a node lists at a time after the pod was made.
	type report struct {
		after time.Duration
		node  string
		lists []netip.Addr
		// want is how long after the pod was made its silence counts; 0: it does.
		want time.Duration
	}
	for name, reports := range map[string][]report{
		"never listed":                       {{0, "n", nil, time.Minute}, {59 * time.Second, "n", nil, time.Minute}, {time.Minute, "n", nil, 0}},
		"listed, and no more":                {{0, "n", []netip.Addr{a, b}, 0}, {time.Second, "n", nil, 0}},
		"listed on another node":             {{0, "m", []netip.Addr{a, b}, 0}, {time.Second, "n", nil, time.Minute}},
		"one of two listed":                  {{0, "n", []netip.Addr{a}, time.Minute}, {time.Second, "n", nil, time.Minute}, {time.Minute, "n", nil, 0}},
		"one after the other":                {{0, "n", []netip.Addr{a}, time.Minute}, {time.Second, "n", []netip.Addr{b}, 0}, {2 * time.Second, "n", nil, 0}},
		"listed when it had the time before": {{time.Minute, "n", []netip.Addr{a, b}, 0}},
	} {
		s := newSilence(time.Minute)
		for i, r := range reports {
			n := pool.Node{Name: r.node, Used: map[netip.Addr]string{}}
			for _, x := range r.lists {
				n.Used[x] = "db/web-0"
			}
			got := s.until("pod", made, n, []netip.Addr{a, b}, made.Add(r.after))
			if (r.want == 0) != got.IsZero() || r.want > 0 && !got.Equal(made.Add(r.want)) {
				t.Errorf("%s, %d: until %v, want %v", name, i, got, r.want)
			}
			// The next of the name has seen nothing yet.
			if other := s.until("another", made, pool.Node{Name: "n"}, []netip.Addr{a}, made); other.IsZero() {
				t.Errorf("%s, %d: what was seen for one pod counts for another", name, i)
			}
		}
		s.forget("pod")
		s.forget("another")
		if len(s.listed) > 0 {
			t.Errorf("%s: %v is left", name, s.listed)
		}
	}
}
