// Package product starts fixedip's own programs in a cluster of package cluster: each a process of
// its own, as the service account and with the rights that the manifests give it.
package product

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
	"time"

	"fixedip.io/fixedip/hack/cluster"
)

// Lease is how fast a replica takes over from one that was killed.
type Lease struct{ Duration, Renew, Retry time.Duration }

// QuickLease is for demos: with the product's defaults each kill would cost 15 s. It is no shorter since nobody starts
// again what ends because it lost its lease, and on a busy machine a renewal has taken more than 3 s.
var QuickLease = Lease{Duration: 10 * time.Second, Renew: 8 * time.Second, Retry: 500 * time.Millisecond}

// SchedulerOptions say how the scheduler runs.
type SchedulerOptions struct {
	Lease Lease
	// Families are the families in which pods have addresses; IPv4 if empty.
	Families []string
	// Failover is the policy of workloads that say nothing; Wait if empty. Movable lets addresses live on
	// other nodes than their home.
	Failover string
	Movable  bool
	// NoElection lets it work at once, beside whoever leads: a leader that does not know yet that it
	// has lost its lease.
	NoElection bool
	// Kubeconfig is another way to the API server than the scheduler's own; for tests with a proxy.
	Kubeconfig string
	// SecurePort serves metrics and health on the loopback; 0: nothing is served.
	SecurePort int
	// Weight is that of FixedIP's score; 0: as it is by default.
	Weight int
	// Workloads are those of the plugin's arguments: YAML on one line.
	Workloads string
	// Plugins are enabled beside FixedIP, and Disabled are not, each by name.
	Plugins, Disabled []string
	// PluginArgs are the arguments of other plugins than FixedIP. Key: the plugin's name. Value:
	// YAML on one line.
	PluginArgs map[string]string
}

var schedulerConfig = template.Must(template.New("").Parse(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: {{.Kubeconfig}}
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
      - name: FixedIP
        weight: {{.Weight}}
{{- range .Plugins}}
      - name: {{.}}
{{- end}}
      disabled: [{{range $i, $p := .Disabled}}{{if $i}}, {{end}}{name: {{$p}}}{{end}}]
  pluginConfig:
  - name: FixedIP
    args:
      ipFamilies: [{{range $i, $f := .Families}}{{if $i}}, {{end}}{{$f}}{{end}}]
      failover: {{or .Failover "Wait"}}
      allowAddressMigration: {{.Movable}}
      agentReportTimeout: 2s
{{- with .Workloads}}
      workloads: {{.}}
{{- end}}
{{- range $name, $args := .PluginArgs}}
  - name: {{$name}}
    args: {{$args}}
{{- end}}
`))

// StartScheduler starts a scheduler. The name tells replicas apart.
func StartScheduler(c *cluster.Cluster, name, bin string, o SchedulerOptions) (*cluster.Process, error) {
	if o.Kubeconfig == "" {
		o.Kubeconfig = c.Kubeconfig(cluster.Scheduler)
	}
	if o.Families == nil {
		o.Families = []string{"IPv4"}
	}
	var config bytes.Buffer
	if err := schedulerConfig.Execute(&config, o); err != nil {
		return nil, fmt.Errorf("write the configuration of %s: %w", name, err)
	}
	path := filepath.Join(c.Dir(), name+".yaml")
	if err := os.WriteFile(path, config.Bytes(), 0o600); err != nil {
		return nil, fmt.Errorf("write the configuration of %s: %w", name, err)
	}
	args := []string{"--config=" + path, fmt.Sprintf("--secure-port=%d", o.SecurePort), "-v=2"}
	if o.SecurePort != 0 {
		// A pod finds these out by itself.
		args = append(args, "--bind-address=127.0.0.1", "--authentication-kubeconfig="+o.Kubeconfig, "--authorization-kubeconfig="+o.Kubeconfig)
	}
	return c.StartProcess(name, bin, args...)
}

// ControllerOptions say how the controller runs.
type ControllerOptions struct {
	Lease Lease
	// Args are its other flags: the cluster pools at least.
	Args []string
	// Kubeconfig is another way to the API server than the controller's own; for tests with a proxy.
	Kubeconfig string
}

// StartController starts a controller. The name tells replicas apart.
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
		"--agent-report-timeout=2s",
		"-v=2",
	}, o.Args...)
	return c.StartProcess(name, bin, args...)
}
