// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package packed has an informer that stores pods and CiliumEndpoints in a packed form.
//
// An empty corev1.Pod takes more than a kilobyte of memory, and the cache needs few of its fields. A large cluster
// has 150,000 pods and as many CiliumEndpoints. The informer therefore encodes each object when it receives it, and
// decodes it for each reader and each event handler. Readers and event handlers get objects of the API type, and may
// change them.
//
// The indexes by field, of all kinds, find objects only over all namespaces. controller-runtime would also keep the values for
// each namespace, most of which have one object: a set for one object needs more memory than a packed pod.
//
// The transform of the cache decides which fields are kept, before an object is packed. Of a CiliumEndpoint only the metadata
// and status.networking can be packed.
package packed
