// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/testutil"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/product"
)

// served is a client of a port on which a program serves metrics over HTTPS.
type served struct {
	e    *env
	port int
	// token is the token of a user who may read metrics.
	token  string
	client *http.Client
}

// startServing starts a scheduler that serves metrics and health.
func (e *env) startServing(o product.SchedulerOptions) *served {
	e.t.Helper()
	o.SecurePort = freePort(e.t)
	e.scheduler = e.startScheduler("scheduler", o)
	return e.servedOn(o.SecurePort)
}

// servedOn returns a client of the port on which a running program serves metrics over HTTPS.
func (e *env) servedOn(port int) *served {
	e.t.Helper()
	admin, err := e.RESTConfig(cluster.Admin)
	e.must(err)
	// The program uses a self-signed certificate.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	e.t.Cleanup(transport.CloseIdleConnections)
	return &served{e: e, port: port, token: admin.BearerToken, client: &http.Client{Transport: transport}}
}

// freePort returns a free port of the loopback interface.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// get reads a path with a token. If the token is empty, the request is anonymous.
func (s *served) get(ctx context.Context, path, token string) (status int, body string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d%s", s.port, path), nil)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := s.client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	return response.StatusCode, string(data), err
}

// await polls a path until wanted accepts the response, and returns the body of that response.
func (s *served) await(what, path, token string, wanted func(status int, body string) bool) string {
	s.e.t.Helper()
	var status int
	var body string
	var failed error
	err := s.e.pollWhileAllRun(100*time.Millisecond, func(ctx context.Context) (bool, error) {
		status, body, failed = s.get(ctx, path, token)
		return failed == nil && wanted(status, body), nil
	})
	if err != nil {
		s.e.t.Fatalf("wait for %s: %v; last response of %s: status %d, error %v, body: %s", what, err, path, status, failed, body)
	}
	return body
}

// metrics contains samples. Key: "name{label="value"}" or "name".
type metrics map[string]float64

// awaitMetrics waits until the named metrics have the given values; a metric that does not exist counts as 0. It returns all
// metrics of fixedip except the buckets of histograms.
func (s *served) awaitMetrics(want metrics) metrics {
	s.e.t.Helper()
	var got metrics
	s.await(fmt.Sprintf("the metrics %v", want), "/metrics", s.token, func(status int, body string) bool {
		if status != http.StatusOK {
			return false
		}
		samples := testutil.NewMetrics()
		if err := testutil.ParseMetrics(body, &samples); err != nil {
			return false
		}
		got = metrics{}
		for name, list := range samples {
			if !strings.HasPrefix(name, "fixedip_") || strings.HasSuffix(name, "_bucket") {
				continue
			}
			for _, sample := range list {
				got[sample.Metric.String()] = float64(sample.Value)
			}
		}
		for name, value := range want {
			if got[name] != value {
				return false
			}
		}
		return true
	})
	return got
}

// TestMetrics checks that the metrics of the scheduler count the claims and requeues of the test, and that anonymous users
// cannot read them.
func TestMetrics(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1", "node-2"}, controllerArgs: defaultPool, noScheduler: true})
	s := e.startServing(product.SchedulerOptions{})
	s.awaitMetrics(metrics{`fixedip_informer_synced{resource="ciliumnodes"}`: 1, `fixedip_informer_synced{resource="fixedips"}`: 1, "fixedip_cache_nodes": 2})
	if status, body, err := s.get(within(t), "/metrics", ""); err != nil || status != http.StatusForbidden {
		t.Errorf("anonymous request of /metrics: got status %d, error %v, body %.200s; want status 403", status, err, body)
	}

	e.create(statefulSet("web", 4))
	before := e.awaitRunning(nil, names("web", 4)...)
	s.awaitMetrics(metrics{
		`fixedip_claims_total{result="written"}`: 4, "fixedip_claim_duration_seconds_count": 4, "fixedip_claim_batch_size_sum": 4,
		"fixedip_cache_entries": 4, "fixedip_claims_in_flight": 0, `fixedip_prefilter_total{narrowed="false"}`: 4,
		`fixedip_prefilter_total{narrowed="true"}`: 0,
	})

	// A restart in place writes nothing, and PreFilter leaves one node.
	e.deletePods(names("web", 4)...)
	e.sameAddresses(before, e.awaitRunning(before, names("web", 4)...))
	s.awaitMetrics(metrics{
		`fixedip_claims_total{result="existing"}`: 4, `fixedip_claims_total{result="written"}`: 4,
		`fixedip_prefilter_total{narrowed="true"}`: 4, `fixedip_prefilter_total{narrowed="false"}`: 4,
		"fixedip_cache_entries": 4, "fixedip_claims_in_flight": 0,
	})

	// A refused pod is requeued when its annotation is corrected. TestG11Annotations checks the placement of such pods.
	e.create(statefulSet("wrong", 1, func(s *appsv1.StatefulSet) {
		s.Spec.Template.Annotations = map[string]string{"fixedip.io/enabled": "yes please"}
	}))
	e.podMessage("wrong-0", `write "true" or "false"`)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "wrong-0"}}
	e.must(e.api.Patch(within(t), pod, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"fixedip.io/enabled":"true"}}}`))))
	s.awaitMetrics(metrics{`fixedip_requeues_total{reason="annotation"}`: 1})
}

// TestReadiness checks that the scheduler starts without the CRD of FixedIPs and reports the readiness check that
// fails. It becomes ready when the CRD is installed.
func TestReadiness(t *testing.T) {
	t.Parallel()
	manifests := filepath.Join("..", "..", "manifests")
	c, err := cluster.Start(within(t), cluster.Options{
		Dir:       t.TempDir(),
		Binaries:  cluster.Binaries{ControlPlane: apiServer},
		Manifests: []string{filepath.Join(manifests, "namespace.yaml"), filepath.Join(manifests, "scheduler-rbac.yaml")},
	})
	if err != nil {
		t.Fatal(err)
	}
	e := &env{Cluster: c, t: t}
	t.Cleanup(e.end)
	s := e.startServing(product.SchedulerOptions{})

	notReady := func(status int, body string) bool {
		return status == http.StatusInternalServerError && strings.Contains(body, "[-]sched-handler-sync failed")
	}
	s.await("the scheduler to report that it is not ready", "/readyz", "", notReady)
	s.awaitMetrics(metrics{`fixedip_informer_synced{resource="ciliumnodes"}`: 1, `fixedip_informer_synced{resource="fixedips"}`: 0})
	if status, body, err := s.get(within(t), "/readyz", ""); err != nil || !notReady(status, body) {
		t.Errorf("/readyz without the CRD of FixedIPs: got status %d, error %v, body %s; want status 500 and a failed sched-handler-sync", status, err, body)
	}
	if status, body, err := s.get(within(t), "/livez", ""); err != nil || status != http.StatusOK {
		t.Errorf("/livez without the CRD of FixedIPs: got status %d, error %v, body %s; want status 200, because a restart would not help", status, err, body)
	}

	e.must(e.Apply(within(t), filepath.Join(manifests, "crd")))
	body := s.await("the scheduler to be ready", "/readyz?verbose", "", func(status int, _ string) bool { return status == http.StatusOK })
	if !strings.Contains(body, "[+]sched-handler-sync ok") {
		t.Errorf("/readyz of the ready scheduler does not report sched-handler-sync ok: %s", body)
	}
	s.awaitMetrics(metrics{`fixedip_informer_synced{resource="fixedips"}`: 1})
}
