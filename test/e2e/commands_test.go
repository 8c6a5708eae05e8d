// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/realcluster"
	"fixedip.io/fixedip/test/gen"
)

// update is true if UPDATE_GOLDEN is set. TestCommands then writes the files of testdata instead of comparing the output
// with them, and writes the picture of the documentation; see mapPage.
var update = os.Getenv("UPDATE_GOLDEN") != ""

// TestCommands runs every command of kubectl fixedip except completion, which prints a script, on a cluster where the chart is
// installed. In place of completion, it completes an argument as such a script does. It checks the exit codes, and compares
// the output with files of testdata; the methods report and mapPage check the output of the commands report and map --html.
//
// The pods web-0 and web-1 run on node-1 and db-0 runs on node-2, all with fixed addresses; later db-0 waits while node-2 is
// cordoned. Values that differ between runs, such as ages and versions, are replaced by names in angle brackets.
func TestCommands(t *testing.T) {
	i := installBy(t, func(o *realcluster.Options) {
		o.Empty = true
		o.Product = func(ctx context.Context, c *realcluster.Cluster) error { return helm(ctx, t, c, installCommand(c)...) }
	})
	for _, name := range programs {
		i.rolledOut(name)
	}
	i.create("web", "node-1", 2)
	i.create("db", "node-2", 1)
	for _, name := range []string{"web-0", "web-1", "db-0"} {
		i.awaitPod(name, func(p *corev1.Pod) bool { return p.DeletionTimestamp == nil })
	}
	c := commands{installation: i, names: i.stableNames()}
	out, code, err := c.run(filepath.Join(bin, "kubectl-fixedip"), "version", "--client")
	if fields := strings.Fields(out); err == nil && code == 0 && len(fields) > 1 {
		c.names = append(c.names, fields[1], "<version>")
	} else {
		t.Fatalf("kubectl fixedip version --client: got exit code %d (error %v), want 0 and a version; output:\n%s", code, err, out)
	}
	// A FixedIP may become ready some seconds later than its pod.
	c.kubectl("wait", "fixedips", "--all", "--for=condition=Ready", "--timeout=2m")

	c.golden("version", 0, "version")
	// The agents of this cluster are processes and not pods, so status reports a missing DaemonSet of Cilium as a problem.
	c.golden("status", 1, "status")
	c.golden("get", 0, "get")
	c.golden("get-wide", 0, "get", "-A", "-o", "wide")
	c.golden("get-json", 0, "get", "-o", "json", "--workload", "StatefulSet/db")
	c.golden("ip", 0, "ip", c.addressOf("web-0"))
	c.golden("top", 0, "top")
	c.golden("map", 0, "map", "node-1")
	c.golden("explain", 0, "explain", "web-0")
	c.golden("check", 0, "check")
	c.golden("drain-check", 1, "drain-check", "node-2")
	c.golden("adopt-preview", 0, "adopt", "--preview", "-A")
	c.golden("reserve", 0, "reserve", "cache-0", "--ip", strings.Join(c.free("node-1"), ","))
	c.golden("reserve-taken", 1, "reserve", "cache-1", "--ip", c.addressOf("web-0"))
	c.golden("release-dry-run", 0, "release", "web-1", "--dry-run")
	c.golden("release", 0, "release", "cache-0", "--yes")

	c.kubectl("cordon", "node-2")
	i.must(i.api.CoreV1().Pods("default").Delete(within(t), "db-0", metav1.DeleteOptions{}))
	i.awaitUnschedulable("db-0")
	c.golden("explain-waiting", 1, "explain", "db-0")
	c.golden("drain-check-cordoned", 0, "drain-check", "node-2")
	i.create("cache", "", 1)
	i.awaitPod("cache-0", func(p *corev1.Pod) bool { return p.DeletionTimestamp == nil && p.Spec.NodeName == "node-1" })
	c.kubectl("uncordon", "node-2")
	i.awaitPod("db-0", func(p *corev1.Pod) bool { return p.DeletionTimestamp == nil && p.Spec.NodeName == "node-2" })
	c.kubectl("wait", "fixedips", "--all", "--for=condition=Ready", "--timeout=2m")
	c.golden("move-refused", 1, "move", "db-0", "--to", "node-1", "--yes")
	c.golden("move-dry-run", 0, "move", "cache-0", "--to", "node-2", "--dry-run")
	c.golden("move", 0, "move", "cache-0", "--to", "node-2", "--yes")
	c.golden("move-subnet", 0, "move", "subnet/"+c.subnetPrefix("node-2")+"0/24", "--to", "node-1", "--yes")
	c.golden("completion", 0, "__complete", "explain", "")

	broken := fmt.Sprintf(`{"spec":{"ipam":{"pool":{%q:{"resource":"default/db"}}}}}`, c.addressOf("db-0"))
	c.kubectl("patch", "ciliumnode", "node-2", "--type=merge", "-p", broken)
	c.golden("check-fault", 1, "check")
	c.golden("check-fix-dry-run", 1, "check", "--fix", "--dry-run")
	c.golden("check-fix", 0, "check", "--fix")
	c.golden("check", 0, "check")

	c.report()
	c.mapPage()
}

// create creates a StatefulSet whose pods run on one node, or on any node if node is empty.
func (i installation) create(name, node string, replicas int32) {
	i.t.Helper()
	sts := gen.StatefulSet("default", name, replicas, ofTestPods, func(s *appsv1.StatefulSet) {
		if node != "" {
			s.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
		}
	})
	_, err := i.api.AppsV1().StatefulSets("default").Create(within(i.t), sts, metav1.CreateOptions{})
	i.must(err)
}

// commands runs commands on the cluster of an installation.
type commands struct {
	installation
	// names contains names that differ between runs. Each is followed by its replacement.
	names []string
}

// stableNames returns the first three bytes of the subnets of both nodes, written as in an address and as in the name of a
// NodeSubnet, each followed by its replacement. These bytes differ between runs, because subnets are assigned in the order
// in which the nodes join.
func (i installation) stableNames() []string {
	i.t.Helper()
	var names []string
	for n := 1; n <= 2; n++ {
		prefix := i.subnetPrefix(fmt.Sprintf("node-%d", n))
		// The name of a NodeSubnet has hyphens instead of the dots of its subnet.
		names = append(names, prefix, fmt.Sprintf("<subnet-%d>.", n), strings.ReplaceAll(prefix, ".", "-"), fmt.Sprintf("<subnet-%d>-", n))
	}
	return names
}

// subnetPrefix returns the first three bytes of the subnet of a node, with a dot at the end.
func (i installation) subnetPrefix(node string) string {
	i.t.Helper()
	var cn struct {
		Spec struct {
			IPAM struct {
				PodCIDRs []string `json:"podCIDRs"`
			} `json:"ipam"`
		} `json:"spec"`
	}
	data, err := i.api.CoreV1().RESTClient().Get().AbsPath("/apis/cilium.io/v2/ciliumnodes", node).DoRaw(within(i.t))
	i.must(err)
	i.must(json.Unmarshal(data, &cn))
	if len(cn.Spec.IPAM.PodCIDRs) != 1 {
		i.t.Fatalf("node %s has the subnets %v, want one", node, cn.Spec.IPAM.PodCIDRs)
	}
	cidr := cn.Spec.IPAM.PodCIDRs[0]
	return cidr[:strings.LastIndex(cidr, ".")+1]
}

// addressOf returns the address of a pod.
func (c commands) addressOf(pod string) string {
	c.t.Helper()
	p, err := c.api.CoreV1().Pods("default").Get(within(c.t), pod, metav1.GetOptions{})
	c.must(err)
	return p.Status.PodIP
}

// free returns one address of the subnet of a node. No pod has that address, because pods get the addresses in the middle of a
// subnet last.
func (c commands) free(node string) []string { return []string{c.subnetPrefix(node) + "128"} }

// awaitUnschedulable waits until the scheduler has found no node for a pod.
func (i installation) awaitUnschedulable(pod string) {
	i.t.Helper()
	i.awaitPodStatus(pod, func(p *corev1.Pod) bool {
		for _, condition := range p.Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Reason == corev1.PodReasonUnschedulable {
				return p.DeletionTimestamp == nil
			}
		}
		return false
	})
}

// kubectl runs kubectl. The test fails unless the exit code is 0.
func (c commands) kubectl(args ...string) {
	c.t.Helper()
	out, code, err := c.run(filepath.Join(bin, "fixedip-kubectl"), args...)
	if err != nil || code != 0 {
		c.t.Fatalf("kubectl %s: got exit code %d (error %v), want 0; output:\n%s", strings.Join(args, " "), code, err, out)
	}
}

// run runs a program as the administrator of the cluster. It returns the output of both streams and the exit code. The error
// is nil if the program ran, whatever its exit code is.
func (c commands) run(program string, args ...string) (out string, code int, err error) {
	command := exec.CommandContext(within(c.t), program, args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+c.cluster.Kubeconfig(cluster.Admin), "NO_COLOR=1")
	var b bytes.Buffer
	command.Stdout, command.Stderr = &b, &b
	err = command.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return b.String(), exit.ExitCode(), nil
	}
	return b.String(), 0, err
}

// variable contains patterns of the texts that differ between runs. name is the replacement of a match of pattern.
var variable = []struct {
	pattern *regexp.Regexp
	name    string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "<time>"},
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "<uid>"},
	{regexp.MustCompile(`(fixedip-(?:controller|scheduler))-[0-9a-f]{6,10}-[0-9a-z]{5}\b`), "$1-<id>"},
	{regexp.MustCompile(`(fixedip-(?:controller|scheduler)-<id>)_\w+(-\w+)*`), "$1"},
	{regexp.MustCompile(`leader node-\d_<uid>`), "leader <pod>"},
	{regexp.MustCompile(`\b[0-9a-f]{64}\b|\b[0-9a-f]{12}\b`), "<hash>"},
	{regexp.MustCompile(`\b\d+(\.\d+)?(ms|s|m|h|d)(\d+(s|m|h))*\b`), "<age>"},
	{regexp.MustCompile(`\bv1\.3\d\.\d+(-[\w.+-]+)?`), "<kubernetes>"},
	{regexp.MustCompile(` {2,}`), "  "},
	{regexp.MustCompile(`(?m) +$`), ""},
	// The node and the address of a pod of fixedip.
	{regexp.MustCompile(`(fixedip-system  fixedip-\w+-<id>)  node-\d  198\.18(\.\d+){2}`), "$1  <node>  <address>"},
	// The beginning of a map: the address of the node itself (N) is at a random place among the first addresses.
	{regexp.MustCompile(`-[dN]{9}\.`), "-ddddNdddd."},
}

// golden runs a command of kubectl fixedip, checks its exit code, and compares the command and its output with the file
// testdata/FILE.txt. If update is true, it writes the file instead.
func (c commands) golden(file string, code int, args ...string) {
	c.t.Helper()
	out, got, err := c.run(filepath.Join(bin, "kubectl-fixedip"), args...)
	if err != nil {
		c.t.Fatalf("kubectl fixedip %s: %v", strings.Join(args, " "), err)
	}
	if got != code {
		c.t.Errorf("kubectl fixedip %s: got exit code %d, want %d; output:\n%s", strings.Join(args, " "), got, code, out)
	}
	text := c.stable(fmt.Sprintf("$ kubectl fixedip %s\n%s", strings.Join(args, " "), out))
	path := filepath.Join("testdata", file+".txt")
	if update {
		c.must(os.MkdirAll("testdata", 0o755))
		c.must(os.WriteFile(path, []byte(text), 0o644))
		return
	}
	want, err := os.ReadFile(path)
	c.must(err)
	if diff := cmp.Diff(string(want), text); diff != "" {
		c.t.Errorf("kubectl fixedip %s (-want +got):\n%s", strings.Join(args, " "), diff)
	}
}

// stable replaces the names and the texts that differ between runs; see names and variable.
func (c commands) stable(text string) string {
	text = strings.NewReplacer(c.names...).Replace(text)
	for _, v := range variable {
		text = v.pattern.ReplaceAllString(text, v.name)
	}
	return text
}

// report checks that the archive of kubectl fixedip report can be read, and that it contains neither the names web-0 and
// db-0 nor the address of web-0. It does not look for the names of nodes, because the tokens that replace them are also
// node-1 and node-2.
func (c commands) report() {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), "report.tar.gz")
	out, code, err := c.run(filepath.Join(bin, "kubectl-fixedip"), "report", "-f", file)
	if err != nil || code != 0 {
		c.t.Fatalf("kubectl fixedip report: got exit code %d (error %v), want 0; output:\n%s", code, err, out)
	}
	list, err := exec.CommandContext(within(c.t), "tar", "tzf", file).CombinedOutput()
	if err != nil {
		c.t.Fatalf("list the archive: %v\n%s", err, list)
	}
	text, err := exec.CommandContext(within(c.t), "tar", "xzOf", file).CombinedOutput()
	if err != nil {
		c.t.Fatalf("read the archive: %v", err)
	}
	for _, secret := range []string{"web-0", "db-0", c.addressOf("web-0")} {
		if at := bytes.Index(text, []byte(secret)); at >= 0 {
			c.t.Errorf("the archive contains %q, want it redacted: …%s…\nfiles:\n%s", secret, text[max(0, at-200):min(len(text), at+100)], list)
		}
	}
}
