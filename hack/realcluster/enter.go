// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package realcluster

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"fixedip.io/fixedip/hack/cluster"
)

// nodeNamespaces are the namespaces of a node. Nodes share the cgroup and user namespaces of the machine.
const nodeNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC

// enter returns a Starter whose processes run in the given namespaces (CLONE_NEW flags) of the process pid.
func enter(pid int, namespaces int) (*cluster.Starter, error) {
	s, err := cluster.NewStarter(func() error {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return err
		}
		// Setns cannot enter a mount namespace while the thread shares its working directory with other threads.
		err = unix.Unshare(unix.CLONE_FS)
		if err == nil {
			err = unix.Setns(fd, namespaces)
		}
		return errors.Join(err, unix.Close(fd))
	})
	if err != nil {
		return nil, fmt.Errorf("enter the namespaces of process %d: %w", pid, err)
	}
	return s, nil
}
