// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumconfigmap

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/core/configuration"
)

// Default is the ConfigMap that Cilium's chart creates, as namespace/name.
const Default = "kube-system/cilium-config"

// Getter returns a ConfigMap from the API server.
type Getter func(ctx context.Context, key types.NamespacedName) (*corev1.ConfigMap, error)

// FromClient returns a Getter that reads with a client of controller-runtime, which must not have a cache.
func FromClient(live client.Reader) Getter {
	return func(ctx context.Context, key types.NamespacedName) (*corev1.ConfigMap, error) {
		var cm corev1.ConfigMap
		return &cm, live.Get(ctx, key, &cm)
	}
}

// FromClientset returns a Getter that reads with a client of client-go.
func FromClientset(live kubernetes.Interface) Getter {
	return func(ctx context.Context, key types.NamespacedName) (*corev1.ConfigMap, error) {
		return live.CoreV1().ConfigMaps(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	}
}

// ParseName returns the ConfigMap that a text names as namespace/name.
func ParseName(text string) (types.NamespacedName, error) {
	namespace, name, _ := strings.Cut(text, "/")
	if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return types.NamespacedName{}, fmt.Errorf("%q is not the name of a ConfigMap; write namespace/name, such as %s", text, Default)
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}

// Get returns the settings in the ConfigMap of Cilium. If the ConfigMap does not exist or may not be read, Get returns the
// zero value, for which the defaults apply, and the reason in unknown.
func Get(ctx context.Context, get Getter, key types.NamespacedName) (s configuration.CiliumSettings, unknown, err error) {
	cm, err := get(ctx, key)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return s, err, nil
	case err != nil:
		return s, nil, fmt.Errorf("read ConfigMap %s of Cilium: %w", key, err)
	}
	return configuration.CiliumSettingsOf(cm.Data), nil, nil
}

// Read is like Get, and logs the result.
func Read(ctx context.Context, get Getter, key types.NamespacedName) (configuration.CiliumSettings, error) {
	s, unknown, err := Get(ctx, get, key)
	switch {
	case err != nil:
		return s, err
	case unknown != nil:
		klog.FromContext(ctx).Info("The configuration of Cilium cannot be read; defaults apply to the settings that depend on it", "configMap", key, "err", unknown)
	default:
		klog.FromContext(ctx).Info("Read the configuration of Cilium", "configMap", key, "ipam", s.IPAMMode, "routingMode", s.RoutingMode, "reportInterval", s.ReportInterval)
	}
	return s, nil
}
