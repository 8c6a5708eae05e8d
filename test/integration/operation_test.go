// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/poolguard"
)

// replica is a controller that serves metrics, and health checks unless health is 0, on ports of the loopback interface.
type replica struct {
	e               *env
	name            string
	metrics, health int
}

// startReplica starts a controller that serves metrics and health.
func (e *env) startReplica(name string, args ...string) *replica {
	e.t.Helper()
	r := &replica{e: e, name: name, metrics: freePort(e.t), health: freePort(e.t)}
	_, err := product.StartController(e.Cluster, name, filepath.Join(bin, "race", "fixedip-controller"), product.ControllerOptions{
		Lease: testLease,
		Args: append(args, fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", r.metrics),
			fmt.Sprintf("--health-probe-bind-address=127.0.0.1:%d", r.health)),
	})
	e.must(err)
	return r
}

// awaitServed waits until a response for a path has status 200 and contains all of the lines.
func (r *replica) awaitServed(port int, path string, lines ...string) {
	r.e.t.Helper()
	var status int
	var body string
	err := wait.PollUntilContextCancel(within(r.e.t), 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), nil)
		if err != nil {
			return false, err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return false, nil
		}
		defer response.Body.Close()
		data, err := io.ReadAll(response.Body)
		status, body = response.StatusCode, string(data)
		return err == nil && status == http.StatusOK && !slices.ContainsFunc(lines, func(l string) bool { return !strings.Contains(body, l+"\n") }), nil
	})
	if err != nil {
		r.e.t.Fatalf("%s does not serve %q at %s: %v; last response: status %d\n%s", r.name, lines, path, err, status, body)
	}
}

// TestG17ControllerMetrics checks the metrics of the controller about pools, reservations, releases and the leader (G7,
// G17).
func TestG17ControllerMetrics(t *testing.T) {
	t.Parallel()
	e := start(t, options{})
	e.startNode("node-1")
	args := []string{"--cluster-pool-ipv4-cidr=10.240.0.0/22", "--cluster-pool-ipv4-mask-size=24", "--min-free-ips=5"}
	leader := e.startReplica("leader", args...)
	leader.awaitServed(leader.health, "/readyz")
	leader.awaitServed(leader.metrics, "/metrics", `leader_election_master_status{name="cilium-ipam-leader"} 1`)
	standby := e.startReplica("standby", args...)
	standby.awaitServed(standby.health, "/readyz")
	standby.awaitServed(standby.health, "/healthz")
	e.must(e.WaitNodeReady(e.whileAllRun(), "node-1"))

	e.create(statefulSet("web", 2))
	e.awaitRunning(nil, names("web", 2)...)
	both := []string{
		`fixedip_reservations{state="InUse"} 2`,
		`fixedip_claims_without_fixedip 0`,
		`fixedip_pool_addresses{family="IPv4",node="node-1",state="fixed"} 2`,
		`fixedip_pool_addresses{family="IPv4",node="node-1",state="free"} 5`,
		`fixedip_cluster_pool_free_subnets{cidr="10.240.0.0/22",family="IPv4"} 3`,
		`fixedip_cluster_pool_subnets{cidr="10.240.0.0/22",family="IPv4"} 4`,
		`fixedip_mismatched_pods{reason="WrongAddress"} 0`,
		`fixedip_overlapping_subnet_nodes 0`,
		`fixedip_informer_synced{resource="ciliumnodes"} 1`,
		`fixedip_informer_synced{resource="fixedips"} 1`,
		`fixedip_informer_synced{resource="pods"} 1`,
		`fixedip_informer_synced{resource="statefulsets"} 1`,
	}
	leader.awaitServed(leader.metrics, "/metrics", both...)
	standby.awaitServed(standby.metrics, "/metrics", append(both, `leader_election_master_status{name="cilium-ipam-leader"} 0`)...)

	e.must(e.Process("leader").Kill())
	standby.awaitServed(standby.metrics, "/metrics", `leader_election_master_status{name="cilium-ipam-leader"} 1`)
	e.delete(statefulSet("web", 2))
	standby.awaitServed(standby.metrics, "/metrics", `fixedip_releases_total{cause="fixedip-deleted"} 2`, `fixedip_reservations{state="InUse"} 0`)
}

// TestDryRun checks that a dry run logs the writes that a controller would make, and changes no spec.ipam of a CiliumNode, no
// annotations of a Node, and no FixedIP, NodeSubnet, ConfigMap, event or Lease.
func TestDryRun(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1"}, controllerArgs: defaultPool})
	e.create(statefulSet("web", 1))
	e.awaitRunning(nil, "web-0")
	e.must(e.controller.Terminate(within(t)))
	e.must(e.scheduler.Terminate(within(t)))
	e.startNode("node-2")
	e.await("wait for node-2 to join", func([]witness.Row) bool {
		var cn ciliumv2.CiliumNode
		return e.api.Get(within(t), client.ObjectKey{Name: "node-2"}, &cn) == nil
	})
	e.delete(statefulSet("web", 1))
	e.await("wait for web-0 to end", func(rows []witness.Row) bool { return rows[0].UID == "" })

	before := e.written()
	dry, err := product.StartController(e.Cluster, "dry", filepath.Join(bin, "race", "fixedip-controller"),
		product.ControllerOptions{Lease: testLease, Args: append([]string{"--dry-run"}, defaultPool...)})
	e.must(err)
	for _, write := range []string{`method="PATCH" path="/apis/cilium.io/v2/ciliumnodes/node-2" body="[`, `method="DELETE" path="/apis/fixedip.io/v1alpha1/namespaces/default/fixedips/web-0"`} {
		e.awaitLogged(dry, write)
	}
	e.must(dry.Terminate(within(t)))
	if lines := e.logged(dry, `"Dry run ended; no write was stored" logger="dry-run" writes=`); len(lines) != 1 {
		t.Errorf("the dry run logged the summaries %q at its end, want exactly one", lines)
	}
	if diff := cmp.Diff(before, e.written()); diff != "" {
		t.Errorf("objects changed during the dry run (-before +after): %s", diff)
	}
}

// written returns the state of objects that a controller writes: spec.ipam of CiliumNodes, the annotations of Nodes, FixedIPs,
// NodeSubnets, the Leases and ConfigMaps of our programs and the events of the controller. Key: kind and name. Value:
// spec.ipam, the annotations or the resource version.
func (e *env) written() map[string]string {
	e.t.Helper()
	all := map[string]string{}
	var nodes ciliumv2.CiliumNodeList
	e.must(e.api.List(within(e.t), &nodes))
	for _, n := range nodes.Items {
		all["CiliumNode "+n.Name] = fmt.Sprint(n.Spec.IPAM)
	}
	var objects corev1.NodeList
	e.must(e.api.List(within(e.t), &objects))
	for _, n := range objects.Items {
		delete(n.Annotations, corev1.ObjectTTLAnnotationKey) // kube-controller-manager writes this annotation.
		all["Node "+n.Name] = fmt.Sprint(n.Annotations)
	}
	var configs corev1.ConfigMapList
	e.must(e.api.List(within(e.t), &configs, client.InNamespace("fixedip-system")))
	for _, c := range configs.Items {
		all["ConfigMap "+c.Name] = c.ResourceVersion
	}
	if all["ConfigMap "+poolguard.Name] == "" {
		e.t.Errorf("the ConfigMap %s does not exist", poolguard.Name)
	}
	var records v1alpha1.FixedIPList
	e.must(e.api.List(within(e.t), &records))
	for _, r := range records.Items {
		all["FixedIP "+r.Name] = r.ResourceVersion
	}
	var subnets v1alpha1.NodeSubnetList
	e.must(e.api.List(within(e.t), &subnets))
	for _, s := range subnets.Items {
		all["NodeSubnet "+s.Name] = s.ResourceVersion
	}
	var leases coordinationv1.LeaseList
	e.must(e.api.List(within(e.t), &leases, client.InNamespace("fixedip-system")))
	for _, l := range leases.Items {
		all["Lease "+l.Name] = l.ResourceVersion
	}
	var events eventsv1.EventList
	e.must(e.api.List(within(e.t), &events))
	for _, ev := range events.Items {
		if ev.ReportingController == "fixedip-controller" {
			all["Event "+ev.Name] = ev.ResourceVersion
		}
	}
	return all
}

// awaitLogged waits until the log of a process contains a text.
func (e *env) awaitLogged(p *cluster.Process, text string) {
	e.t.Helper()
	err := wait.PollUntilContextCancel(within(e.t), 100*time.Millisecond, true, func(context.Context) (bool, error) {
		return len(e.logged(p, text)) > 0, nil
	})
	if err != nil {
		e.t.Fatalf("%s did not log %q: %v", p.Name, text, err)
	}
}
