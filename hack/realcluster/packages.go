// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package realcluster

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"fixedip.io/fixedip/hack/realcluster/preflight"
)

// searchPath is the PATH of programs. The PATH of a user may lack the sbin folders.
const searchPath = "/usr/sbin:/usr/bin:/sbin:/bin"

// lookUp returns the path of a program in searchPath. A program with a slash, or that is not found, is returned unchanged.
// Without lookUp, package exec would look only in the PATH of this process, even if the command gets another PATH.
func lookUp(program string) string {
	if strings.Contains(program, "/") {
		return program
	}
	for _, dir := range filepath.SplitList(searchPath) {
		if path, err := exec.LookPath(filepath.Join(dir, program)); err == nil {
			return path
		}
	}
	return program
}

// loopbackPlugin is the path of the CNI plugin loopback in Debian. containerd needs it in addition to cilium-cni.
const loopbackPlugin = preflight.LoopbackPlugin

// installing is held while packages are installed, because apt-get does not wait for another apt-get.
var installing sync.Mutex

// installPackages installs the Debian packages whose programs are missing.
func installPackages(ctx context.Context, log func(string, ...any)) error {
	installing.Lock()
	defer installing.Unlock()
	missing := preflight.MissingPackages()
	if len(missing) == 0 {
		return nil
	}
	began := time.Now()
	log("installing the Debian packages %s", strings.Join(missing, ", "))
	steps := [][]string{
		// apt-get refuses to work after an interrupted installation. This command completes that installation.
		{"dpkg", "--configure", "-a"},
		{"apt-get", "update"},
		append([]string{"apt-get", "install", "-y", "--no-install-recommends"}, missing...),
	}
	for _, step := range steps {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("install the Debian packages %s: %w", strings.Join(missing, ", "), err)
		}
		if err := runApt(step, log); err != nil {
			return err
		}
	}
	if left := preflight.MissingPackages(); len(left) > 0 {
		return fmt.Errorf("programs of the packages %s are still missing after their installation", strings.Join(left, ", "))
	}
	log("packages installed after %s", time.Since(began).Round(100*time.Millisecond))
	return nil
}

// runApt runs a command that changes the installed packages, and logs its progress. If the command fails, the error contains
// the whole output. runApt has no context, because a command that is canceled could leave a package partly installed.
func runApt(step []string, log func(string, ...any)) error {
	cmd := exec.Command(lookUp(step[0]), step[1:]...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "PATH="+searchPath)
	output, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("create the output pipe of %s: %w", strings.Join(step, " "), err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", strings.Join(step, " "), err)
	}
	var all strings.Builder
	lines := bufio.NewScanner(io.TeeReader(output, &all))
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "Setting up ") {
			log("  %s", strings.TrimSuffix(lines.Text(), " ..."))
		}
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("run %s: %w; output:\n%s", strings.Join(step, " "), err, all.String())
	}
	return nil
}

// linkTools creates symbolic links to the programs of the compiler in dir, under the names without version that agents use.
func linkTools(dir string) error {
	for _, name := range preflight.CompilerTools {
		target, err := preflight.FindTool(name)
		if err == nil {
			err = os.Symlink(target, filepath.Join(dir, name))
		}
		if err != nil {
			return fmt.Errorf("link compiler tool %s for the Cilium agents: %w", name, err)
		}
	}
	return nil
}
