// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package lifeline

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// errOrphaned is the error of Bind if the parent process exited before the parent death signal was set. In that case the
// kernel never sends the signal.
var errOrphaned = errors.New("the parent process exited before the parent death signal was set")

// Bind sets the parent death signal of this process to SIGTERM. The kernel sends it when the thread that started this
// process ends, not when the whole parent ends (prctl(2), PR_SET_PDEATHSIG). A parent in Go must therefore start this
// process from a thread that does not end, as cluster.Starter does. Bind also returns errOrphaned if process 1 started this
// process, as in a container, because that case cannot be distinguished from an exited parent.
func Bind() error {
	parent := os.Getppid()
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGTERM), 0, 0, 0); err != nil {
		return fmt.Errorf("set the parent death signal: %w", err)
	}
	// If the parent exited between Getppid and Prctl, this process has another parent now. If the parent exited before
	// Getppid, process 1 was the parent already.
	if os.Getppid() != parent || parent == 1 {
		return errOrphaned
	}
	return nil
}
