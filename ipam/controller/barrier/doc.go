// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package barrier runs the agent barriers of all nodes. It asks Cilium agents to acknowledge earlier writes and returns the
// resulting Evidence to the controllers: whether an address is still in use, and whether an agent has seen a pool entry.
// Package agentview explains the protocol and what an answer proves.
//
// # One barrier per node
//
// A controller makes a barrier request: it calls Service.Ask in its Reconcile. If there is no answer yet, the controller
// continues with other objects, and the Service notifies it when the agent has answered. All requests for a node that were
// made before the CiliumNode was read for a probe share the answer to that probe; later requests wait for the next barrier. So
// a node has at most one probe of this Service, and a request waits for two barriers at most, unless the CiliumNode is created
// again. A barrier costs one write of the CiliumNode by the controller, which counts toward the rate limit of the writer, and
// one by the agent. A barrier that joins an existing probe costs no write by the controller.
//
//	        Ask                Reconcile writes the probe          the agent answers           Forget, ten minutes
//	(none) ─────▶ waiting ────────────────────────────────▶ asked ─────────────────▶ answered ─────────────────────▶ (none)
//	                 ▲                                        │
//	                 └───── the CiliumNode was recreated ◀────┘
//
// # State
//
// Requests and answers are in memory only. After a restart of the controller every caller makes its request again. A probe
// that an earlier process wrote is joined, or is removed by the next report of the agent.
//
// # Limits
//
// The package never concludes anything from the passage of time. An agent that does not answer is reported (event
// AgentNotAnswering, metric fixedip_agent_barriers_overdue), and the requests stay open until the agent answers or the
// CiliumNode is deleted. The package does not decide what happens to an address: the caller does, with Evidence.Judge.
package barrier
