package preflight

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// LoopbackPlugin is the CNI plugin that containerd asks for beside that of the network.
const LoopbackPlugin = "/usr/lib/cni/loopback"

// CompilerTools are what an agent compiles its programs with, by the names that it calls them by.
var CompilerTools = []string{"clang", "llc", "llvm-strip"}

// compilerVersions of LLVM that Cilium's programs compile with, the tried one first.
var compilerVersions = []string{"19", "20", "18"}

// packages are the Debian packages, and the files by which each is known to be there.
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

// MissingPackages are the Debian packages that a node's programs are in and that are not installed.
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

// FindTool finds a program of the compiler, all of one version.
func FindTool(name string) (string, error) {
	for _, version := range compilerVersions {
		if slices.ContainsFunc(CompilerTools, func(tool string) bool { return absent(toolPath(tool, version)) }) {
			continue
		}
		return toolPath(name, version), nil
	}
	return "", fmt.Errorf("no version of it (%v) is installed", compilerVersions)
}

func toolPath(name, version string) string { return filepath.Join("/usr/bin", name+"-"+version) }

// hasApt says whether packages can be installed.
func hasApt() bool {
	_, err := exec.LookPath("apt-get")
	return err == nil
}
