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

// down is a server to which nobody gets through so many times.
type down struct {
	times, tried int
	err          error
}

func (d *down) RoundTrip(*http.Request) (*http.Response, error) {
	d.tried++
	if d.tried <= d.times {
		return nil, fmt.Errorf("dial: %w", d.err)
	}
	return &http.Response{StatusCode: http.StatusOK}, nil
}

func TestTransport(t *testing.T) {
	for name, c := range map[string]struct {
		method   string
		server   down
		patience time.Duration
		tried    int
		answered bool
	}{
		"up":                           {http.MethodGet, down{}, time.Second, 1, true},
		"back soon":                    {http.MethodGet, down{times: 3, err: syscall.ECONNREFUSED}, time.Second, 4, true},
		"back too late":                {http.MethodGet, down{times: 30, err: syscall.ECONNREFUSED}, 950 * time.Millisecond, 10, false},
		"a write is the caller's":      {http.MethodPost, down{times: 3, err: syscall.ECONNREFUSED}, time.Second, 1, false},
		"so is what fails another way": {http.MethodGet, down{times: 3, err: syscall.ECONNRESET}, time.Second, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), c.patience)
				defer cancel()
				request, err := http.NewRequestWithContext(ctx, c.method, "https://127.0.0.1:1/", nil)
				if err != nil {
					t.Fatal(err)
				}
				_, err = Transport(&c.server).RoundTrip(request)
				if c.server.tried != c.tried || (err == nil) != c.answered || err != nil && !errors.Is(err, c.server.err) {
					t.Errorf("tried %d times, %v; want %d times, an answer: %v", c.server.tried, err, c.tried, c.answered)
				}
			})
		})
	}
}
