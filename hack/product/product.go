// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package product

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
	"time"

	"fixedip.io/fixedip/hack/cluster"
)

// Lease contains the times of leader election, which determine how fast a replica takes over from a killed one.
type Lease struct{ Duration, Renew, Retry time.Duration }

// QuickLease has shorter times than the default lease. With the default, a replica takes over only 15 s after a kill. The
// times of QuickLease must not be much shorter, because a renewal has taken more than 3 s on a busy machine. A program that
// loses its lease exits and is not restarted.
var QuickLease = Lease{Duration: 10 * time.Second, Renew: 8 * time.Second, Retry: 500 * time.Millisecond}

// SchedulerOptions configure a scheduler.
type SchedulerOptions struct {
	Lease Lease
	// Families are the families of the addresses of pods; IPv4 if nil.
	Families []string
	// Failover is the default failover policy; Wait if empty. Movable allows the migration of addresses.
	Failover string
	Movable  bool
	// FollowCilium replaces Movable: the routing mode in the ConfigMap of Cilium decides.
	FollowCilium bool
	// NoElection disables leader election. The scheduler is then active at once, like a former leader that has not noticed
	// the loss of its lease.
	NoElection bool
	// Kubeconfig replaces the kubeconfig of the scheduler, for tests with a proxy.
	Kubeconfig string
	// SecurePort is the port of metrics and health checks on the loopback interface; 0 disables them.
	SecurePort int
	// Weight is the weight of the FixedIP score; 0 means the default.
	Weight int
	// Workloads is the value of the setting workloads, as YAML on one line; empty means the default.
	Workloads string
	// Plugins are the names of plugins to enable in addition to FixedIP, Disabled those of plugins to disable.
	Plugins, Disabled []string
	// NoFixedIP leaves the plugin FixedIP out: the scheduler is a plain kube-scheduler with the name fixedip-scheduler.
	NoFixedIP bool
	// QPS is the maximum number of requests per second, and also of claims per second; 0 means the defaults.
	QPS int
	// PluginArgs are the arguments of other plugins. Key: the name of the plugin. Value: YAML on one line.
	PluginArgs map[string]string
}

var schedulerConfig = template.Must(template.New("").Parse(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: {{.Kubeconfig}}
{{- if .QPS}}
  qps: {{.QPS}}
  burst: {{.QPS}}
{{- end}}
leaderElection:
  leaderElect: {{not .NoElection}}
  resourceNamespace: fixedip-system
  resourceName: fixedip-scheduler
  leaseDuration: {{.Lease.Duration}}
  renewDeadline: {{.Lease.Renew}}
  retryPeriod: {{.Lease.Retry}}
profiles:
- schedulerName: fixedip-scheduler
  plugins:
    multiPoint:
      enabled:
{{- if not .NoFixedIP}}
      - name: FixedIP
        weight: {{.Weight}}
{{- end}}
{{- range .Plugins}}
      - name: {{.}}
{{- end}}
      disabled: [{{range $i, $p := .Disabled}}{{if $i}}, {{end}}{name: {{$p}}}{{end}}]
  pluginConfig:
{{- if not .NoFixedIP}}
  - name: FixedIP
    args:
      configuration: {{.Settings}}
{{- if .QPS}}
      claimQPS: {{.QPS}}
      claimBurst: {{.QPS}}
{{- end}}
{{- end}}
{{- range $name, $args := .PluginArgs}}
  - name: {{$name}}
    args: {{$args}}
{{- end}}
`))

// schedulerSettings is the FixedIPConfiguration of the scheduler. In a real cluster the controller reads the same file; here
// the controller gets its settings from flags. The scheduler does not use the setting subnets.
var schedulerSettings = template.Must(template.New("").Parse(`apiVersion: config.fixedip.io/v1alpha1
kind: FixedIPConfiguration
ipFamilies: [{{range $i, $f := .Families}}{{if $i}}, {{end}}{{$f}}{{end}}]
subnets: {source: Node}
failover: {{or .Failover "Wait"}}
{{- if not .FollowCilium}}
allowAddressMigration: {{.Movable}}
{{- end}}
{{- with .Workloads}}
workloads: {{.}}
{{- end}}
`))

// StartScheduler starts a scheduler as a process with the given name. Replicas must have different names. It does not wait
// until the scheduler is ready.
func StartScheduler(c *cluster.Cluster, name, bin string, o SchedulerOptions) (*cluster.Process, error) {
	if o.Kubeconfig == "" {
		o.Kubeconfig = c.Kubeconfig(cluster.Scheduler)
	}
	if o.Families == nil {
		o.Families = []string{"IPv4"}
	}
	path, settings := filepath.Join(c.Dir(), name+".yaml"), filepath.Join(c.Dir(), name+"-settings.yaml")
	for file, contents := range map[string]*template.Template{path: schedulerConfig, settings: schedulerSettings} {
		var text bytes.Buffer
		if err := contents.Execute(&text, struct {
			SchedulerOptions
			Settings string
		}{o, settings}); err != nil {
			return nil, fmt.Errorf("generate the configuration of %s: %w", name, err)
		}
		if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
			return nil, fmt.Errorf("write the configuration of %s: %w", name, err)
		}
	}
	args := []string{"--config=" + path, fmt.Sprintf("--secure-port=%d", o.SecurePort), "-v=2"}
	if o.SecurePort != 0 {
		// A scheduler in a pod needs no kubeconfig for authentication and authorization, because it uses the in-cluster
		// configuration.
		args = append(args, "--bind-address=127.0.0.1", "--authentication-kubeconfig="+o.Kubeconfig, "--authorization-kubeconfig="+o.Kubeconfig)
	}
	return c.StartProcess(name, bin, args...)
}

// ControllerOptions configure a controller.
type ControllerOptions struct {
	Lease Lease
	// Args are additional flags. They must contain the cluster pools or --subnet-source=Node.
	Args []string
	// Kubeconfig replaces the kubeconfig of the controller, for tests with a proxy.
	Kubeconfig string
	// Env is added to the environment, as NAME=value.
	Env []string
}

// StartController starts a controller as a process with the given name. Replicas must have different names. It does not wait
// until the controller is ready.
func StartController(c *cluster.Cluster, name, bin string, o ControllerOptions) (*cluster.Process, error) {
	if o.Kubeconfig == "" {
		o.Kubeconfig = c.Kubeconfig(cluster.Controller)
	}
	args := append([]string{
		"--kubeconfig=" + o.Kubeconfig,
		"--leader-election-namespace=fixedip-system",
		"--leader-election-lease-duration=" + o.Lease.Duration.String(),
		"--leader-election-renew-deadline=" + o.Lease.Renew.String(),
		"--leader-election-retry-period=" + o.Lease.Retry.String(),
		"--metrics-bind-address=0",
		"--health-probe-bind-address=0",
		"-v=2",
	}, o.Args...)
	return c.Run(context.Background(), name, cluster.Program{Bin: bin, Args: args, Env: o.Env})
}
