// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// kind is a kind of object that the API server of the model knows.
type kind struct {
	gvk      schema.GroupVersionKind
	resource schema.GroupVersionResource
	make     func() client.Object
	// generations is true if a write of the spec increments metadata.generation; status is true if the status is a
	// subresource.
	generations, status bool
}

var (
	pods         = &kind{gvk: corev1.SchemeGroupVersion.WithKind("Pod"), resource: corev1.SchemeGroupVersion.WithResource("pods"), make: func() client.Object { return &corev1.Pod{} }, status: true}
	nodes        = &kind{gvk: corev1.SchemeGroupVersion.WithKind("Node"), resource: corev1.SchemeGroupVersion.WithResource("nodes"), make: func() client.Object { return &corev1.Node{} }, status: true}
	statefulSets = &kind{gvk: appsv1.SchemeGroupVersion.WithKind("StatefulSet"), resource: appsv1.SchemeGroupVersion.WithResource("statefulsets"), make: func() client.Object { return &appsv1.StatefulSet{} }, generations: true, status: true}
	replicaSets  = &kind{gvk: appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), resource: appsv1.SchemeGroupVersion.WithResource("replicasets"), make: func() client.Object { return &appsv1.ReplicaSet{} }, generations: true, status: true}
	ciliumNodes  = &kind{gvk: ciliumv2.SchemeGroupVersion.WithKind("CiliumNode"), resource: ciliumv2.SchemeGroupVersion.WithResource("ciliumnodes"), make: func() client.Object { return &ciliumv2.CiliumNode{} }, generations: true, status: true}
	fixedIPs     = &kind{gvk: v1alpha1.GroupVersion.WithKind("FixedIP"), resource: v1alpha1.GroupVersion.WithResource("fixedips"), make: func() client.Object { return &v1alpha1.FixedIP{} }, generations: true, status: true}
	nodeSubnets  = &kind{gvk: v1alpha1.GroupVersion.WithKind("NodeSubnet"), resource: v1alpha1.GroupVersion.WithResource("nodesubnets"), make: func() client.Object { return &v1alpha1.NodeSubnet{} }, generations: true, status: true}
	claims       = &kind{gvk: corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"), resource: corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), make: func() client.Object { return &corev1.PersistentVolumeClaim{} }}
	volumes      = &kind{gvk: corev1.SchemeGroupVersion.WithKind("PersistentVolume"), resource: corev1.SchemeGroupVersion.WithResource("persistentvolumes"), make: func() client.Object { return &corev1.PersistentVolume{} }}

	kinds = []*kind{pods, nodes, statefulSets, replicaSets, ciliumNodes, fixedIPs, nodeSubnets, ciliumEndpoints, configMaps, claims, volumes}
)

func (k *kind) String() string { return k.gvk.Kind }

// group returns the resource of the kind, as errors name it.
func (k *kind) group() schema.GroupResource { return k.resource.GroupResource() }

// stored is one version of an object. It must not be changed.
type stored struct {
	obj  client.Object
	data []byte
}

// event is one write, as a watch delivers it.
type event struct {
	rev int64
	// before is nil if the write creates the object, and after is nil if the write deletes it. The before of a deletion has
	// the resource version of the deletion.
	before, after client.Object
}

func (e event) key() string { return keyOf(e.object()) }

func (e event) object() client.Object {
	if e.after != nil {
		return e.after
	}
	return e.before
}

func keyOf(o client.Object) string {
	if ns := o.GetNamespace(); ns != "" {
		return ns + "/" + o.GetName()
	}
	return o.GetName()
}

// server models etcd and the API server. The revisions of all kinds come from one counter.
type server struct {
	rev  int64
	uids int
	now  func() metav1.Time
	// objects are the current objects. Key: the kind, then namespace/name.
	objects map[*kind]map[string]stored
	// history contains the writes of each kind in order.
	history map[*kind][]event
	// serving is the request of the product that is being executed; nil while the model itself writes.
	serving *call
	// wrote is called after every write. by is the writer.
	wrote func(k *kind, e event, by string)
}

func newServer(now func() metav1.Time) *server {
	s := &server{now: now, objects: map[*kind]map[string]stored{}, history: map[*kind][]event{}}
	for _, k := range kinds {
		s.objects[k] = map[string]stored{}
	}
	return s
}

func (s *server) get(k *kind, key string) (stored, error) {
	o, ok := s.objects[k][key]
	if !ok {
		return stored{}, apierrors.NewNotFound(k.group(), key)
	}
	return o, nil
}

// list returns the objects of a kind, sorted by key.
func (s *server) list(k *kind) []stored {
	var all []stored
	for _, key := range slices.Sorted(maps.Keys(s.objects[k])) {
		all = append(all, s.objects[k][key])
	}
	return all
}

// at returns the objects of a kind after the first n writes of its history. Key: namespace/name.
func (s *server) at(k *kind, n int) map[string]client.Object {
	all := map[string]client.Object{}
	for _, e := range s.history[k][:n] {
		if e.after == nil {
			delete(all, e.key())
		} else {
			all[e.key()] = e.after
		}
	}
	return all
}

// all returns the objects of a kind with their type, sorted by key.
func all[T client.Object](s *server, k *kind) []T {
	var list []T
	for _, o := range s.list(k) {
		list = append(list, o.obj.(T))
	}
	return list
}

// one returns the object of a kind with a key; the zero T and false if there is none.
func one[T client.Object](s *server, k *kind, key string) (o T, ok bool) {
	found, ok := s.objects[k][key]
	if !ok {
		return o, false
	}
	return found.obj.(T), true
}

// store stores after as the current version of an object, or deletes the object if after is nil. It returns after.
func (s *server) store(k *kind, before, after client.Object, by string) client.Object {
	s.rev++
	e := event{rev: s.rev, before: before}
	if after != nil {
		after.SetResourceVersion(strconv.FormatInt(s.rev, 10))
		after.GetObjectKind().SetGroupVersionKind(k.gvk)
		e.after = after
		data, err := json.Marshal(after)
		must(err)
		s.objects[k][keyOf(after)] = stored{after, data}
	} else {
		gone := before.DeepCopyObject().(client.Object)
		gone.SetResourceVersion(strconv.FormatInt(s.rev, 10))
		e.before = gone
		delete(s.objects[k], keyOf(before))
	}
	s.history[k] = append(s.history[k], e)
	s.wrote(k, e, by)
	return after
}

// mustCreate creates an object that the server has to accept.
func (s *server) mustCreate(k *kind, obj client.Object, by string) {
	_, err := s.create(k, obj, by)
	must(err)
}

// must panics if err is not nil. Such an error is usually a bug of the model. The panic ends the test process, which prints
// the stack: rapid cannot recover it, because a run has goroutines of its own.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// create stores a new object, without its status if the status is a subresource.
func (s *server) create(k *kind, o client.Object, by string) (client.Object, error) {
	if _, exists := s.objects[k][keyOf(o)]; exists {
		return nil, apierrors.NewAlreadyExists(k.group(), o.GetName())
	}
	o = o.DeepCopyObject().(client.Object)
	s.uids++
	o.SetUID(types.UID(fmt.Sprintf("%s-%d", k.gvk.Kind, s.uids)))
	o.SetCreationTimestamp(s.now())
	o.SetDeletionTimestamp(nil)
	if k.generations {
		o.SetGeneration(1)
	}
	if k.status {
		setStatus(o, k.make())
	}
	if fip, ok := o.(*v1alpha1.FixedIP); ok {
		if err := validate(fip, nil); err != nil {
			return nil, err
		}
	}
	return s.store(k, nil, o, by), nil
}

// setStatus copies the status of from to o.
func setStatus(o, from client.Object) {
	switch o := o.(type) {
	case *corev1.Pod:
		o.Status = from.(*corev1.Pod).Status
	case *corev1.Node:
		o.Status = from.(*corev1.Node).Status
	case *appsv1.StatefulSet:
		o.Status = from.(*appsv1.StatefulSet).Status
	case *appsv1.ReplicaSet:
		o.Status = from.(*appsv1.ReplicaSet).Status
	case *ciliumv2.CiliumNode:
		o.Status = from.(*ciliumv2.CiliumNode).Status
	case *v1alpha1.FixedIP:
		o.Status = from.(*v1alpha1.FixedIP).Status
	case *v1alpha1.NodeSubnet:
		o.Status = from.(*v1alpha1.NodeSubnet).Status
	}
}

// sameSpec reports whether two versions of an object have the same spec. It returns true for kinds without a generation.
func sameSpec(a, b client.Object) bool {
	switch a := a.(type) {
	case *appsv1.StatefulSet:
		return equality.Semantic.DeepEqual(a.Spec, b.(*appsv1.StatefulSet).Spec)
	case *appsv1.ReplicaSet:
		return equality.Semantic.DeepEqual(a.Spec, b.(*appsv1.ReplicaSet).Spec)
	case *ciliumv2.CiliumNode:
		return equality.Semantic.DeepEqual(a.Spec, b.(*ciliumv2.CiliumNode).Spec)
	case *v1alpha1.FixedIP:
		return equality.Semantic.DeepEqual(a.Spec, b.(*v1alpha1.FixedIP).Spec)
	case *v1alpha1.NodeSubnet:
		return equality.Semantic.DeepEqual(a.Spec, b.(*v1alpha1.NodeSubnet).Spec)
	}
	return true
}

// validate applies the defaults of the CRD of FixedIPs, and its rules for changes of spec.ips and spec.podName. before
// is nil for a creation.
func validate(now, before *v1alpha1.FixedIP) error {
	if now.Spec.Reclaim.WhenDeleted == "" {
		now.Spec.Reclaim.WhenDeleted = v1alpha1.Delete
	}
	if now.Spec.Reclaim.WhenScaled == "" {
		now.Spec.Reclaim.WhenScaled = v1alpha1.Retain
	}
	var errs field.ErrorList
	if before != nil {
		for _, ip := range before.Spec.IPs {
			if !slices.Contains(now.Spec.IPs, ip) {
				errs = append(errs, field.Forbidden(field.NewPath("spec", "ips"), "an address is immutable once set"))
			}
		}
		if now.Spec.PodName != before.Spec.PodName && now.Spec.AssignedTo != v1alpha1.Slot {
			errs = append(errs, field.Forbidden(field.NewPath("spec", "podName"), "immutable, except for a slot"))
		}
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(fixedIPs.gvk.GroupKind(), now.Name, errs)
	}
	return nil
}

// update replaces an object or its status. If o has a resource version or a UID, they have to be the current ones.
func (s *server) update(k *kind, o client.Object, subresource, by string) (client.Object, error) {
	current, err := s.get(k, keyOf(o))
	if err != nil {
		return nil, err
	}
	if v := o.GetResourceVersion(); v != "" && v != current.obj.GetResourceVersion() || o.GetUID() != "" && o.GetUID() != current.obj.GetUID() {
		return nil, apierrors.NewConflict(k.group(), o.GetName(), fmt.Errorf("the object has been modified; please apply your changes to the latest version and try again"))
	}
	return s.replace(k, current, o.DeepCopyObject().(client.Object), subresource, by)
}

// replace stores next as the version after current, limited to the fields that the request may write. If next changes nothing,
// replace stores no version. If the object is being deleted, is not a pod, and has no finalizers in next, replace removes the
// object instead.
func (s *server) replace(k *kind, current stored, next client.Object, subresource, by string) (client.Object, error) {
	before := current.obj
	if subresource == "status" {
		whole := before.DeepCopyObject().(client.Object)
		setStatus(whole, next)
		next = whole
	} else if k.status {
		setStatus(next, before)
	}
	next.SetNamespace(before.GetNamespace())
	next.SetName(before.GetName())
	next.SetUID(before.GetUID())
	next.SetCreationTimestamp(before.GetCreationTimestamp())
	next.SetDeletionTimestamp(before.GetDeletionTimestamp())
	next.SetDeletionGracePeriodSeconds(before.GetDeletionGracePeriodSeconds())
	next.SetGeneration(before.GetGeneration())
	if one := next.GetManagedFields(); len(one) == 1 && one[0].Manager == "" {
		next.SetManagedFields(nil)
	}
	if k.generations && !sameSpec(before, next) {
		next.SetGeneration(before.GetGeneration() + 1)
	}
	if fip, ok := next.(*v1alpha1.FixedIP); ok {
		if err := validate(fip, before.(*v1alpha1.FixedIP)); err != nil {
			return nil, err
		}
	}
	next.SetResourceVersion(before.GetResourceVersion())
	next.GetObjectKind().SetGroupVersionKind(k.gvk)
	if data, err := json.Marshal(next); err != nil {
		return nil, err
	} else if bytes.Equal(data, current.data) {
		// A write that changes nothing makes no version.
		return before, nil
	}
	if next.GetDeletionTimestamp() != nil && len(next.GetFinalizers()) == 0 && k != pods {
		s.store(k, before, nil, by)
		return next, nil
	}
	return s.store(k, before, next, by), nil
}

// patch applies a patch completely or not at all.
func (s *server) patch(k *kind, key string, form types.PatchType, data []byte, subresource, by string) (client.Object, error) {
	current, err := s.get(k, key)
	if err != nil {
		return nil, err
	}
	var after []byte
	switch form {
	case types.JSONPatchType:
		ops, err := jsonpatch.DecodePatch(data)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		if after, err = ops.Apply(current.data); err != nil {
			// A test has failed, or a path does not exist. The API server reports no causes for that.
			return nil, &apierrors.StatusError{ErrStatus: metav1.Status{
				Status: metav1.StatusFailure, Code: 422, Reason: metav1.StatusReasonInvalid, Message: "the server rejected our request due to an error in our request: " + err.Error(),
			}}
		}
	case types.MergePatchType:
		if after, err = jsonpatch.MergePatch(current.data, data); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	case types.StrategicMergePatchType:
		if after, err = strategicpatch.StrategicMergePatch(current.data, data, k.make()); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	default:
		return nil, apierrors.NewBadRequest("unknown type of patch: " + string(form))
	}
	next := k.make()
	if err := json.Unmarshal(after, next); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if next.GetUID() != current.obj.GetUID() {
		return nil, apierrors.NewConflict(k.group(), key, fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", next.GetUID()))
	}
	if v := next.GetResourceVersion(); v != "" && v != current.obj.GetResourceVersion() {
		return nil, apierrors.NewConflict(k.group(), key, fmt.Errorf("the object has been modified; please apply your changes to the latest version and try again"))
	}
	return s.replace(k, current, next, subresource, by)
}

// remove deletes an object. If the object has finalizers, or if it is a bound pod that has not ended and force is false,
// remove only sets the deletion timestamp.
func (s *server) remove(k *kind, key string, pre *metav1.Preconditions, force bool, by string) error {
	current, err := s.get(k, key)
	if err != nil {
		return err
	}
	o := current.obj
	if pre != nil && (pre.UID != nil && *pre.UID != o.GetUID() || pre.ResourceVersion != nil && *pre.ResourceVersion != o.GetResourceVersion()) {
		return apierrors.NewConflict(k.group(), key, fmt.Errorf("the precondition of the deletion is not met"))
	}
	pod, isPod := o.(*corev1.Pod)
	graceful := isPod && !force && pod.Spec.NodeName != "" && !ended(pod)
	if !graceful && len(o.GetFinalizers()) == 0 {
		if isPod && pod.Spec.NodeName != "" {
			// The last version of a bound pod has the grace period 0.
			last := pod.DeepCopy()
			last.DeletionGracePeriodSeconds = ptr.To[int64](0)
			o = last
		}
		s.store(k, o, nil, by)
		return nil
	}
	if o.GetDeletionTimestamp() != nil {
		return nil
	}
	next := o.DeepCopyObject().(client.Object)
	now := s.now()
	next.SetDeletionTimestamp(&now)
	if k.generations {
		next.SetGeneration(o.GetGeneration() + 1)
	}
	s.store(k, o, next, by)
	return nil
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// bind assigns a pod to a node. It fails if the pod does not exist, has another UID, is being deleted, or is already assigned.
func (s *server) bind(key string, b *corev1.Binding, by string) error {
	current, err := s.get(pods, key)
	if err != nil {
		return err
	}
	before := current.obj.(*corev1.Pod)
	switch {
	case b.UID != "" && b.UID != before.UID:
		return apierrors.NewConflict(pods.group(), key, fmt.Errorf("precondition failed: UID in precondition: %v, UID in object meta: %v", b.UID, before.UID))
	case before.DeletionTimestamp != nil:
		return apierrors.NewConflict(pods.group(), key, fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", key))
	case before.Spec.NodeName != "":
		return apierrors.NewConflict(pods.group(), key, fmt.Errorf("pod %s is already assigned to node %q", key, before.Spec.NodeName))
	}
	next := before.DeepCopy()
	next.Spec.NodeName = b.Target.Name
	s.store(pods, before, next, by)
	return nil
}

// change reads and updates an object in one step, so that the update has no conflict. It reports whether the object was
// changed. If the object does not exist, change does nothing and returns false.
func change[T client.Object](s *server, k *kind, key, by string, f func(T)) bool {
	current, ok := s.objects[k][key]
	if !ok {
		return false
	}
	next := current.obj.DeepCopyObject().(T)
	f(next)
	next.SetResourceVersion(current.obj.GetResourceVersion())
	data, err := json.Marshal(next)
	must(err)
	if bytes.Equal(data, current.data) {
		return false
	}
	if k.generations && !sameSpec(current.obj, next) {
		next.SetGeneration(current.obj.GetGeneration() + 1)
	}
	s.store(k, current.obj, next, by)
	return true
}
