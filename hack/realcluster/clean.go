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

// marker is the file by which a work folder shows that Start created it.
const marker = ".fixedip-realcluster"

// Down stops the cluster of a work folder and deletes the folder. The cluster may have been started by another process or
// only partly. Down returns no error if the folder does not exist or is empty, but refuses any other folder that is not the
// work folder of a cluster.
func Down(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("make the path of the work folder absolute: %w", err)
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return removeTraces(dir)
	}
	if err := isWorkFolder(dir); err != nil {
		return err
	}
	// The programs can be killed, because their state is deleted.
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

// createFolder creates the work folder with its marker and its folders.
func createFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create the work folder: %w", err)
	}
	// Create the marker first, so that Down accepts a folder that was only partly created.
	if err := os.WriteFile(filepath.Join(dir, marker), nil, 0o644); err != nil {
		return fmt.Errorf("mark the work folder: %w", err)
	}
	for _, name := range []string{nodesDir, toolsDir, cniDir} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return fmt.Errorf("create the work folder: %w", err)
		}
	}
	return nil
}

// isWorkFolder returns an error if a folder has content but is not the work folder of a cluster. Down deletes no such
// folder.
func isWorkFolder(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read the work folder: %w", err)
	}
	if len(entries) == 0 {
		return nil
	}
	if _, err := os.Stat(filepath.Join(dir, marker)); err == nil {
		return nil
	}
	// Earlier versions wrote no marker, but this link.
	if plugin, err := os.Lstat(filepath.Join(dir, cniDir, ciliumPlugin)); err == nil && plugin.Mode()&fs.ModeSymlink != 0 {
		return nil
	}
	return fmt.Errorf("folder %s is not empty and is not the work folder of a cluster; use another folder", dir)
}

// removeTraces removes the network links and the cgroups that remain on the machine after the processes of a cluster have
// ended. Mounts and the networks of nodes end with their namespaces.
func removeTraces(dir string) error {
	if err := release(dir); err != nil {
		return err
	}
	return removeCgroups(filepath.Join(dir, nodesDir, "*", diskDir))
}

// removeCgroups removes the cgroups of the containers of nodes. The processes of the containers must have been killed
// before. disks is a pattern of the disks of nodes, on which containerd has a folder for each container. The cgroup of a
// container has the name of the container and is in k8s.io in each hierarchy.
func removeCgroups(disks string) error {
	var containers []string
	for _, folder := range []string{"io.containerd.runtime.v2.task/k8s.io", "io.containerd.grpc.v1.cri/sandboxes", "io.containerd.grpc.v1.cri/containers"} {
		found, err := filepath.Glob(filepath.Join(disks, "lib", "containerd", folder, "*"))
		if err != nil {
			return fmt.Errorf("find the containers of the nodes: %w", err)
		}
		containers = append(containers, found...)
	}
	var errs []error
	// Version 2 of cgroups has one hierarchy, version 1 has several.
	for _, pattern := range []string{"/sys/fs/cgroup/k8s.io", "/sys/fs/cgroup/*/k8s.io"} {
		parents, err := filepath.Glob(pattern)
		if err != nil {
			return fmt.Errorf("find the cgroup hierarchies: %w", err)
		}
		for _, parent := range parents {
			for _, container := range containers {
				err := unix.Rmdir(filepath.Join(parent, filepath.Base(container)))
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					errs = append(errs, fmt.Errorf("remove the cgroup of container %s in %s: %w", filepath.Base(container), parent, err))
				}
			}
			// Rmdir fails if another containerd of the machine has containers in the cgroup.
			_ = unix.Rmdir(parent)
		}
	}
	return errors.Join(errs...)
}
