// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/configuration"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/subnetplan"
)

// given contains the command line, the configuration file and the environment of a test.
type given struct {
	args []string
	file string
	env  map[string]string
}

// read parses the flags and calls resolve, as command does, without a cluster.
func read(t *testing.T, g given) (*options, *settings, error) {
	t.Helper()
	o := &options{}
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	o.addFlags(fs)
	logsapi.AddFlags(logsapi.NewLoggingConfiguration(), fs)
	addAliases(fs)
	if g.file != "" {
		path := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(path, []byte(g.file), 0o600); err != nil {
			t.Fatal(err)
		}
		g.args = append(g.args, "--config="+path)
	}
	if err := fs.Parse(g.args); err != nil {
		return o, nil, err
	}
	s, err := resolve(fs, o, func(name string) string { return g.env[name] })
	if err != nil && g.file != "" {
		err = shortened{err, o.configFile}
	}
	return o, s, err
}

// shortened is an error in whose text path is replaced by its base name.
type shortened struct {
	error
	path string
}

func (s shortened) Error() string {
	return strings.ReplaceAll(s.error.Error(), s.path, filepath.Base(s.path))
}

func orZero(v string) string {
	if v == "" {
		return "0"
	}
	return v
}

// guideAlerts is the warning about the guide's alerts.
const guideAlerts = "The guide's alerts CiliumIPAMPoolLow and CiliumIPAMLeaderElectionLost do not work, because the guide's metrics are not served; use FixedIPPoolLow and FixedIPNoLeader in manifests/prometheus/rules.yaml"

// asGuide sets the options to the guide's defaults.
func asGuide(o *options) {
	o.shared.labelSelector = `{"matchLabels":{"noStatic":"true"}}`
	o.shared.minFree, o.shared.maxDynamic = 255, 255
	o.shared.ipv6, o.staticPodIPv6 = false, false
}

const head = "apiVersion: config.fixedip.io/v1alpha1\nkind: FixedIPConfiguration\n"

// TestSettings checks the options, the verbosity and the warnings that result from each source of flag values. The
// guide is a guide to fixed addresses on Cilium whose flag names are accepted (see aliases). If any flag is set by its
// name in the guide, the guide's defaults apply (finding R12 in docs/project/findings.md).
func TestSettings(t *testing.T) {
	for name, c := range map[string]struct {
		given
		// want changes the defaults to the expected options.
		want func(*options)
		// v is the log verbosity; empty for 0.
		v        string
		warnings []string
		wantErr  string
	}{
		"no source": {want: func(*options) {}},
		"flag names of the guide": {
			given: given{args: []string{"--ipRateNum=10", "--maxAllocatedIP=100", "--enableIPv6=false"}},
			v:     "2",
			want: func(o *options) {
				asGuide(o)
				o.shared.minFree, o.shared.maxDynamic = 10, 100
			},
			warnings: []string{
				"Flag --ipRateNum is deprecated; use --min-free-ips",
				"Flag --maxAllocatedIP is deprecated; use --max-dynamic-ips",
				"Flag --enableIPv6 is deprecated; use --enable-ipv6",
				`Deprecated flag names are set, so these flags have the defaults of the guide (see docs/operate/from-a-guide.md): --label-selector={"matchLabels":{"noStatic":"true"}} --enable-static-pod-ipv6=false --v=2; set a flag to use another value`,
				guideAlerts,
			},
		},
		"a flag name of the guide, and all flags with a guide default are set": {
			given: given{
				args: []string{"--ipRateNum=10", "--v=3", "--enable-static-pod-ipv6"},
				file: head + "adoption: {podSelector: {matchLabels: {app: mysql}}}\nipFamilies: [IPv4, IPv6]\npools: {maxDynamic: 100}\n",
			},
			v: "3",
			want: func(o *options) {
				o.shared.minFree = 10
				o.file.Adoption.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "mysql"}}
				o.file.IPFamilies, o.file.Pools.MaxDynamic = []string{"IPv4", "IPv6"}, ptr.To(100)
			},
			warnings: []string{"Flag --ipRateNum is deprecated; use --min-free-ips", guideAlerts},
		},
		"a boolean flag of the guide without a value": {
			given: given{args: []string{"--enableIPv6"}},
			v:     "2",
			want: func(o *options) {
				asGuide(o)
				o.shared.ipv6 = true
			},
			warnings: []string{
				"Flag --enableIPv6 is deprecated; use --enable-ipv6",
				`Deprecated flag names are set, so these flags have the defaults of the guide (see docs/operate/from-a-guide.md): --label-selector={"matchLabels":{"noStatic":"true"}} --min-free-ips=255 --max-dynamic-ips=255 --enable-static-pod-ipv6=false --v=2; set a flag to use another value`,
				guideAlerts,
			},
		},
		"the guide's log level": {
			given: given{args: []string{"--logLevel=5"}},
			want:  asGuide,
			v:     "4",
			warnings: []string{
				"Flag --logLevel is deprecated; use --v",
				`Deprecated flag names are set, so these flags have the defaults of the guide (see docs/operate/from-a-guide.md): --label-selector={"matchLabels":{"noStatic":"true"}} --min-free-ips=255 --max-dynamic-ips=255 --enable-ipv6=false --enable-static-pod-ipv6=false; set a flag to use another value`,
				guideAlerts,
			},
		},
		"an invalid log level":             {given: given{args: []string{"--logLevel=7"}}, wantErr: `invalid argument "7" for "--logLevel" flag: must be a number from 0 (panic) to 6 (trace)`},
		"an invalid value of a guide flag": {given: given{args: []string{"--ipRateNum=ten"}}, wantErr: `invalid argument "ten" for "--ipRateNum" flag: strconv.ParseInt: parsing "ten": invalid syntax`},
		"both names of a flag":             {given: given{args: []string{"--ipRateNum=10", "--min-free-ips=9"}}, wantErr: "--ipRateNum and --min-free-ips are the same flag; set --min-free-ips only"},
		"a file": {
			given: given{file: head + `
subnets:
  clusterPools: [{cidr: 10.240.0.0/16, maskSize: 25}, {cidr: "fd00::/48"}]
  orphanedGracePeriod: 5m
workloads: [{apiGroup: apps, kind: Deployment, identity: Slot}]
`},
			want: func(o *options) {
				o.file.Subnets.ClusterPools = []configuration.ClusterPool{{CIDR: "10.240.0.0/16", MaskSize: 25}, {CIDR: "fd00::/48"}}
				o.file.Subnets.OrphanedGracePeriod = &metav1.Duration{Duration: 5 * time.Minute}
				o.file.Workloads = []identity.Kind{{APIGroup: "apps", Kind: "Deployment", Identity: identity.Slot}}
			},
		},
		"precedence of flags, file and environment": {
			given: given{
				args: []string{"--min-free-ips=3"},
				file: head + "pools: {minFree: 4, maxDynamic: 44}\nsubnets: {clusterPools: [{cidr: 10.1.0.0/16}]}\n",
				env:  map[string]string{"POD_NAMESPACE": "of-env", "KUBECONFIG": "/k", "CLUSTER_POOL_IPV4_CIDR": "10.2.0.0/16"},
			},
			want: func(o *options) {
				o.file.Pools.MinFree, o.file.Pools.MaxDynamic = ptr.To(4), ptr.To(44)
				o.file.Subnets.ClusterPools = []configuration.ClusterPool{{CIDR: "10.1.0.0/16"}}
				o.shared.minFree, o.Namespace, o.kubeconfig = 3, "of-env", "/k"
			},
		},
		"environment variables of the guide": {
			given: given{env: map[string]string{
				"CLUSTER_POOL_IPV4_CIDR": "10.240.0.0/16", "CLUSTER_POOL_IPV4_MASK_SIZE": "25",
				"CLUSTER_POOL_IPV6_CIDR": "fd00:240::/120", "CLUSTER_POOL_IPV6_MASK_SIZE": "124", "POD_NAMESPACE": "kube-system",
			}},
			want: func(o *options) {
				o.shared.ipv4CIDRs, o.shared.ipv6CIDRs, o.shared.ipv4MaskSizes, o.shared.ipv6MaskSizes = []string{"10.240.0.0/16"}, []string{"fd00:240::/120"}, []int{25}, []int{124}
				o.Namespace = "kube-system"
			},
			warnings: []string{
				"Variable CLUSTER_POOL_IPV4_CIDR is deprecated; use --cluster-pool-ipv4-cidr",
				"Variable CLUSTER_POOL_IPV4_MASK_SIZE is deprecated; use --cluster-pool-ipv4-mask-size",
				"Variable CLUSTER_POOL_IPV6_CIDR is deprecated; use --cluster-pool-ipv6-cidr",
				"Variable CLUSTER_POOL_IPV6_MASK_SIZE is deprecated; use --cluster-pool-ipv6-mask-size",
			},
		},
		"a kubeconfig that is not mounted into the pod": {
			given:    given{env: map[string]string{"KUBECONFIG": "/nowhere/scheduler.conf", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}},
			want:     func(*options) {},
			warnings: []string{"Variable KUBECONFIG names /nowhere/scheduler.conf, which does not exist; using the service account of the pod"},
		},
		"an invalid variable":      {given: given{env: map[string]string{"CLUSTER_POOL_IPV4_MASK_SIZE": "x"}}, wantErr: `variable CLUSTER_POOL_IPV4_MASK_SIZE="x": strconv.Atoi: parsing "x": invalid syntax`},
		"a missing file":           {given: given{args: []string{"--config=/nowhere.yaml"}}, wantErr: "--config /nowhere.yaml: open /nowhere.yaml: no such file or directory"},
		"a file without a version": {given: given{file: "kind: FixedIPConfiguration\n"}, wantErr: "--config config.yaml: apiVersion is missing; write config.fixedip.io/v1alpha1"},
		"an unknown field":         {given: given{file: head + "min-free-ips: 3\n"}, wantErr: `--config config.yaml: error unmarshaling JSON: while decoding JSON: json: unknown field "min-free-ips"`},
	} {
		t.Run(name, func(t *testing.T) {
			o, s, err := read(t, c.given)
			if c.wantErr != "" {
				if err == nil || err.Error() != c.wantErr {
					t.Errorf("got error %v, want %s", err, c.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want, _, _ := read(t, given{})
			c.want(want)
			want.configFile, want.file.TypeMeta = o.configFile, o.file.TypeMeta
			if diff := cmp.Diff(want, o, cmp.AllowUnexported(options{}, sharedValues{})); diff != "" {
				t.Errorf("options (-want +got): %s", diff)
			}
			if got := s.fs.Lookup("v").Value.String(); got != orZero(c.v) {
				t.Errorf("got verbosity %s, want %s", got, orZero(c.v))
			}
			if diff := cmp.Diff(c.warnings, s.warnings); diff != "" {
				t.Errorf("warnings (-want +got): %s", diff)
			}
		})
	}
}

// TestErrorSource checks that an error about a value names the flag that has set it and the source of the flag, or the field and
// the file.
func TestErrorSource(t *testing.T) {
	const noIPv4 = "--enable-ipv6: Invalid value: false: nodes and pods would get IPv4 addresses only, but there is no IPv4 CIDR; set --cluster-pool-ipv4-cidr, or set --enable-ipv6 to true"
	for name, c := range map[string]struct {
		given
		want string
	}{
		"an invalid CIDR in a variable": {given{env: map[string]string{"CLUSTER_POOL_IPV4_CIDR": "10.0.0.5/16"}},
			`--cluster-pool-ipv4-cidr: "10.0.0.5/16" has host bits set; the network is 10.0.0.0/16 (from the variable CLUSTER_POOL_IPV4_CIDR)`},
		"no cluster pool":            {given{}, "--cluster-pool-ipv4-cidr: Required value: must be the CIDRs from which nodes get their subnets, unless subnets.source is Node"},
		"an invalid value of a flag": {given{args: []string{"--cluster-pool-ipv4-cidr=10.0.0.0/16", "--min-free-ips=1"}}, "--min-free-ips: Invalid value: 1: must be at least 2: a Cilium agent with health checks does not start with a smaller pool"},
		"mask size of a flag": {given{args: []string{"--cluster-pool-ipv4-cidr=10.0.0.0/16", "--cluster-pool-ipv6-cidr=fd00::/48", "--cluster-pool-ipv6-mask-size=47"}},
			"--cluster-pool-ipv6-mask-size: Invalid value: 47: mask size 47 is smaller than that of the CIDR fd00::/48: a subnet would be larger than the cluster pool"},
		"IPv6 is disabled, and there is only an IPv6 CIDR": {given{args: []string{"--cluster-pool-ipv6-cidr=fd00::/48", "--enable-ipv6=false"}}, noIPv4},
		"IPv6 is disabled by the defaults of the guide, and there is only an IPv6 CIDR": {given{args: []string{"--cluster-pool-ipv6-cidr=fd00::/48", "--ipRateNum=8"}},
			noIPv4 + " (from the default of --enableIPv6)"},
		"IPv6 is disabled, and the file has only an IPv6 CIDR": {given{args: []string{"--enable-ipv6=false"}, file: head + "subnets: {clusterPools: [{cidr: \"fd00::/48\"}]}\n"}, noIPv4},
		"the families of the file, and only an IPv6 CIDR by a flag": {given{args: []string{"--cluster-pool-ipv6-cidr=fd00::/48"}, file: head + "ipFamilies: [IPv4]\n"},
			`--config config.yaml: ipFamilies[0]: Invalid value: "IPv4": subnets.clusterPools has no IPv4 CIDR; add one, or remove IPv4 from ipFamilies`},
		"overlapping CIDRs in the file": {given{file: head + "subnets: {clusterPools: [{cidr: 10.0.0.0/16}, {cidr: 10.0.1.0/24}]}\n"},
			`--config config.yaml: subnets.clusterPools[1].cidr: Invalid value: "10.0.1.0/24": overlaps 10.0.0.0/16`},
		"an invalid value of a flag that overrides the file": {given{args: []string{"--failover=Move"}, file: head + "subnets: {clusterPools: [{cidr: 10.0.0.0/16}]}\nfailover: Wait\n"},
			`--failover: Unsupported value: "Move": supported values: "Wait", "Migrate", "Reassign"`},
		"mask size of the file, and a flag of the other family": {given{args: []string{"--cluster-pool-ipv4-mask-size=25"}, file: head + "subnets: {clusterPools: [{cidr: 10.0.0.0/16}, {cidr: \"fd00::/48\", maskSize: 47}]}\n"},
			"--config config.yaml: subnets.clusterPools[1].maskSize: Invalid value: 47: mask size 47 is smaller than that of the CIDR fd00::/48: a subnet would be larger than the cluster pool"},
		"mask size of the file, and a CIDR of the other family by a flag": {given{args: []string{"--cluster-pool-ipv4-cidr=10.1.0.0/16"}, file: head + "subnets: {clusterPools: [{cidr: 10.0.0.0/16}, {cidr: \"fd00::/48\", maskSize: 47}]}\n"},
			"--config config.yaml: subnets.clusterPools[1].maskSize: Invalid value: 47: mask size 47 is smaller than that of the CIDR fd00::/48: a subnet would be larger than the cluster pool"},
		"mask size of a flag for a CIDR of the file": {given{args: []string{"--cluster-pool-ipv6-mask-size=47"}, file: head + "subnets: {clusterPools: [{cidr: \"fd00::/48\"}, {cidr: 10.0.0.0/16}]}\n"},
			"--cluster-pool-ipv6-mask-size: Invalid value: 47: mask size 47 is smaller than that of the CIDR fd00::/48: a subnet would be larger than the cluster pool"},
		"default mask size for a CIDR of a flag": {given{args: []string{"--cluster-pool-ipv4-cidr=10.0.0.0/25"}, file: head + "subnets: {clusterPools: [{cidr: 10.0.0.0/16}]}\n"},
			"--cluster-pool-ipv4-mask-size: Invalid value: 24: mask size 24 is smaller than that of the CIDR 10.0.0.0/25: a subnet would be larger than the cluster pool"},
		"overlapping CIDRs of the file, and a mask size of the same family by a flag": {given{args: []string{"--cluster-pool-ipv4-mask-size=25"}, file: head + "subnets: {clusterPools: [{cidr: 10.0.0.0/16}, {cidr: \"fd00::/48\"}, {cidr: 10.0.1.0/24}]}\n"},
			`--config config.yaml: subnets.clusterPools[2].cidr: Invalid value: "10.0.1.0/24": overlaps 10.0.0.0/16`},
		"an invalid CIDR of the file, and a flag": {given{args: []string{"--cluster-pool-ipv4-cidr=10.1.0.0/16"}, file: head + "subnets: {clusterPools: [{cidr: 10.0.0.0/16}, {cidr: 10.0.0.0}]}\n"},
			`--config config.yaml: subnets.clusterPools[1].cidr: Invalid value: "10.0.0.0": "10.0.0.0" is not a CIDR such as 10.240.0.0/16 or fd00:240::/48`},
		"no cluster pool in the file, and a mask size": {given{args: []string{"--cluster-pool-ipv4-mask-size=25"}, file: head},
			"--config config.yaml: subnets.clusterPools: Required value: must be the CIDRs from which nodes get their subnets, unless subnets.source is Node"},
		"an IPv6 cluster pool although the subnets are those of Kubernetes": {given{args: []string{"--subnet-source=Node", "--cluster-pool-ipv6-cidr=fd00::/48", "--cluster-pool-ipv6-mask-size=64"}},
			"--cluster-pool-ipv6-cidr: Forbidden: if subnets.source is Node, the subnets come from spec.podCIDRs of the Nodes"},
		"cluster pools of the file although the subnets are those of Kubernetes": {given{args: []string{"--subnet-source=Node", "--cluster-pool-ipv6-mask-size=64"}, file: head + "subnets: {clusterPools: [{cidr: \"fd00::/48\"}]}\n"},
			"--config config.yaml: subnets.clusterPools: Forbidden: if subnets.source is Node, the subnets come from spec.podCIDRs of the Nodes"},
		"two mask sizes for one CIDR": {given{args: []string{"--cluster-pool-ipv4-cidr=10.0.0.0/16", "--cluster-pool-ipv4-mask-size=24,25"}},
			"--cluster-pool-ipv4-cidr: mask sizes [24 25] do not match the CIDRs [10.0.0.0/16]; give one mask size for all CIDRs, or one for each"},
		"an invalid selector of a flag": {given{args: []string{"--cluster-pool-ipv4-cidr=10.0.0.0/16", `--label-selector={"matchLables":{}}`}}, `--label-selector: not a LabelSelector in JSON: unknown field "matchLables"`},
	} {
		c.args = append(c.args, "--leader-election-namespace=x")
		o, s, err := read(t, c.given)
		if err != nil {
			t.Fatal(err)
		}
		_, err = o.config(s.changed)
		if c.file != "" && err != nil {
			err = shortened{err, o.configFile}
		}
		if got := s.withOrigin(err); got == nil || got.Error() != c.want {
			t.Errorf("%s: got error %v, want %s", name, got, c.want)
		}
	}
}

// TestFlagsPrecedeTheFile checks, for each flag that sets a field of the configuration, that its value takes effect although the
// file has another value.
func TestFlagsPrecedeTheFile(t *testing.T) {
	const pools = "subnets: {clusterPools: [{cidr: 10.1.0.0/16, maskSize: 24}, {cidr: \"fd01::/48\", maskSize: 120}]}\n"
	effects := map[string]struct {
		args []string
		file string
		want func(c configuration.Configuration) any
		is   any
	}{
		"cluster-pool-ipv4-cidr":       {[]string{"--cluster-pool-ipv4-cidr=10.2.0.0/16"}, pools, func(c configuration.Configuration) any { return c.Subnets.ClusterPools[1].CIDR }, "10.2.0.0/16"},
		"cluster-pool-ipv4-mask-size":  {[]string{"--cluster-pool-ipv4-mask-size=25"}, pools, func(c configuration.Configuration) any { return c.Subnets.ClusterPools[1].MaskSize }, 25},
		"cluster-pool-ipv6-cidr":       {[]string{"--cluster-pool-ipv6-cidr=fd02::/48"}, pools, func(c configuration.Configuration) any { return c.Subnets.ClusterPools[1].CIDR }, "fd02::/48"},
		"cluster-pool-ipv6-mask-size":  {[]string{"--cluster-pool-ipv6-mask-size=119"}, pools, func(c configuration.Configuration) any { return c.Subnets.ClusterPools[1].MaskSize }, 119},
		"enable-ipv6":                  {[]string{"--enable-ipv6=true"}, pools + "ipFamilies: [IPv4]\n", func(c configuration.Configuration) any { return strings.Join(c.IPFamilies, ",") }, "IPv4,IPv6"},
		"subnet-source":                {[]string{"--subnet-source=Node"}, "subnets: {source: ClusterPool}\n", func(c configuration.Configuration) any { return c.Subnets.Source }, configuration.FromNode},
		"orphaned-subnet-policy":       {[]string{"--orphaned-subnet-policy=Hold"}, "subnets: {source: Node, orphanedPolicy: Free}\n", func(c configuration.Configuration) any { return c.Subnets.OrphanedPolicy }, subnetplan.Hold},
		"orphaned-subnet-grace-period": {[]string{"--orphaned-subnet-grace-period=7m"}, "subnets: {source: Node, orphanedGracePeriod: 5m}\n", func(c configuration.Configuration) any { return c.Subnets.OrphanedGracePeriod.Duration }, 7 * time.Minute},
		"protect-nodes-from":           {[]string{"--protect-nodes-from=karpenter"}, pools + "protectNodesFrom: [cluster-autoscaler]\n", func(c configuration.Configuration) any { return strings.Join(c.ProtectNodesFrom, ",") }, "karpenter"},
		"min-free-ips":                 {[]string{"--min-free-ips=3"}, pools + "pools: {minFree: 4}\n", func(c configuration.Configuration) any { return *c.Pools.MinFree }, 3},
		"max-dynamic-ips":              {[]string{"--max-dynamic-ips=30"}, pools + "pools: {maxDynamic: 40}\n", func(c configuration.Configuration) any { return *c.Pools.MaxDynamic }, 30},
		"strict-nodes":                 {[]string{"--strict-nodes=a=b"}, pools + "strictNodes: c=d\n", func(c configuration.Configuration) any { return *c.StrictNodes }, "a=b"},
		"failover":                     {[]string{"--failover=Reassign"}, pools + "failover: Wait\n", func(c configuration.Configuration) any { return c.Failover }, v1alpha1.Reassign},
		"allow-address-migration":      {[]string{"--allow-address-migration=false"}, pools + "allowAddressMigration: true\n", func(c configuration.Configuration) any { return c.MigrationAllowed() }, false},
		"mismatch-policy":              {[]string{"--mismatch-policy=Report"}, pools + "mismatchPolicy: Restart\n", func(c configuration.Configuration) any { return c.MismatchPolicy }, identity.Report},
		"label-selector":               {[]string{"--label-selector=a=b"}, pools + "adoption: {podSelector: {matchLabels: {c: d}}}\n", func(c configuration.Configuration) any { return metav1.FormatLabelSelector(c.Adoption.PodSelector) }, "a in (b)"},
		"scheduler-names":              {[]string{"--scheduler-names=a"}, pools + "schedulerNames: [b]\n", func(c configuration.Configuration) any { return strings.Join(c.SchedulerNames, ",") }, "a"},
		"workload-kind":                {[]string{"--workload-kind=Deployment.apps=Slot"}, pools + "workloads: [{apiGroup: x.io, kind: Db, identity: PodName}]\n", func(c configuration.Configuration) any { return c.Workloads[0].Kind }, "Deployment"},
	}
	for _, f := range sharedFlags {
		c, ok := effects[f.flag]
		if !ok {
			t.Errorf("no case for --%s", f.flag)
			continue
		}
		o, s, err := read(t, given{args: append(c.args, "--leader-election-namespace=x"), file: head + c.file})
		if err != nil {
			t.Fatal(err)
		}
		settings, err := o.configuration(s.changed)
		if err != nil {
			t.Errorf("--%s: got error %v, want none", f.flag, err)
			continue
		}
		if got := c.want(settings); got != c.is {
			t.Errorf("--%s: got %v, want %v", f.flag, got, c.is)
		}
	}
}

// TestAdoptedFamilies checks which flags restrict adoption to IPv4.
func TestAdoptedFamilies(t *testing.T) {
	for name, c := range map[string]struct {
		args     []string
		ipv4Only bool
	}{
		"defaults":                   {nil, false},
		"both families, guide flags": {[]string{"--enableIPv6=true", "--enableStaticPodIPv6=true"}, false},
		"IPv4 only for pods":         {[]string{"--enableIPv6=true", "--enableStaticPodIPv6=false"}, true},
		"no IPv6":                    {[]string{"--enable-ipv6=false"}, true},
	} {
		o, s, err := read(t, given{args: append(c.args, "--cluster-pool-ipv4-cidr=10.0.0.0/16", "--cluster-pool-ipv6-cidr=fd00::/48", "--leader-election-namespace=x", "--label-selector=a=b")})
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := o.config(s.changed)
		if err != nil || cfg.Adoption.IPv4Only != c.ipv4Only || cfg.Adoption.Selector.String() != "a in (b)" {
			t.Errorf("%s: got error %v and adoption %+v, want IPv4Only %v and selector a in (b)", name, err, cfg.Adoption, c.ipv4Only)
		}
	}
}

// TestGuideFlags checks that every flag of the guide exists, as a flag or as an alias, that the flags of leader election have
// the guide's defaults, and that each environment variable of the guide sets a flag.
func TestGuideFlags(t *testing.T) {
	o := &options{}
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	o.addFlags(fs)
	logsapi.AddFlags(logsapi.NewLoggingConfiguration(), fs)
	addAliases(fs)
	for _, name := range []string{
		"labelSector", "ipRateNum", "maxAllocatedIP", "enableIPv6", "enableStaticPodIPv6", "excludeDbbranchPrefixs",
		"cluster-pool-ipv4-cidr", "cluster-pool-ipv4-mask-size", "cluster-pool-ipv6-cidr", "cluster-pool-ipv6-mask-size",
		"enable-leader-election", "leader-election-namespace", "leader-election-id",
		"leader-election-lease-duration", "leader-election-renew-deadline", "leader-election-retry-period",
		"cepTerminationTimeout", "logLevel",
	} {
		if fs.Lookup(name) == nil {
			t.Errorf("flag --%s of the guide does not exist", name)
		}
	}
	for name, want := range map[string]string{
		"enable-leader-election": "true", "leader-election-id": "cilium-ipam-leader", "leader-election-lease-duration": "15s",
		"leader-election-renew-deadline": "10s", "leader-election-retry-period": "2s",
	} {
		if got := fs.Lookup(name).DefValue; got != want {
			t.Errorf("default of --%s: got %s, want %s as in the guide", name, got, want)
		}
	}
	for _, name := range []string{"KUBECONFIG", "POD_NAMESPACE", "CLUSTER_POOL_IPV4_CIDR", "CLUSTER_POOL_IPV4_MASK_SIZE", "CLUSTER_POOL_IPV6_CIDR", "CLUSTER_POOL_IPV6_MASK_SIZE"} {
		if !slices.ContainsFunc(variables, func(v variable) bool { return v.name == name && fs.Lookup(v.flag) != nil }) {
			t.Errorf("variable %s of the guide is not in variables, or its flag does not exist", name)
		}
	}
}

// TestVerbosity checks the conversion of the guide's log levels to -v.
func TestVerbosity(t *testing.T) {
	for level, want := range map[string]string{"0": "0", "1": "0", "2": "0", "3": "0", "4": "2", "5": "4", "6": "6"} {
		_, s, err := read(t, given{args: []string{"--logLevel=" + level}})
		if err != nil {
			t.Fatal(err)
		}
		if got := s.fs.Lookup("v").Value.String(); got != want {
			t.Errorf("--logLevel=%s: got -v=%s, want %s", level, got, want)
		}
	}
}

// TestOwnNamespace checks that the default namespace is that of the kubeconfig's context, and that it is empty if the
// file does not exist.
func TestOwnNamespace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a, namespace: kube-system}}]}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := ownNamespace(path); got != "kube-system" {
		t.Errorf("got namespace %q, want kube-system", got)
	}
	if got := ownNamespace(path + "x"); got != "" {
		t.Errorf("got namespace %q from a file that does not exist, want none", got)
	}
}

// TestSettingsFollowCilium checks that config takes over the settings of Cilium. It checks that config accepts the policy
// Migrate before these settings are read, and that native routing makes config refuse Migrate unless --allow-address-migration
// is set. It also checks the error of --cilium-config.
func TestSettingsFollowCilium(t *testing.T) {
	for name, c := range map[string]struct {
		args    []string
		cilium  *configuration.CiliumSettings
		wantErr string
	}{
		"the settings are not read yet":            {},
		"tunnel mode":                              {cilium: &configuration.CiliumSettings{RoutingMode: "tunnel"}},
		"native routing":                           {cilium: &configuration.CiliumSettings{RoutingMode: "native"}, wantErr: `--failover: Invalid value: "Migrate": addresses cannot migrate while allowAddressMigration is false; set it to true if the routing of the cluster carries single addresses`},
		"native routing, and migration is allowed": {args: []string{"--allow-address-migration"}, cilium: &configuration.CiliumSettings{RoutingMode: "native"}},
		"a ConfigMap without a namespace":          {args: []string{"--cilium-config=cilium-config"}, wantErr: `--cilium-config: "cilium-config" is not the name of a ConfigMap; write namespace/name, such as kube-system/cilium-config`},
		"agents report rarely":                     {args: []string{"--allow-address-migration"}, cilium: &configuration.CiliumSettings{ReportInterval: time.Minute}},
	} {
		o, s, err := read(t, given{args: append([]string{"--cluster-pool-ipv4-cidr=10.0.0.0/16", "--leader-election-namespace=x", "--failover=Migrate"}, c.args...)})
		if err != nil {
			t.Fatal(err)
		}
		o.cilium = c.cilium
		cfg, err := o.config(s.changed)
		if got := s.withOrigin(err); (got != nil || c.wantErr != "") && (got == nil || got.Error() != c.wantErr) {
			t.Errorf("%s: got error %v, want %q", name, got, c.wantErr)
		}
		if err == nil && c.cilium != nil && cfg.Cilium != *c.cilium {
			t.Errorf("%s: got settings of Cilium %+v, want %+v", name, cfg.Cilium, *c.cilium)
		}
	}
}
