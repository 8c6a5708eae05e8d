// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/core/configuration"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/status"
)

// configurationSource is the ConfigMap of the configuration, "namespace/name"; empty: the ConfigMap that locate finds.
type configurationSource string

// usualConfiguration is the ConfigMap of the chart in the namespace that the documentation uses.
const usualConfiguration configurationSource = "fixedip-system/fixedip-config"

// configurationKey is the key of the configuration in its ConfigMap.
const configurationKey = "config.yaml"

func (s *configurationSource) addFlags(cmd *cobra.Command) {
	cmd.Flags().Var(s, "configuration", "ConfigMap of the configuration of fixedip, as namespace/name, which is used if it can be read; if empty, the one that the Deployment of the controller mounts, or "+string(usualConfiguration)+" if the Deployment cannot be read")
}

// String returns the value of the flag.
func (s *configurationSource) String() string { return string(*s) }

// Set sets the value of the flag. It returns an error if the value is neither namespace/name nor empty.
func (s *configurationSource) Set(value string) error {
	if namespace, name, _ := strings.Cut(value, "/"); value != "" && (namespace == "" || name == "" || strings.Contains(name, "/")) {
		return fmt.Errorf("%q is not namespace/name; write, for example, %s", value, usualConfiguration)
	}
	*s = configurationSource(value)
	return nil
}

// Type returns the type of the flag in the help.
func (s *configurationSource) Type() string { return "string" }

// locate returns source or, if it is empty, the ConfigMap that the Deployment of the controller mounts: an installation
// may be in any namespace, and kustomize appends a hash to the name of the ConfigMap. If there is no such ConfigMap, or
// the Deployments of all namespaces cannot be listed, it returns usualConfiguration.
func (c *cluster) locate(ctx context.Context, source configurationSource) configurationSource {
	if source != "" {
		return source
	}
	var controllers appsv1.DeploymentList
	if err := c.api.List(ctx, &controllers, client.MatchingLabels(status.LabelsOf(status.Controller))); err == nil {
		if found := status.ConfigMapsOf(controllers.Items, nil); len(found) > 0 {
			return configurationSource(found[0])
		}
	}
	return usualConfiguration
}

// configuration returns the settings in the ConfigMap that locate finds for source. If they cannot be read, it returns
// the defaults and, in unread, the reason. AllowAddressMigration is nil if it follows settings of Cilium that cannot be
// read.
func (c *cluster) configuration(ctx context.Context, source configurationSource) (settings configuration.Configuration, unread error) {
	settings.Complete()
	source = c.locate(ctx, source)
	namespace, name, _ := strings.Cut(string(source), "/")
	configMap, err := get(ctx, c, namespace, name, &corev1.ConfigMap{})
	switch {
	case err != nil:
		return settings, err
	case configMap == nil:
		return settings, fmt.Errorf("read ConfigMap %s: %w", source, apierrors.NewNotFound(corev1.Resource("configmaps"), name))
	case configMap.Data[configurationKey] == "":
		return settings, fmt.Errorf("ConfigMap %s has no key %s", source, configurationKey)
	}
	read, err := configuration.Parse([]byte(configMap.Data[configurationKey]), c.ciliumSettings(ctx))
	if err != nil {
		return settings, fmt.Errorf("read the configuration in ConfigMap %s: %w", source, err)
	}
	return read, nil
}

// ciliumSettings returns the settings of Cilium in kube-system on which settings of fixedip depend; nil if they cannot be
// read, and the zero value if the ConfigMap does not exist.
func (c *cluster) ciliumSettings(ctx context.Context) *configuration.CiliumSettings {
	configMap, err := get(ctx, c, metav1.NamespaceSystem, "cilium-config", &corev1.ConfigMap{})
	switch {
	case err != nil:
		return nil
	case configMap == nil:
		return &configuration.CiliumSettings{} // Without the ConfigMap, fixedip uses its defaults.
	}
	settings := configuration.CiliumSettingsOf(configMap.Data)
	return &settings
}

// mismatchPolicy returns the mismatch policy for pods without an annotation of their own or of their workload. It is flag,
// or that of the configuration if flag is empty. If the configuration cannot be read, the policy is Report, so that a pod is
// evicted only if an annotation allows it.
func (c *cluster) mismatchPolicy(ctx context.Context, flag string, source configurationSource) (identity.OnMismatch, error) {
	if flag != "" {
		policy, err := identity.ParseOnMismatch(flag)
		if err != nil {
			return "", fmt.Errorf("--mismatch-policy: %w", err)
		}
		return policy, nil
	}
	if settings, unread := c.configuration(ctx, source); unread == nil {
		return settings.MismatchPolicy, nil
	}
	return identity.Report, nil
}
