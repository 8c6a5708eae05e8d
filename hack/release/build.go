// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// target is a platform and the program that is built for it.
type target struct {
	program, os, arch string
}

const kubectlPlugin = "kubectl-fixedip"

// architectures are the architectures of nodes for which programs and images are built.
var architectures = []string{"amd64", "arm64"}

// targets returns the programs to build for the parts of the release, in order.
func (r *release) targets() []target {
	var all []target
	if r.has(partPrograms) || r.has(partImages) {
		for _, arch := range architectures {
			all = append(all, target{"fixedip-scheduler", "linux", arch}, target{"fixedip-controller", "linux", arch})
		}
	}
	if r.has(partKubectl) {
		for _, system := range []string{"linux", "darwin"} {
			for _, arch := range architectures {
				all = append(all, target{kubectlPlugin, system, arch})
			}
		}
		all = append(all, target{kubectlPlugin, "windows", "amd64"})
	}
	return all
}

// binary returns the name of the file of the program.
func (t target) binary() string {
	if t.os == "windows" {
		return t.program + ".exe"
	}
	return t.program
}

// platform returns the folder of the programs of a platform. The programs are in its subfolder bin, because the Dockerfile
// copies them from bin.
func (r *release) platform(system, arch string) string {
	return filepath.Join(r.work, system+"-"+arch)
}

// built returns the path of a built program.
func (r *release) built(t target) string {
	return filepath.Join(r.platform(t.os, t.arch), "bin", t.binary())
}

// buildPrograms builds all targets. The result does not depend on the machine: the flags replace the settings of the
// environment, and the version control information is left out, because it depends on tags.
func (r *release) buildPrograms(ctx context.Context) error {
	for _, t := range r.targets() {
		fmt.Printf("building %s for %s/%s\n", t.program, t.os, t.arch)
		build := exec.CommandContext(ctx, filepath.Join("hack", "build.sh"), r.built(t), "./cmd/"+t.program, "-trimpath", "-buildvcs=false", "-ldflags", r.ldflags)
		build.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "GOEXPERIMENT=", "CGO_ENABLED=0", "GOOS="+t.os, "GOARCH="+t.arch, "GOAMD64=v1", "GOARM64=v8.0")
		build.Stdout, build.Stderr = os.Stdout, os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("build %s for %s/%s: %w", t.program, t.os, t.arch, err)
		}
		// The programs of other platforms do not run here; they are built with the same flags.
		if t.os == runtime.GOOS && t.arch == runtime.GOARCH {
			if err := checkVersion(ctx, r.built(t), t.program, r.version); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkVersion returns an error if a program does not print its name and the version of the release first. The check is
// needed because the linker ignores a flag for a variable that does not exist.
func checkVersion(ctx context.Context, file, program, version string) error {
	printed, err := output(ctx, file, "--version")
	if err != nil {
		return err
	}
	if !strings.HasPrefix(printed, program+" "+version+" (Kubernetes v") {
		return fmt.Errorf("%s --version prints %q, want %s %s and the version of Kubernetes: check the flags of the linker", program, printed, program, version)
	}
	return nil
}

// archive returns the name of the archive that contains the program of a target.
func (r *release) archive(t target) string {
	suffix := ".tar.gz"
	if t.os == "windows" {
		suffix = ".zip"
	}
	return fmt.Sprintf("%s_%s_%s_%s%s", t.program, r.version, t.os, t.arch, suffix)
}

// writePrograms writes an archive with the license for each program and platform. Without the part programs, it writes only
// the archives of the kubectl plugin: the scheduler and the controller may have been built only for the images.
func (r *release) writePrograms() error {
	for _, t := range r.targets() {
		if t.program != kubectlPlugin && !r.has(partPrograms) {
			continue
		}
		files := []packed{{name: "LICENSE", from: "LICENSE", mode: 0o644}, {name: t.binary(), from: r.built(t), mode: 0o755}}
		write := writeTarGz
		if t.os == "windows" {
			write = writeZip
		}
		name := r.archive(t)
		if err := write(r.file(name), files, r.time); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}
