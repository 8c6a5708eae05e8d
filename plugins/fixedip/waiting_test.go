// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
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
		"asks":  {owner: "db/asks", workload: "db/set", until: func(node string) bool { return node == "node-3" }},
	}
	for name, c := range map[string]struct {
		news news
		want []string
	}{
		"its reservation":     {news{node: "node-9", owners: []string{"db/other", "db/owner"}}, []string{"db/owner"}},
		"its node":            {news{node: "node-1"}, []string{"db/node"}},
		"room somewhere":      {news{node: "node-2", room: true}, []string{"db/room"}},
		"room on its node":    {news{node: "node-1", room: true}, []string{"db/node", "db/room"}},
		"what it asks for":    {news{node: "node-3", room: true}, []string{"db/asks", "db/room"}},
		"another wish":        {news{workload: "db/set"}, []string{"db/asks"}},
		"another's wish":      {news{workload: "db/other"}, nil},
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

// News that come while the decision to refuse is being made are not lost, and those that help nobody
// wake nobody.
func TestWaitingMissesNoNews(t *testing.T) {
	idle := slices.Repeat([]news{{node: "node-9"}}, recentNews-1)
	for name, c := range map[string]struct {
		news  []news
		woken int
	}{
		"none":                  {nil, 0},
		"of help":               {[]news{{node: "node-1", room: true}}, 1},
		"of no help":            {[]news{{node: "node-1"}}, 0},
		"of help among others":  {append([]news{{node: "node-1", room: true}}, idle...), 1},
		"as many as remembered": {append([]news{{node: "node-1"}}, idle...), 0},
		"more than remembered":  {append([]news{{node: "node-1"}, {node: "node-2"}}, idle...), 1},
	} {
		t.Run(name, func(t *testing.T) {
			woken := 0
			w := newWaiting(func(map[string]*corev1.Pod) { woken++ })
			w.hear(news{node: "node-1", room: true}) // Before the decision.
			decided := w.now()
			for _, n := range c.news {
				w.hear(n)
			}
			w.refuse(waitingPod("mysql-0"), cause{room: true}, decided)
			if woken != c.woken || len(w.pods) != 1-c.woken {
				t.Errorf("woken %d times, want %d; %d wait", woken, c.woken, len(w.pods))
			}
		})
	}
}

// A pod that was mended while it was refused as it had been is tried again, and once only.
func TestWaitingRefusesNoOutdatedPod(t *testing.T) {
	woken := 0
	w := newWaiting(func(map[string]*corev1.Pod) { woken++ })
	pods := toolscache.NewSharedIndexInformer(&toolscache.ListWatch{}, &corev1.Pod{}, 0, nil)
	if err := w.follow(pods); err != nil {
		t.Fatal(err)
	}
	before, now := waitingPod("mysql-0"), waitingPod("mysql-0")
	now.Annotations = map[string]string{"fixedip.io/ips": "10.0.1.10"}
	if err := pods.GetStore().Add(now); err != nil {
		t.Fatal(err)
	}
	w.refuse(before, cause{owner: "db/mysql-0"}, w.now())
	if woken != 1 || len(w.pods) != 0 {
		t.Errorf("refused as it was: woken %d times, %d wait", woken, len(w.pods))
	}
	w.refuse(now, cause{owner: "db/mysql-0"}, w.now())
	if woken != 1 || len(w.pods) != 1 {
		t.Errorf("refused as it is: woken %d times, %d wait", woken, len(w.pods))
	}
}

// A pod that waits for another one to go is tried again when that has ended or is gone, and when it was so by the time
// that it was refused.
func TestWaitingForOccupant(t *testing.T) {
	with := func(phase corev1.PodPhase) *corev1.Pod {
		p := waitingPod("stray")
		p.Status.Phase = phase
		return p
	}
	anew := with(corev1.PodRunning)
	anew.UID = "another"
	for name, c := range map[string]struct {
		// cached is the pod when the other is refused, and now what the watch shows then; nil: it is gone.
		cached, now   *corev1.Pod
		refused, then int
	}{
		"it stays":            {with(corev1.PodRunning), with(corev1.PodRunning), 0, 0},
		"it ends":             {with(corev1.PodRunning), with(corev1.PodFailed), 0, 1},
		"it goes":             {with(corev1.PodRunning), nil, 0, 1},
		"it is made anew":     {with(corev1.PodRunning), anew, 0, 1},
		"it has ended":        {with(corev1.PodSucceeded), nil, 1, 1},
		"it has gone":         {nil, nil, 1, 1},
		"it was made anew":    {anew, anew, 1, 1},
		"another of the name": {anew, nil, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			woken := 0
			w := newWaiting(func(map[string]*corev1.Pod) { woken++ })
			pods := toolscache.NewSharedIndexInformer(&toolscache.ListWatch{}, &corev1.Pod{}, 0, nil)
			if err := w.follow(pods); err != nil {
				t.Fatal(err)
			}
			if c.cached != nil {
				if err := pods.GetStore().Add(c.cached); err != nil {
					t.Fatal(err)
				}
			}
			w.refuse(waitingPod("mysql-0"), cause{occupant: with(corev1.PodRunning)}, w.now())
			if woken != c.refused {
				t.Errorf("woken %d times when it was refused, want %d", woken, c.refused)
			}
			switch {
			case c.cached == nil:
			case c.now == nil:
				w.podDeleted(c.cached)
			default:
				w.podUpdated(c.cached, c.now)
			}
			if woken != c.then || len(w.pods) != 1-c.then {
				t.Errorf("woken %d times, want %d; %d wait", woken, c.then, len(w.pods))
			}
		})
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
