// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// LoopbackPlugin is the path of the CNI plugin that containerd needs in addition to cilium-cni.
const LoopbackPlugin = "/usr/lib/cni/loopback"

// CompilerTools are the programs with which an agent compiles its eBPF programs.
var CompilerTools = []string{"clang", "llc", "llvm-strip"}

// compilerVersions are the LLVM versions that compile the programs of Cilium, the tested one first.
var compilerVersions = []string{"19", "20", "18"}

// packages contains the required Debian packages except the compiler. A package counts as installed if all its files
// exist.
var packages = []struct {
	name  string
	files []string
}{
	{"containerd", []string{"/usr/bin/containerd", "/usr/bin/ctr", "/usr/bin/containerd-shim-runc-v2"}},
	{"runc", []string{"/usr/sbin/runc"}},
	{"iptables", []string{"/usr/sbin/iptables", "/usr/sbin/ip6tables"}},
	{"ipset", []string{"/usr/sbin/ipset"}},
	{"iproute2", []string{"/usr/sbin/ip"}},
	{"containernetworking-plugins", []string{LoopbackPlugin}},
}

// MissingPackages returns the names of the required Debian packages that are not installed.
func MissingPackages() []string {
	var missing []string
	for _, p := range packages {
		if !slices.ContainsFunc(p.files, absent) {
			continue
		}
		missing = append(missing, p.name)
	}
	for _, tool := range CompilerTools {
		if _, err := FindTool(tool); err != nil {
			return append(missing, "clang-"+compilerVersions[0], "llvm-"+compilerVersions[0])
		}
	}
	return missing
}

func absent(path string) bool {
	_, err := os.Stat(path)
	return err != nil
}

// FindTool returns the path of one of CompilerTools, in the first of compilerVersions of which all tools are installed.
func FindTool(name string) (string, error) {
	for _, version := range compilerVersions {
		if slices.ContainsFunc(CompilerTools, func(tool string) bool { return absent(toolPath(tool, version)) }) {
			continue
		}
		return toolPath(name, version), nil
	}
	return "", fmt.Errorf("find %s: no LLVM version of %v has all of %v", name, compilerVersions, CompilerTools)
}

func toolPath(name, version string) string { return filepath.Join("/usr/bin", name+"-"+version) }

// hasApt reports whether apt-get is installed.
func hasApt() bool {
	_, err := exec.LookPath("apt-get")
	return err == nil
}
