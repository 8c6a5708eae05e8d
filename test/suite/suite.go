// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Programs returns the folder that the environment variable FIXEDIP_BIN names. It returns an error if the variable is empty,
// or if the folder has no fixedip-controlplane. The error names target, the make target that builds the programs, sets
// FIXEDIP_BIN and runs the tests.
func Programs(target string) (string, error) {
	dir := os.Getenv("FIXEDIP_BIN")
	if _, err := os.Stat(filepath.Join(dir, "fixedip-controlplane")); dir == "" || err != nil {
		return "", fmt.Errorf("the environment variable FIXEDIP_BIN must name the folder of fixedip-controlplane; run the tests with make %s, which builds the programs and sets the variable", target)
	}
	return dir, nil
}

// ControlPlane returns the path of the control plane program. It is the value of the environment variable
// FIXEDIP_CONTROL_PLANE, which selects another version of Kubernetes, or fixedip-controlplane in the folder programs if the
// variable is empty.
func ControlPlane(programs string) string {
	if other := os.Getenv("FIXEDIP_CONTROL_PLANE"); other != "" {
		return other
	}
	return filepath.Join(programs, "fixedip-controlplane")
}

// Within returns a context for one step of a test. The context is canceled after timeout, with a cause that contains
// timeout, and at the end of the test.
func Within(t *testing.T, timeout time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), timeout, errors.New("not done after "+timeout.String()))
	t.Cleanup(cancel)
	return ctx
}
