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

// down is a server that fails the first requests.
type down struct {
	times, tried int
	// err is the error of the connection for a failed request; if nil, the server answers with status.
	err    error
	status int
}

func (d *down) RoundTrip(*http.Request) (*http.Response, error) {
	d.tried++
	switch {
	case d.tried > d.times:
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	case d.err != nil:
		return nil, fmt.Errorf("dial: %w", d.err)
	}
	return &http.Response{StatusCode: d.status, Body: http.NoBody}, nil
}

// TestTransport checks which failed requests are retried, for how long, and what the caller gets in the end.
func TestTransport(t *testing.T) {
	for name, c := range map[string]struct {
		method   string
		server   down
		patience time.Duration
		tried    int
		// status is the expected status; 0 if an error is expected.
		status int
	}{
		"up":                            {http.MethodGet, down{}, time.Second, 1, http.StatusOK},
		"back soon":                     {http.MethodGet, down{times: 3, err: syscall.ECONNREFUSED}, time.Second, 4, http.StatusOK},
		"back late":                     {http.MethodGet, down{times: 500, err: syscall.ECONNREFUSED}, time.Minute, 501, http.StatusOK},
		"back too late":                 {http.MethodGet, down{times: 30, err: syscall.ECONNREFUSED}, 950 * time.Millisecond, 10, 0},
		"killed as it was asked":        {http.MethodGet, down{times: 3, err: syscall.ECONNRESET}, time.Second, 4, http.StatusOK},
		"starting":                      {http.MethodGet, down{times: 3, status: http.StatusTooManyRequests}, time.Second, 4, http.StatusOK},
		"starting when the caller goes": {http.MethodGet, down{times: 30, status: http.StatusServiceUnavailable}, 950 * time.Millisecond, 10, http.StatusServiceUnavailable},
		"it means what it says":         {http.MethodGet, down{times: 500, status: http.StatusForbidden}, time.Minute, 152, http.StatusForbidden},
		"not found":                     {http.MethodGet, down{times: 3, status: http.StatusNotFound}, time.Second, 1, http.StatusNotFound},
		"a write is the caller's":       {http.MethodPost, down{times: 3, err: syscall.ECONNREFUSED}, time.Second, 1, 0},
		"so is what fails another way":  {http.MethodGet, down{times: 3, err: syscall.EPERM}, time.Second, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), c.patience)
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
				if c.server.tried != c.tried || status != c.status || (err == nil) != (status != 0) || err != nil && !errors.Is(err, c.server.err) {
					t.Errorf("tried %d times, status %d, %v; want %d times, status %d", c.server.tried, status, err, c.tried, c.status)
				}
			})
		})
	}
}
