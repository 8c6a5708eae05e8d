// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package dryrun

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
)

// Guard is an HTTP round tripper that refuses every request that would store something. Client covers its own users only;
// Guard covers all clients of a configuration.
func Guard(next http.RoundTripper) http.RoundTripper { return guard{next} }

type guard struct{ next http.RoundTripper }

func (g guard) RoundTrip(r *http.Request) (*http.Response, error) {
	dry, err := harmless(r)
	if err != nil {
		return nil, err
	}
	if !dry {
		return nil, fmt.Errorf("--dry-run: %s %s is not sent because it is not a dry run", r.Method, r.URL.Path)
	}
	return g.next.RoundTrip(r)
}

// harmless reports whether a request stores nothing. A deletion may have dryRun in its body, which takes precedence.
func harmless(r *http.Request) (bool, error) {
	switch {
	case r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions:
		return true, nil
	case r.Method != http.MethodDelete || r.Body == nil || r.Body == http.NoBody:
		return r.URL.Query().Get("dryRun") == "All", nil
	}
	body, err := io.ReadAll(r.Body)
	r.Body.Close()
	r.Body = io.NopCloser(bytes.NewReader(body))
	return bytes.Contains(body, []byte("All")), err
}
