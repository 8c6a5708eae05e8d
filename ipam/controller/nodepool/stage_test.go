// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"testing"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/agentview"
	"fixedip.io/fixedip/ipam/core/configuration"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/test/controllertest"
)

// askAfter is the value of FirstReportTimeout if the settings of Cilium are not known.
var askAfter = configuration.CiliumSettings{}.FirstReportTimeout()

// stage is a node "n" whose pool the test sets.
type stage struct {
	*controllertest.Stage
	t *testing.T
	// asked contains the nodes of the barrier requests, and keys their keys.
	asked, keys []string
	// answer is the evidence that the agent returns; nil: the agent does not answer.
	answer *agentview.Evidence
}

// Ask implements gather.Agents.
func (s *stage) Ask(node, key string, _ func()) (agentview.Evidence, time.Time) {
	s.asked, s.keys = append(s.asked, node), append(s.keys, key)
	if s.answer == nil {
		return agentview.Evidence{}, time.Time{}
	}
	return *s.answer, s.Clock.Now()
}

// acknowledge makes the agent acknowledge the pool in the ledger.
func (s *stage) acknowledge() {
	n, _ := s.Ledger.Node("n")
	s.answer = &agentview.Evidence{Node: n.Name, UID: n.UID, Entries: n.Entries, Used: n.Used}
}

func (s *stage) Forget(string, string) {}

func newStage(t *testing.T, api, cached []client.Object) *stage {
	t.Helper()
	return &stage{Stage: controllertest.New(t, index.Each, api, cached), t: t}
}

// reconciler returns a reconciler with a cooldown of 10 seconds.
func (s *stage) reconciler(change func(*Reconciler)) *Reconciler {
	r := &Reconciler{
		Ledger: s.Ledger, Writer: s.Writer, Live: s.API, Cached: s.Cached, Events: s.Recorder, Clock: s.Clock, Agents: s, Kinds: identity.NewKinds(),
		StrictNodes: labels.Nothing(), Cooldown: 10 * time.Second, Requests: &source.Requests{},
	}
	if change != nil {
		change(r)
	}
	return r
}

// node reads the CiliumNode.
func (s *stage) node() *ciliumv2.CiliumNode {
	s.t.Helper()
	var node ciliumv2.CiliumNode
	if err := s.API.Get(s.t.Context(), client.ObjectKey{Name: "n"}, &node); err != nil {
		s.t.Fatal(err)
	}
	return &node
}

// update writes the CiliumNode.
func (s *stage) update(node *ciliumv2.CiliumNode) {
	s.t.Helper()
	if err := s.API.Update(s.t.Context(), node); err != nil {
		s.t.Fatal(err)
	}
}

// fill replaces the pool and status.ipam.used. The pool also gets the dynamic entry 10.0.1.2.
func (s *stage) fill(entries map[string]pool.Entry, used map[string]string) {
	s.t.Helper()
	node := s.node()
	// The fake API server does not set generations.
	node.Generation = 1
	node.Spec.IPAM.Pool = ipamtypes.AllocationMap{"10.0.1.2": {}}
	for a, e := range entries {
		node.Spec.IPAM.Pool[a] = ciliumpool.EncodeEntry(e)
	}
	node.Status.IPAM.Used = ipamtypes.AllocationMap{}
	for a, owner := range used {
		node.Status.IPAM.Used[a] = ipamtypes.AllocationIP{Owner: owner}
	}
	s.update(node)
}

// syncLedger copies the node from the API server to the ledger.
func (s *stage) syncLedger() {
	s.t.Helper()
	s.Ledger.SetNode(ciliumpool.FromCiliumNode(s.node()))
}
