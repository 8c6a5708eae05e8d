// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// TestBadFlags checks that the controller exits with an error for each invalid flag. The last line of the output names
// the flag and explains the error.
func TestBadFlags(t *testing.T) {
	t.Parallel()
	const pool = "--cluster-pool-ipv4-cidr=10.240.0.0/16"
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no such prefix length":             {[]string{"--cluster-pool-ipv4-cidr=10.0.0.0/33"}, `--cluster-pool-ipv4-cidr: "10.0.0.0/33" is not a CIDR such as 10.240.0.0/16 or fd00:240::/48`},
		"host bits":                         {[]string{"--cluster-pool-ipv4-cidr=10.0.0.5/16"}, `--cluster-pool-ipv4-cidr: "10.0.0.5/16" has host bits set; the network is 10.0.0.0/16`},
		"IPv6 CIDR in the IPv4 flag":        {[]string{"--cluster-pool-ipv4-cidr=fd00::/48"}, `--cluster-pool-ipv4-cidr: "fd00::/48" is an IPv6 CIDR; write it in --cluster-pool-ipv6-cidr`},
		"mask smaller than CIDR":            {[]string{pool, "--cluster-pool-ipv4-mask-size=8"}, `--cluster-pool-ipv4-mask-size: Invalid value: 8: mask size 8 is smaller than that of the CIDR 10.240.0.0/16: a subnet would be larger than the cluster pool`},
		"mask longer than address":          {[]string{pool, "--cluster-pool-ipv4-mask-size=33"}, `--cluster-pool-ipv4-mask-size: Invalid value: 33: mask size 33 is longer than an IPv4 address (32 bits)`},
		"overlapping pools":                 {[]string{pool, "--cluster-pool-ipv4-cidr=10.240.8.0/21"}, `--cluster-pool-ipv4-cidr: Invalid value: "10.240.8.0/21": overlaps 10.240.0.0/16`},
		"no pool":                           {nil, `--cluster-pool-ipv4-cidr: Required value: must be the CIDRs from which nodes get their subnets, unless subnets.source is Node`},
		"mask sizes and CIDRs":              {[]string{pool, "--cluster-pool-ipv4-cidr=10.1.0.0/16,10.2.0.0/16", "--cluster-pool-ipv4-mask-size=24,25"}, `--cluster-pool-ipv4-cidr: mask sizes [24 25] do not match the CIDRs [10.240.0.0/16 10.1.0.0/16 10.2.0.0/16]; give one mask size for all CIDRs, or one for each`},
		"one mask of two is wrong":          {[]string{pool, "--cluster-pool-ipv4-cidr=10.1.0.0/25", "--cluster-pool-ipv4-mask-size=24,24"}, `--cluster-pool-ipv4-mask-size: Invalid value: 24: mask size 24 is smaller than that of the CIDR 10.1.0.0/25: a subnet would be larger than the cluster pool`},
		"no such source":                    {[]string{pool, "--subnet-source=Cilium"}, `--subnet-source: Unsupported value: "Cilium": supported values: "ClusterPool", "Node"`},
		"two sources":                       {[]string{pool, "--subnet-source=Node"}, `--cluster-pool-ipv4-cidr: Forbidden: if subnets.source is Node, the subnets come from spec.podCIDRs of the Nodes`},
		"no such policy":                    {[]string{pool, "--orphaned-subnet-policy=Keep"}, `--orphaned-subnet-policy: Unsupported value: "Keep": supported values: "Inherit", "Hold", "Free"`},
		"negative grace period":             {[]string{pool, "--orphaned-subnet-grace-period=-1s"}, `--orphaned-subnet-grace-period: Invalid value: "-1s": must not be negative`},
		"watermark too low":                 {[]string{pool, "--min-free-ips=1"}, `--min-free-ips: Invalid value: 1: must be at least 2: a Cilium agent with health checks does not start with a smaller pool`},
		"maximum below watermark":           {[]string{pool, "--max-dynamic-ips=4"}, `--max-dynamic-ips: Invalid value: 4: must be 0, or at least minFree (8)`},
		"negative surplus":                  {[]string{pool, "--max-surplus-ips=-1"}, `--max-surplus-ips: Invalid value: -1: must not be negative`},
		"too few writes":                    {[]string{pool, "--node-writes-per-minute=1"}, `--node-writes-per-minute: Invalid value: 1: must be at least 4: enough to fill a pool, withdraw surplus entries, ask the Cilium agent to acknowledge that, and remove the entries within one minute`},
		"invalid selector":                  {[]string{pool, "--strict-nodes=a in"}, `--strict-nodes: Invalid value: "a in": unable to parse requirement: found '' expected: '('`},
		"negative cooldown":                 {[]string{pool, "--address-cooldown=-1s"}, `--address-cooldown: Invalid value: "-1s": must not be negative`},
		"no such autoscaler":                {[]string{pool, "--protect-nodes-from=spot"}, `--protect-nodes-from: Unsupported value: "spot": supported values: "cluster-autoscaler", "karpenter"`},
		"resync period too short":           {[]string{pool, "--resync-period=0s"}, `--resync-period: Invalid value: "0s": must be at least 1s`},
		"invalid duration":                  {[]string{pool, "--address-cooldown=soon"}, `invalid argument "soon" for "--address-cooldown" flag: time: invalid duration "soon"`},
		"lease shorter than renew":          {[]string{pool, "--leader-election-lease-duration=5s"}, `--leader-election-lease-duration: Invalid value: "5s": must be longer than leader-election-renew-deadline 10s, which must be longer than leader-election-retry-period 2s; all must be more than 0`},
		"unknown field of a selector":       {[]string{pool, `--label-selector={"matchLables":{}}`}, `--label-selector: not a LabelSelector in JSON: unknown field "matchLables"`},
		"an empty prefix":                   {[]string{pool, "--excludeDbbranchPrefixs=test-,,staging-"}, `--exclude-dbbranch-prefixes: Invalid value: "": must not be empty: every label begins with the empty prefix`},
		"invalid value of an alias":         {[]string{pool, "--ipRateNum=ten"}, `invalid argument "ten" for "--ipRateNum" flag: strconv.ParseInt: parsing "ten": invalid syntax`},
		"alias and name":                    {[]string{pool, "--ipRateNum=8", "--min-free-ips=8"}, `--ipRateNum and --min-free-ips are the same flag; set --min-free-ips only`},
		"IPv6 pool with IPv6 disabled":      {[]string{"--cluster-pool-ipv6-cidr=fd00::/48", "--enableIPv6=false"}, `--enable-ipv6: Invalid value: false: nodes and pods would get IPv4 addresses only, but there is no IPv4 CIDR; set --cluster-pool-ipv4-cidr, or set --enable-ipv6 to true`},
		"no QPS":                            {[]string{pool, "--kube-api-qps=0"}, `--kube-api-qps: Invalid value: 0: must be more than 0`},
		"no burst":                          {[]string{pool, "--kube-api-burst=0"}, `--kube-api-burst: Invalid value: 0: must be at least 1`},
		"invalid name of a Lease":           {[]string{pool, "--leader-election-id=Leader!"}, `--leader-election-id: Invalid value: "Leader!": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')`},
		"bind address without a colon":      {[]string{pool, "--metrics-bind-address=9470"}, `--metrics-bind-address: Invalid value: "9470": write host:port with a number as the port, such as :9470, or 0`},
		"named port":                        {[]string{pool, "--health-probe-bind-address=:http"}, `--health-probe-bind-address: Invalid value: ":http": write host:port with a number as the port, such as :9470, or 0`},
		"unknown mismatch policy":           {[]string{pool, "--mismatch-policy=restart"}, `--mismatch-policy: Unsupported value: "restart": supported values: "Restart", "Report"`},
		"no concurrent restarts":            {[]string{pool, "--max-concurrent-restarts=0"}, `--max-concurrent-restarts: Invalid value: 0: must be at least 1; to restart no pods, set mismatchPolicy to Report`},
		"grace period too short":            {[]string{pool, "--cep-grace-period=0s"}, `--cep-grace-period: Invalid value: "0s": must be at least 1s`},
		"Migrate is not allowed":            {[]string{pool, "--failover=Migrate", "--allow-address-migration=false"}, `--failover: Invalid value: "Migrate": addresses cannot migrate while allowAddressMigration is false; set it to true if the routing of the cluster carries single addresses`},
		"cilium-config without a namespace": {[]string{pool, "--cilium-config=cilium-config"}, `--cilium-config: "cilium-config" is not the name of a ConfigMap; write namespace/name, such as kube-system/cilium-config`},
		"no such file":                      {[]string{pool, "--config=/nowhere.yaml"}, `--config /nowhere.yaml: open /nowhere.yaml: no such file or directory`},
		"no such flag":                      {[]string{"--cluster-pool"}, `unknown flag: --cluster-pool`},
		"no such kubeconfig":                {[]string{pool, "--kubeconfig=/nowhere"}, `--kubeconfig "/nowhere": stat /nowhere: no such file or directory`},
		"unknown argument":                  {[]string{"start"}, `unknown command "start" for "fixedip-controller"`},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"--leader-election-namespace=fixedip-system"}, c.args...)
			lastLine(t, "fixedip-controller", args, "fixedip-controller: "+c.want)
		})
	}
	t.Run("no namespace", func(t *testing.T) {
		lastLine(t, "fixedip-controller", []string{pool}, "fixedip-controller: --leader-election-namespace: Required value: name the namespace for the Leases, here or in the environment variable POD_NAMESPACE")
	})
}

// TestBadSchedulerArgs checks that the scheduler exits with an error for each invalid argument of the plugin and each
// invalid setting. The last line of the output names the field and explains the error.
func TestBadSchedulerArgs(t *testing.T) {
	t.Parallel()
	const prefix = `fixedip-scheduler: initializing profiles: creating profile for scheduler name fixedip-scheduler: initializing plugin "FixedIP": pluginConfig[FixedIP].args.`
	for name, c := range map[string]struct{ args, settings, want string }{
		"no claim timeout":                  {args: "claimTimeout: 0s", want: prefix + `claimTimeout: Invalid value: "0s": must be more than 0s and at most 5m0s`},
		"claim timeout too long":            {args: "claimTimeout: 1h", want: prefix + `claimTimeout: Invalid value: "1h0m0s": must be more than 0s and at most 5m0s`},
		"no QPS":                            {args: "claimQPS: 0", want: prefix + `claimQPS: Invalid value: 0: must be more than 0`},
		"no burst":                          {args: "claimBurst: 0", want: prefix + `claimBurst: Invalid value: 0: must be at least 1`},
		"no such file":                      {args: "configuration: /nowhere.yaml", want: prefix + `configuration: open /nowhere.yaml: no such file or directory`},
		"no such argument":                  {args: "ipFamilies: [IPv4]", want: `fixedip-scheduler: strict decoding error: decoding .profiles[0].pluginConfig[0]: strict decoding error: decoding args for plugin FixedIP: strict decoding error: unknown field "ipFamilies"`},
		"no such family":                    {settings: "ipFamilies: [IPv5]", want: prefix + `configuration: FILE: ipFamilies[0]: Unsupported value: "IPv5": supported values: "IPv4", "IPv6"`},
		"invalid selector":                  {settings: `strictNodes: "a in"`, want: prefix + `configuration: FILE: strictNodes: Invalid value: "a in": unable to parse requirement: found '' expected: '('`},
		"cilium-config without a namespace": {args: "ciliumConfig: cilium-config", want: prefix + `ciliumConfig: Invalid value: "cilium-config": "cilium-config" is not the name of a ConfigMap; write namespace/name, such as kube-system/cilium-config`},
		"Migrate is not allowed":            {settings: "allowAddressMigration: false\nfailover: Migrate", want: prefix + `configuration: FILE: failover: Invalid value: "Migrate": addresses cannot migrate while allowAddressMigration is false; set it to true if the routing of the cluster carries single addresses`},
		"profile without a name":            {settings: "allowAddressMigration: true\nschedulerNames: [web]", want: strings.TrimSuffix(prefix, "pluginConfig[FixedIP].args.") + `profile fixedip-scheduler enables plugin FixedIP, but schedulerNames in the configuration is [web]; add fixedip-scheduler to schedulerNames, or disable the plugin in that profile`},
		"no such setting":                   {settings: "ipFamily: IPv4", want: prefix + `configuration: FILE: error unmarshaling JSON: while decoding JSON: json: unknown field "ipFamily"`},
	} {
		t.Run(name, func(t *testing.T) {
			file := settingsFile(t, c.settings)
			if !strings.Contains(c.args, "configuration:") {
				c.args = strings.TrimSuffix("configuration: "+file+", "+c.args, ", ")
			}
			config := schedulerConfig(t, kubeconfigOf(t, "http://127.0.0.1:1"), c.args)
			lastLine(t, "fixedip-scheduler", []string{"--config=" + config, "--secure-port=0"}, strings.ReplaceAll(c.want, "FILE", file))
		})
	}
}

// settingsFile writes a configuration file for both programs and returns its path. line is YAML text at the end of the file; it
// may be empty or have several lines.
func settingsFile(t *testing.T, line string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "settings.yaml")
	write(t, path, "apiVersion: config.fixedip.io/v1alpha1\nkind: FixedIPConfiguration\nsubnets: {clusterPools: [{cidr: 10.240.0.0/16}]}\n"+line+"\n")
	return path
}

// TestOlderAPIServer checks that both programs end with one clear error on an API server that is too old for them.
func TestOlderAPIServer(t *testing.T) {
	t.Parallel()
	older := func(version string) (kubeconfig string) {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/version" {
				http.NotFound(w, r)
				return
			}
			fmt.Fprintf(w, `{"major":"1","minor":"29","gitVersion":%q}`, version)
		}))
		t.Cleanup(server.Close)
		return kubeconfigOf(t, server.URL)
	}
	lastLine(t, "fixedip-controller", []string{"--cluster-pool-ipv4-cidr=10.240.0.0/16", "--leader-election-namespace=fixedip-system", "--kubeconfig=" + older("v1.29.14")},
		"fixedip-controller: the API server has version v1.29.14, and this program needs Kubernetes 1.30 or later: the CustomResourceDefinitions use CEL functions for IP addresses; upgrade the API server, or use a version of fixedip that supports it")
	lastLine(t, "fixedip-scheduler", []string{"--config=" + schedulerConfig(t, older("v1.33.7"), "configuration: "+settingsFile(t, "")), "--secure-port=0"},
		`fixedip-scheduler: initializing profiles: creating profile for scheduler name fixedip-scheduler: initializing plugin "FixedIP": the API server has version v1.33.7, and this program needs Kubernetes 1.34 or later: a scheduler must not be newer than the API server; upgrade the API server, or use a version of fixedip that supports it`)
}

// TestMissingRights checks that both programs end with one clear error if a role lacks a right that a setting needs.
func TestMissingRights(t *testing.T) {
	t.Parallel()
	answers := map[string]string{
		"/version":      `{"major":"1","minor":"34","gitVersion":"v1.34.0"}`,
		"/api":          `{"kind":"APIVersions","versions":["v1"]}`,
		"/api/v1":       `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"nodes","kind":"Node","verbs":["patch"]}]}`,
		"/apis":         `{"kind":"APIGroupList","groups":[{"name":"apps","versions":[{"groupVersion":"apps/v1","version":"v1"}],"preferredVersion":{"groupVersion":"apps/v1","version":"v1"}}]}`,
		"/apis/apps":    `{"kind":"APIGroup","name":"apps","versions":[{"groupVersion":"apps/v1","version":"v1"}],"preferredVersion":{"groupVersion":"apps/v1","version":"v1"}}`,
		"/apis/apps/v1": `{"kind":"APIResourceList","groupVersion":"apps/v1","resources":[{"name":"deployments","kind":"Deployment","namespaced":true,"verbs":["list"]},{"name":"statefulsets","kind":"StatefulSet","namespaced":true,"verbs":["list"]}]}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if answer, ok := answers[r.URL.Path]; ok {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, answer)
			return
		}
		review := &authorizationv1.SelfSubjectAccessReview{}
		body, err := io.ReadAll(r.Body)
		if err == nil {
			_, _, err = clientgoscheme.Codecs.UniversalDeserializer().Decode(body, nil, review)
		}
		if err != nil || review.Spec.ResourceAttributes == nil {
			http.NotFound(w, r)
			return
		}
		review.TypeMeta = metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"}
		review.Status.Allowed = review.Spec.ResourceAttributes.Resource == "statefulsets"
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Errorf("encode the review: %v", err)
		}
	}))
	t.Cleanup(server.Close)
	kubeconfig, file := kubeconfigOf(t, server.URL), settingsFile(t, "allowAddressMigration: false\nprotectNodesFrom: [karpenter]\nworkloads: [{apiGroup: apps, kind: Deployment, identity: Slot}]")
	const end = ", as the chart does, or remove the settings that need them"
	lastLine(t, "fixedip-controller", []string{"--config=" + file, "--leader-election-namespace=fixedip-system", "--kubeconfig=" + kubeconfig},
		"fixedip-controller: this program lacks rights that its configuration needs: get, list, watch deployments.apps (for workloads); patch nodes (for protectNodesFrom); add these rights to ClusterRole fixedip-controller"+end)
	lastLine(t, "fixedip-scheduler", []string{"--config=" + schedulerConfig(t, kubeconfig, "configuration: "+file), "--secure-port=0"},
		`fixedip-scheduler: initializing profiles: creating profile for scheduler name fixedip-scheduler: initializing plugin "FixedIP": this program lacks rights that its configuration needs: list, watch deployments.apps (for workloads); add these rights to ClusterRole fixedip-scheduler`+end)
}

// kubeconfigOf writes a kubeconfig for a server without authentication.
func kubeconfigOf(t *testing.T, server string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	write(t, path, `{apiVersion: v1, kind: Config, current-context: a, clusters: [{name: a, cluster: {server: "`+server+`"}}], users: [{name: a}], contexts: [{name: a, context: {cluster: a, user: a}}]}`)
	return path
}

// schedulerConfig writes the configuration of a scheduler with the arguments of FixedIP.
func schedulerConfig(t *testing.T, kubeconfig, args string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	write(t, path, `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: `+kubeconfig+`}
leaderElection: {leaderElect: false}
profiles:
- schedulerName: fixedip-scheduler
  plugins: {multiPoint: {enabled: [{name: FixedIP}]}}
  pluginConfig: [{name: FixedIP, args: {`+args+`}}]
`)
	return path
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// lastLine checks that a program fails with the given last line of output. Log lines of libraries may precede it, but no
// usage text.
func lastLine(t *testing.T, program string, args []string, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "race", program), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG=", "POD_NAMESPACE=")
	out, err := cmd.CombinedOutput()
	if err == nil || ctx.Err() != nil {
		t.Fatalf("%s %v: got the error %v, want an exit with an error; output:\n%s", program, args, err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if got := lines[len(lines)-1]; got != want {
		t.Errorf("the last line of the output of %s is\n%s\nwant\n%s", program, got, want)
	}
	for _, line := range lines[:len(lines)-1] {
		if !strings.HasPrefix(line, "I") && !strings.HasPrefix(line, "W") {
			t.Errorf("got the line %q before the last line, want only log lines there", line)
		}
	}
}

// TestFixedIPValidation checks which FixedIPs the API server accepts, and its errors for others.
func TestFixedIPValidation(t *testing.T) {
	t.Parallel()
	e := startCluster(t)
	make := func(name string, ips ...string) *v1alpha1.FixedIP {
		return &v1alpha1.FixedIP{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec:       v1alpha1.FixedIPSpec{IPs: ips, PodName: name, Owner: v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web"}},
		}
	}
	for name, c := range map[string]struct {
		ips  []string
		want string
	}{
		"none":           {nil, ""},
		"one":            {[]string{"10.240.1.10"}, ""},
		"both":           {[]string{"10.240.1.11", "fd00:240::1:a"}, ""},
		"no-address":     {[]string{"10.240.1.300"}, "each must be a valid IP address"},
		"a-cidr":         {[]string{"10.240.1.0/24"}, "each must be a valid IP address"},
		"not-canonical":  {[]string{"FD00:240::1:A"}, "each must be in canonical form, such as 10.240.1.10 or fd00:240::1:a"},
		"two-of-a-kind":  {[]string{"10.240.1.12", "10.240.1.13"}, "at most one address of each family"},
		"three":          {[]string{"10.240.1.14", "fd00:240::1:b", "10.240.1.15"}, "must have at most 2 items"},
		"twice-the-same": {[]string{"10.240.1.16", "10.240.1.16"}, "at most one address of each family"},
	} {
		err := e.api.Create(within(t), make(name, c.ips...))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got the error %v, want one with %q (if empty: no error)", name, err, c.want)
		}
	}

	fip := make("later")
	e.create(fip)
	for _, step := range []struct {
		what string
		ips  []string
		want string
	}{
		{"set once", []string{"10.240.2.1"}, ""},
		{"changed", []string{"10.240.2.2"}, "immutable once set"},
		{"emptied", []string{}, "immutable once set"},
		{"replaced with two", []string{"10.240.2.2", "fd00:240::2:1"}, "immutable once set"},
		{"other family added", []string{"10.240.2.1", "fd00:240::2:1"}, ""},
		{"one of two changed", []string{"10.240.2.1", "fd00:240::2:2"}, "immutable once set"},
		{"one of two removed", []string{"10.240.2.1"}, "immutable once set"},
		{"removed", nil, "immutable once set"},
		{"unchanged", []string{"10.240.2.1", "fd00:240::2:1"}, ""},
	} {
		changed := fip.DeepCopy()
		changed.Spec.IPs = step.ips
		err := e.api.Update(within(t), changed)
		if step.want == "" && err != nil || step.want != "" && (err == nil || !strings.Contains(err.Error(), step.want)) {
			t.Errorf("%s: got the error %v, want one with %q (if empty: no error)", step.what, err, step.want)
		}
		if err == nil {
			fip = changed
		}
	}
	changed := fip.DeepCopy()
	changed.Spec.PodName = "another"
	if err := e.api.Update(within(t), changed); err == nil || !strings.Contains(err.Error(), "immutable") {
		t.Errorf("change spec.podName: got %v, want an error that contains %q", err, "immutable")
	}
}
