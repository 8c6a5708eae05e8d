// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package agentview decides what the controller knows of a Cilium agent: whether the agent has seen a pool entry, and
// which addresses of its node are in use. It asks the agent instead of waiting for a time after which the agent should
// have reported.
//
// # The agent barrier
//
// An agent writes status.ipam.used as part of an update of the CiliumNode version that it has processed, with
// optimistic locking, and builds the map from its allocators just before the write (Cilium fact 24). So the first
// report that the API server accepts after a version V proves two things: the agent has processed V, and the map lists
// every address that was allocated before. An address whose entry in V is not offered to other pods, and that the
// report does not list, will not be given to another pod.
//
// Two things are missing to use that. An agent that has nothing new to say does not report, and a report that changes
// nothing is not visible. A probe provides both. It is an address that no cluster uses (pool.Probe), with a new nonce
// for each question, that the controller writes into the status in one patch:
//
//	status.ipam.release-ips[probe] = released   the agent has to remove the key, and reports for that
//	status.ipam.used[probe]                     the report does not have it
//
// The agent has answered if, read from the API server after the patch, used does not list the probe any more. The agent
// removes both keys: a barrier costs one write by the controller and one by the agent.
//
// # The protocol
//
//  1. The caller writes what the agent has to know, for example an entry that offers an address to no other pod.
//  2. The caller asks. One barrier serves every question that was asked before its probe was written.
//  3. Ask writes the probe. The patch returns the version V. If the CiliumNode lists a probe already, of another controller
//     or of one that was killed, the question joins it, and V is the version that was read: see Join.
//  4. Each time the watch shows a change, the CiliumNode is read from the API server, and Barrier.Answer judges it. A
//     cached version would not do: one from before the patch does not list the probe either.
//  5. Evidence.Judge says for one address whether it is Clear, InUse or Unknown.
//
// An answer of an agent that is starting may lack addresses: it answers before it has restored its endpoints. It
// allocates the address of the router after the last endpoint, in all versions, so an answer without an address of the
// node itself is Incomplete, and a later report completes it. Nothing has to be asked again: an agent that restarts, a
// conflict with another write, or a change of labels delays an answer and does not lose it. An agent that is stopped or
// cut off does not answer, and no time makes up for that. An agent without a pool passes over the probe; its next report
// for another reason, for example a pod that ended, is the answer.
//
// # What this package may not do
//
// It has no client and no clock. It does not know how CiliumNodes are spelled (see ipam/store/ciliumpool), and it does
// not decide what happens to an address.
package agentview
