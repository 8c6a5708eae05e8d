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

// Missing is the error that lists all missing prerequisites.
type Missing struct {
	// Things describe the missing prerequisites, with hints how to provide them.
	Things []string
}

func (m *Missing) Error() string {
	return "this machine can't have a cluster of real nodes:\n  - " + strings.Join(m.Things, "\n  - ")
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
		note("root: namespaces, mounts and eBPF programs are made; run this as root")
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
		return fmt.Sprintf("a Linux kernel: its version can't be read: %v", err)
	}
	release := unix.ByteSliceToString(name.Release[:])
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return fmt.Sprintf("a Linux kernel: its version %q can't be read", release)
	}
	if major < oldestKernel[0] || major == oldestKernel[0] && minor < oldestKernel[1] {
		return fmt.Sprintf("Linux %d.%d or later, for Cilium: this is %s", oldestKernel[0], oldestKernel[1], release)
	}
	return ""
}

// cgroups checks the cgroup controllers that the kubelet and runc need, in both cgroup versions. It returns an empty string
// if all are available.
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
		return fmt.Sprintf("cgroups: the controllers %s are not mounted below %s", strings.Join(missing, ", "), root)
	}
	return ""
}

func memory(nodes int) string {
	file, err := os.Open("/proc/meminfo")
	if err != nil {
		return fmt.Sprintf("/proc: %v", err)
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
			return fmt.Sprintf("memory: %d MiB for %d nodes, of which %d are available; take fewer nodes or end other programs", need>>20, nodes, kb>>10)
		}
		return ""
	}
	return "/proc/meminfo: no MemAvailable in the file"
}

func programs() string {
	missing := MissingPackages()
	if len(missing) == 0 {
		return ""
	}
	if !hasApt() {
		return fmt.Sprintf("the Debian packages %s: there is no apt-get to install them with", strings.Join(missing, ", "))
	}
	var unknown []string
	for _, name := range missing {
		if !known(name) {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		return fmt.Sprintf("the Debian packages %s: apt does not know them; take Debian 12 or later, or see whether apt-get update helps", strings.Join(unknown, ", "))
	}
	return ""
}

// known reports whether apt can install a package. Without package lists, apt knows no package; then known returns true,
// because the installation begins with apt-get update.
func known(name string) bool {
	lists, err := filepath.Glob("/var/lib/apt/lists/*_Packages*")
	if err != nil || len(lists) == 0 {
		return true
	}
	out, err := exec.Command("apt-cache", "policy", name).Output()
	return err != nil || len(out) > 0 && !strings.Contains(string(out), "Candidate: (none)")
}

// tryAll tests the required kernel features and describes those that are missing. It uses a thread that ends with its
// namespaces.
func tryAll() []string {
	result := make(chan []string, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		result <- tryOnThread()
	}()
	return <-result
}

func tryOnThread() []string {
	// A new PID namespace applies to children only, and this thread has none.
	for _, ns := range []struct {
		name string
		flag int
	}{
		{"mounts", unix.CLONE_NEWNS}, {"networks", unix.CLONE_NEWNET}, {"host names", unix.CLONE_NEWUTS},
		{"IPC", unix.CLONE_NEWIPC}, {"processes", unix.CLONE_NEWPID},
	} {
		if err := unix.Unshare(ns.flag); err != nil {
			return []string{fmt.Sprintf("namespaces of %s: %v; in a container, run it privileged", ns.name, err)}
		}
	}
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return []string{fmt.Sprintf("mounts: %v; in a container, run it privileged", err)}
	}
	return append(tryMounts(), tryNetwork()...)
}
