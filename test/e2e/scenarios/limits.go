// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Scenarios in which a quota or a volume limits whether or where a pod can run.

const fixedIPCount corev1.ResourceName = "count/fixedips.fixedip.io"

func quotaReached(ctx context.Context, s *scene) error {
	quota := &corev1.ResourceQuota{ObjectMeta: s.meta("addresses"), Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{fixedIPCount: resource.MustParse("2")}}}
	if err := s.create(ctx, quota); err != nil {
		return err
	}
	before, err := s.placed(ctx, workload{name: "web", replicas: 2})
	if err != nil {
		return err
	}
	err = eventually(ctx, func() error {
		if err := s.api.Get(ctx, client.ObjectKeyFromObject(quota), quota); err != nil {
			return err
		}
		if used := quota.Status.Used[fixedIPCount]; used.Value() != 2 {
			return fmt.Errorf("the quota counts %s FixedIPs, want 2", used.String())
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := s.scale(ctx, "web", 3); err != nil {
		return err
	}
	message, err := s.waiting(ctx, "web-2")
	if err != nil {
		return err
	}
	if want := "ResourceQuota addresses of namespace " + s.namespace + " is used up"; !strings.Contains(message, want) {
		return fmt.Errorf("pod web-2: the condition PodScheduled has the message %q, want it to contain %q", message, want)
	}
	if entries := s.witness.Entries(s.namespace, "web-2"); len(entries) > 0 {
		return fmt.Errorf("the pools have the entries %v for pod web-2, want none while the pod waits for the quota", entries)
	}
	// A pod that has a FixedIP is not affected by the quota.
	if err := s.deletePods(ctx, false, "web-0"); err != nil {
		return err
	}
	if _, err := s.awaitReplaced(ctx, before, "web-0"); err != nil {
		return err
	}
	if err := change(ctx, s, quota, func(q *corev1.ResourceQuota) { q.Spec.Hard[fixedIPCount] = resource.MustParse("3") }); err != nil {
		return err
	}
	_, err = s.awaitSet(ctx, "web", 3)
	return err
}

// volume gives a pod a local volume on the third node. The template of the pod also allows another node, on which the volume
// cannot be used.
func volume(ctx context.Context, s *scene) (err error) {
	path := "/var/lib/volume-" + s.namespace
	if _, err := s.cluster.Node(victimNode).Run(ctx, "mkdir", "-p", path); err != nil {
		return err
	}
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)}
	onNode := corev1.NodeSelectorRequirement{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{victimNode}}
	disk := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		StorageClassName: class.Name, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}},
		NodeAffinity:           &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{onNode}}}}},
	}}
	for _, o := range []client.Object{class, disk} {
		if err := s.create(ctx, o); err != nil {
			return err
		}
		// The objects are in no namespace, so close would leave them behind.
		defer func() {
			if failed := client.IgnoreNotFound(s.api.Delete(context.WithoutCancel(ctx), o)); failed != nil {
				err = errors.Join(err, fmt.Errorf("delete %T %s: %w", o, o.GetName(), failed))
			}
		}()
	}
	set := s.statefulSet(workload{name: "web", replicas: 1, nodes: []string{victimNode, otherNode}})
	set.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: disk.Spec.AccessModes, StorageClassName: &class.Name, Resources: corev1.VolumeResourceRequirements{Requests: disk.Spec.Capacity},
	}}}
	set.Spec.Template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	if err := s.create(ctx, set); err != nil {
		return err
	}
	before, err := s.awaitSet(ctx, "web", 1)
	if err != nil {
		return err
	}
	if before["web-0"].node != victimNode {
		return fmt.Errorf("pod web-0 is on node %s, want %s, the node of its volume", before["web-0"].node, victimNode)
	}
	if err := s.deletePods(ctx, false, "web-0"); err != nil {
		return err
	}
	if _, err := s.awaitReplaced(ctx, before, "web-0"); err != nil {
		return err
	}
	// Cordon the node of the address and the volume.
	if err := s.cordon(ctx, victimNode); err != nil {
		return err
	}
	if err := s.evict(ctx, "web-0"); err != nil {
		return err
	}
	message, err := s.waiting(ctx, "web-0")
	if err != nil {
		return err
	}
	if want := "to node " + victimNode + ", which is cordoned"; !strings.Contains(message, want) {
		return fmt.Errorf("pod web-0: the condition PodScheduled has the message %q, want it to contain %q", message, want)
	}
	if err := s.uncordon(ctx, victimNode); err != nil {
		return err
	}
	_, err = s.awaitReplaced(ctx, before, "web-0")
	return err
}
