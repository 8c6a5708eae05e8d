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

// Programs returns the folder in the variable FIXEDIP_BIN, or an error if that folder has no fixedip-controlplane. The error
// names target, the make target that builds the programs and sets FIXEDIP_BIN.
func Programs(target string) (string, error) {
	dir := os.Getenv("FIXEDIP_BIN")
	if _, err := os.Stat(filepath.Join(dir, "fixedip-controlplane")); dir == "" || err != nil {
		return "", fmt.Errorf("FIXEDIP_BIN must be the folder of fixedip-controlplane; make %s builds the programs and sets FIXEDIP_BIN", target)
	}
	return dir, nil
}

// ControlPlane returns the path of the control plane program: the variable FIXEDIP_CONTROL_PLANE if it is set, for another
// version of Kubernetes, or else fixedip-controlplane in the folder programs.
func ControlPlane(programs string) string {
	if other := os.Getenv("FIXEDIP_CONTROL_PLANE"); other != "" {
		return other
	}
	return filepath.Join(programs, "fixedip-controlplane")
}

// Within returns a context for one step of a test. The context is cancelled after timeout, with a cause that contains
// timeout, and at the end of the test.
func Within(t *testing.T, timeout time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), timeout, errors.New("not done after "+timeout.String()))
	t.Cleanup(cancel)
	return ctx
}
