// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/realcluster"
	"fixedip.io/fixedip/hack/realcluster/layout"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// TestChart checks the chart on nodes that do not become ready without fixedip. Pods have the same addresses whenever
// they are replaced: while an upgrade or a rollback restarts fixedip, and after fixedip was uninstalled and installed
// again. While fixedip is uninstalled, pods keep running, FixedIPs stay but have no finalizer, and a namespace
// with a FixedIP can be deleted. Every command of Helm succeeds, including the uninstall.
func TestChart(t *testing.T) {
	i := installBy(t, func(o *realcluster.Options) {
		o.Empty = true
		o.Product = func(ctx context.Context, c *realcluster.Cluster) error { return helm(ctx, t, c, installCommand(c)...) }
	})
	rolledOut := func() {
		for _, name := range programs {
			i.rolledOut(name)
		}
	}
	rolledOut()
	i.createWeb()
	pods := i.web(nil)

	i.must(helm(within(t), t, i.cluster, "upgrade", "fixedip", chart, "--namespace", system, "--reuse-values", "--set", "logFormat=json"))
	i.deletePods(pods)
	pods = i.web(pods)
	rolledOut()
	i.logJSON()

	i.must(helm(within(t), t, i.cluster, "rollback", "fixedip", "1", "--namespace", system))
	i.deletePods(pods)
	pods = i.web(pods)
	rolledOut()

	i.createGivenUp()
	i.must(helm(within(t), t, i.cluster, "uninstall", "fixedip", "--namespace", system))
	err := wait.PollUntilContextCancel(within(t), 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		left, err := i.api.CoreV1().Pods(system).List(ctx, metav1.ListOptions{})
		return err == nil && len(left.Items) == 0, err
	})
	i.must(err)
	for _, p := range pods {
		now, err := i.api.CoreV1().Pods("default").Get(within(t), p.Name, metav1.GetOptions{})
		i.must(err)
		if now.UID != p.UID || now.Status.Phase != corev1.PodRunning {
			t.Errorf("pod %s is %s with the UID %s after fixedip was uninstalled, want the same pod to keep running", p.Name, now.Status.Phase, now.UID)
		}
		i.answers(i.cluster.Node(p.Spec.NodeName), p)
		record := fmt.Sprintf("/apis/fixedip.io/v1alpha1/namespaces/default/fixedips/%s", p.Name)
		if err := i.api.CoreV1().RESTClient().Get().AbsPath(record).Do(within(t)).Error(); apierrors.IsNotFound(err) {
			t.Errorf("FixedIP %s does not exist after fixedip was uninstalled, want it to stay", p.Name)
		} else {
			i.must(err)
		}
		if finalizers := i.finalizers("default", p.Name); len(finalizers) > 0 {
			t.Errorf("FixedIP %s has the finalizers %q after fixedip was uninstalled, want none", p.Name, finalizers)
		}
	}
	i.deleteGivenUp()
	i.deletePods(pods)

	i.must(helm(within(t), t, i.cluster, installCommand(i.cluster)...))
	rolledOut()
	i.web(pods)
	for _, p := range pods {
		if want := []string{v1alpha1.Finalizer}; !slices.Equal(i.finalizers("default", p.Name), want) {
			t.Errorf("FixedIP %s has the finalizers %q after fixedip was installed again, want %q", p.Name, i.finalizers("default", p.Name), want)
		}
	}
}

// givenUp is the name of a namespace that contains a FixedIP. The test deletes the namespace while fixedip is uninstalled.
const givenUp = "given-up"

// createGivenUp creates the namespace givenUp with a FixedIP, and waits until the controller has added its finalizer to the
// FixedIP.
func (i installation) createGivenUp() {
	i.t.Helper()
	_, err := i.api.CoreV1().Namespaces().Create(within(i.t), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: givenUp}}, metav1.CreateOptions{})
	i.must(err)
	// The address belongs to a subnet that no node of the test has.
	address := netip.MustParsePrefix(layout.PodCIDR(layout.IPv4)).Addr().As4()
	address[2], address[3] = 200, 9
	record := fmt.Sprintf(`{"apiVersion":"fixedip.io/v1alpha1","kind":"FixedIP","metadata":{"name":"absent-0"},
"spec":{"ips":[%q],"podName":"absent-0","owner":{"apiVersion":"apps/v1","kind":"StatefulSet","name":"absent"}}}`, netip.AddrFrom4(address).String())
	i.must(i.api.CoreV1().RESTClient().Post().AbsPath("/apis/fixedip.io/v1alpha1/namespaces/" + givenUp + "/fixedips").Body([]byte(record)).Do(within(i.t)).Error())
	err = wait.PollUntilContextCancel(within(i.t), 200*time.Millisecond, true, func(context.Context) (bool, error) {
		return len(i.finalizers(givenUp, "absent-0")) > 0, nil
	})
	i.must(err)
}

// deleteGivenUp deletes the namespace givenUp, and waits until the namespace does not exist.
func (i installation) deleteGivenUp() {
	i.t.Helper()
	i.must(i.api.CoreV1().Namespaces().Delete(within(i.t), givenUp, metav1.DeleteOptions{}))
	err := wait.PollUntilContextCancel(within(i.t), 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		_, err := i.api.CoreV1().Namespaces().Get(ctx, givenUp, metav1.GetOptions{})
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
	if err != nil {
		i.t.Fatalf("wait until namespace %s is deleted while no controller runs: %v", givenUp, err)
	}
}

// finalizers returns the finalizers of a FixedIP, which must exist.
func (i installation) finalizers(namespace, name string) []string {
	i.t.Helper()
	text, err := i.api.CoreV1().RESTClient().Get().AbsPath(fmt.Sprintf("/apis/fixedip.io/v1alpha1/namespaces/%s/fixedips/%s", namespace, name)).Do(within(i.t)).Raw()
	i.must(err)
	var record v1alpha1.FixedIP
	i.must(json.Unmarshal(text, &record))
	return record.Finalizers
}

// logJSON checks that every line that the pods of fixedip log is valid JSON.
func (i installation) logJSON() {
	i.t.Helper()
	pods, err := i.api.CoreV1().Pods(system).List(within(i.t), metav1.ListOptions{})
	i.must(err)
	for _, pod := range pods.Items {
		text, err := i.api.CoreV1().Pods(system).GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(within(i.t))
		i.must(err)
		for line := range bytes.Lines(text) {
			if !json.Valid(line) {
				i.t.Errorf("pod %s logs %q, want valid JSON", pod.Name, line)
			}
		}
	}
}

var chart = filepath.Join("..", "..", "manifests", "charts", "fixedip")

// installCommand returns the arguments of Helm that install the chart as a user without kube-proxy does: with the address
// of the API server, unless the kubeconfig of the cluster cannot be read.
func installCommand(c *realcluster.Cluster) []string {
	args := []string{"install", "fixedip", chart, "--namespace", system, "--create-namespace", "--set", "image.tag=latest", "--set", "config.subnets.clusterPools[0].cidr=" + layout.PodCIDR(layout.IPv4)}
	cfg, err := c.RESTConfig(cluster.Admin)
	if err != nil {
		return args
	}
	if server, err := url.Parse(cfg.Host); err == nil {
		args = append(args, "--set", "apiServer.host="+server.Hostname(), "--set", "apiServer.port="+server.Port())
	}
	return args
}

// helm runs a command of Helm as the administrator of the cluster, and logs how long it took. If the command fails, the
// error contains its output.
func helm(ctx context.Context, t *testing.T, c *realcluster.Cluster, args ...string) error {
	began := time.Now()
	args = append(args, "--kubeconfig", c.Kubeconfig(cluster.Admin))
	command := exec.CommandContext(ctx, "go", append([]string{"tool", "-modfile=" + filepath.Join("..", "..", "hack", "helm", "go.mod"), "helm"}, args...)...)
	out, err := command.CombinedOutput()
	t.Logf("helm %s took %s", args[0], time.Since(began).Round(100*time.Millisecond))
	if err != nil {
		return fmt.Errorf("helm %s: %w: %s", args[0], err, out)
	}
	return nil
}
