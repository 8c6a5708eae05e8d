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
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// object is what an informer keeps of one object. It is never changed.
type object struct {
	// data is all of it.
	data string
	// What an informer asks for all the time is cut from data, or shared.
	namespace, name, resourceVersion string
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
	data, err := appendValue(make([]byte, 0, 512), v.Elem(), false)
	if err != nil {
		return nil, fmt.Errorf("pack %s %s/%s: %w", c.kind, meta.GetNamespace(), meta.GetName(), err)
	}
	o := &object{data: string(data), resourceVersion: meta.GetResourceVersion()}
	o.namespace = words.word(words.number(meta.GetNamespace()))
	o.name = meta.GetName()
	if i := strings.Index(o.data, o.name); i >= 0 {
		o.name = o.data[i : i+len(o.name)]
	}
	return o, nil
}

// unpack makes the object anew. What is not packed comes back as it is.
func (c codec) unpack(obj any) any {
	o, ok := obj.(*object)
	if !ok {
		return obj
	}
	v := reflect.New(c.kind)
	(&reader{o.data}).value(v.Elem())
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
	return &metav1.ObjectMeta{Namespace: o.namespace, Name: o.name, ResourceVersion: o.resourceVersion}
}

// GetObjectKind is not kept: an informer has objects of one kind.
func (o *object) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject is the object itself, which is never changed.
func (o *object) DeepCopyObject() runtime.Object { return o }
