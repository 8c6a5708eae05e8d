// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// mountAll mounts the /proc, /sys, /run, /var/lib and /var/log of the node in the mount namespace of this process. The
// folders in keep stay visible. The mounts are not visible outside the namespace.
func mountAll(disk string, keep []string) error {
	// After this, no mount propagates to the machine.
	if err := mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	copies, err := detachAll(keep)
	if err != nil {
		return err
	}
	cgroups, err := detach("/sys/fs/cgroup")
	if err != nil {
		return err
	}
	for _, name := range []string{"lib", "log"} {
		source := filepath.Join(disk, name)
		if err := os.MkdirAll(source, 0o755); err != nil {
			return fmt.Errorf("create the disk of the node: %w", err)
		}
		if err := mount(source, filepath.Join("/var", name), "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	for _, m := range []struct{ kind, target, data string }{
		{"tmpfs", "/run", "mode=755"},
		{"proc", "/proc", ""},
		// sysfs shows the network of the namespace in which it is mounted.
		{"sysfs", "/sys", ""},
		{"bpf", "/sys/fs/bpf", "mode=700"},
	} {
		if err := mount(m.kind, m.target, m.kind, 0, m.data); err != nil {
			return err
		}
	}
	if err := attach(cgroups, "/sys/fs/cgroup"); err != nil {
		return err
	}
	for path, fd := range copies {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return fmt.Errorf("create the mount point %s: %w", path, err)
		}
		if err := attach(fd, path); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/run/lock", "/run/netns"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("create the folders of the node: %w", err)
		}
	}
	// As on a machine with an init system, mounts of the kubelet must propagate to its containers.
	return mount("none", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

func mount(source, target, kind string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("mount %s (%s) on %s: %w", source, kind, target, err)
	}
	return nil
}

// detachAll returns detached copies of the mounts at the paths. Key: the path. Value: the file descriptor of the copy.
func detachAll(paths []string) (map[string]int, error) {
	fds := map[string]int{}
	for _, path := range paths {
		fd, err := detach(path)
		if err != nil {
			return nil, err
		}
		fds[path] = fd
	}
	return fds, nil
}

// detach returns the file descriptor of a detached copy of the mounts at a path.
func detach(path string) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return 0, fmt.Errorf("copy the mounts at %s: %w", path, err)
	}
	return fd, nil
}

func attach(fd int, path string) error {
	err := unix.MoveMount(fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH)
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		return fmt.Errorf("attach the copy of the mounts at %s: %w", path, err)
	}
	return nil
}
