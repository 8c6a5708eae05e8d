// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package scheme

import (
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	schedconfigv1 "k8s.io/kube-scheduler/config/v1"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	schedscheme "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"

	"fixedip.io/fixedip/plugins/apis/config"
	configv1 "fixedip.io/fixedip/plugins/apis/config/v1"
)

func init() {
	// The scheme that reads the file already exists. The one that converts plugin arguments is built from these builders
	// when it is first used.
	schedconfig.SchemeBuilder.Register(config.AddToScheme)
	schedconfigv1.SchemeBuilder.Register(configv1.AddToScheme)
	utilruntime.Must(config.AddToScheme(schedscheme.Scheme))
	utilruntime.Must(configv1.AddToScheme(schedscheme.Scheme))
}
