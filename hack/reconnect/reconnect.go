// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package reconnect

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"syscall"
	"time"
)

const (
	// retryInterval is the interval between two attempts.
	retryInterval = 100 * time.Millisecond
	// startTimeout is the maximum time from the first error of a server that accepts connections until the server is
	// ready. After that time, Transport returns the failed responses and errors to its caller.
	startTimeout = 15 * time.Second
)

// unready contains the status codes of a server that is starting and has not yet loaded its roles or resources.
var unready = []int{http.StatusForbidden, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable}

// Transport wraps the transport of a rest.Config. It retries reads while the server does not listen, until the context of
// the request ends, and for a limited time while the server is starting.
func Transport(next http.RoundTripper) http.RoundTripper { return transport{next} }

type transport struct{ next http.RoundTripper }

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	var firstError time.Time // the first error since the server began to accept connections; zero if there was none
	for {
		response, err := t.next.RoundTrip(r)
		switch {
		case r.Method != http.MethodGet:
			return response, err
		case errors.Is(err, syscall.ECONNREFUSED):
			firstError = time.Time{}
		case err == nil && !slices.Contains(unready, response.StatusCode):
			return response, nil
		case err != nil && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF):
			return nil, err
		case firstError.IsZero():
			firstError = time.Now()
		case time.Since(firstError) > startTimeout:
			return response, err
		}
		wait := time.NewTimer(retryInterval)
		select {
		case <-wait.C:
		case <-r.Context().Done():
			wait.Stop()
			return response, err
		}
		if response != nil {
			response.Body.Close()
		}
	}
}
