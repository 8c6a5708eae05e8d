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
	// every is the interval between two attempts.
	every = 100 * time.Millisecond
	// starts is the time that a server may take from its first answer until it is ready. After that, its errors are
	// returned.
	starts = 15 * time.Second
)

// unready contains the status codes of a server that is starting and has not loaded its roles or resources yet.
var unready = []int{http.StatusForbidden, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable}

// Transport wraps the transport of a rest.Config. It retries reads while the server does not listen, until the context of
// the request ends, and for a limited time while the server is starting.
func Transport(next http.RoundTripper) http.RoundTripper { return transport{next} }

type transport struct{ next http.RoundTripper }

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	var answered time.Time
	for {
		response, err := t.next.RoundTrip(r)
		switch {
		case r.Method != http.MethodGet:
			return response, err
		case errors.Is(err, syscall.ECONNREFUSED):
			answered = time.Time{}
		case err == nil && !slices.Contains(unready, response.StatusCode):
			return response, nil
		case err != nil && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF):
			return nil, err
		case answered.IsZero():
			answered = time.Now()
		case time.Since(answered) > starts:
			return response, err
		}
		wait := time.NewTimer(every)
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
