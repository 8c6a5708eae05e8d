// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package packed provides informers that store objects in a packed form. NewInformer packs pods, CiliumEndpoints and
// FixedIPs. NewInformerWith packs objects with a function of its caller.
//
// An empty corev1.Pod takes more than a kilobyte of memory, and the cache needs few of its fields. A large cluster has
// 150,000 pods, as many CiliumEndpoints and 50,000 FixedIPs. The informer therefore encodes each object when it receives it.
// It decodes the object for each reader, which may change it, and once for all event handlers, which must not change it.
//
// An informer uses the reflector and the queue of client-go, which list and watch. The parts of client-go's informers that need
// more memory than the packed objects are replaced (ADR 0061): delivery calls the event handlers, queue stores the first
// list, and store has the objects and the indexes.
//
// An index by field supports only lists over all namespaces, whatever the kind of the objects. controller-runtime would also
// store each value once more for its namespace, and most of these values have one object. Packed objects are not indexed by
// namespace: a list of one namespace looks at the keys of all objects.
//
// Before an object is packed, the transform of the cache removes the fields that are not needed. Of a CiliumEndpoint only
// the metadata and status.networking can be packed.
package packed
