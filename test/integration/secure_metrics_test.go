// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestSecureMetrics checks that a controller with --metrics-secure, like that of the manifests, serves its metrics over
// HTTPS, and only to users with the ClusterRole fixedip-metrics-reader. A controller with --dry-run does so, too, although
// it writes nothing.
func TestSecureMetrics(t *testing.T) {
	t.Parallel()
	e := start(t, options{noScheduler: true})
	e.must(e.Apply(within(t), filepath.Join("..", "..", "manifests", "user-rbac.yaml")))
	tokens := map[string]string{}
	for _, name := range []string{"prometheus", "other"} {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		e.create(account)
		request := &authenticationv1.TokenRequest{}
		e.must(e.api.SubResource("token").Create(within(t), account, request))
		tokens[name] = request.Status.Token
	}
	e.create(&rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "prometheus"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "fixedip-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "prometheus"}},
	})

	for name, args := range map[string][]string{"controller": nil, "dry-run": {"--dry-run"}} {
		port := freePort(t)
		e.startController(name, append(append([]string{"--metrics-secure", fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", port)}, args...), defaultPool...)...)
		s := e.servedOn(port)
		s.await("the metrics of "+name, "/metrics", tokens["prometheus"], func(status int, body string) bool {
			return status == http.StatusOK && strings.Contains(body, "workqueue_depth")
		})
		for user, want := range map[string]int{"": http.StatusUnauthorized, "other": http.StatusForbidden} {
			status, body, err := s.get(within(t), "/metrics", tokens[user])
			if err != nil || status != want || strings.Contains(body, "workqueue_depth") {
				t.Errorf("%s: request of user %q: got status %d, error %v, body %.200s; want status %d without metrics", name, user, status, err, body, want)
			}
		}
		status, err := plainStatus(within(t), port)
		if err != nil || status != http.StatusBadRequest {
			t.Errorf("%s: request without TLS: got status %d, error %v, want status 400", name, status, err)
		}
	}
}

// plainStatus returns the status of a request for metrics without TLS.
func plainStatus(ctx context.Context, port int) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/metrics", port), nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}
