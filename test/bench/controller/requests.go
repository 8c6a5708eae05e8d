// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net/http"
	"strings"
	"sync"

	"fixedip.io/fixedip/test/bench/measure"
)

// requests counts the writes of the controller: all writes that the API server has served, except the writes of this command
// and the writes of Leases, which never stop.
type requests struct {
	apiServer string
	http      *http.Client

	mu sync.Mutex
	// own contains the requests of this command. Key: see measure.RequestKey.
	own map[string]float64
}

// count wraps the transport of the clients of this command, and counts their requests.
func (r *requests) count(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		if err == nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.own[keyOf(request.Method, request.URL.Path)]++
		}
		return response, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// keyOf returns the key of a request (see measure.RequestKey) for its method and path.
func keyOf(method, path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	// A path begins with /api/v1 or /apis/GROUP/VERSION.
	skip := 2
	if parts[0] == "apis" {
		skip = 3
	}
	parts = parts[min(skip, len(parts)):]
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	resource, subresource := "", ""
	if len(parts) > 0 {
		resource = parts[0]
	}
	if len(parts) > 2 {
		subresource = parts[2]
	}
	return measure.RequestKey(method, resource, subresource)
}

// written returns the writes of the controller so far. Key: see measure.RequestKey.
func (r *requests) written(ctx context.Context) (map[string]int, error) {
	m, err := measure.Read(ctx, r.http, r.apiServer+"/metrics")
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	writes := map[string]int{}
	for key, n := range m.Requests() {
		verb, resource, _ := strings.Cut(key, " ")
		if verb != "GET" && resource != "leases" {
			writes[key] = int(n - r.own[key])
		}
	}
	return writes, nil
}

// total returns the number of all writes of the controller so far.
func (r *requests) total(ctx context.Context) (int, error) {
	writes, err := r.written(ctx)
	sum := 0
	for _, n := range writes {
		sum += n
	}
	return sum, err
}
