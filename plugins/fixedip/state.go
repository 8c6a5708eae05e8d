// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"fixedip.io/fixedip/plugins/fixedip/binder"
)

// stateKey is the key of the plugin's state in a cycle.
const stateKey fwk.StateKey = Name

// stateData is the plugin's state in a cycle.
type stateData struct {
	*binder.Plan
	// decided is the moment before Find looked at the cluster.
	decided uint64
}

// Clone shares the state: a Plan may be used by parallel calls.
func (s *stateData) Clone() fwk.StateData { return s }

func read(state fwk.CycleState) (*stateData, error) {
	data, err := state.Read(stateKey)
	if err != nil {
		return nil, fmt.Errorf("no state of plugin %s in the cycle: %w", Name, err)
	}
	s, ok := data.(*stateData)
	if !ok {
		return nil, fmt.Errorf("state of plugin %s in the cycle is of type %T", Name, data)
	}
	return s, nil
}

// refuse returns the status for an error of the binder. A pod that it refused waits in the queue. No preemption helps
// it: a pod that is evicted keeps its address.
func (p *Plugin) refuse(pod *corev1.Pod, decided uint64, err error) *fwk.Status {
	var refusal *binder.Refusal
	if !errors.As(err, &refusal) {
		return fwk.AsStatus(err)
	}
	p.queue.Add(pod, refusal.WakeOn, decided)
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, refusal.Reason)
}
