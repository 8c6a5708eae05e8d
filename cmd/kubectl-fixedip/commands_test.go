// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// run runs the program with arguments against an API server, and returns its output and its exit code.
func run(t *testing.T, server string, args ...string) (out, errOut string, code int) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(config, []byte("apiVersion: v1\nkind: Config\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	root := command(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &stdout, ErrOut: &stderr})
	root.SetArgs(append(args, "--kubeconfig="+config, "--server="+server, "--cache-dir="+t.TempDir()))
	if err := root.ExecuteContext(t.Context()); err != nil {
		code = exitCode(err)
	}
	return stdout.String(), stderr.String(), code
}

// answering returns an API server that serves a few kinds of Kubernetes, and none of Cilium and fixedip. It answers requests
// for its version and its kinds, and every other request with an error that has the given status code, reason and message.
func answering(t *testing.T, code int, reason, message string) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		var answer any
		switch r.URL.Path {
		case "/version":
			answer = map[string]string{"gitVersion": "v1.34.9"}
		case "/api":
			answer = map[string]any{"kind": "APIVersions", "versions": []string{"v1"}}
		case "/apis":
			answer = map[string]any{"kind": "APIGroupList", "apiVersion": "v1", "groups": []any{}}
		case "/api/v1":
			answer = map[string]any{"kind": "APIResourceList", "groupVersion": "v1", "resources": []any{
				map[string]any{"name": "pods", "namespaced": true, "kind": "Pod", "verbs": []string{"list"}},
				map[string]any{"name": "nodes", "namespaced": false, "kind": "Node", "verbs": []string{"list"}},
				map[string]any{"name": "configmaps", "namespaced": true, "kind": "ConfigMap", "verbs": []string{"list"}},
			}}
		default:
			w.WriteHeader(code)
			answer = map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message, "code": code}
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	return server
}

// TestWithoutClusterOrRights checks that the commands that read the cluster end with one error and exit code 2, and without a
// panic, if Cilium and fixedip are not installed, the user has no rights, the API server fails, or there is no API server. The
// command status reports missing rights and missing kinds instead.
func TestWithoutClusterOrRights(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	servers := map[string]string{
		"forbidden": answering(t, http.StatusForbidden, "Forbidden", "not allowed").URL,
		"missing":   answering(t, http.StatusNotFound, "NotFound", "the server could not find the requested resource").URL,
		"broken":    answering(t, http.StatusInternalServerError, "InternalError", "etcd is down").URL,
		"no server": gone.URL,
	}
	for world, server := range servers {
		for _, args := range [][]string{
			{"get", "-A"}, {"get", "-o", "json"}, {"top"}, {"map"}, {"map", "--html"}, {"explain", "web-0"}, {"ip", "10.0.0.1"}, {"check"}, {"drain-check", "node-1"},
		} {
			t.Run(world+" "+strings.Join(args, " "), func(t *testing.T) {
				out, errOut, code := run(t, server, args...)
				if code != 2 || out != "" || strings.Count(errOut, "Error: ") != 1 || strings.Contains(errOut, "panic") {
					t.Errorf("exit code %d, output %q, errors %q, want one error and exit code 2", code, out, errOut)
				}
			})
		}
	}
	// status reports missing rights and missing kinds as a state.
	for world, want := range map[string]struct {
		code int
		text string
	}{
		"forbidden": {2, "not readable"}, "missing": {1, "The API server does not serve FixedIPs"}, "broken": {2, ""}, "no server": {2, ""},
	} {
		t.Run(world+" status", func(t *testing.T) {
			out, errOut, code := run(t, servers[world], "status")
			if code != want.code || !strings.Contains(out, want.text) || (want.text == "") != (out == "") {
				t.Errorf("exit code %d, output %q, errors %q, want %d and %q", code, out, errOut, want.code, want.text)
			}
		})
	}
}

// TestFlags checks that invalid arguments cause an error that names the mistake, and exit code 2, before any request is sent.
func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"get -o xml":               `--output: "xml" is not a format of this command; write json, yaml, wide or name`,
		"status -o wide":           `--output: "wide" is not a format of this command; write json or yaml`,
		"get -l =":                 "--selector: ",
		"get --workload web":       `--workload: "web" is not KIND/NAME`,
		"map --html -o json":       "--html and --output=json exclude each other",
		"version -o table":         `--output: "table" is not a format of this command; write json or yaml`,
		"status --wait=soon":       `invalid argument "soon" for "--wait"`,
		"report --no-redact extra": `unknown command "extra"`,
	} {
		if _, errOut, code := run(t, "http://192.0.2.1", strings.Fields(args)...); code != 2 || !strings.Contains(errOut, want) {
			t.Errorf("%s: exit code %d, errors %q, want 2 and %q", args, code, errOut, want)
		}
	}
}

// TestVersion checks the versions without a server and with one.
func TestVersion(t *testing.T) {
	out, errOut, code := run(t, "http://192.0.2.1", "version", "--client", "-o", "json")
	var v map[string]string
	if err := json.Unmarshal([]byte(out), &v); err != nil || code != 0 || v["client"] != "unknown" || v["kubernetes"] != "" {
		t.Errorf("version --client: exit code %d, error %v, output %q, errors %q, want exit code 0 and only the version of the client", code, err, out, errOut)
	}
	out, errOut, code = run(t, answering(t, http.StatusForbidden, "Forbidden", "not allowed").URL, "version")
	if code != 0 || !strings.Contains(out, "Kubernetes:           v1.34.9\n") || !strings.Contains(out, "fixedip-scheduler:    -\n") {
		t.Errorf("version: exit code %d, output %q, errors %q, want exit code 0, the version of Kubernetes and no version of fixedip-scheduler", code, out, errOut)
	}
}

// TestCompletion checks the completion of commands, arguments and flags, as the shell requests it, and that nothing is
// offered if the cluster does not answer.
func TestCompletion(t *testing.T) {
	pods := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer := map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}
		switch r.URL.Path {
		case "/api":
			answer = map[string]any{"kind": "APIVersions", "versions": []string{"v1"}}
		case "/apis":
			answer = map[string]any{"kind": "APIGroupList", "groups": []any{map[string]any{
				"name": "fixedip.io", "versions": []any{map[string]any{"groupVersion": "fixedip.io/v1alpha1", "version": "v1alpha1"}},
				"preferredVersion": map[string]any{"groupVersion": "fixedip.io/v1alpha1", "version": "v1alpha1"},
			}}}
		case "/apis/fixedip.io/v1alpha1":
			answer = map[string]any{"kind": "APIResourceList", "groupVersion": "fixedip.io/v1alpha1", "resources": []any{
				map[string]any{"name": "fixedips", "namespaced": true, "kind": "FixedIP", "verbs": []string{"list"}}}}
		case "/apis/fixedip.io/v1alpha1/namespaces/default/fixedips":
			answer = map[string]any{"kind": "FixedIPList", "apiVersion": "fixedip.io/v1alpha1", "items": []any{
				map[string]any{"metadata": map[string]any{"name": "web-0", "namespace": "default"}}, map[string]any{"metadata": map[string]any{"name": "web-1", "namespace": "default"}}}}
		default:
			w.WriteHeader(http.StatusNotFound)
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(pods.Close)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for name, c := range map[string]struct {
		server string
		args   []string
		want   []string
	}{
		"FixedIPs":                           {pods.URL, []string{"get", ""}, []string{"web-0", "web-1"}},
		"a name that is an argument already": {pods.URL, []string{"get", "web-0", ""}, []string{"web-1"}},
		"formats":                            {pods.URL, []string{"get", "-o", ""}, []string{"json", "yaml", "wide", "name"}},
		"no server":                          {gone.URL, []string{"get", ""}, nil},
		"no such kind":                       {pods.URL, []string{"top", ""}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			// Flags after the words would be part of the line to complete, so the flags of the connection come first.
			config := filepath.Join(t.TempDir(), "kubeconfig")
			if err := os.WriteFile(config, []byte("apiVersion: v1\nkind: Config\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			root := command(genericiooptions.IOStreams{Out: &out, ErrOut: &bytes.Buffer{}})
			root.SetArgs(append([]string{cobra.ShellCompNoDescRequestCmd, "--kubeconfig=" + config, "--server=" + c.server, "--cache-dir=" + t.TempDir()}, c.args...))
			if err := root.ExecuteContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			var got []string
			for line := range strings.Lines(out.String()) {
				if line = strings.TrimSuffix(line, "\n"); !strings.HasPrefix(line, ":") {
					got = append(got, line)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("completions (-want +got): %s", diff)
			}
		})
	}
	if out, _, code := run(t, gone.URL, "completion", "kubectl"); code != 0 || out != kubectlScript {
		t.Errorf("completion kubectl: exit code %d, output %q, want exit code 0 and the script", code, out)
	}
}
