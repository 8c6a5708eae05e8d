// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package packed

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// Record is a packed object.
type Record interface {
	// Key returns the key of the object: its namespace, a slash and its name. The key may refer to the memory of the record.
	Key() string
	// GetObjectMeta returns the namespace, the name and the resourceVersion. client-go reads them, so an implementation does
	// not decode the whole object.
	metav1.ObjectMetaAccessor
	// Unpack returns an object of the API type, which the caller may change.
	Unpack() client.Object
}

// podRecord is a pod: the header, and the pod without the fields of the header in the encoding of protocol buffers, with the
// short forms of its UIDs.
type podRecord string

// endpointRecord is a CiliumEndpoint, for which there is no encoding in protocol buffers: the header, the metadata as packMeta
// encodes it, as a text of a Writer, and status.networking as JSON. Other fields are dropped.
type endpointRecord string

// pack returns the record of a pod, a CiliumEndpoint or a FixedIP. It returns any other object unchanged, such as a record or a
// DeletedFinalStateUnknown.
func pack(obj any) (any, error) {
	switch o := obj.(type) {
	case *corev1.Pod:
		short := *o
		short.ObjectMeta = withoutHeader(o.ObjectMeta)
		data, err := short.Marshal()
		if err != nil {
			return nil, fmt.Errorf("pack pod %s/%s: %w", o.Namespace, o.Name, err)
		}
		return podRecord(append(header(o.ObjectMeta), data...)), nil
	case *ciliumv2.CiliumEndpoint:
		r, err := packEndpoint(o)
		if err != nil {
			return nil, fmt.Errorf("pack CiliumEndpoint %s/%s: %w", o.Namespace, o.Name, err)
		}
		return r, nil
	case *v1alpha1.FixedIP:
		r, err := packFixedIP(o)
		if err != nil {
			return nil, fmt.Errorf("pack FixedIP %s/%s: %w", o.Namespace, o.Name, err)
		}
		return r, nil
	}
	return obj, nil
}

func packEndpoint(e *ciliumv2.CiliumEndpoint) (endpointRecord, error) {
	meta, err := packMeta(e.ObjectMeta)
	if err != nil {
		return "", err
	}
	networking, err := json.Marshal(e.Status.Networking)
	if err != nil {
		return "", err
	}
	w := header(e.ObjectMeta)
	w.Text(string(meta))
	return endpointRecord(append(w, networking...)), nil
}

// unpack returns the object of a record, also of a record in a DeletedFinalStateUnknown. It returns any other object
// unchanged. Every record was encoded in this process, so an error of the decoder would be a bug. In that case Unpack panics:
// if the object were left out, the controller could release its addresses.
func unpack(obj any) any {
	switch o := obj.(type) {
	case Record:
		return o.Unpack()
	case cache.DeletedFinalStateUnknown:
		return cache.DeletedFinalStateUnknown{Key: o.Key, Obj: unpack(o.Obj)}
	}
	return obj
}

func (r podRecord) Unpack() client.Object {
	var pod corev1.Pod
	in := Reader(r)
	h := in.header()
	utilruntime.Must(pod.Unmarshal([]byte(in)))
	complete(&pod.ObjectMeta, h)
	return &pod
}

func (r podRecord) GetObjectMeta() metav1.Object { return readHeader(string(r)) }

// Key implements Record.
func (r podRecord) Key() string { return keyIn(string(r)) }

func (r endpointRecord) Unpack() client.Object {
	in := Reader(r)
	h := in.header()
	e := &ciliumv2.CiliumEndpoint{ObjectMeta: unpackMeta(h, in.Text())}
	utilruntime.Must(json.Unmarshal([]byte(in), &e.Status.Networking))
	return e
}

func (r endpointRecord) GetObjectMeta() metav1.Object { return readHeader(string(r)) }

// Key implements Record.
func (r endpointRecord) Key() string { return keyIn(string(r)) }

// header returns the beginning of a record of a namespaced object: the key and the resourceVersion.
func header(m metav1.ObjectMeta) (w Writer) {
	w.Text(cache.NewObjectName(m.Namespace, m.Name).String())
	w.Text(m.ResourceVersion)
	return w
}

// header reads the header at the beginning of a record.
func (r *Reader) header() (m metav1.ObjectMeta) {
	m.Namespace, m.Name, _ = strings.Cut(r.Text(), "/")
	m.ResourceVersion = r.Text()
	return m
}

// keyIn returns the key in the header of a record.
func keyIn(record string) string {
	in := Reader(record)
	return in.Text()
}

// readHeader returns the header of a record, and nothing else.
func readHeader(record string) metav1.Object {
	in := Reader(record)
	m := in.header()
	return &m
}

// withoutHeader returns the metadata without the fields of the header, and with the short forms of the UIDs. It does not change m.
func withoutHeader(m metav1.ObjectMeta) metav1.ObjectMeta {
	m = shortUIDs(m)
	m.Namespace, m.Name, m.ResourceVersion = "", "", ""
	return m
}

// complete is the inverse of withoutHeader.
func complete(m *metav1.ObjectMeta, header metav1.ObjectMeta) {
	m.Namespace, m.Name, m.ResourceVersion = header.Namespace, header.Name, header.ResourceVersion
	convertUIDs(m, longUID)
}

// packMeta returns the metadata without the header in the encoding of protocol buffers, with the short forms of its UIDs.
func packMeta(m metav1.ObjectMeta) ([]byte, error) {
	short := withoutHeader(m)
	return short.Marshal()
}

// unpackMeta decodes metadata that packMeta has encoded.
func unpackMeta(header metav1.ObjectMeta, data string) metav1.ObjectMeta {
	var m metav1.ObjectMeta
	utilruntime.Must(m.Unmarshal([]byte(data)))
	complete(&m, header)
	return m
}

// shortMark is the first byte of the short form of a UID. No text in UTF-8 contains it.
const shortMark = 0xff

// shortUIDs returns the metadata with the short forms of the UIDs. It does not change m.
func shortUIDs(m metav1.ObjectMeta) metav1.ObjectMeta {
	m.OwnerReferences = slices.Clone(m.OwnerReferences)
	convertUIDs(&m, shortUID)
	return m
}

// convertUIDs applies convert to the UIDs of an object and of its owners.
func convertUIDs(m *metav1.ObjectMeta, convert func(types.UID) types.UID) {
	m.UID = convert(m.UID)
	for i := range m.OwnerReferences {
		m.OwnerReferences[i].UID = convert(m.OwnerReferences[i].UID)
	}
}

// shortUID returns the short form of a UID, with 17 instead of 36 bytes: shortMark and the bytes of the UUID. If the UID is
// not a UUID in the form that the API server uses, shortUID returns the UID unchanged.
func shortUID(uid types.UID) types.UID {
	id, err := uuid.Parse(string(uid))
	if err != nil || id.String() != string(uid) {
		return uid
	}
	return types.UID(append([]byte{shortMark}, id[:]...))
}

// longUID is the inverse of shortUID.
func longUID(short types.UID) types.UID {
	if len(short) == 0 || short[0] != shortMark {
		return short
	}
	var id uuid.UUID
	copy(id[:], short[1:])
	return types.UID(id.String())
}
