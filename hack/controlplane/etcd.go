// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/klog/v2"
)

// etcdStopTimeout is the maximum time for etcd to stop.
const etcdStopTimeout = 3 * time.Second

// etcdServer is a running embedded etcd.
type etcdServer struct {
	url    string
	failed <-chan error
	server *embed.Etcd
}

// startEtcd starts etcd on free loopback ports and returns when it is ready. etcd does not sync to disk: its data survives a
// crash of the process, but not of the machine.
func startEtcd(ctx context.Context, dir string) (*etcdServer, error) {
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.LogLevel = "error"
	cfg.LogOutputs = []string{"stderr"}
	cfg.UnsafeNoFsync = true
	cfg.EnableGRPCGateway = false
	anyPort := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = anyPort, anyPort
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = anyPort, anyPort
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)

	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, fmt.Errorf("start etcd in %s: %w", dir, err)
	}
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		e.Close()
		return nil, fmt.Errorf("etcd in %s failed before it was ready: %w", dir, err)
	case <-ctx.Done():
		e.Close()
		return nil, fmt.Errorf("wait until etcd in %s is ready: %w", dir, context.Cause(ctx))
	}
	return &etcdServer{url: "http://" + e.Clients[0].Addr().String(), failed: e.Err(), server: e}, nil
}

// stop stops etcd and waits until it has stopped, at most etcdStopTimeout.
func (s *etcdServer) stop() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.server.Close()
	}()
	select {
	case <-done:
	case <-time.After(etcdStopTimeout):
		klog.Background().Info("etcd did not stop in time, not waiting any longer", "timeout", etcdStopTimeout)
	}
}
