// Package reconnect has whoever watches a cluster watch it again as soon as its API server is back.
//
// A watch of client-go waits longer each time that it finds nobody, or a server that is only starting, up to a minute,
// and forgets that only after two minutes in which nothing failed. Where a test kills the API server every few
// seconds, those who judge it or play its nodes would see nothing for longer than a test waits. Our programs are not
// to use this: theirs are the waits that they have in the field.
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
	// every is how often a server is tried that does not answer.
	every = 100 * time.Millisecond
	// starts is how long one may take from its first answer until it has read what it goes by. What it says
	// after that is meant.
	starts = 15 * time.Second
)

// unready is what a server answers that is starting: it has not read its roles, or what it is asked for.
var unready = []int{http.StatusForbidden, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable}

// Transport tries reads again while nobody listens at the address of the server, for as long as the caller waits, and
// for a while when it answers that it is starting. Wrap the transport of a rest.Config with it.
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
