// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package cluster runs the commands of docs/start and docs/tasks, and applies manifests/examples, on real nodes: kubelets,
// containerd and unmodified Cilium agents, in namespaces of this machine. It needs root; make test-pages builds the programs
// that it runs.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/pageimages"
	"fixedip.io/fixedip/hack/realcluster"
	"fixedip.io/fixedip/hack/realcluster/layout"
	"fixedip.io/fixedip/hack/realcluster/preflight"
	"fixedip.io/fixedip/test/pages"
)

const (
	// startTimeout, stepTimeout and pageTimeout are the time limits of the start of a cluster, of one command and of a page.
	startTimeout = 6 * time.Minute
	stepTimeout  = 6 * time.Minute
	pageTimeout  = 15 * time.Minute
	// retryFor is the time for which a command is run again if its output is not as the page shows it.
	retryFor = time.Minute
	// nodes is the number of nodes of a cluster.
	nodes = 3
	// poolOfIPv6 is the cluster pool of the second family, as docs/tasks/dual-stack.md adds it.
	poolOfIPv6 = "fd00:10:240::/112"
	// volumes is the number of volumes, which replace the provisioner of a storage class.
	volumes = 6
)

// bin is the folder of the programs, as built by make test-pages. root is the folder of the repository.
var bin, root string

// running contains the clusters on which fixedip is installed. Key: their families, joined by a comma.
var running = map[string]*site{}

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if bin = os.Getenv("FIXEDIP_BIN"); bin == "" {
		fmt.Fprintln(os.Stderr, "FIXEDIP_BIN is not set: run make test-pages")
		return 1
	}
	if err := preflight.Check(nodes); err != nil {
		fmt.Fprintln(os.Stderr, err)
		var missing *preflight.Missing
		if errors.As(err, &missing) {
			return preflight.ExitCode
		}
		return 1
	}
	var err error
	if root, err = filepath.Abs(filepath.Join("..", "..", "..")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		for _, s := range running {
			s.stop()
		}
	}()
	return m.Run()
}

// site is a cluster on which the Helm command of the quickstart has installed fixedip.
type site struct {
	// cluster is nil if it was not started.
	cluster *realcluster.Cluster
	// dir contains the work folder of the cluster, the programs that pages run, and a kubeconfig for each namespace.
	dir string
}

// on returns the cluster with these families, joined by a comma. It starts the cluster and installs fixedip if no test has
// done so.
func on(t *testing.T, families string) *site {
	t.Helper()
	if s := running[families]; s != nil {
		return s
	}
	dir, err := os.MkdirTemp("", "fixedip-pages-")
	must(t, err)
	s := &site{dir: dir}
	defer func() {
		// A failed step has ended the test. The next test starts another cluster.
		if running[families] == nil {
			s.stop()
		}
	}()
	archives, err := pageimages.Write(bin, filepath.Join(dir, "images"))
	must(t, err)
	o := realcluster.Options{
		Options: layout.Defaults(), Dir: filepath.Join(dir, "cluster"), Bin: bin, Source: root, Images: archives,
		Product: realcluster.NoProduct, Empty: true, Unready: true, Log: t.Logf,
	}
	o.Nodes, o.Families = nodes, strings.Split(families, ",")
	if line := os.Getenv("FIXEDIP_CILIUM"); line != "" {
		o.Cilium = line
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	s.cluster, err = realcluster.Start(ctx, o)
	must(t, err)
	must(t, s.linkPrograms(ctx))
	shell := s.shell(t, "default")
	must(t, shell.Run(ctx, pages.Step{Command: volumesCommand()}))
	quickstart, err := pages.Read(filepath.Join(root, pages.Quickstart))
	must(t, err)
	install := slices.IndexFunc(quickstart.Steps, func(step pages.Step) bool { return strings.Contains(step.Command, "helm upgrade --install") })
	if install < 0 {
		t.Fatalf("%s has no command that installs the chart", pages.Quickstart)
	}
	step := quickstart.Steps[install]
	if strings.Contains(families, "IPv6") {
		// An agent that assigns both families exits if its pool has addresses of only one. The agents of this cluster are
		// processes, which no kubelet starts again.
		step.Command += " --set 'config.subnets.clusterPools[1].cidr=" + poolOfIPv6 + "'"
	}
	must(t, shell.Run(ctx, step))
	running[families] = s
	return s
}

// linkPrograms makes kubectl, helm and kubectl-fixedip available to the commands of pages. It builds helm.
func (s *site) linkPrograms(ctx context.Context) error {
	path := filepath.Join(s.dir, "path")
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("create the folder of programs: %w", err)
	}
	for name, program := range map[string]string{"kubectl": "fixedip-kubectl", "kubectl-fixedip": "kubectl-fixedip"} {
		if err := os.Symlink(filepath.Join(bin, program), filepath.Join(path, name)); err != nil {
			return fmt.Errorf("link program %s: %w", program, err)
		}
	}
	build := exec.CommandContext(ctx, "go", "build", "-modfile="+filepath.Join(root, "hack", "helm", "go.mod"), "-o", filepath.Join(path, "helm"), "helm.sh/helm/v4/cmd/helm")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build helm: %w: %s", err, out)
	}
	return nil
}

// shell returns a shell in the folder of the repository, whose kubectl uses the namespace. It creates the namespace unless
// the namespace is "default".
func (s *site) shell(t *testing.T, namespace string) pages.Shell {
	t.Helper()
	text, err := os.ReadFile(s.cluster.Kubeconfig(cluster.Admin))
	must(t, err)
	config := filepath.Join(s.dir, namespace+".yaml")
	must(t, os.WriteFile(config, text, 0o600))
	home := filepath.Join(s.dir, "home")
	must(t, os.MkdirAll(home, 0o755))
	env := []string{
		"KUBECONFIG=" + config, "HOME=" + home, "PATH=" + filepath.Join(s.dir, "path") + string(os.PathListSeparator) + os.Getenv("PATH"),
	}
	// The command that replaces a download asks Go for the folder of a module.
	for _, name := range []string{"GOPATH", "GOMODCACHE", "GOFLAGS", "GOPROXY"} {
		out, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
		must(t, err)
		env = append(env, name+"="+strings.TrimSpace(string(out)))
	}
	shell := pages.Shell{Dir: root, Env: env, RetryFor: retryFor}
	if namespace != "default" {
		must(t, shell.Run(t.Context(), pages.Step{Command: "kubectl create namespace " + namespace}))
		must(t, shell.Run(t.Context(), pages.Step{Command: "kubectl config set-context --current --namespace=" + namespace}))
	}
	return shell
}

// remove deletes the Deployments, StatefulSets, pods and FixedIPs of a namespace, and then the namespace. It fails the test if
// a command fails or the namespace is not deleted in time.
func remove(t *testing.T, shell pages.Shell, namespace string) {
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	command := "kubectl delete deployments,statefulsets,pods,fixedips --all --wait=false && kubectl delete namespace " + namespace + " --timeout=4m"
	if err := shell.Run(ctx, pages.Step{Command: command}); err != nil {
		t.Errorf("delete namespace %s of the test: %v", namespace, err)
	}
}

// stop stops the cluster, if it was started, and removes the folder.
func (s *site) stop() {
	if s.cluster != nil {
		s.cluster.Stop()
	}
	if err := errors.Join(realcluster.Down(filepath.Join(s.dir, "cluster")), os.RemoveAll(s.dir)); err != nil {
		fmt.Fprintf(os.Stderr, "remove the cluster in %s: %v\n", s.dir, err)
	}
}

// volumesCommand returns a command that creates volumes, as the provisioner of a default storage class would.
func volumesCommand() string {
	var b strings.Builder
	b.WriteString("kubectl apply -f - <<'EOF'\n")
	for n := range volumes {
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: PersistentVolume
metadata:
  name: volume-%[1]d
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Gi}
  hostPath: {path: /var/lib/volumes/%[1]d, type: DirectoryOrCreate}
`, n)
	}
	b.WriteString("EOF")
	return b.String()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
