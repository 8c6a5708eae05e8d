// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumendpoint

import (
	"context"
	"fmt"
	"strconv"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// ciliumConfig is the ConfigMap of Cilium, and disableCRD its key that disables CiliumEndpoints: from v1.20 on
	// together with CiliumEndpointSlices that are made from pods (Cilium fact 26).
	ciliumNamespace, ciliumConfig = "kube-system", "cilium-config"
	disableCRD                    = "disable-endpoint-crd"
)

// Enabled reports whether Cilium makes CiliumEndpoints: the CRD exists, and the configuration of Cilium does not disable
// them. A cluster whose configuration can't be read is taken to have them.
func Enabled(ctx context.Context, live client.Client) (bool, error) {
	gvk := ciliumv2.SchemeGroupVersion.WithKind(ciliumv2.CEPKindDefinition)
	if _, err := live.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version); meta.IsNoMatchError(err) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("look for the CRD of CiliumEndpoints: %w", err)
	}
	var config corev1.ConfigMap
	switch err := live.Get(ctx, client.ObjectKey{Namespace: ciliumNamespace, Name: ciliumConfig}, &config); {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read ConfigMap %s/%s: %w", ciliumNamespace, ciliumConfig, err)
	}
	disabled, err := strconv.ParseBool(config.Data[disableCRD])
	return err != nil || !disabled, nil
}
