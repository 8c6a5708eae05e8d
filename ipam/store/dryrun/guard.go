package dryrun

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
)

// Guard refuses what would be stored, whichever client sends it: Client covers its own users alone,
// and a dry run that writes after all is worse than none.
func Guard(next http.RoundTripper) http.RoundTripper { return guard{next} }

type guard struct{ next http.RoundTripper }

func (g guard) RoundTrip(r *http.Request) (*http.Response, error) {
	dry, err := harmless(r)
	if err != nil {
		return nil, err
	}
	if !dry {
		return nil, fmt.Errorf("--dry-run: %s %s is not sent, since it is not a dry run", r.Method, r.URL.Path)
	}
	return g.next.RoundTrip(r)
}

// harmless tells whether a request stores nothing. That of a deletion may say so in its body, where
// the API server looks first.
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
