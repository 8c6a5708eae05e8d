// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package agentview derives two facts from the reports of a Cilium agent: whether the agent has processed a change of the
// pool, and which addresses of its node are in use. The controller asks the agent for a report instead of waiting for a time
// after which the agent should have reported.
//
// # The agent barrier
//
// An agent writes status.ipam.used as part of an update of the CiliumNode version that it has processed, with optimistic
// locking, and builds the map from its allocators just before the write (Cilium fact 24). So the first report that the API
// server accepts after a version V proves two things: the agent has processed V, and the map contains every address that was
// allocated on the basis of an earlier version and has not been freed. If the report does not contain an address as used, and
// the entry of the address in V is not dynamic, the agent gives the address to no pod but the owner of that entry.
//
// Two problems remain: an agent without changes does not report, and a report that changes nothing is not visible. A probe
// solves both. It is an address that no cluster uses (pool.Probe), with a new nonce for each barrier. The controller writes
// the probe into the status in one patch:
//
//	status.ipam.release-ips[probe] = released   makes the agent report, because it has to remove the key
//	status.ipam.used[probe]                     is not in the report of the agent, so that the report is visible
//
// The agent has answered if the probe is missing from used in a version of the CiliumNode that was read from the API server
// after the patch. The report removes both keys, so that a barrier costs one write by the controller and one by the agent.
//
// # The protocol
//
//  1. The caller writes the change that the agent has to acknowledge, for example an entry that offers an address to no
//     other pod.
//  2. The caller makes a barrier request. Before the controller writes or joins a probe, it reads the CiliumNode. The barrier
//     serves every request that was made before that read; later requests wait for the next barrier.
//  3. The controller (ipam/controller/barrier) writes the probe, and the patch returns the version V. If the status has a
//     probe already, of another controller or of a controller that was killed, the barrier joins that probe, and V is the
//     version that was read: see Join.
//  4. Each time the watch shows a change, the controller reads the CiliumNode from the API server, and Barrier.Answer judges
//     it. A cached version does not suffice: a version from before the patch does not contain the probe either.
//  5. Evidence.Judge returns whether one address is Clear, InUse or Unknown.
//
// An agent that is starting may answer before it has restored its endpoints, so that its answer lacks addresses. Such an
// agent allocates the addresses of the node itself after it has restored the last endpoint. An answer without an address of
// the node itself is therefore Incomplete, and a later report completes it. No request has to be repeated: if the agent
// restarts, a write conflicts or labels change, the answer is delayed and not lost. An agent that is stopped or disconnected
// does not answer, and waiting longer proves nothing. While the CiliumNode has no pool, the agent ignores the probe; its next
// report for another reason, for example because a pod ended, is the answer.
//
// # What this package may not do
//
// It has no client and no clock. It does not read CiliumNodes (see ipam/store/ciliumpool), and it does not decide what
// happens to an address.
package agentview
