// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/explain"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/scheme"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/fixedips"
	"fixedip.io/fixedip/ipam/store/workloads"
)

// cluster reads the objects that the commands show.
type cluster struct {
	api client.Reader
	// namespace is the namespace to read; empty for all.
	namespace string
}

func connect(flags *genericclioptions.ConfigFlags) (*cluster, error) {
	cfg, err := flags.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	namespace, _, err := flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, err
	}
	kinds, err := scheme.New()
	if err != nil {
		return nil, err
	}
	api, err := client.New(cfg, client.Options{Scheme: kinds})
	if err != nil {
		return nil, err
	}
	return &cluster{api: api, namespace: namespace}, nil
}

// pools reads the pools of all nodes, and all FixedIPs with what they reserve.
func (c *cluster) pools(ctx context.Context) (*ledger.Ledger, []v1alpha1.FixedIP, error) {
	var nodes ciliumv2.CiliumNodeList
	if err := c.api.List(ctx, &nodes); err != nil {
		return nil, nil, fmt.Errorf("list CiliumNodes: %w", err)
	}
	l := ledger.New()
	for i := range nodes.Items {
		l.SetNode(ciliumpool.FromCiliumNode(&nodes.Items[i]))
	}
	var records v1alpha1.FixedIPList
	if err := c.api.List(ctx, &records); err != nil {
		return nil, nil, fmt.Errorf("list FixedIPs: %w", err)
	}
	for i := range records.Items {
		l.SetRecord(fixedips.ReservationOf(&records.Items[i]))
	}
	return l, records.Items, nil
}

// coreNodes reads all Nodes. Key: the name.
func (c *cluster) coreNodes(ctx context.Context) (map[string]*corev1.Node, error) {
	var nodes corev1.NodeList
	if err := c.api.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	byName := map[string]*corev1.Node{}
	for i := range nodes.Items {
		byName[nodes.Items[i].Name] = &nodes.Items[i]
	}
	return byName, nil
}

// listRow is one identity with a fixed address.
type listRow struct {
	namespace, pod string
	addresses      []string
	node           string
	// phase is the phase of the FixedIP, or Claimed if there is no FixedIP yet.
	phase, podState string
	created         metav1.Time
}

func (c *cluster) list(ctx context.Context) ([]listRow, error) {
	l, records, err := c.pools(ctx)
	if err != nil {
		return nil, err
	}
	var pods corev1.PodList
	if err := c.api.List(ctx, &pods, client.InNamespace(c.namespace)); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	return listRows(records, pods.Items, l, c.namespace), nil
}

// listRows merges FixedIPs with claims that have no FixedIP. An empty namespace means all.
func listRows(records []v1alpha1.FixedIP, pods []corev1.Pod, l *ledger.Ledger, namespace string) []listRow {
	states := map[string]string{}
	for _, p := range pods {
		state := string(p.Status.Phase)
		if p.DeletionTimestamp != nil {
			state = "Terminating"
		}
		states[pool.OwnerKey(p.Namespace, p.Name)] = state
	}
	var rows []listRow
	recorded := map[string]bool{}
	for _, r := range records {
		if namespace != "" && r.Namespace != namespace {
			continue
		}
		key := pool.OwnerKey(r.Namespace, r.Spec.PodName)
		recorded[key] = true
		rows = append(rows, listRow{
			namespace: r.Namespace, pod: r.Spec.PodName, addresses: r.Spec.IPs, node: r.Spec.NodeName,
			phase: string(r.Status.Phase), podState: states[key], created: r.CreationTimestamp,
		})
	}
	for _, owner := range l.Owners() {
		ns, name, _ := pool.SplitOwnerKey(owner)
		if recorded[owner] || namespace != "" && ns != namespace {
			continue
		}
		for _, h := range l.Held(owner) {
			rows = append(rows, listRow{namespace: ns, pod: name, addresses: address.Strings(h.Addrs), node: h.Node, phase: "Claimed", podState: states[owner]})
		}
	}
	slices.SortStableFunc(rows, func(a, b listRow) int {
		return strings.Compare(a.namespace+"/"+a.pod, b.namespace+"/"+b.pod)
	})
	return rows
}

// inputs reads all objects that concern one pod. Optional objects that the user may not read are left out.
func (c *cluster) inputs(ctx context.Context, name, controllers string) (explain.Inputs, error) {
	in := explain.Inputs{Namespace: c.namespace, Name: name, Now: time.Now()}
	var records []v1alpha1.FixedIP
	var err error
	if in.Pools, records, err = c.pools(ctx); err != nil {
		return in, err
	}
	if in.Nodes, err = c.coreNodes(ctx); err != nil {
		return in, err
	}
	pod := &corev1.Pod{}
	if exists, err := c.get(ctx, c.namespace, name, pod); err != nil {
		return in, err
	} else if exists {
		in.Pod = pod
	}
	// The FixedIP of a slot does not have the name of the pod.
	ofPod := func(r v1alpha1.FixedIP) bool { return r.Namespace == c.namespace && r.Spec.PodName == name }
	if i := slices.IndexFunc(records, ofPod); i >= 0 {
		in.Record = &records[i]
		in.Workload, in.Unread = c.workload(ctx, in.Record.Spec.Owner)
	}
	endpoint := &ciliumv2.CiliumEndpoint{}
	if exists, err := c.get(ctx, c.namespace, name, endpoint); err == nil && exists {
		in.Endpoint = &endpoint.ObjectMeta
	}
	namespace, name, _ := strings.Cut(controllers, "/")
	lease := &coordinationv1.Lease{}
	if exists, err := c.get(ctx, namespace, name, lease); err == nil && exists {
		in.Lease = lease
	}
	return in, nil
}

// workload reads a workload of any kind; nil if it does not exist. unread is the reason if that is unknown, such
// as missing rights.
func (c *cluster) workload(ctx context.Context, of v1alpha1.OwnerReference) (w *identity.Workload, unread string) {
	obj := &unstructured.Unstructured{}
	obj.SetAPIVersion(of.APIVersion)
	obj.SetKind(of.Kind)
	exists, err := c.get(ctx, c.namespace, of.Name, obj)
	switch {
	case err != nil:
		return nil, err.Error()
	case !exists:
		return nil, ""
	}
	return workloads.Decode(obj), ""
}

// get reads an object and reports whether it exists.
func (c *cluster) get(ctx context.Context, namespace, name string, obj client.Object) (bool, error) {
	err := c.api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, obj)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %s/%s: %w", namespace, name, err)
	}
	return true, nil
}

// nodeRow describes one node in one family.
type nodeRow struct {
	node, state, family, subnets string
	free, used, fixed, cooldown  int
	room                         int64
}

func (c *cluster) nodes(ctx context.Context) ([]nodeRow, error) {
	l, _, err := c.pools(ctx)
	if err != nil {
		return nil, err
	}
	nodes, err := c.coreNodes(ctx)
	if err != nil {
		return nil, err
	}
	return nodeRows(l, nodes), nil
}

func nodeRows(l *ledger.Ledger, nodes map[string]*corev1.Node) []nodeRow {
	var rows []nodeRow
	for _, n := range l.Nodes() {
		state := explain.NodeState(nodes[n.Name])
		if other, ok := l.OverlapsWith(n.Name); ok {
			state += ", subnet overlaps that of " + other
		}
		if len(n.Subnets) == 0 {
			rows = append(rows, nodeRow{node: n.Name, state: state + ", no subnet"})
		}
		for _, f := range address.Families {
			if !n.HasFamily(f) {
				continue
			}
			row := nodeRow{node: n.Name, state: state, family: f.String(), room: l.Available(n.Name, f)}
			var subnets []string
			for _, s := range n.Subnets {
				if address.Of(s.Addr()) == f {
					subnets = append(subnets, s.String())
				}
			}
			row.subnets = strings.Join(subnets, ",")
			for a, e := range n.Entries {
				switch {
				case address.Of(a) != f:
				case e.Kind == pool.Cooldown:
					row.cooldown++
				case e.Kind == pool.Owned:
					row.fixed++
				case e.Kind == pool.Dynamic && n.InUse(a):
					row.used++
				case e.Kind == pool.Dynamic:
					row.free++
				}
			}
			rows = append(rows, row)
		}
	}
	return rows
}
