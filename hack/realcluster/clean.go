// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package realcluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"fixedip.io/fixedip/hack/cluster"
)

// Down stops a cluster, complete or half started, whichever process started it, and deletes its work folder. It is no
// error if there is no cluster.
func Down(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("find the work folder %q: %w", dir, err)
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return removeTraces(dir)
	}
	if err := isWorkFolder(dir); err != nil {
		return err
	}
	// Killed programs need not store their state.
	if err := cluster.KillAll(dir); err != nil {
		return err
	}
	if err := removeTraces(dir); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("delete the work folder: %w", err)
	}
	return nil
}

// isWorkFolder returns an error if a folder has content but is not the work folder of a cluster. Down deletes only folders
// without such an error.
func isWorkFolder(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read the work folder: %w", err)
	}
	if len(entries) == 0 {
		return nil
	}
	// nodesDir is the first folder that a cluster creates.
	if _, err := os.Stat(filepath.Join(dir, nodesDir)); err != nil {
		return fmt.Errorf("%s has something else in it than a cluster: give another work folder", dir)
	}
	return nil
}

// removeTraces removes the network links and the cgroups that a cluster leaves on the machine. Mounts and node networks end
// with their namespaces.
func removeTraces(dir string) error {
	if err := release(dir); err != nil {
		return err
	}
	return removeCgroups(filepath.Join(dir, nodesDir, "*", diskDir))
}

// removeCgroups removes the cgroups of the containers of nodes, which are empty after their processes were killed. disks is
// a pattern of the disks of nodes, where containerd has a folder for each container. The cgroup of a container has the name
// of the container and is in k8s.io in each hierarchy.
func removeCgroups(disks string) error {
	var containers []string
	for _, kept := range []string{"io.containerd.runtime.v2.task/k8s.io", "io.containerd.grpc.v1.cri/sandboxes", "io.containerd.grpc.v1.cri/containers"} {
		found, err := filepath.Glob(filepath.Join(disks, "lib", "containerd", kept, "*"))
		if err != nil {
			return fmt.Errorf("look for containers: %w", err)
		}
		containers = append(containers, found...)
	}
	var errs []error
	// Cgroups version 2 has one hierarchy.
	for _, pattern := range []string{"/sys/fs/cgroup/k8s.io", "/sys/fs/cgroup/*/k8s.io"} {
		parents, err := filepath.Glob(pattern)
		if err != nil {
			return fmt.Errorf("look for cgroups: %w", err)
		}
		for _, parent := range parents {
			for _, container := range containers {
				err := unix.Rmdir(filepath.Join(parent, filepath.Base(container)))
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					errs = append(errs, fmt.Errorf("remove the cgroup of container %s in %s: %w", filepath.Base(container), parent, err))
				}
			}
			// It is not empty if another containerd of the machine has containers there.
			_ = unix.Rmdir(parent)
		}
	}
	return errors.Join(errs...)
}
