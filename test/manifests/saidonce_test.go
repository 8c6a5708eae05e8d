// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/yaml"

	"fixedip.io/fixedip/ipam/core/configuration"
)

// TestSettingsAreSaidOnce checks that no object of an installation and no value of the chart repeats a setting. The
// arguments of a program name files or concern only that program, the profiles of the scheduler are those of
// schedulerNames, and no value outside config has the name of a setting.
func TestSettingsAreSaidOnce(t *testing.T) {
	settings := sets.New[string]()
	for i := range reflect.TypeFor[configuration.Configuration]().NumField() {
		name, _, _ := strings.Cut(reflect.TypeFor[configuration.Configuration]().Field(i).Tag.Get("json"), ",")
		settings.Insert(name)
	}
	text, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	delete(values, "config")
	var walk func(path string, value any)
	walk = func(path string, value any) {
		of, _ := value.(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(of)) {
			if settings.Has(key) {
				t.Errorf("the value %s%s of the chart has the name of a setting, which belongs in config", path, key)
			}
			walk(path+key+".", of[key])
		}
	}
	walk("", values)

	// everything contains the settings on which objects other than the configuration depend.
	const everything = `config: {schedulerNames: [one, two], workloads: [{apiGroup: apps, kind: Deployment, identity: Slot}], protectNodesFrom: [karpenter]}`
	for name, objects := range map[string]installed{"kustomization": kustomize(t, filepath.Join(root, "manifests")), "chart": render(t, "network", everything, clusterPool)} {
		flags := map[string]sets.Set[string]{
			"fixedip-controller": sets.New("--config", "--metrics-secure", "--health-probe-bind-address"),
			"fixedip-scheduler":  sets.New("--config", "--secure-port"),
		}
		for _, d := range deployments(t, objects) {
			for _, arg := range d.Spec.Template.Spec.Containers[0].Args {
				if flag, _, _ := strings.Cut(arg, "="); !flags[d.Name].Has(flag) {
					t.Errorf("%s: Deployment %s has the argument %s; settings belong in the configuration", name, d.Name, arg)
				}
			}
		}
		for _, m := range all[corev1.ConfigMap](t, objects, "ConfigMap") {
			if m.Data["scheduler.yaml"] == "" {
				continue
			}
			read, err := configuration.Parse([]byte(m.Data["config.yaml"]), &configuration.CiliumSettings{})
			if err != nil {
				t.Fatal(err)
			}
			var file struct {
				Profiles []struct {
					SchedulerName string
					PluginConfig  []struct{ Args map[string]any }
				}
			}
			if err := yaml.Unmarshal([]byte(m.Data["scheduler.yaml"]), &file); err != nil {
				t.Fatal(err)
			}
			var profiles []string
			for _, p := range file.Profiles {
				profiles = append(profiles, p.SchedulerName)
				for arg := range p.PluginConfig[0].Args {
					if !slices.Contains([]string{"configuration", "claimQPS", "claimBurst"}, arg) {
						t.Errorf("%s: profile %s has the argument %s; settings belong in the configuration", name, p.SchedulerName, arg)
					}
				}
			}
			if !slices.Equal(profiles, read.SchedulerNames) {
				t.Errorf("%s: got the profiles %q in scheduler.yaml, want the schedulerNames %q of the configuration", name, profiles, read.SchedulerNames)
			}
		}
	}
}
