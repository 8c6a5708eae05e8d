// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"fixedip.io/fixedip/ipam/core/explain"
)

// streamsFor returns streams with an input that is not a terminal, and the buffers of the output and of the errors.
func streamsFor() (streams genericiooptions.IOStreams, out, errOut *strings.Builder) {
	out, errOut = &strings.Builder{}, &strings.Builder{}
	return genericiooptions.IOStreams{In: strings.NewReader(""), Out: out, ErrOut: errOut}, out, errOut
}

// result contains the output of a command and the text of its error; Error is empty if the command succeeded.
type result struct{ Out, ErrOut, Error string }

func resultOf(out, errOut *strings.Builder, err error) result {
	r := result{Out: out.String(), ErrOut: errOut.String()}
	if err != nil {
		r.Error = err.Error()
	}
	return r
}

const source = configurationSource("fixedip-system/fixedip-config")

// TestAnswer checks which answers confirm a change.
func TestAnswer(t *testing.T) {
	for answer, confirmed := range map[string]bool{"y\n": true, "Yes\n": true, "y": true, "n\n": false, "\n": false, "": false, "yep\n": false} {
		if err := readAnswer(strings.NewReader(answer)); (err == nil) != confirmed || err != nil && !errors.Is(err, errDeclined) {
			t.Errorf("answer %q: got the error %v; confirmation wanted: %v", answer, err, confirmed)
		}
	}
}

// TestChangesWithoutClusterOrRights checks that reserve, release, move and adopt end with one error and exit code 2 if Cilium
// and fixedip are not installed, the user has no rights, or there is no API server.
func TestChangesWithoutClusterOrRights(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for world, server := range map[string]string{
		"forbidden": answering(t, http.StatusForbidden, "Forbidden", "not allowed").URL,
		"missing":   answering(t, http.StatusNotFound, "NotFound", "the server could not find the requested resource").URL,
		"no server": gone.URL,
	} {
		for _, args := range [][]string{
			{"reserve", "web-0", "--ip=10.0.0.1"}, {"release", "web-0", "--yes"}, {"move", "web-0", "--to=node-2", "--yes"},
			{"move", "subnet/10.0.0.0/24", "--to=node-2", "--yes"}, {"adopt", "--preview", "--all"},
		} {
			t.Run(world+" "+strings.Join(args, " "), func(t *testing.T) {
				out, errOut, code := run(t, server, args...)
				if code != 2 || out != "" || strings.Count(errOut, "Error: ") != 1 || strings.Contains(errOut, "panic") {
					t.Errorf("exit code %d, output %q, errors %q, want one error and exit code 2", code, out, errOut)
				}
			})
		}
	}
}

// TestFlagsOfChanges checks that invalid arguments cause an error that names the mistake, and exit code 2.
func TestFlagsOfChanges(t *testing.T) {
	for args, want := range map[string]string{
		"reserve web-0":        "--ip: name at least one address",
		"reserve":              "name exactly one pod",
		"reserve web-0 --ip=x": "--ip: ",
		"reserve w --ip=10.0.0.1 --for-pod --workload=a/b": "if any flags in the group [workload for-pod] are set none of the others can be",
		"release":                            "name at least one FixedIP",
		"move web-0":                         "--to is missing: name the node",
		"move":                               "name exactly one FixedIP, or subnet/CIDR",
		"adopt":                              "kubectl fixedip adopt only shows what an adoption would do: add --preview; to adopt pods, set adoption.podSelector in the configuration of fixedip",
		"adopt --preview --all --selector=a": "if any flags in the group [selector all] are set none of the others can be",
		"check --dry-run":                    "--dry-run needs --fix",
		"check --mismatch-policy=restart":    "--mismatch-policy: ",
		"ip 10.0.0.0/24":                     `"10.0.0.0/24" is a subnet; name one address of it (kubectl fixedip map shows subnets)`,
		"explain web-0 -o xml":               `--output: "xml" is not a format of this command; write json or yaml`,
	} {
		_, errOut, code := run(t, "http://127.0.0.1:1", strings.Fields(args)...)
		if code != 2 || !strings.Contains(errOut, want) {
			t.Errorf("%s: exit code %d and errors %q, want 2 and %q", args, code, errOut, want)
		}
	}
}

// TestReportsAsJSON checks the fields of reports in YAML, which the commands convert from JSON.
func TestReportsAsJSON(t *testing.T) {
	drain := drainReport{Node: "node-1", Pods: []explain.DrainedPod{{Pod: "db/web-0", IPs: []string{"10.0.1.6"}, Policy: "Wait", Waits: true, AfterEviction: "waits", Budgets: []string{"db/web"}}}, Report: listed(explain.Report{Waits: true})}
	plan := explain.MovePlan{Report: listed(explain.Report{}), SetsPolicy: true, Steps: []string{"kubectl cordon node-1"}}
	for name, c := range map[string]struct {
		value any
		want  string
	}{
		"explain": {listed(explain.Report{Facts: []explain.Fact{{What: "Pod", Is: "db/web-0"}}, Findings: []explain.Finding{{Wrong: true, Text: "x", Help: "y"}}}),
			"facts:\n- is: db/web-0\n  what: Pod\nfindings:\n- help: \"y\"\n  text: x\n  wrong: true\n"},
		"an empty report": {listed(explain.Report{}), "findings: []\n"},
		"drain":           {drain, "findings: []\nnode: node-1\npods:\n- afterEviction: waits\n  budgets:\n  - db/web\n  ips:\n  - 10.0.1.6\n  pod: db/web-0\n  policy: Wait\n  waits: true\nwaits: true\n"},
		"move":            {plan, "findings: []\nsetsPolicy: true\nsteps:\n- kubectl cordon node-1\n"},
	} {
		var out strings.Builder
		if err := write(&out, inYAML, c.value, nil); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, out.String()); diff != "" {
			t.Errorf("%s: YAML (-want +got):\n%s", name, diff)
		}
	}
}
