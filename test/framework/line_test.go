// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"errors"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"
)

// fate is the outcome of a request. With the zero value the request succeeds.
type fate int

const (
	// unsent means that the connection breaks before the API server gets the request.
	unsent fate = iota + 1
	// unanswered means that the connection breaks after the API server has executed the request.
	unanswered
)

var errLine = errors.New("the connection is broken")

// line is the scheduler's connection to the API server. It counts writes and reads of CiliumNodes, can lose writes and fail
// reads, and can hold back the watch.
type line struct {
	mu sync.Mutex
	// writes counts the patches of CiliumNodes that the API server has executed.
	writes int
	// fates contains the outcomes of the next patches of CiliumNodes, in order. All later patches succeed.
	fates []fate
	// reads counts the reads of each CiliumNode. Key: its name.
	reads map[string]int
	// unreadable is true if every read of a CiliumNode fails.
	unreadable bool
	// held is closed when the watch of CiliumNodes may deliver events again. It is nil while the watch is not held back.
	held chan struct{}
}

func (l *line) lose(fates ...fate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fates = append(l.fates, fates...)
}

// hold holds back all events of CiliumNodes.
func (l *line) hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = make(chan struct{})
}

// release lets the watch of CiliumNodes deliver events again. It does nothing if the events are not held back.
func (l *line) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held != nil {
		close(l.held)
		l.held = nil
	}
}

// breakReads makes every read of a CiliumNode fail.
func (l *line) breakReads() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unreadable = true
}

// read returns the number of reads of a CiliumNode.
func (l *line) read(node string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reads[node]
}

func (l *line) written() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.writes
}

// over wraps a transport, as a value of rest.Config.WrapTransport.
func (l *line) over(next http.RoundTripper) http.RoundTripper { return &end{line: l, next: next} }

// end is the transport that over returns. It counts requests, and loses or fails them as the line requires.
type end struct {
	line *line
	next http.RoundTripper
}

func (e *end) RoundTrip(r *http.Request) (*http.Response, error) {
	l := e.line
	if !strings.Contains(r.URL.Path, "/ciliumnodes") {
		return e.next.RoundTrip(r)
	}
	if r.Method != http.MethodPatch {
		l.mu.Lock()
		broken := l.unreadable && r.Method == http.MethodGet && r.URL.Query().Get("watch") == ""
		l.mu.Unlock()
		if broken {
			return nil, errLine
		}
		resp, err := e.next.RoundTrip(r)
		if err == nil && r.URL.Query().Get("watch") != "" {
			resp.Body = &watchBody{ReadCloser: resp.Body, line: l, done: r.Context().Done()}
		} else if name := path.Base(r.URL.Path); err == nil && r.Method == http.MethodGet && name != "ciliumnodes" && resp.StatusCode == http.StatusOK {
			l.mu.Lock()
			if l.reads == nil {
				l.reads = map[string]int{}
			}
			l.reads[name]++
			l.mu.Unlock()
		}
		return resp, err
	}
	var f fate
	l.mu.Lock()
	if len(l.fates) > 0 {
		f, l.fates = l.fates[0], l.fates[1:]
	}
	l.mu.Unlock()
	if f == unsent {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, errLine
	}
	resp, err := e.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		l.mu.Lock()
		l.writes++
		l.mu.Unlock()
	}
	if f == unanswered {
		resp.Body.Close()
		return nil, errLine
	}
	return resp, nil
}

// watchBody is the body of a watch of CiliumNodes. It holds back events while the line is held.
type watchBody struct {
	io.ReadCloser
	line *line
	done <-chan struct{}
}

func (n *watchBody) Read(p []byte) (int, error) {
	count, err := n.ReadCloser.Read(p)
	n.line.mu.Lock()
	held := n.line.held
	n.line.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-n.done:
		}
	}
	return count, err
}
