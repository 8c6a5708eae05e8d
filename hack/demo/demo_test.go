// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestFolderOfAnotherCluster checks that neither a demo nor -stop ends the processes of a folder that no demo created. The
// process of the test is one of a cluster in that folder, both by its pid file and by its environment.
func TestFolderOfAnotherCluster(t *testing.T) {
	dir := t.TempDir()
	other := exec.Command("sleep", "600")
	other.Env = append(os.Environ(), "FIXEDIP_CLUSTER_DIR="+dir)
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- other.Wait() }()
	t.Cleanup(func() { _ = other.Process.Kill() })
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", other.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "pids"), 0o700); err != nil {
		t.Fatal(err)
	}
	pidFile := fmt.Sprintf("%d %s\n", other.Process.Pid, strings.Fields(string(stat))[21])
	if err := os.WriteFile(filepath.Join(dir, "pids", "other"), []byte(pidFile), 0o600); err != nil {
		t.Fatal(err)
	}
	d := &demo{dir: dir}
	for name, act := range map[string]func() error{"start": d.clean, "stop": d.stop} {
		if err := act(); err == nil || !strings.Contains(err.Error(), "was not created by a demo") {
			t.Errorf("%s: got error %v, want one that the folder was not created by a demo", name, err)
		}
	}
	select {
	case err := <-ended:
		t.Errorf("the process of the other cluster has ended: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
}

// TestFailure checks that a failed demo says whether its cluster keeps running, and how to stop that cluster.
func TestFailure(t *testing.T) {
	const left = "The cluster keeps running. To stop it: make demo-stop DEMO_DIR=/tmp/demo\n"
	failed := errors.New("pod web-0 is not ready")
	for name, c := range map[string]struct {
		left bool
		err  error
		want string
	}{
		"failed":                  {err: failed, want: "\ndemo: FAILED: pod web-0 is not ready\nThe logs are in /tmp/demo/logs.\n"},
		"failed, with -keep":      {left: true, err: failed, want: "\ndemo: FAILED: pod web-0 is not ready\nThe logs are in /tmp/demo/logs.\n" + left},
		"interrupted":             {err: fmt.Errorf("wait: %w", context.Canceled), want: "demo: interrupted\n"},
		"interrupted, with -keep": {left: true, err: fmt.Errorf("wait: %w", context.Canceled), want: "demo: interrupted\n" + left},
	} {
		t.Run(name, func(t *testing.T) {
			d := &demo{dir: "/tmp/demo", left: c.left}
			if got := d.failure(c.err); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
