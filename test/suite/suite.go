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

// Programs returns the folder that FIXEDIP_BIN names. It returns an error if that folder has no fixedip-controlplane. target
// is the make target, named in the error, that builds the programs and sets FIXEDIP_BIN.
func Programs(target string) (string, error) {
	dir := os.Getenv("FIXEDIP_BIN")
	if _, err := os.Stat(filepath.Join(dir, "fixedip-controlplane")); dir == "" || err != nil {
		return "", fmt.Errorf("FIXEDIP_BIN has to name the folder of the programs; make %s builds them and sets it", target)
	}
	return dir, nil
}

// ControlPlane returns the path of the control plane program: FIXEDIP_CONTROL_PLANE, which may name that of another version
// of Kubernetes, or fixedip-controlplane in the folder programs.
func ControlPlane(programs string) string {
	if other := os.Getenv("FIXEDIP_CONTROL_PLANE"); other != "" {
		return other
	}
	return filepath.Join(programs, "fixedip-controlplane")
}

// Within returns a context for one step of a test. It is cancelled after patience, with a cause that contains patience, and
// at the end of the test.
func Within(t *testing.T, patience time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, errors.New("not so after "+patience.String()))
	t.Cleanup(cancel)
	return ctx
}
