// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package barrier asks Cilium agents what they know and hands their answers to the controllers that need them: whether
// an address is still in use, and whether an agent has seen a pool entry. Package agentview explains how the question
// and the answer work and what an answer proves.
//
// # One barrier per node
//
// A controller calls Service.Ask in its Reconcile, goes on with other objects if there is no answer yet, and is called
// again when there is one. All questions about a node that were asked before a probe is written share its answer;
// questions that come later wait for the next barrier. So a node has at most one probe, a question waits for two
// barriers at most, and a barrier costs one write of the CiliumNode by the controller, which counts toward the rate
// limit of the writer, and one by the agent.
//
//	           Ask                Reconcile writes the probe          the agent answers           Ask
//	(nothing) ─────▶ waiting ────────────────────────────────▶ asked ─────────────────▶ answered ─────▶ (nothing)
//	                    ▲                                        │
//	                    └──── the CiliumNode was made again ◀────┘
//
// # What is remembered
//
// Questions and answers are in memory only. After a restart of the controller every caller asks again. A probe that an
// earlier process left is removed by its agent, or by the next probe.
//
// # What this package may not do
//
// It never concludes anything from time: an agent that does not answer is reported (event AgentNotAnswering, metric
// fixedip_agent_barriers_overdue), and its questions stay open until it answers or the node is gone. It does not decide
// what happens to an address; that is the caller's work, with Evidence.Judge.
package barrier
