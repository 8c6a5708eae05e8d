// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package e2e tests fixedip on real nodes: kubelets, containerd and unmodified Cilium agents, in namespaces of this machine.
// It needs root; make test-e2e builds the programs that it runs.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"fixedip.io/fixedip/hack/realcluster"
	"fixedip.io/fixedip/hack/realcluster/layout"
	"fixedip.io/fixedip/hack/realcluster/preflight"
)

const (
	// startTimeout is the time limit of the start of a cluster: realcluster.Start installs packages, starts the control plane,
	// and then waits up to 5 min until the nodes are ready.
	startTimeout = 8 * time.Minute
	// stepTimeout is the time limit of one step of a test.
	stepTimeout = 3 * time.Minute
)

// bin is the folder of the programs, as built by make test-e2e.
var bin = os.Getenv("FIXEDIP_BIN")

func TestMain(m *testing.M) {
	if bin == "" {
		fmt.Fprintln(os.Stderr, "FIXEDIP_BIN is not set: run make test-e2e")
		os.Exit(1)
	}
	if err := preflight.Check(3); err != nil {
		fmt.Fprintln(os.Stderr, err)
		var missing *preflight.Missing
		if errors.As(err, &missing) {
			os.Exit(preflight.ExitCode)
		}
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// start starts a cluster and stops it at the end of the test. change changes the options; nil keeps the defaults. The
// environment variable FIXEDIP_CILIUM sets the minor version of Cilium; if it is empty, the default is used.
func start(t *testing.T, change func(*realcluster.Options)) *realcluster.Cluster {
	t.Helper()
	o := realcluster.Options{
		Options: layout.Defaults(), Dir: t.TempDir(), Bin: bin, Source: filepath.Join("..", ".."), Log: t.Logf,
	}
	if line := os.Getenv("FIXEDIP_CILIUM"); line != "" {
		o.Cilium = line
	}
	if change != nil {
		change(&o)
	}
	c, err := realcluster.Start(limited(t, startTimeout), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	return c
}

// within returns a context for one step of a test. The context ends after stepTimeout, or with the test.
func within(t *testing.T) context.Context { return limited(t, stepTimeout) }

// limited returns a context that ends after the time limit, or with the test.
func limited(t *testing.T, limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}
