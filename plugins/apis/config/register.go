// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	schedconfigv1 "k8s.io/kube-scheduler/config/v1"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	schedscheme "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/store/ciliumconfigmap"
)

func init() {
	// The scheme that reads the configuration file is built already, so the type is added to it directly. The scheme that
	// converts plugin arguments is built from SchemeBuilder when it is first used.
	schedconfigv1.SchemeBuilder.Register(addToScheme)
	utilruntime.Must(addToScheme(schedscheme.Scheme))
}

// addToScheme registers FixedIPArgs and its defaults. The same Go type is used for the versioned and the internal API, so
// that no conversion is needed.
func addToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(schedconfig.SchemeGroupVersion, &FixedIPArgs{})
	s.AddKnownTypes(schedconfigv1.SchemeGroupVersion, &FixedIPArgs{})
	s.AddTypeDefaultingFunc(&FixedIPArgs{}, func(obj any) { setDefaults(obj.(*FixedIPArgs)) })
	return nil
}

// setDefaults sets absent fields to their defaults.
func setDefaults(args *FixedIPArgs) {
	setDefault(&args.ClaimTimeout, metav1.Duration{Duration: 10 * time.Second})
	setDefault(&args.ClaimQPS, 200)
	setDefault(&args.ClaimBurst, 400)
	if args.Configuration == "" {
		args.Configuration = "/etc/fixedip/config.yaml"
	}
	if args.CiliumConfig == "" {
		args.CiliumConfig = ciliumconfigmap.Default
	}
}

func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = ptr.To(value)
	}
}
