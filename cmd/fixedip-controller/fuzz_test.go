// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"

	"fixedip.io/fixedip/ipam/controller/config"
	"fixedip.io/fixedip/ipam/core/address"
)

// newFlags returns the options of the controller with their defaults and a namespace for the Leases, and the flags and aliases
// that set the options.
func newFlags() (*options, *pflag.FlagSet) {
	o := &options{}
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	fs.Usage = func() {}
	o.addFlags(fs)
	addAliases(fs)
	o.Namespace = "fixedip-system"
	return o, fs
}

// notFlags contains the flags that FuzzFlag skips, because config does not check their values.
var notFlags = []string{"config", "help", "version"}

// FuzzFlag checks that errors name the flag or a related one, and that accepted values result in a valid configuration.
func FuzzFlag(f *testing.F) {
	_, fs := newFlags()
	values := []string{
		"", "0", "1", "-1", "8", "24", "24,25", "33", "10.240.0.0/16", "10.240.0.0/16,10.241.0.0/16", "10.0.0.0/8,10.1.0.0/16", "fd00::/48", "::ffff:10.0.0.0/104", "10.240.0.1/16", "1s", "-1s", "1h30m", "soon",
		"true", "no", "Inherit", "Wait", "Restart", "Node", "app=mysql", "a in", "{}", `{"matchLabels":{"a":"b"}}`, "Deployment.apps=Slot", "=", ":9470", "9470", "[::1]:1", "1e3", "NaN", "inf", "1e40", "99999999999999999999", `"a`, "a\x00b", "cilium-ipam-leader",
	}
	fs.VisitAll(func(flag *pflag.Flag) {
		for _, v := range values {
			f.Add(flag.Name, v)
		}
	})
	f.Fuzz(func(t *testing.T, name, value string) {
		o, fs := newFlags()
		if fs.Lookup(name) == nil || slices.Contains(notFlags, name) || strings.ToValidUTF8(value, "") != value {
			return
		}
		parsed := fs.Parse([]string{"--cluster-pool-ipv4-cidr=10.9.0.0/16", "--" + name + "=" + value})
		if name == "cluster-pool-ipv4-cidr" {
			o, fs = newFlags()
			parsed = fs.Parse([]string{"--" + name + "=" + value})
		}
		if parsed == nil {
			// The flag is set under one name only, so resolve must not return an error.
			sources, err := resolve(fs, o, func(string) string { return "" })
			if err != nil {
				t.Fatalf("--%s=%s: resolve returned error %v, want none", name, value, err)
			}
			checkConfig(t, o, sources.changed, name, value)
		} else if !strings.Contains(parsed.Error(), name) {
			t.Errorf("--%s=%q: the error does not name the flag: %v", name, value, parsed)
		}
	})
}

// canonical returns the flag of an alias, and any other name unchanged.
func canonical(name string) string {
	for _, a := range aliases {
		if a.old == name {
			return a.new
		}
	}
	return name
}

// checkConfig checks the result of config after the flag name was set to value: an error has one line and names that flag or a
// related one, and a configuration is usable.
func checkConfig(t *testing.T, o *options, changed func(string) bool, name, value string) {
	t.Helper()
	cfg, err := o.config(changed)
	if err != nil {
		flag := canonical(name)
		// If another flag forbids the value, the error names that flag.
		related := map[string]string{"enable-ipv6": "cluster-pool-ipv4-cidr", "subnet-source": "cluster-pool-ipv4-cidr", "cluster-pool-ipv4-mask-size": "cluster-pool-ipv4-cidr", "cluster-pool-ipv6-mask-size": "cluster-pool-ipv6-cidr", "cluster-pool-ipv4-cidr": "cluster-pool-ipv4-mask-size", "cluster-pool-ipv6-cidr": "cluster-pool-ipv6-mask-size", "min-free-ips": "max-dynamic-ips", "leader-election-renew-deadline": "leader-election-lease-duration", "leader-election-retry-period": "leader-election-lease-duration"}
		if message := err.Error(); !strings.HasPrefix(message, "--") || !strings.Contains(message, flag) && !strings.Contains(message, related[flag]+":") && !strings.Contains(message, related[flag]+" ") || strings.Contains(message, "\n") {
			t.Errorf("--%s=%q: got error %q, want one line that starts with -- and names the flag or a related one", name, value, message)
		}
		return
	}
	usable(t, cfg)
}

// usable checks assumptions about a valid configuration on which the controllers rely.
func usable(t *testing.T, cfg config.Config) {
	t.Helper()
	for _, p := range cfg.ClusterPools {
		if subnet, ok := address.Carve([]address.ClusterPool{p}, p.Family(), address.Union(nil)); !ok || subnet.Bits() != p.MaskSize || !p.CIDR.Contains(subnet.Addr()) {
			t.Errorf("Carve returned %s for cluster pool %+v, want a subnet of its mask size in its CIDR", subnet, p)
		}
	}
	if cfg.StrictNodes.Matches(labels.Set{}) && !strings.Contains(cfg.StrictNodes.String(), "!") && !strings.Contains(cfg.StrictNodes.String(), "notin") {
		t.Errorf("StrictNodes %q selects nodes without labels, want a selector that does not", cfg.StrictNodes)
	}
	if errs := cfg.Validate(); len(errs) > 0 {
		t.Errorf("the configuration was accepted, but Validate returns %v", errs)
	}
}

// configFile writes text into a file and returns its path.
func configFile(t *testing.T, text []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// FuzzConfigFile checks that errors have one line and name the file, and that accepted files result in a valid configuration.
func FuzzConfigFile(f *testing.F) {
	for _, seed := range []string{
		head + "subnets: {clusterPools: [{cidr: 10.240.0.0/16}]}\n",
		head + "subnets: {clusterPools: [{cidr: 10.240.0.0/16}, {cidr: 10.241.0.0/16, maskSize: 25}]}\npools: {minFree: 8}\nipFamilies: [IPv4]\n",
		head + "adoption: {podSelector: {matchLabels: {app: mysql}}}\nstrictNodes: \"\\0\"\n",
		head + "workloads: [{apiGroup: apps, kind: Deployment, identity: Slot}]\nsubnets: {source: Node, orphanedGracePeriod: 1m}\n",
		head + "minFree: 8\n", head + "pools: {minFree: 8}\npools: {minFree: 9}\n", head + "pools:\n", head + "pools: []\n", head + "subnets: {clusterPools: [24.5, x, {}]}\n", head + "subnets: {clusterPools: [{cidr: 10.0.0.0/8, maskSize: -1}, {cidr: '::/0'}]}\n",
		head + "pools: {minFree: 1e400}\n", head + "failover: Migrate\n", "kind: x\n", "apiVersion: [1]\nkind: {}\n", "- a\n", "a: *b\n", "\t", "{", "\x00", "&a [*a]", "? {a: b}\n: c\n", "1: 2\n", head + "schedulerNames: &a [*a]\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		o, fs := newFlags()
		path := configFile(t, text)
		o.configFile = path
		sources, err := resolve(fs, o, func(string) string { return "" })
		var cfg config.Config
		if err == nil {
			cfg, err = o.config(sources.changed)
		}
		if err != nil {
			if message := err.Error(); !strings.HasPrefix(message, "--config "+path+": ") || strings.Contains(message, "\n") {
				t.Errorf("file %q: got error %q, want one line that starts with the name of the file", text, message)
			}
			return
		}
		usable(t, cfg)
	})
}
