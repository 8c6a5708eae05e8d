// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestValidate checks that each option is validated, and that the error names the invalid value.
func TestValidate(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Options)
		err    string
	}{
		"defaults":      {change: func(*Options) {}},
		"both families": {change: func(o *Options) { o.Families = []string{IPv6, IPv4} }},
		"spare nodes":   {change: func(o *Options) { o.Spare = 98 }},
		"version":       {change: func(o *Options) { o.Cilium = "1.17" }, err: `version "1.17" of Cilium`},
		"kubernetes":    {change: func(o *Options) { o.Kubernetes = "1.33" }, err: `version "1.33" of Kubernetes`},
		"no node":       {change: func(o *Options) { o.Nodes = 0 }, err: "0 nodes"},
		"too many":      {change: func(o *Options) { o.Spare = 99 }, err: "99 spare"},
		"no family":     {change: func(o *Options) { o.Families = nil }, err: "families []"},
		"duplicate":     {change: func(o *Options) { o.Families = []string{IPv4, IPv4} }, err: "families [IPv4 IPv4]"},
		"unknown":       {change: func(o *Options) { o.Families = []string{"ipv4"} }, err: `family "ipv4"`},
		"routing":       {change: func(o *Options) { o.Routing = "bgp" }, err: `routing "bgp"`},
		"network":       {change: func(o *Options) { o.Network = 256 }, err: "network 256"},
		"update rate":   {change: func(o *Options) { o.UpdateRate = 0 }, err: "update rate 0s"},
	} {
		t.Run(name, func(t *testing.T) {
			o := Defaults()
			c.change(&o)
			err := o.Validate()
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("got error %v, want %q (empty: no error)", err, c.err)
			}
		})
	}
}

// TestAddresses checks the names and addresses of a cluster with both families and a spare node.
func TestAddresses(t *testing.T) {
	o := Options{Nodes: 2, Spare: 1, Families: []string{IPv6, IPv4}, Network: 17}
	type seen struct {
		Nodes, Spare []string
		ControlPlane string
		Service      string
		Services     string
		KubeletArgs  []string
		UnknownNode  string
	}
	args, err := o.KubeletArgs("node-3")
	if err != nil {
		t.Fatal(err)
	}
	_, err = o.KubeletArgs("node-4")
	if err == nil {
		t.Fatal("KubeletArgs returned no error for node-4, which does not exist")
	}
	got := seen{
		Nodes: o.NodeNames(), Spare: o.SpareNames(),
		ControlPlane: o.ControlPlane().String(), Service: o.ServiceAddress().String(), Services: o.ServiceCIDRs(),
		KubeletArgs: args, UnknownNode: err.Error(),
	}
	want := seen{
		Nodes: []string{"node-1", "node-2"}, Spare: []string{"node-3"},
		ControlPlane: "fd00:198:18:11::1", Service: "fd00:10:96::1", Services: "fd00:10:96::/112,10.96.0.0/16",
		KubeletArgs: []string{"--hostname-override=node-3", "--node-ip=fd00:198:18:11::d,198.18.17.13"},
		UnknownNode: `node "node-4" is not among the nodes [node-1 node-2] and the spare nodes [node-3]`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names and addresses (-want +got): %s", diff)
	}
}

// TestAgentConfig checks the chosen settings, which depend on the options.
func TestAgentConfig(t *testing.T) {
	chosen := []string{
		"enable-ipv4", "enable-ipv6", "enable-ipv4-masquerade", "enable-ipv6-masquerade", "routing-mode", "auto-direct-node-routes",
		"ipv4-native-routing-cidr", "ipv6-native-routing-cidr", "ipam-cilium-node-update-rate",
	}
	for name, c := range map[string]struct {
		options Options
		want    []string // values of the chosen settings, "" if a setting is missing
	}{
		"tunnel": {
			options: Options{Families: []string{IPv4}, Routing: Tunnel, UpdateRate: 15 * time.Second},
			want:    []string{"true", "false", "true", "false", "tunnel", "false", "", "", "15s"},
		},
		"native, both families": {
			options: Options{Families: []string{IPv4, IPv6}, Routing: Native, UpdateRate: time.Second},
			want:    []string{"true", "true", "true", "true", "native", "true", "10.240.0.0/16", "fd00:10:240::/112", "1s"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			settings := c.options.AgentConfig(Paths{})
			var got []string
			for _, key := range chosen {
				got = append(got, settings[key])
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("settings %v (-want +got): %s", chosen, diff)
			}
		})
	}
}

// TestKubernetesVersionsAreThoseOfTheModules checks that kubernetesVersions has the versions of k8s.io/kubernetes in the
// go.mod files.
func TestKubernetesVersionsAreThoseOfTheModules(t *testing.T) {
	got := map[string]string{}
	for line, path := range map[string]string{OwnKubernetes: "go.mod", "1.35": "hack/kubernetes-1.35/go.mod"} {
		data, err := os.ReadFile(filepath.Join("..", "..", "..", path))
		if err != nil {
			t.Fatal(err)
		}
		for text := range strings.Lines(string(data)) {
			if version, found := strings.CutPrefix(strings.TrimSpace(text), "k8s.io/kubernetes "); found {
				got[line] = version
			}
		}
	}
	if diff := cmp.Diff(kubernetesVersions, got); diff != "" {
		t.Errorf("versions (-kubernetesVersions +go.mod): %s", diff)
	}
}

// TestCiliumVersionsAreThoseOfTheModules checks that ciliumVersions has the versions of github.com/cilium/cilium in the
// go.mod files of hack/realcluster/modules.
func TestCiliumVersionsAreThoseOfTheModules(t *testing.T) {
	got := map[string]string{}
	modules, err := filepath.Glob(filepath.Join("..", "modules", "cilium-*", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range modules {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			if version, found := strings.CutPrefix(line, "require github.com/cilium/cilium "); found {
				got[strings.TrimPrefix(filepath.Base(filepath.Dir(path)), "cilium-")] = strings.TrimSpace(version)
			}
		}
	}
	if diff := cmp.Diff(ciliumVersions, got); diff != "" {
		t.Errorf("versions (-ciliumVersions +go.mod): %s", diff)
	}
}
