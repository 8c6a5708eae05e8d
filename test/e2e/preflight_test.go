// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"fixedip.io/fixedip/hack/realcluster/preflight"
)

// TestMissing checks that realcluster up prints a missing prerequisite, exits with preflight.ExitCode, and creates no work
// folder.
func TestMissing(t *testing.T) {
	root := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
	for name, c := range map[string]struct {
		attributes syscall.SysProcAttr
		want       string
	}{
		// Without a mapping in its user namespace, the process is not root: the kernel shows the overflow UID.
		"not root":                {attributes: syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}, want: "- root: "},
		"root without privileges": {attributes: syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: root, GidMappings: root}, want: "- file systems of type bpf (CONFIG_BPF_SYSCALL): operation not permitted"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "cluster")
			cmd := exec.CommandContext(within(t), filepath.Join(bin, "realcluster"), "up", "--dir="+dir, "--bin="+bin, "--source="+filepath.Join("..", ".."))
			cmd.SysProcAttr = &c.attributes
			output, err := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != preflight.ExitCode || !strings.Contains(string(output), c.want) {
				t.Errorf("got exit code %d (%v), want %d and the output %q:\n%s", code, err, preflight.ExitCode, c.want, output)
			}
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("stat the work folder: got error %v, want fs.ErrNotExist, because realcluster must not create the folder", err)
			}
		})
	}
}
