// Package lifeline ties the life of a process to the life of the process that started it, so that a killed
// demo or test leaves nothing behind. It does that and nothing else.
package lifeline

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// errOrphaned says that the parent was gone before the tie could be made.
var errOrphaned = errors.New("the parent process ended before this process could be tied to it")

// Bind asks the kernel to end this process with SIGTERM when its parent ends. The kernel watches the thread
// that started this process, not the whole parent (prctl(2), PR_SET_PDEATHSIG), so a parent written in Go
// starts its children from a thread that it keeps.
func Bind() error {
	parent := os.Getppid()
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGTERM), 0, 0, 0); err != nil {
		return fmt.Errorf("set the parent death signal: %w", err)
	}
	// A parent that ended before the call above sends no signal any more: its child was given to another
	// process, which is what a changed parent shows.
	if os.Getppid() != parent || parent == 1 {
		return errOrphaned
	}
	return nil
}
