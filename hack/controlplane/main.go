// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command fixedip-controlplane runs a Kubernetes control plane without a scheduler in one unprivileged process: etcd, the API
// server and the controller manager, started from their Go packages. The demo, the tests, the benchmarks and the cluster of
// real nodes use it. The state is in one work folder, so that the control plane can be killed and restarted.
//
// The control plane is not for production: etcd does not sync to disk, and every user who can read the folder is an
// administrator of the cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"fixedip.io/fixedip/hack/cluster/startup"
)

const (
	// stopTimeout limits the shutdown of the API server, which otherwise waits for open requests for up to a minute.
	stopTimeout = 3 * time.Second
	// readyFile is the name of a file in the work folder that exists while the control plane is ready. If the process is
	// killed, the file remains until the next start.
	readyFile = "ready"
)

func main() {
	o := newOptions()
	startup.Main("fixedip-controlplane", o, func(ctx context.Context) error { return run(ctx, o) })
}

// run starts the parts in the order of their dependencies and runs them until ctx ends or one of them ends.
func run(ctx context.Context, o *options) error {
	began := time.Now()
	ready := filepath.Join(o.dir, readyFile)
	if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return fmt.Errorf("create the work folder %s: %w", o.dir, err)
	}
	if err := os.Remove(ready); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the ready file of an earlier run: %w", err)
	}
	keys, err := ensurePKI(filepath.Join(o.dir, "pki"), servingAddresses(o))
	if err != nil {
		return err
	}
	users, err := ensureIdentities(filepath.Join(o.dir, "pki", "tokens.csv"), o.nodes)
	if err != nil {
		return err
	}
	listener, err := listen(o.dir, o.bindAddress, o.securePort)
	if err != nil {
		return err
	}
	address := listener.Addr().String()
	if err := writeKubeconfigs(filepath.Join(o.dir, "kubeconfig"), "https://"+address, keys.caPEM, users); err != nil {
		return err
	}

	manager, err := newControllerManager(controllerConfig{
		kubeconfig: filepath.Join(o.dir, "kubeconfig", controllerManagerUser+".yaml"), keys: keys,
		nodeMonitorGracePeriod: o.nodeMonitorGracePeriod, podGCThreshold: o.podGCThreshold,
		nodeCIDRs: o.nodeCIDRs, nodeCIDRMaskSizes: o.nodeCIDRMaskSizes,
	})
	if err != nil {
		return err
	}
	store, err := startEtcd(ctx, o.etcdDir)
	if err != nil {
		return err
	}
	defer store.stop()

	// The API server has its own context, so that the controllers are canceled first. Controllers without an API server
	// would fill the log with errors.
	serverCtx, stopServer := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServer()
	server, err := startAPIServer(serverCtx, serverConfig{
		listener: listener, etcdURL: store.url, keys: keys, tokenFile: users.file, serviceRange: o.serviceRange, auditLog: o.auditLog, dir: o.dir,
	})
	if err != nil {
		return err
	}

	startCtx, cancel := context.WithTimeout(ctx, o.readyTimeout)
	defer cancel()
	admin, err := users.restConfig("admin", "https://"+address, keys.caPEM)
	if err != nil {
		return err
	}
	if err := waitServing(startCtx, admin, server.done); err != nil {
		return err
	}
	// Create the CRDs before the controllers start. The garbage collector knows the kinds that exist when it starts,
	// and looks for new kinds only every 30 s (startGarbageCollectorController, syncPeriod).
	if err := installCRDs(startCtx, admin, o.crds); err != nil {
		return err
	}
	controllers := &part{}
	if !o.noControllers {
		if controllers, err = manager.start(ctx); err != nil {
			return err
		}
		if err := waitServiceAccounts(startCtx, admin); err != nil {
			return err
		}
	}

	line := fmt.Sprintf("ready: https://%s in %s", address, time.Since(began).Round(time.Millisecond))
	if err := os.WriteFile(ready, []byte(line+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the ready file: %w", err)
	}
	fmt.Println(line)
	if err := notifyReady(o.readyFD, line); err != nil {
		return err
	}

	select {
	case <-ctx.Done():
	case err = <-server.done:
		err = partEnded("the API server", err)
	case err = <-controllers.done:
		// If ctx has ended, the end of the controller manager is a normal stop.
		if ctx.Err() == nil {
			err = partEnded("the controller manager", err)
		} else {
			err = nil
		}
	case err = <-store.failed:
		err = partEnded("etcd", err)
	}
	stopServer()
	select {
	case <-server.done:
	case <-time.After(stopTimeout):
		klog.FromContext(ctx).Info("The API server did not stop in time, not waiting any longer", "timeout", stopTimeout)
	}
	return errors.Join(err, removeReady(ready))
}

// servingAddresses returns the addresses at which clients reach the API server: the loopback addresses, the listen address,
// and the first usable address of each service CIDR. In the first CIDR, this is the cluster IP of the Service "kubernetes".
func servingAddresses(o *options) []net.IP {
	list := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback, net.ParseIP(o.bindAddress)}
	for cidr := range strings.SplitSeq(o.serviceRange, ",") {
		list = append(list, netip.MustParsePrefix(cidr).Masked().Addr().Next().AsSlice())
	}
	return list
}

// partEnded returns an error for a part that ended unexpectedly; err is its result.
func partEnded(part string, err error) error {
	if err == nil {
		return fmt.Errorf("%s ended unexpectedly, without an error", part)
	}
	return fmt.Errorf("%s failed: %w", part, err)
}

func removeReady(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the ready file: %w", err)
	}
	return nil
}

// notifyReady writes the ready line to the inherited file descriptor fd and closes fd. It does nothing if fd is negative.
// The reader of a pipe gets either the line or, if this process exits before that, the end of the pipe.
func notifyReady(fd int, line string) error {
	if fd < 0 {
		return nil
	}
	f := os.NewFile(uintptr(fd), "ready-fd")
	if f == nil {
		return fmt.Errorf("--ready-fd=%d is not an open file descriptor", fd)
	}
	_, err := io.WriteString(f, line+"\n")
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("report readiness on --ready-fd=%d: %w", fd, err)
	}
	return nil
}
