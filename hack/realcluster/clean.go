package realcluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"

	"fixedip.io/fixedip/hack/cluster"
)

// Down ends a cluster, whole or half made, whoever started it, and deletes its work folder. There need not be one.
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
	if err := cluster.StopDetached(dir); err != nil {
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

// isWorkFolder refuses a folder that is no cluster's: it is about to be deleted.
func isWorkFolder(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read the work folder: %w", err)
	}
	if len(entries) == 0 {
		return nil
	}
	// The first thing that is made in it.
	if _, err := os.Stat(filepath.Join(dir, nodesDir)); err != nil {
		return fmt.Errorf("%s has something else in it than a cluster: give another work folder", dir)
	}
	return nil
}

// removeTraces removes what a cluster leaves on the machine outside of its processes and of its folder. Mounts and
// the networks of nodes are gone with their namespaces.
func removeTraces(dir string) error {
	link, err := netlink.LinkByName(machineLink)
	switch {
	case errors.As(err, &netlink.LinkNotFoundError{}):
	case err != nil:
		return fmt.Errorf("look for the link %s: %w", machineLink, err)
	case link.Attrs().Alias == dir || link.Attrs().Alias == "":
		if err := netlink.LinkDel(link); err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) {
			return fmt.Errorf("remove the link %s: %w", machineLink, err)
		}
	}
	return removeCgroups(dir)
}

// removeCgroups removes the cgroups of the nodes' containers, which are empty once their processes are killed. In
// each hierarchy they are in k8s.io, by the id of the container; containerd keeps a folder of that name.
func removeCgroups(dir string) error {
	tasks, err := filepath.Glob(filepath.Join(dir, nodesDir, "*", "disk", "lib", "containerd", "io.containerd.runtime.v2.task", "k8s.io", "*"))
	if err != nil {
		return fmt.Errorf("look for containers: %w", err)
	}
	var errs []error
	for _, task := range tasks {
		for _, pattern := range []string{"/sys/fs/cgroup/k8s.io", "/sys/fs/cgroup/*/k8s.io"} {
			groups, err := filepath.Glob(filepath.Join(pattern, filepath.Base(task)))
			if err != nil {
				errs = append(errs, err)
			}
			for _, group := range groups {
				// One that is not empty yet is left: it does no harm.
				if err := os.Remove(group); err != nil && !errors.Is(err, fs.ErrNotExist) {
					errs = append(errs, fmt.Errorf("remove a container's cgroup: %w", err))
				}
			}
		}
	}
	return errors.Join(errs...)
}
