// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/klog/v2"
)

// allocations is the response to GET /allocations. Key of IPv4 and IPv6: an allocated address. Value: its owner.
type allocations struct {
	IPv4   map[string]string `json:"ipv4"`
	IPv6   map[string]string `json:"ipv6"`
	Status string            `json:"status"`
}

// serveDebug serves the state of the allocator until ctx ends, for tests. The CiliumNode contains the same data, but the
// agent writes it at most once per update rate.
func serveDebug(ctx context.Context, address string, a *agent) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("--debug-address=%q: %w", address, err)
	}
	logger := klog.FromContext(ctx)
	logger.Info("Serving the allocator's state", "address", listener.Addr().String())
	mux := http.NewServeMux()
	mux.HandleFunc("GET /allocations", func(w http.ResponseWriter, r *http.Request) {
		var dump allocations
		dump.IPv4, dump.IPv6, dump.Status = a.ipam.Dump()
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(dump); err != nil {
			logger.Info("Cannot write the response to a debug request", "err", err)
		}
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() {
		if err := server.Close(); err != nil {
			logger.Info("Cannot close the debug server", "err", err)
		}
	})
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the allocator's state on %s: %w", address, err)
	}
	return nil
}
