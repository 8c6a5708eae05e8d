// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package lifeline

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// errOrphaned means that the parent had exited before Bind took effect.
var errOrphaned = errors.New("the parent process ended before this process could be tied to it")

// Bind asks the kernel to send SIGTERM to this process when its parent ends. The kernel watches the thread that
// started this process, not the whole parent (prctl(2), PR_SET_PDEATHSIG), so a Go program starts its children from a
// thread that it keeps.
func Bind() error {
	parent := os.Getppid()
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGTERM), 0, 0, 0); err != nil {
		return fmt.Errorf("set the parent death signal: %w", err)
	}
	// If the parent exited before the call above, there is no signal, but this process has another parent.
	if os.Getppid() != parent || parent == 1 {
		return errOrphaned
	}
	return nil
}
