// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package recorder_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"

	"fixedip.io/fixedip/ipam/controller/internal/recorder"
)

func TestRecorder(t *testing.T) {
	long := strings.Repeat("x", 1021)
	for name, c := range map[string]struct {
		note string
		args []any
		want string
	}{
		"short":                                {"IP %s is 100%% free", []any{"10.0.0.1"}, "IP 10.0.0.1 is 100% free"},
		"as long as possible":                  {"%s", []any{long + "123"}, long + "123"},
		"too long":                             {"%s", []any{long + "1234"}, long[:1020] + " …"},
		"cut inside of a character":            {"%s", []any{long[:1019] + "ö1234"}, long[:1019] + " …"},
		"an argument that looks like a format": {"%s", []any{"100%d"}, "100%d"},
	} {
		to := events.NewFakeRecorder(1)
		recorder.Recorder{EventRecorder: to}.Eventf(&corev1.Pod{}, nil, corev1.EventTypeNormal, "Reason", "Act", c.note, c.args...)
		if got, want := <-to.Events, "Normal Reason "+c.want; got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}
