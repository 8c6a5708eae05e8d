// Package reconnect has whoever watches a cluster watch it again as soon as its API server is back.
//
// A watch of client-go waits longer each time that it finds nobody, up to a minute, and forgets that only after two
// minutes in which it found somebody. Where a test kills the API server every few seconds, those who judge it or play
// its nodes would see nothing for longer than a test waits. Our programs are not to use this: theirs are the waits
// that they have in the field.
package reconnect

import (
	"errors"
	"net/http"
	"syscall"
	"time"
)

// every is how often a server is tried that does not answer.
const every = 100 * time.Millisecond

// Transport tries reads again while nobody listens at the address of the server, for as long as the caller waits. Wrap
// the transport of a rest.Config with it.
func Transport(next http.RoundTripper) http.RoundTripper { return transport{next} }

type transport struct{ next http.RoundTripper }

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	for {
		response, err := t.next.RoundTrip(r)
		if r.Method != http.MethodGet || !errors.Is(err, syscall.ECONNREFUSED) {
			return response, err
		}
		wait := time.NewTimer(every)
		select {
		case <-wait.C:
		case <-r.Context().Done():
			wait.Stop()
			return nil, err
		}
	}
}
