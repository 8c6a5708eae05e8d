// Package packed keeps what is watched in few bytes. A cluster has far more pods and CiliumEndpoints than
// anything else, and a pod of which a dozen fields are set takes 1.3 KiB as a Go value, beside its
// strings; packed it takes a tenth of that. Who reads gets the object as it was, made anew each time,
// so that nobody's changes to it reach anybody else.
//
// NewInformer takes the place of client-go's for a cache of controller-runtime. It decides nothing
// about the objects, and leaves out nothing of them: that is for a transform.
package packed

import (
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// object is what an informer keeps of one object: what it asks for all the time, which is namespace, name and
// version, and after that all else. It is never changed.
type object struct{ data string }

// head reads the first part. rest is the second.
func (o *object) head() (namespace, name, resourceVersion string, rest reader) {
	r := reader{o.data}
	return r.string(), r.string(), r.string(), r
}

// codec packs the objects of one kind.
type codec struct {
	// kind is that of the objects, not of pointers to them.
	kind reflect.Type
}

func codecOf(example runtime.Object) codec { return codec{kind: reflect.TypeOf(example).Elem()} }

// pack refuses what is of another kind.
func (c codec) pack(obj any) (*object, error) {
	meta, ok := obj.(metav1.Object)
	v := reflect.ValueOf(obj)
	if !ok || v.Kind() != reflect.Pointer || v.Elem().Type() != c.kind {
		return nil, fmt.Errorf("a %T came where a %s is watched", obj, c.kind)
	}
	data := appendString(make([]byte, 0, 512), meta.GetNamespace(), true)
	data = appendString(data, meta.GetName(), false)
	data = appendString(data, meta.GetResourceVersion(), false)
	rest := reflect.New(c.kind)
	rest.Elem().Set(v.Elem())
	setHead(rest, "", "", "")
	data, err := appendValue(data, rest.Elem(), false)
	if err != nil {
		return nil, fmt.Errorf("pack %s %s/%s: %w", c.kind, meta.GetNamespace(), meta.GetName(), err)
	}
	return &object{string(data)}, nil
}

func setHead(v reflect.Value, namespace, name, resourceVersion string) {
	meta := v.Interface().(metav1.Object)
	meta.SetNamespace(namespace)
	meta.SetName(name)
	meta.SetResourceVersion(resourceVersion)
}

// unpack makes the object anew. What is not packed comes back as it is.
func (c codec) unpack(obj any) any {
	o, ok := obj.(*object)
	if !ok {
		return obj
	}
	v := reflect.New(c.kind)
	namespace, name, resourceVersion, rest := o.head()
	rest.value(v.Elem())
	setHead(v, namespace, name, resourceVersion)
	return v.Interface()
}

func (c codec) unpackAll(objs []any) []any {
	out := make([]any, len(objs))
	for i, obj := range objs {
		out[i] = c.unpack(obj)
	}
	return out
}

var (
	_ runtime.Object            = &object{}
	_ metav1.ObjectMetaAccessor = &object{}
)

// GetObjectMeta has what an informer asks for: the key and the version.
func (o *object) GetObjectMeta() metav1.Object {
	namespace, name, resourceVersion, _ := o.head()
	return &metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: resourceVersion}
}

// GetObjectKind is not kept: an informer has objects of one kind.
func (o *object) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject is the object itself, which is never changed.
func (o *object) DeepCopyObject() runtime.Object { return o }
