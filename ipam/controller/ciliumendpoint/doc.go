// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package ciliumendpoint repairs CiliumEndpoints: it removes invalid ones, corrects owner references, and reports pods that
// have none. It never creates a CiliumEndpoint, and of existing ones it changes only owner references and finalizers. It is
// disabled if Cilium creates no CiliumEndpoints (Enabled).
//
// The remedy for each issue follows from the code of the agent (pkg/endpointmanager, endpointsynchronizer.go), v1.15 to
// v1.19. An agent creates the CiliumEndpoint of an endpoint once, remembers its UID, and from then on writes to it only when
// its content changes (Cilium fact 14).
//
//   - Stale: an agent that has not created a CiliumEndpoint for the current pod yet takes the stale one over. An agent that
//     has created one refuses the stale one because the UIDs differ; it retries, and creates its own when the stale one is
//     gone. Deleting the CiliumEndpoint helps in all versions. The deletion requires the version that was read, so that a
//     CiliumEndpoint that is taken over at that moment stays.
//   - MisAddressed: the agent refuses a CiliumEndpoint that an earlier sandbox of the same pod left. Deleting it helps. If
//     another client wrote the wrong IPs instead, agents before v1.18.6 leave the pod without a CiliumEndpoint, which is better
//     than one that maps the security identity of the pod to another IP.
//   - MisOwned: the agent has taken the CiliumEndpoint over with the owner reference of the former pod (Cilium fact 21), and
//     the garbage collector deletes it with that pod. Only the reference is corrected: agents never read it, and agents
//     before v1.18.6 would not create the CiliumEndpoint again.
//   - Missing: agents from v1.18.6 on create the CiliumEndpoint again in 10-20 s. Earlier agents do so only when the status of
//     the endpoint changes; the only change of a pod that causes this is one of an identity-relevant label (Cilium fact 15).
//     An agent would refuse a CiliumEndpoint that another client creates. So the pod has to be restarted: package
//     conformance evicts pods with a fixed IP after Keeper.Confirm. Every such pod gets an event.
//   - Stuck: Cilium sets no finalizers, so they are removed after a grace period.
//   - Podless: agents, Cilium's operator and the garbage collector remove such CiliumEndpoints. Those that are left after
//     a grace period are deleted.
package ciliumendpoint
