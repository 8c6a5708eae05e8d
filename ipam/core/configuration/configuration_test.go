// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package configuration_test

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/configuration"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/subnetplan"
)

const head = "apiVersion: config.fixedip.io/v1alpha1\nkind: FixedIPConfiguration\n"

// defaults returns the configuration of a file that contains one IPv4 cluster pool.
func defaults() configuration.Configuration {
	return configuration.Configuration{
		TypeMeta:   metav1.TypeMeta{APIVersion: configuration.Version, Kind: configuration.Kind},
		IPFamilies: []string{"IPv4"},
		Subnets: configuration.Subnets{
			Source: configuration.FromClusterPools, ClusterPools: []configuration.ClusterPool{{CIDR: "10.240.0.0/16", MaskSize: 24}},
			OrphanedPolicy: subnetplan.Inherit, OrphanedGracePeriod: &metav1.Duration{Duration: time.Minute},
		},
		Pools:    configuration.Pools{MinFree: ptr.To(8), MaxDynamic: ptr.To(0)},
		Failover: v1alpha1.Wait, StrictNodes: ptr.To("fixedip.io/strict=true"), AllowAddressMigration: ptr.To(false), SchedulerNames: []string{"fixedip-scheduler"}, MismatchPolicy: identity.Restart,
	}
}

// TestParse checks the defaults, and that an error names the field and the value.
func TestParse(t *testing.T) {
	const pool = "subnets: {clusterPools: [{cidr: 10.240.0.0/16}]}\n"
	for name, c := range map[string]struct {
		file    string
		want    func(*configuration.Configuration)
		wantErr string
	}{
		"defaults": {file: head + pool, want: func(*configuration.Configuration) {}},
		"both families": {file: head + "subnets: {clusterPools: [{cidr: \"fd00:240::/48\"}, {cidr: 10.240.0.0/16, maskSize: 26}]}\n", want: func(c *configuration.Configuration) {
			c.IPFamilies = []string{"IPv4", "IPv6"}
			c.Subnets.ClusterPools = []configuration.ClusterPool{{CIDR: "fd00:240::/48", MaskSize: 120}, {CIDR: "10.240.0.0/16", MaskSize: 26}}
		}},
		"one of two families": {file: head + "ipFamilies: [IPv6]\nsubnets: {clusterPools: [{cidr: \"fd00:240::/48\"}, {cidr: 10.240.0.0/16}]}\n", want: func(c *configuration.Configuration) {
			c.IPFamilies = []string{"IPv6"}
			c.Subnets.ClusterPools = []configuration.ClusterPool{{CIDR: "fd00:240::/48", MaskSize: 120}, {CIDR: "10.240.0.0/16", MaskSize: 24}}
		}},
		"subnets of Kubernetes": {file: head + "subnets: {source: Node, orphanedPolicy: Hold, orphanedGracePeriod: 5m}\n", want: func(c *configuration.Configuration) {
			c.Subnets = configuration.Subnets{Source: configuration.FromNode, OrphanedPolicy: subnetplan.Hold, OrphanedGracePeriod: &metav1.Duration{Duration: 5 * time.Minute}}
		}},
		"a cluster that adopts pods begins without evictions": {file: head + pool + "adoption: {podSelector: {matchLabels: {app: mysql}}}\n", want: func(c *configuration.Configuration) {
			c.Adoption.PodSelector, c.MismatchPolicy = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "mysql"}}, identity.Report
		}},
		"adoption and evictions": {file: head + pool + "adoption: {podSelector: {}}\nmismatchPolicy: Restart\n", want: func(c *configuration.Configuration) {
			c.Adoption.PodSelector = &metav1.LabelSelector{}
		}},
		"no strict nodes, a kind of workload": {file: head + pool + "strictNodes: \"\"\nworkloads: [{apiGroup: apps, kind: Deployment, identity: Slot}]\n", want: func(c *configuration.Configuration) {
			c.StrictNodes = ptr.To("")
			c.Workloads = []identity.Kind{{APIGroup: "apps", Kind: "Deployment", Identity: identity.Slot, Enabled: identity.ByAnnotation}}
		}},

		"no version":       {file: "kind: FixedIPConfiguration\n", wantErr: "apiVersion is missing; write config.fixedip.io/v1alpha1"},
		"another kind":     {file: "apiVersion: config.fixedip.io/v1alpha1\nkind: FixedIPControllerConfiguration\n", wantErr: "kind is FixedIPControllerConfiguration; write FixedIPConfiguration"},
		"unknown field":    {file: head + "ipFamily: IPv4\n", wantErr: `error unmarshaling JSON: while decoding JSON: json: unknown field "ipFamily"`},
		"field twice":      {file: head + "failover: Wait\nfailover: Wait\n", wantErr: `error converting YAML to JSON: yaml: unmarshal errors: line 4: key "failover" already set in map`},
		"no cluster pools": {file: head, wantErr: "subnets.clusterPools: Required value: must be the CIDRs from which nodes get their subnets, unless subnets.source is Node"},
		"cluster pools and subnets of Kubernetes": {file: head + "subnets: {source: Node, clusterPools: [{cidr: 10.240.0.0/16}]}\n", wantErr: "subnets.clusterPools: Forbidden: if subnets.source is Node, the subnets come from spec.podCIDRs of the Nodes"},
		"unknown source":         {file: head + "subnets: {source: Cloud}\n", wantErr: `subnets.source: Unsupported value: "Cloud": supported values: "ClusterPool", "Node"`},
		"invalid CIDR":           {file: head + "subnets: {clusterPools: [{cidr: 10.240.0.0}]}\n", wantErr: `subnets.clusterPools[0].cidr: Invalid value: "10.240.0.0": "10.240.0.0" is not a CIDR such as 10.240.0.0/16 or fd00:240::/48`},
		"overlapping CIDRs":      {file: head + "subnets: {clusterPools: [{cidr: 10.240.0.0/16}, {cidr: 10.240.1.0/24}]}\n", wantErr: `subnets.clusterPools[1].cidr: Invalid value: "10.240.1.0/24": overlaps 10.240.0.0/16`},
		"mask size":              {file: head + "subnets: {clusterPools: [{cidr: 10.240.0.0/16, maskSize: 15}]}\n", wantErr: "subnets.clusterPools[0].maskSize: Invalid value: 15: mask size 15 is smaller than that of the CIDR 10.240.0.0/16: a subnet would be larger than the cluster pool"},
		"orphanedPolicy":         {file: head + "subnets: {clusterPools: [{cidr: 10.240.0.0/16}], orphanedPolicy: Keep}\n", wantErr: `subnets.orphanedPolicy: Unsupported value: "Keep": supported values: "Inherit", "Hold", "Free"`},
		"negative grace period":  {file: head + "subnets: {clusterPools: [{cidr: 10.240.0.0/16}], orphanedGracePeriod: -1s}\n", wantErr: `subnets.orphanedGracePeriod: Invalid value: "-1s": must not be negative`},
		"unknown family":         {file: head + pool + "ipFamilies: [IPv5]\n", wantErr: `ipFamilies[0]: Unsupported value: "IPv5": supported values: "IPv4", "IPv6"`},
		"family twice":           {file: head + pool + "ipFamilies: [IPv4, IPv4]\n", wantErr: `ipFamilies[1]: Duplicate value: "IPv4"`},
		"family without a pool":  {file: head + pool + "ipFamilies: [IPv4, IPv6]\n", wantErr: `ipFamilies[1]: Invalid value: "IPv6": subnets.clusterPools has no IPv6 CIDR; add one, or remove IPv6 from ipFamilies`},
		"minFree":                {file: head + pool + "pools: {minFree: 1}\n", wantErr: "pools.minFree: Invalid value: 1: must be at least 2: a Cilium agent with health checks does not start with a smaller pool"},
		"maxDynamic":             {file: head + pool + "pools: {maxDynamic: 4}\n", wantErr: "pools.maxDynamic: Invalid value: 4: must be 0, or at least minFree (8)"},
		"failover":               {file: head + pool + "failover: Move\n", wantErr: `failover: Unsupported value: "Move": supported values: "Wait", "Migrate", "Reassign"`},
		"Migrate is not allowed": {file: head + pool + "failover: Migrate\n", wantErr: `failover: Invalid value: "Migrate": addresses cannot migrate while allowAddressMigration is false; set it to true if the routing of the cluster carries single addresses`},
		"strictNodes":            {file: head + pool + "strictNodes: a in\n", wantErr: `strictNodes: Invalid value: "a in": unable to parse requirement: found '' expected: '('`},
		"workloads":              {file: head + pool + "workloads: [{apiGroup: apps, kind: Deployment, identity: PodName}]\n", wantErr: `workloads[0].identity: Invalid value: "PodName": must be Slot for a Deployment`},
		"schedulerNames":         {file: head + pool + "schedulerNames: [\"\"]\n", wantErr: "schedulerNames[0]: Required value: must be the schedulerName of pods"},
		"mismatchPolicy":         {file: head + pool + "mismatchPolicy: Evict\n", wantErr: `mismatchPolicy: Unsupported value: "Evict": supported values: "Restart", "Report"`},
		"podSelector":            {file: head + pool + "adoption: {podSelector: {matchExpressions: [{key: a, operator: Like}]}}\n", wantErr: `adoption.podSelector: Invalid value: "<error>": "Like" is not a valid label selector operator`},
		"protectNodesFrom":       {file: head + pool + "protectNodesFrom: [autoscaler]\n", wantErr: `protectNodesFrom[0]: Unsupported value: "autoscaler": supported values: "cluster-autoscaler", "karpenter"`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := configuration.Parse([]byte(c.file), &configuration.CiliumSettings{})
			if c.wantErr != "" {
				if err == nil || err.Error() != c.wantErr {
					t.Errorf("got error %v, want %s", err, c.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := defaults()
			c.want(&want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("configuration (-want +got):\n%s", diff)
			}
			again := got
			again.Complete()
			if diff := cmp.Diff(got, again); diff != "" {
				t.Errorf("a complete configuration changes when it is completed again (-before +after):\n%s", diff)
			}
		})
	}
}

// TestHash checks that the hash depends on the effect of a file and not on its text.
func TestHash(t *testing.T) {
	hash := func(file string) string {
		t.Helper()
		c, err := configuration.Parse([]byte(head+file), &configuration.CiliumSettings{})
		if err != nil {
			t.Fatal(err)
		}
		h, err := c.Hash()
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	first := hash("subnets: {clusterPools: [{cidr: 10.240.0.0/16}]}\n")
	if got := hash("failover: Wait\nsubnets:\n  clusterPools:\n  - {maskSize: 24, cidr: 10.240.0.0/16}\n"); got != first {
		t.Errorf("got hash %s, want %s, because the file only repeats defaults", got, first)
	}
	if got := hash("subnets: {clusterPools: [{cidr: 10.240.0.0/16}]}\nadoption: {podSelector: {matchLabels: {a: b}}}\n"); got != hash("subnets: {clusterPools: [{cidr: 10.240.0.0/16}]}\nadoption: {podSelector: {matchExpressions: [{key: a, operator: In, values: [b]}]}}\n") {
		t.Errorf("got hash %s for matchLabels and another hash for matchExpressions, want the same hash for the same selector", got)
	}
	values := func(list string) string {
		return hash("subnets: {clusterPools: [{cidr: 10.240.0.0/16}]}\nadoption: {podSelector: {matchExpressions: [{key: a, operator: In, values: " + list + "}]}}\n")
	}
	if values("[b, c]") != values("[c, b]") {
		t.Error("got two hashes for a selector whose values have another order, want the same hash")
	}
	// seen contains the setting that each file changes. Key: the hash of the file.
	seen := map[string]string{first: "nothing"}
	for _, change := range []string{
		"ipFamilies: [IPv6]", "pools: {minFree: 9}", "pools: {maxDynamic: 99}", "failover: Reassign", "allowAddressMigration: true", "strictNodes: a=b",
		"workloads: [{apiGroup: apps, kind: Deployment, identity: Slot}]", "workloads: [{apiGroup: apps, kind: Deployment, identity: Slot, enabled: ByDefault}]",
		"schedulerNames: [a]", "mismatchPolicy: Report", "adoption: {podSelector: {matchLabels: {a: b}}}", "protectNodesFrom: [karpenter]",
		"subnets: {orphanedPolicy: Hold, clusterPools: [{cidr: 10.240.0.0/16}]}", "subnets: {orphanedGracePeriod: 9m, clusterPools: [{cidr: 10.240.0.0/16}]}",
		"subnets: {clusterPools: [{cidr: 10.240.0.0/16, maskSize: 25}]}", "subnets: {clusterPools: [{cidr: 10.241.0.0/16}]}", "subnets: {source: Node}",
	} {
		file := change + "\n"
		if !strings.HasPrefix(change, "subnets:") {
			pool := "10.240.0.0/16"
			if strings.Contains(change, "IPv6") {
				pool = "fd00::/48"
			}
			file += "subnets: {clusterPools: [{cidr: \"" + pool + "\"}]}\n"
		}
		got := hash(file)
		if other, ok := seen[got]; ok {
			t.Errorf("got hash %s for %q and for %q, want different hashes", got, change, other)
		}
		seen[got] = change
	}
}

// TestNumberOfSettings checks that there are at most 15 settings, so that an administrator can decide about all of them, and
// that the documentation states their number.
func TestNumberOfSettings(t *testing.T) {
	var settings []string
	var walk func(prefix string, of reflect.Type)
	walk = func(prefix string, of reflect.Type) {
		for i := range of.NumField() {
			f := of.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case f.Anonymous:
			case f.Type.Kind() == reflect.Struct:
				walk(prefix+name+".", f.Type)
			default:
				settings = append(settings, prefix+name)
			}
		}
	}
	walk("", reflect.TypeFor[configuration.Configuration]())
	if len(settings) > 15 {
		t.Errorf("there are %d settings, want at most 15: %s", len(settings), strings.Join(settings, ", "))
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("There are %d settings", len(settings)); !strings.Contains(string(text), want) {
		t.Errorf("%s does not contain %q", page, want)
	}
}
