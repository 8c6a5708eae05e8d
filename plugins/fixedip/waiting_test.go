package fixedip

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func waitingPod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, UID: types.UID(name)}}
}

// Each pod is woken by what helps it, once, and by nothing else.
func TestWaitingWakes(t *testing.T) {
	causes := map[string]cause{
		"owner": {owner: "db/owner"},
		"node":  {owner: "db/node", node: "node-1"},
		"room":  {owner: "db/room", room: true},
	}
	for name, c := range map[string]struct {
		news news
		want []string
	}{
		"its reservation":     {news{node: "node-9", owners: []string{"db/other", "db/owner"}}, []string{"db/owner"}},
		"its node":            {news{node: "node-1"}, []string{"db/node"}},
		"room somewhere":      {news{node: "node-2", room: true}, []string{"db/room"}},
		"room on its node":    {news{node: "node-1", room: true}, []string{"db/node", "db/room"}},
		"nothing of concern":  {news{node: "node-2", owners: []string{"db/other"}}, nil},
		"no node's news":      {news{owners: []string{"db/room"}}, []string{"db/room"}},
		"an owner on no node": {news{node: "", owners: nil}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var woken []string
			w := newWaiting(func(pods map[string]*corev1.Pod) { woken = append(woken, slices.Sorted(maps.Keys(pods))...) })
			for pod, cause := range causes {
				w.refuse(waitingPod(pod), cause, w.now())
			}
			w.hear(c.news)
			if !slices.Equal(woken, c.want) {
				t.Errorf("woken: %v, want %v", woken, c.want)
			}
			woken = nil
			w.hear(c.news)
			if woken != nil {
				t.Errorf("woken twice: %v", woken)
			}
		})
	}
}

// News that come while the decision to refuse is being made are not lost.
func TestWaitingMissesNoNews(t *testing.T) {
	woken := 0
	w := newWaiting(func(map[string]*corev1.Pod) { woken++ })
	decided := w.now()
	w.hear(news{node: "node-1", room: true})
	w.refuse(waitingPod("mysql-0"), cause{room: true}, decided)
	if woken != 1 || len(w.pods) != 0 {
		t.Errorf("woken %d times, %d wait", woken, len(w.pods))
	}
}

func TestWaitingSettles(t *testing.T) {
	w := newWaiting(func(map[string]*corev1.Pod) { t.Error("woken") })
	w.refuse(waitingPod("mysql-0"), cause{room: true}, w.now())
	w.settle("mysql-0")
	w.hear(news{node: "node-1", room: true})
	if len(w.pods) != 0 {
		t.Errorf("%d still wait", len(w.pods))
	}
}
