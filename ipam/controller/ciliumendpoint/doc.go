// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package ciliumendpoint repairs CiliumEndpoints: it removes invalid CiliumEndpoints, corrects their owner references, and
// reports pods without a CiliumEndpoint. It never creates a CiliumEndpoint, and changes only owner references and finalizers.
// It is disabled if Cilium creates no CiliumEndpoints (Enabled).
//
// The remedy for each issue follows from the code of the agent (pkg/endpointmanager, endpointsynchronizer.go), v1.15 to
// v1.19. An agent creates the CiliumEndpoint of an endpoint once, stores its UID, and from then on updates the CiliumEndpoint
// only when the content changes (Cilium fact 14).
//
//   - Stale: an agent that has not created a CiliumEndpoint for the current pod yet takes the stale one over. An agent that
//     has created one refuses the stale one because the UIDs differ; it retries, and creates its own when the stale one is
//     gone. Deleting the CiliumEndpoint helps in all versions. The deletion requires the version that was read, so that it
//     fails if an agent takes the CiliumEndpoint over at that moment.
//   - MisAddressed: the agent refuses a CiliumEndpoint that an earlier sandbox of the same pod left, or that was restored
//     after the pod had moved with its address to another node. Deleting it helps. If another client wrote wrong IPs into
//     the CiliumEndpoint, an agent before v1.18.6 does not create it again after the deletion. No CiliumEndpoint is better
//     than one that maps the security identity of the pod to another IP.
//   - MisOwned: the agent has taken the CiliumEndpoint over with the owner reference of the former pod (Cilium fact 21), and
//     the garbage collector would delete the CiliumEndpoint with that pod. Only the reference is corrected: agents never read
//     it, and agents before v1.18.6 would not create a deleted CiliumEndpoint again.
//   - Missing: agents from v1.18.6 on create the CiliumEndpoint again in 10-20 s. Earlier agents create it again only when
//     the status of the endpoint changes. The only change of a pod that has this effect is a change of an identity-relevant
//     label (Cilium fact 15). An agent would refuse a CiliumEndpoint that another client creates. So the pod has to be
//     restarted: package conformance evicts pods with a fixed IP after Keeper.Confirm. Every pod with a missing
//     CiliumEndpoint gets an event.
//   - Stuck: Cilium sets no finalizers. The keeper removes those of other clients after a grace period.
//   - Podless: agents, Cilium's operator and the garbage collector remove such CiliumEndpoints. Those that still exist after
//     a grace period are deleted.
package ciliumendpoint
