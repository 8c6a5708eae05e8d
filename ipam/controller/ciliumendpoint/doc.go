// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package ciliumendpoint keeps CiliumEndpoints right: it removes those that can't be right, corrects the owner reference
// of others, and knows which pods have none. It owns no field of them and makes none. It stands down if CiliumEndpoints
// are disabled (Enabled).
//
// What helps against which issue was read from the agent (pkg/endpointmanager, endpointsynchronizer.go), v1.15 to v1.19.
// An agent makes the CiliumEndpoint of an endpoint once, remembers its UID, and from then on writes to it only when its
// content changes (Cilium fact 14).
//
//   - Stale: the agent of the pod that runs adopts such a CiliumEndpoint if it has made none yet, and refuses it for ever
//     if it has (the UIDs differ). It then tries again and again, and makes its own as soon as there is none: deleting
//     helps, in all versions. The deletion names the version that was read, so that one that is adopted just then stays.
//   - MisAddressed: the same refusal, of one that a former sandbox of the same pod made. Deleting helps; if the agent did
//     not refuse and another client wrote, agents up to v1.18 leave the pod without one, which is better than with one
//     that gives its identity to another IP.
//   - MisOwned: adopted together with the owner reference of the former pod (Cilium fact 21), for which the garbage
//     collector deletes it. Only the reference is changed: agents never read it, and agents up to v1.18 would not make the
//     CiliumEndpoint again.
//   - Missing: agents from v1.19 on make it again in 10-20 s. Earlier agents do so only when the status of the endpoint
//     changes, and nothing that may be written to a pod changes that but labels that count for its identity (Cilium
//     fact 15). One made in the agent's place would be refused by it. What is left is to start the pod again: package
//     conformance does so for pods with a fixed IP, after Keeper.Confirm; there is an event about every pod.
//   - Stuck: Cilium sets no finalizers; after a time they are removed.
//   - Podless: agents, Cilium's operator and the garbage collector all remove them. What remains is removed.
package ciliumendpoint
