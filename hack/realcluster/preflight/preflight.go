// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ExitCode is the exit status of programs if a prerequisite is missing.
const ExitCode = 2

// Missing is an error that contains all missing prerequisites.
type Missing struct {
	// Things are descriptions of the missing prerequisites, with hints on how to provide them.
	Things []string
}

func (m *Missing) Error() string {
	return "this machine cannot run a cluster of real nodes; missing prerequisites:\n  - " + strings.Join(m.Things, "\n  - ")
}

// Memory of the control plane and of one node in bytes, measured with Cilium 1.19 and a few pods.
const (
	controlPlaneMemory = 700 << 20
	nodeMemory         = 400 << 20
)

// Check returns a *Missing if the machine lacks a prerequisite for a cluster with this number of nodes.
func Check(nodes int) error {
	var things []string
	note := func(thing string) {
		if thing != "" {
			things = append(things, thing)
		}
	}
	if os.Geteuid() != 0 {
		note("root: the cluster needs namespaces, mounts and eBPF programs; run this command as root")
	}
	note(kernelVersion())
	note(cgroups())
	note(memory(nodes))
	note(programs())
	if os.Geteuid() == 0 {
		things = append(things, tryAll()...)
	}
	if len(things) > 0 {
		return &Missing{Things: things}
	}
	return nil
}

// oldestKernel is the minimum kernel version of Cilium 1.18 and later.
var oldestKernel = [2]int{5, 10}

func kernelVersion() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return fmt.Sprintf("Linux kernel: cannot read its version: %v", err)
	}
	release := unix.ByteSliceToString(name.Release[:])
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return fmt.Sprintf("Linux kernel: cannot parse its version %q", release)
	}
	if major < oldestKernel[0] || major == oldestKernel[0] && minor < oldestKernel[1] {
		return fmt.Sprintf("Linux %d.%d or later, which Cilium requires; this machine runs %s", oldestKernel[0], oldestKernel[1], release)
	}
	return ""
}

// cgroups checks whether the cgroup controllers that the kubelet and runc need are available, in version 1 or version 2 of
// cgroups. It describes the missing controllers; the result is empty if none is missing.
func cgroups() string {
	const root = "/sys/fs/cgroup"
	have := func(controller string) bool {
		if _, err := os.Stat(filepath.Join(root, controller, "cgroup.procs")); err == nil {
			return true
		}
		data, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
		return err == nil && slices.Contains(strings.Fields(string(data)), controller)
	}
	var missing []string
	for _, c := range []string{"cpu", "cpuset", "memory", "pids"} {
		if !have(c) {
			missing = append(missing, c)
		}
	}
	if len(missing) > 0 {
		return fmt.Sprintf("cgroups: the controllers %s are not available below %s", strings.Join(missing, ", "), root)
	}
	return ""
}

func memory(nodes int) string {
	file, err := os.Open("/proc/meminfo")
	if err != nil {
		return fmt.Sprintf("memory: cannot read the available memory: %v", err)
	}
	defer file.Close()
	need := controlPlaneMemory + nodes*nodeMemory
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "MemAvailable:" {
			continue
		}
		if kb, err := strconv.Atoi(fields[1]); err == nil && kb<<10 < need {
			return fmt.Sprintf("memory: %d MiB are needed for %d nodes, but %d MiB are available; use fewer nodes or end other programs", need>>20, nodes, kb>>10)
		}
		return ""
	}
	return "memory: /proc/meminfo has no MemAvailable"
}

func programs() string {
	missing := MissingPackages()
	if len(missing) == 0 {
		return ""
	}
	if !hasApt() {
		return fmt.Sprintf("Debian packages %s: not installed, and apt-get is not available to install them; use Debian 12 or later", strings.Join(missing, ", "))
	}
	var unknown []string
	for _, name := range missing {
		if !known(name) {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		return fmt.Sprintf("Debian packages %s: apt has no candidate for them; run apt-get update, or use Debian 12 or later", strings.Join(unknown, ", "))
	}
	return ""
}

// known reports whether apt has a candidate for a package. It also returns true if apt-cache fails, or if there are no package
// lists yet. In the second case, the apt-get update with which the installation begins gets the lists.
func known(name string) bool {
	lists, err := filepath.Glob("/var/lib/apt/lists/*_Packages*")
	if err != nil || len(lists) == 0 {
		return true
	}
	out, err := exec.Command("apt-cache", "policy", name).Output()
	return err != nil || len(out) > 0 && !strings.Contains(string(out), "Candidate: (none)")
}

// tryAll tests the required kernel features and describes those that are missing. The test runs in temporary namespaces of a
// separate thread.
func tryAll() []string {
	result := make(chan []string, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		result <- tryOnThread()
	}()
	return <-result
}

func tryOnThread() []string {
	// A new PID namespace applies only to children of the thread, and this thread starts none.
	for _, ns := range []struct {
		name string
		flag int
	}{
		{"mounts", unix.CLONE_NEWNS}, {"networks", unix.CLONE_NEWNET}, {"host names", unix.CLONE_NEWUTS},
		{"IPC", unix.CLONE_NEWIPC}, {"processes", unix.CLONE_NEWPID},
	} {
		if err := unix.Unshare(ns.flag); err != nil {
			return []string{fmt.Sprintf("namespaces of %s: cannot create one: %v; if this machine is a container, make the container privileged", ns.name, err)}
		}
	}
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return []string{fmt.Sprintf("mounts: cannot make them private: %v; if this machine is a container, make the container privileged", err)}
	}
	return append(tryMounts(), tryNetwork()...)
}
