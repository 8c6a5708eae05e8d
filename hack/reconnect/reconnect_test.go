// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package reconnect

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// failing is a server that fails the first requests.
type failing struct {
	// times is the number of requests that fail, and requests the number of all requests so far.
	times, requests int
	// err is the error of the connection for a failed request; if nil, the server responds with status.
	err    error
	status int
}

func (f *failing) RoundTrip(*http.Request) (*http.Response, error) {
	f.requests++
	switch {
	case f.requests > f.times:
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	case f.err != nil:
		return nil, fmt.Errorf("dial: %w", f.err)
	}
	return &http.Response{StatusCode: f.status, Body: http.NoBody}, nil
}

// TestTransport checks which failed requests are retried, for how long, and which result the caller gets.
func TestTransport(t *testing.T) {
	for name, c := range map[string]struct {
		method  string
		server  failing
		timeout time.Duration
		// requests is the expected number of requests, and status the expected status; status is 0 if an error is expected.
		requests, status int
	}{
		"server is up":                      {http.MethodGet, failing{}, time.Second, 1, http.StatusOK},
		"refuses connections for 0.3 s":     {http.MethodGet, failing{times: 3, err: syscall.ECONNREFUSED}, time.Second, 4, http.StatusOK},
		"refuses connections for 50 s":      {http.MethodGet, failing{times: 500, err: syscall.ECONNREFUSED}, time.Minute, 501, http.StatusOK},
		"refuses connections until timeout": {http.MethodGet, failing{times: 30, err: syscall.ECONNREFUSED}, 950 * time.Millisecond, 10, 0},
		"resets connections":                {http.MethodGet, failing{times: 3, err: syscall.ECONNRESET}, time.Second, 4, http.StatusOK},
		"is starting for 0.3 s":             {http.MethodGet, failing{times: 3, status: http.StatusTooManyRequests}, time.Second, 4, http.StatusOK},
		"is starting until timeout":         {http.MethodGet, failing{times: 30, status: http.StatusServiceUnavailable}, 950 * time.Millisecond, 10, http.StatusServiceUnavailable},
		"is not ready after startTimeout":   {http.MethodGet, failing{times: 500, status: http.StatusForbidden}, time.Minute, 152, http.StatusForbidden},
		"not found":                         {http.MethodGet, failing{times: 3, status: http.StatusNotFound}, time.Second, 1, http.StatusNotFound},
		"a write is not retried":            {http.MethodPost, failing{times: 3, err: syscall.ECONNREFUSED}, time.Second, 1, 0},
		"another error is not retried":      {http.MethodGet, failing{times: 3, err: syscall.EPERM}, time.Second, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), c.timeout)
				defer cancel()
				request, err := http.NewRequestWithContext(ctx, c.method, "https://127.0.0.1:1/", nil)
				if err != nil {
					t.Fatal(err)
				}
				response, err := Transport(&c.server).RoundTrip(request)
				status := 0
				if response != nil {
					status = response.StatusCode
				}
				if c.server.requests != c.requests || status != c.status || (err == nil) != (status != 0) || err != nil && !errors.Is(err, c.server.err) {
					t.Errorf("got %d requests, status %d, error %v; want %d requests, status %d (0: an error)", c.server.requests, status, err, c.requests, c.status)
				}
			})
		})
	}
}
