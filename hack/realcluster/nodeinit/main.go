// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command fixedip-nodeinit is process 1 of a node, which is a set of namespaces: it mounts the file systems of the node,
// keeps the namespaces and reaps orphaned processes. When it exits, the kernel ends every process of the node and removes
// the mounts and the network of the node. It does not create namespaces, but must be started in new ones. It also keeps the
// network namespace of the hub; there it mounts nothing.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"fixedip.io/fixedip/hack/cluster/startup"
)

// options contains the command-line settings. It implements startup.Options.
type options struct {
	// disk is the folder of the data that survives a reboot; if empty, no file systems are mounted.
	disk string
	// keep are folders of the machine that stay visible at their paths, even below the node's own file systems.
	keep     []string
	hostname string
	readyFD  int
}

// AddFlags adds a flag for each option to fs.
func (o *options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.disk, "disk", "", "Folder whose subfolders lib and log become /var/lib and /var/log of the node; if empty, no file systems are mounted.")
	fs.StringArrayVar(&o.keep, "keep", nil, "Folder of the machine that stays visible at its path, even below /var/lib, /var/log or /run; may be given more than once.")
	fs.StringVar(&o.hostname, "hostname", "", "Hostname of the node; if empty, the hostname is not changed.")
	fs.IntVar(&o.readyFD, "ready-fd", -1, "Inherited file descriptor to which one line is written when the node is ready for its programs; -1 means none.")
}

// Validate validates the options.
func (o *options) Validate() error {
	if os.Getpid() != 1 {
		return errors.New("fixedip-nodeinit must be process 1; start it in new namespaces")
	}
	for _, path := range append([]string{o.disk}, o.keep...) {
		if path != "" && !filepath.IsAbs(path) {
			return fmt.Errorf("--disk and --keep: the path %q is not absolute", path)
		}
	}
	return nil
}

func main() {
	o := &options{}
	startup.Main("fixedip-nodeinit", o, func(ctx context.Context) error { return run(ctx, o) })
}

func run(ctx context.Context, o *options) error {
	// Register for the signal first, so that no exit of a child is missed.
	deaths := make(chan os.Signal, 1)
	signal.Notify(deaths, unix.SIGCHLD)
	if o.hostname != "" {
		if err := unix.Sethostname([]byte(o.hostname)); err != nil {
			return fmt.Errorf("set the hostname %s: %w", o.hostname, err)
		}
	}
	if o.disk != "" {
		if err := mountAll(o.disk, o.keep); err != nil {
			return err
		}
	}
	if o.readyFD >= 0 {
		f := os.NewFile(uintptr(o.readyFD), "ready-fd")
		_, err := fmt.Fprintln(f, "ready")
		if err := errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("report readiness on --ready-fd: %w", err)
		}
	}
	for {
		reap()
		select {
		case <-ctx.Done():
			return nil
		case <-deaths:
		}
	}
}

// reap collects the exit status of every child that has exited, so that no zombie remains. Process 1 is the parent of all
// orphans, such as the shims of containerd.
func reap() {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if err != nil && !errors.Is(err, unix.EINTR) || err == nil && pid <= 0 {
			return
		}
	}
}
