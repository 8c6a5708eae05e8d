// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/core/status"
)

// TestConfigurationIsFound checks which ConfigMap the commands read: that of the flag, that of the installation, or
// usualConfiguration.
func TestConfigurationIsFound(t *testing.T) {
	// deployment returns the Deployment of a program, which mounts a ConfigMap.
	deployment := func(program, namespace, configMap string) *appsv1.Deployment {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: program, Labels: status.LabelsOf(program)}}
		d.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: configMap},
		}}}}
		return d
	}
	for name, c := range map[string]struct {
		installed []client.Object
		flag      configurationSource
		// rights is the only namespace whose objects the user may read; empty: all.
		rights string
		// want is the ConfigMap that the command reads. read is true if the command can read its content.
		want configurationSource
		read bool
	}{
		"the chart in its usual namespace": {installed: []client.Object{deployment(status.Controller, "fixedip-system", "fixedip-config")}, want: "fixedip-system/fixedip-config"},
		"the name has a hash of kustomize": {
			installed: []client.Object{deployment(status.Controller, "fixedip-system", "fixedip-config-8f6g5h"), inConfigMap("fixedip-system", "fixedip-config-8f6g5h")},
			want:      "fixedip-system/fixedip-config-8f6g5h", read: true,
		},
		"the chart in another namespace": {
			installed: []client.Object{deployment(status.Controller, "network", "fixedip-config"), inConfigMap("network", "fixedip-config"), inConfigMap("fixedip-system", "fixedip-config")},
			want:      "network/fixedip-config", read: true,
		},
		"the flag names another ConfigMap": {
			installed: []client.Object{deployment(status.Controller, "network", "fixedip-config"), inConfigMap("network", "fixedip-config")},
			flag:      "network/other", want: "network/other",
		},
		"a tenant may read one other namespace only": {
			installed: []client.Object{deployment(status.Controller, "network", "fixedip-config"), inConfigMap("network", "fixedip-config")},
			rights:    "db", want: "fixedip-system/fixedip-config",
		},
		"only the scheduler is installed": {installed: []client.Object{deployment(status.Scheduler, "network", "fixedip-config")}, want: "fixedip-system/fixedip-config"},
		"nothing is installed":            {want: "fixedip-system/fixedip-config"},
	} {
		t.Run(name, func(t *testing.T) {
			user := fakeCluster(t, c.installed...)
			if c.rights != "" {
				user = withRightsOf(c.rights, user)
			}
			if got := user.locate(t.Context(), c.flag); got != c.want {
				t.Errorf("got the ConfigMap %s, want %s", got, c.want)
			}
			settings, unread := user.configuration(t.Context(), c.flag)
			if (unread == nil) != c.read || c.read && len(settings.Subnets.ClusterPools) != 1 {
				t.Errorf("got the settings %+v and the error %v, want the settings of the ConfigMap: %v", settings, unread, c.read)
			}
		})
	}
}

// inConfigMap returns a ConfigMap with a configuration.
func inConfigMap(namespace, name string) *corev1.ConfigMap {
	c := configMap(clusterPools)
	c.Namespace, c.Name = namespace, name
	return c
}

// TestConfigurationFlag checks which values of the flag --configuration are accepted. A command that accepted a malformed value
// would continue as if the configuration could not be read.
func TestConfigurationFlag(t *testing.T) {
	for value, valid := range map[string]bool{"": true, "ns/name": true, "name": false, "/name": false, "ns/": false, "ns/name/key": false} {
		source := usualConfiguration
		err := source.Set(value)
		if (err == nil) != valid || valid && source.String() != value || !valid && source != usualConfiguration {
			t.Errorf("%q: got value %q and error %v, want valid: %t", value, source.String(), err, valid)
		}
	}
}
