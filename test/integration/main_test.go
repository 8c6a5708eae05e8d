// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/test/suite"
)

// stepTimeout is the time limit of one step of a test. It is long enough for a slow machine.
const stepTimeout = 90 * time.Second

// testLease contains the leader election times of our programs. The duration is longer than the stalls of a shared machine,
// because a program that loses its Lease exits and the tests do not restart it. A test that kills the leader waits for this
// duration.
var testLease = product.Lease{Duration: 10 * time.Second, Renew: 8 * time.Second, Retry: 500 * time.Millisecond}

// bin is the folder of the programs, and apiServer the path of the control plane program.
var bin, apiServer string

func TestMain(m *testing.M) {
	flag.Parse()
	ctrllog.SetLogger(logr.Discard())
	var err error
	if bin, err = suite.Programs("test-integration"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	apiServer = suite.ControlPlane(bin)
	os.Exit(m.Run())
}

// within returns a context for one step of a test. The context ends after stepTimeout.
func within(t *testing.T) context.Context {
	t.Helper()
	return suite.Within(t, stepTimeout)
}
