// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package framework tests the plugin in a real scheduler. Each row of its tables runs a scheduler in this process,
// made by scheduler.New, with the plugin in its registry and the permissions of the manifests, on a real API server.
// The fake clients of client-go accept stale writes, and so cannot replace the API server (scheduler fact 18).
//
// A row is a script. It changes the cluster before an extension point runs, and compares the stored objects after it.
// No fixedip-controller and no agent run, and no row measures time.
package framework

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/test/suite"
)

// stepTimeout is the time after which a step fails. It is long enough for a slow machine.
const stepTimeout = 60 * time.Second

// admin is the client configuration that the tests use. schedulerUser is the client configuration of the scheduler that each
// row starts.
var admin, schedulerUser *rest.Config

func TestMain(m *testing.M) {
	flag.Parse()
	ctrllog.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// run runs all tests on one control plane, and checks that they leave no goroutine running.
func run(m *testing.M) (code int, err error) {
	bin, err := suite.Programs("test-framework")
	if err != nil {
		return 1, err
	}
	before := goleak.IgnoreCurrent()
	dir, err := os.MkdirTemp("", "fixedip-framework-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	manifests := filepath.Join("..", "..", "manifests")
	c, err := cluster.Start(context.Background(), cluster.Options{
		Dir:      dir,
		Binaries: cluster.Binaries{ControlPlane: suite.ControlPlane(bin)},
		Manifests: []string{
			filepath.Join(manifests, "crd"), filepath.Join(manifests, "namespace.yaml"), filepath.Join(manifests, "scheduler-rbac.yaml"),
			filepath.Join("testdata", "flock.yaml"),
		},
		// No kubelet renews the leases of the rows' nodes.
		ControlPlaneArgs: []string{"--node-monitor-grace-period=1h"},
	})
	if err != nil {
		return 1, err
	}
	defer c.Stop()
	if admin, err = c.RESTConfig(cluster.Admin); err != nil {
		return 1, err
	}
	if schedulerUser, err = c.RESTConfig(cluster.Scheduler); err != nil {
		return 1, err
	}
	code = m.Run()
	c.Stop()
	// Goroutines of connections are ignored: they belong to the transport, which all rows share.
	if err := goleak.Find(before,
		goleak.IgnoreTopFunction("internal/poll.runtime_pollWait"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*clientConnReadLoop).run")); err != nil && code == 0 {
		return 1, err
	}
	return code, nil
}

// within returns a context for one step of a row.
func within(t *testing.T) context.Context {
	t.Helper()
	return suite.Within(t, stepTimeout)
}
