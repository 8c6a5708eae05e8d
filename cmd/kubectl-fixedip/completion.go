// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"slices"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// completionTimeout is the time limit for the requests of one completion. The shell is blocked during that time.
const completionTimeout = 3 * time.Second

// namesOf returns the names that complete an argument.
type namesOf func(ctx context.Context, c *cluster) ([]string, error)

// podNames returns the names of the pods in the namespace and of the pods that its FixedIPs name, because the pod that a
// FixedIP names may have been deleted.
func podNames(ctx context.Context, c *cluster) ([]string, error) {
	names, err := metadataNames(ctx, c, corev1.SchemeGroupVersion.String(), "PodList")
	if err != nil {
		return nil, err
	}
	var records v1alpha1.FixedIPList
	// If the FixedIPs cannot be read, only the names of existing pods are offered.
	_ = c.api.List(ctx, &records, client.InNamespace(c.namespace))
	for _, r := range records.Items {
		names = append(names, r.Spec.PodName)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// fixedIPNames returns the names of the FixedIPs of the namespace.
func fixedIPNames(ctx context.Context, c *cluster) ([]string, error) {
	return metadataNames(ctx, c, v1alpha1.GroupVersion.String(), "FixedIPList")
}

// nodeNames returns the names of the CiliumNodes.
func nodeNames(ctx context.Context, c *cluster) ([]string, error) {
	cluster := *c
	cluster.namespace = ""
	return metadataNames(ctx, &cluster, ciliumv2.SchemeGroupVersion.String(), "CiliumNodeList")
}

func metadataNames(ctx context.Context, c *cluster, apiVersion, kind string) (names []string, err error) {
	found := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: kind}}
	if err := c.api.List(ctx, found, client.InNamespace(c.namespace)); err != nil {
		return nil, err
	}
	for _, o := range found.Items {
		names = append(names, o.Name)
	}
	return names, nil
}

// completeObjects returns a function for cobra that completes an argument with names of objects. It offers no name that is an
// argument already, and nothing if the cluster does not answer.
func completeObjects(flags *genericclioptions.ConfigFlags, namesOf namesOf) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		c, err := connect(flags)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		parent := cmd.Context()
		if parent == nil {
			parent = context.Background()
		}
		ctx, cancel := context.WithTimeout(parent, completionTimeout)
		defer cancel()
		names, err := namesOf(ctx, c)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return slices.DeleteFunc(names, func(n string) bool { return slices.Contains(args, n) }), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeOne is completeObjects for a command with one argument.
func completeOne(flags *genericclioptions.ConfigFlags, namesOf namesOf) cobra.CompletionFunc {
	complete := completeObjects(flags, namesOf)
	return func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, toComplete)
	}
}

// completeFlag sets the completion of a flag. It panics if the flag does not exist or already has a completion.
func completeFlag(cmd *cobra.Command, name string, complete cobra.CompletionFunc) {
	utilruntime.Must(cmd.RegisterFlagCompletionFunc(name, complete))
}

// kubectlScript is the program that kubectl runs to complete the arguments of a plugin. Its name is kubectl_complete-fixedip.
const kubectlScript = `#!/bin/sh
exec kubectl-fixedip __complete "$@"
`

// addCompletion adds cobra's command completion to root, with a subcommand that prints kubectlScript. Call it when all
// other commands have been added to root.
func addCompletion(root *cobra.Command, out io.Writer) {
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() != "completion" {
			continue
		}
		cmd.Long = `Print a script that completes arguments: names of pods, nodes and FixedIPs, and values of flags.

kubectl completes the arguments of a plugin if a program with the name kubectl_complete-fixedip is in the PATH:

  kubectl fixedip completion kubectl > /usr/local/bin/kubectl_complete-fixedip
  chmod +x /usr/local/bin/kubectl_complete-fixedip

The other commands print scripts for calls of kubectl-fixedip without kubectl.`
		cmd.AddCommand(&cobra.Command{
			Use:                   "kubectl",
			Short:                 "Print the program kubectl_complete-fixedip, which completes kubectl fixedip",
			Args:                  cobra.NoArgs,
			ValidArgsFunction:     cobra.NoFileCompletions,
			DisableFlagsInUseLine: true,
			RunE: func(*cobra.Command, []string) error {
				_, err := io.WriteString(out, kubectlScript)
				return err
			},
		})
	}
}
