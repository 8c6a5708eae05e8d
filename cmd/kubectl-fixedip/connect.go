// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/scheme"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/fixedips"
)

// cluster is a connection to the API server. Its methods read the objects that the commands show, and make the changes of
// the commands.
type cluster struct {
	api client.Client
	// namespace is the namespace that the commands show; empty: all namespaces.
	namespace string
	// logs reads the last lines of the log of a container; if previous is true, those of its previous run.
	logs func(ctx context.Context, pod *corev1.Pod, container string, previous bool) ([]byte, error)
	// serverVersion returns the version of the API server.
	serverVersion func() (string, error)
	// dry is true if writes change nothing.
	dry bool
}

// connected returns a function for cobra that runs a command with a connection to the cluster.
func connected(flags *genericclioptions.ConfigFlags, run func(ctx context.Context, c *cluster, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := connect(flags)
		if err != nil {
			return err
		}
		return run(cmd.Context(), c, args)
	}
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
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	serverVersion := func() (string, error) {
		v, err := kube.Discovery().ServerVersion()
		if err != nil {
			return "", err
		}
		return v.GitVersion, nil
	}
	return &cluster{api: api, namespace: namespace, logs: readLogs(kube), serverVersion: serverVersion}, nil
}

// pools returns a ledger with the pools of all nodes and the reservations of all FixedIPs, and the FixedIPs.
func (c *cluster) pools(ctx context.Context) (*ledger.Ledger, []v1alpha1.FixedIP, error) {
	l, err := c.nodePools(ctx)
	if err != nil {
		return nil, nil, err
	}
	var records v1alpha1.FixedIPList
	if err := c.api.List(ctx, &records); err != nil {
		return nil, nil, listError("FixedIPs", err)
	}
	for i := range records.Items {
		l.SetReservation(fixedips.ReservationOf(&records.Items[i]))
	}
	return l, records.Items, nil
}

// nodePools returns a ledger with the pools of all nodes and without reservations.
func (c *cluster) nodePools(ctx context.Context) (*ledger.Ledger, error) {
	var nodes ciliumv2.CiliumNodeList
	if err := c.api.List(ctx, &nodes); err != nil {
		return nil, listError("CiliumNodes", err)
	}
	l := ledger.New()
	for i := range nodes.Items {
		l.SetNode(ciliumpool.FromCiliumNode(&nodes.Items[i]))
	}
	return l, nil
}

// listError adds the plural name of the listed objects to err, the error of a list request. If the API server does not
// serve the kind, the error says what has to be installed.
func listError(objects string, err error) error {
	var missing string
	switch objects {
	case "CiliumNodes", "CiliumEndpoints":
		missing = "Cilium"
	case "FixedIPs", "NodeSubnets":
		missing = "the CRDs of fixedip"
	}
	if missing != "" && notServed(err) {
		return fmt.Errorf("list %s: the API server does not serve this kind; install %s: %w", objects, missing, err)
	}
	return fmt.Errorf("list %s: %w", objects, err)
}

// nodes returns all Nodes. Key: the name of the node.
func (c *cluster) nodes(ctx context.Context) (map[string]*corev1.Node, error) {
	var nodes corev1.NodeList
	if err := c.api.List(ctx, &nodes); err != nil {
		return nil, listError("nodes", err)
	}
	byName := map[string]*corev1.Node{}
	for i := range nodes.Items {
		byName[nodes.Items[i].Name] = &nodes.Items[i]
	}
	return byName, nil
}

// get reads an object into obj and returns obj; nil if the object does not exist.
func get[P client.Object](ctx context.Context, c *cluster, namespace, name string, obj P) (found P, err error) {
	kind := kindOf(obj)
	err = c.api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, obj)
	switch {
	case apierrors.IsNotFound(err):
		return found, nil
	case err != nil:
		return found, fmt.Errorf("read %s %s: %w", kind, strings.TrimPrefix(namespace+"/"+name, "/"), err)
	}
	return obj, nil
}

// kindOf returns the kind of an object: the one that the object states or, if there is none, the name of its type.
func kindOf(obj client.Object) string {
	if kind := obj.GetObjectKind().GroupVersionKind().Kind; kind != "" {
		return kind
	}
	name := fmt.Sprintf("%T", obj)
	return name[strings.LastIndex(name, ".")+1:]
}
