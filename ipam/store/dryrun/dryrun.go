// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package dryrun

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Run is the state of one process that runs with --dry-run.
type Run struct {
	// Log receives the writes.
	Log logr.Logger

	mu sync.Mutex
	// logged contains a hash of each write that was logged. Because no write is stored, the controller tries the same write
	// repeatedly.
	logged sets.Set[[sha256.Size]byte]
}

// Wrap returns an HTTP round tripper that sends reads and dry-run requests, and refuses every other request.
func (r *Run) Wrap(next http.RoundTripper) http.RoundTripper { return guard{r, next} }

// Writes returns the number of different writes that the API server has accepted so far.
func (r *Run) Writes() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.logged)
}

type guard struct {
	*Run
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (g guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions {
		return g.next.RoundTrip(r)
	}
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, fmt.Errorf("--dry-run: read the body of %s %s: %w", r.Method, r.URL.Path, err)
		}
		r.Body.Close()
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	dry := r.URL.Query().Get("dryRun") == "All"
	if r.Method == http.MethodDelete && len(body) > 0 {
		// The options in the body of a deletion take precedence.
		dry = bytes.Contains(body, []byte("All"))
	}
	if !dry {
		return nil, fmt.Errorf("--dry-run: %s %s is not sent, because the request is not marked as a dry run (dryRun=All)", r.Method, r.URL.Path)
	}
	response, err := g.next.RoundTrip(r)
	if err == nil && response.StatusCode < http.StatusMultipleChoices {
		g.log(r, body)
	}
	return response, err
}

// log logs a write that the API server accepted, unless the same write was logged before. It does not log a body that is not
// JSON, which may be binary.
func (r *Run) log(request *http.Request, body []byte) {
	shown, same := "", string(body)
	if strings.Contains(request.Header.Get("Content-Type"), "json") {
		shown = withoutVersion(body)
		same = shown
	}
	hash := sha256.Sum256([]byte(request.Method + "\x00" + request.URL.Path + "\x00" + same))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.logged.Has(hash) {
		return
	}
	if r.logged == nil {
		r.logged = sets.New[[sha256.Size]byte]()
	}
	r.logged.Insert(hash)
	r.Log.Info("Would write", "method", request.Method, "path", request.URL.Path, "body", shown, "writes", len(r.logged))
}

// withoutVersion returns the JSON of an object without metadata.managedFields and metadata.resourceVersion, which differ
// between repetitions of the same write. It returns any text that is not a JSON object unchanged.
func withoutVersion(body []byte) string {
	var obj map[string]any
	if json.Unmarshal(body, &obj) != nil {
		return string(body)
	}
	if metadata, ok := obj["metadata"].(map[string]any); ok {
		delete(metadata, "managedFields")
		delete(metadata, "resourceVersion")
	}
	// Encoding a decoded object cannot fail.
	shown, _ := json.Marshal(obj)
	return string(shown)
}

// Recorder logs events and sends none.
type Recorder struct{ Log logr.Logger }

// Eventf implements events.EventRecorder.
func (r Recorder) Eventf(regarding, _ runtime.Object, _, reason, _, note string, args ...any) {
	name := ""
	if obj, ok := regarding.(client.Object); ok {
		name = client.ObjectKeyFromObject(obj).String()
	}
	r.Log.V(2).Info("Would record an event", "object", name, "reason", reason, "note", fmt.Sprintf(note, args...))
}
