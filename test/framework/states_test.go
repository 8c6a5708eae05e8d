// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/legacyregistry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/explain"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/fixedips"
)

// waitingPage is the page with a table of the states in which a pod waits.
var waitingPage = filepath.Join("..", "..", "docs", "reference", "waiting.md")

// described is a row of waitingPage.
type described struct {
	// message is the message of the condition PodScheduled: see player.matches.
	message string
	// finding is part of a finding of kubectl fixedip explain. NS/ stands for the row's namespace.
	finding string
	// reason is the value of the label reason of the metric fixedip_unplaced_pods.
	reason string
}

// waitingTable returns the rows of waitingPage that TestStates has to check. Key: the state.
func waitingTable(t *testing.T) map[string]described {
	t.Helper()
	text, err := os.ReadFile(waitingPage)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]described{}
	for line := range strings.SplitSeq(string(text), "\n") {
		cells := strings.Split(line, " | ")
		if len(cells) == 6 && strings.HasPrefix(cells[5], "test/framework TestStates ") {
			code := func(i int) string { return strings.Trim(strings.TrimSpace(cells[i]), "`") }
			rows[strings.TrimPrefix(cells[0], "| ")] = described{code(1), code(2), code(3)}
		}
	}
	return rows
}

// state brings a pod into a state in which it waits. Its steps end before the pod waits.
type state struct {
	world func(*scene)
	steps []step
	// pod is the pod that waits; web-0 if it is empty.
	pod string
}

// states are the states of waitingPage that TestStates checks. Key: the name of the state.
var states = map[string]state{
	"Its node is cordoned": {
		world: twoNodes,
		steps: placed(step{before: func(s *scene) { s.cordon("b", false); s.cordon("a", true); s.removes("web-0") }}),
	},
	"Its node is not ready": {
		world: twoNodes,
		steps: placed(step{before: func(s *scene) { s.cordon("b", false); s.unready("a"); s.removes("web-0") }}),
	},
	"Its node is full": {
		world: func(s *scene) {
			s.node("b", "10.2.0.0/29")
			s.cordon("b", true)
			s.node("a", "10.1.0.0/29")
			s.statefulSet("web", needing("600m"))
		},
		steps: placed(step{before: func(s *scene) { s.cordon("b", false); s.filler("a"); s.removes("web-0") }}),
	},
	"Its node is gone, and another node may inherit the subnet": {world: orphaned()},
	"Its node is gone, and no node can inherit the subnet":      {world: orphaned(onSSD)},
	"Its node is gone, and the subnet is held for it": {world: func(s *scene) {
		orphaned()(s)
		s.subnetOf("web-0", "False", v1alpha1.ReasonNodeGone)
	}},
	"The subnets of its node overlap those of another": {world: func(s *scene) {
		s.node("a", "10.1.0.0/29")
		s.node("b", "10.1.0.0/29")
		s.createFixedIP("web-0", "web", "a", "10.1.0.6")
		s.statefulSet("web")
	}},
	"Another pod uses its address": {
		world: twoNodes,
		steps: placed(step{before: func(s *scene) {
			s.filler("a")
			s.has("filler", "10.1.0.6")
			s.removes("web-0")
		}}),
	},
	"The agent reports its address for another pod": {
		world: twoNodes,
		steps: placed(step{before: func(s *scene) {
			s.uses("a", "10.1.0.6", "other-0")
			s.takes("other-0", "a", "10.1.0.2")
			s.seesAt("other-0", "a")
			s.removes("web-0")
		}}),
	},
	"The pool has its address for another pod": {world: func(s *scene) {
		s.createFixedIP("web-0", "web", "a", "10.1.0.3")
		s.node("a", "10.1.0.0/29")
		s.takes("other-0", "a", "10.1.0.3")
		s.statefulSet("web")
	}},
	"The pool has another address for it": {world: func(s *scene) {
		s.createFixedIP("web-0", "web", "a", "10.1.0.3")
		oneNode(s)
		s.takes("web-0", "a", "10.1.0.5")
	}},
	"Its FixedIP is being deleted": {world: func(s *scene) {
		s.createFixedIP("web-0", "web", "a", "10.1.0.3")
		s.must(s.api.Delete(within(s.t), &v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "web-0"}}))
		oneNode(s)
	}},
	"No node has a free address": {world: fullNode},
	"No agent has reported": {world: func(s *scene) {
		s.nodeOnly("a")
		s.unreportedCiliumNode("a", "10.1.0.0/29")
		s.statefulSet("web")
	}},
	"No node has the requested address": {world: func(s *scene) {
		s.node("a", "10.1.0.0/29")
		s.statefulSet("web", annotated("fixedip.io/ips", "10.9.0.1"))
	}},
	"The quota is used up": {
		world: oneNode,
		steps: []step{{at: preFilter, before: func(s *scene) { s.quota("0") }, answer: "UnschedulableAndUnresolvable: *"}},
	},
	"An annotation is invalid": {world: func(s *scene) {
		s.node("a", "10.1.0.0/29")
		s.statefulSet("web", annotated("fixedip.io/enabled", "maybe"))
	}},
	"All slots of its workload are in use": {
		pod: "web-y",
		world: func(s *scene) {
			s.node("b", "10.2.0.0/29")
			s.cordon("b", true)
			s.node("a", "10.1.0.0/29")
			s.flock()
			s.joins("web-x")
		},
		steps: flocked(step{before: func(s *scene) { s.cordon("b", false); s.removes("web-x"); s.joins("web-y") }}),
	},
	"It has no fixed address, and its name has one": {world: func(s *scene) {
		s.node("a", "10.1.0.0/29")
		s.reserves("web-0", "a", "10.1.0.6")
		s.barePod()
	}},
}

// unready sets the condition Ready of a node to False, and waits until the scheduler's watch shows the taint that Kubernetes
// then adds to the node.
func (s *scene) unready(node string) {
	s.t.Helper()
	s.ready(node, corev1.ConditionFalse)
	s.until("the scheduler's watch shows the taint of node "+node, func() bool {
		n, err := s.cachedNodes.Get(node)
		return err == nil && slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeNotReady })
	})
}

// TestStates brings a pod into each state for which waitingPage names TestStates. It compares three texts with the page: the
// message of the pod, a finding of kubectl fixedip explain, and the reason under which the scheduler counts the pod. The tests
// of package monitoring check the alerts of the page.
func TestStates(t *testing.T) {
	table := waitingTable(t)
	for name := range table {
		if _, exists := states[name]; !exists {
			t.Errorf("TestStates has no state %q, which %s describes", name, waitingPage)
		}
	}
	rows := map[string]row{}
	for name, st := range states {
		d, exists := table[name]
		if !exists {
			t.Errorf("%s does not describe the state %q", waitingPage, name)
			continue
		}
		pod := st.pod
		if pod == "" {
			pod = "web-0"
		}
		rows[name] = row{world: st.world, steps: append(slices.Clip(st.steps), step{
			rest:   map[string]string{pod: "Unschedulable: " + d.message},
			when:   func(s *scene) bool { return s.counts(d.reason) },
			before: func(s *scene) { s.explains(pod, d.finding) },
		})}
	}
	play(t, rows)
}

// counts reports whether the scheduler counts one pod for the reason and none for any other.
func (s *scene) counts(reason string) bool {
	s.t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	s.must(err)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "fixedip_unplaced_pods" && m.GetGauge().GetValue() > 0 {
				got[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
	}
	return maps.Equal(got, map[string]float64{reason: 1})
}

// explains fails the row unless kubectl fixedip explain, with the objects of the API server, has a finding that contains the
// text.
func (s *scene) explains(pod, text string) {
	s.t.Helper()
	ctx := within(s.t)
	var nodes corev1.NodeList
	var pools ciliumv2.CiliumNodeList
	var records v1alpha1.FixedIPList
	in := explain.Inputs{
		Namespace: s.ns, Name: pod, Pod: &corev1.Pod{}, Pools: ledger.New(), Nodes: map[string]*corev1.Node{}, Schedulers: []string{s.ns}, Now: time.Now(),
	}
	s.must(s.api.Get(ctx, client.ObjectKey{Namespace: s.ns, Name: pod}, in.Pod))
	s.must(s.api.List(ctx, &nodes))
	s.must(s.api.List(ctx, &pools))
	s.must(s.api.List(ctx, &records, client.InNamespace(s.ns)))
	for i := range nodes.Items {
		in.Nodes[nodes.Items[i].Name] = &nodes.Items[i]
	}
	for i := range pools.Items {
		in.Pools.SetNode(ciliumpool.FromCiliumNode(&pools.Items[i]))
	}
	for i := range records.Items {
		in.Pools.SetReservation(fixedips.ReservationOf(&records.Items[i]))
		if records.Items[i].Name == pod {
			in.Record = &records.Items[i]
		}
	}
	text = strings.ReplaceAll(text, "NS/", s.ns+"/")
	report := explain.Explain(in)
	if !slices.ContainsFunc(report.Findings, func(f explain.Finding) bool { return strings.Contains(f.Text, text) }) {
		s.t.Errorf("kubectl fixedip explain %s: got the findings\n%s\nwant one that contains\n%s", pod, fmt.Sprint(report.Findings), text)
	}
}
