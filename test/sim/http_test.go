// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// call is a request of a process of the product. It waits in the line until the world executes it or makes it fail.
type call struct {
	from *process
	verb string
	kind *kind
	// key is namespace/name, or the name if there is no namespace; empty for a list or a creation.
	key         string
	subresource string
	body        []byte
	form        types.PatchType
	onNode      string
	// labels is the label selector of a list; empty: none.
	labels string
	// answered is closed when the answer is stored in this call.
	answered chan struct{}
	// done is true when answered is closed.
	done   bool
	status int
	answer []byte
	err    error
	// begun is the start of the oldest reconcile that was running when the process sent the request. If none was running, it
	// is the time of the request.
	begun time.Time
	// left is true if the client no longer waits for the answer. The request may still be executed.
	left bool
	// held is true if a script holds the request.
	held bool
}

// waits reports whether a call cannot be executed now: a script holds it, or its process is cut off.
func (c *call) waits() bool { return c.held || c.from.cut }

func (c *call) write() bool { return c.verb != http.MethodGet }

func (c *call) String() string {
	what := c.verb + " " + c.kind.String()
	if c.key != "" {
		what += " " + c.key
	}
	if c.subresource != "" {
		what += "/" + c.subresource
	}
	if c.onNode != "" {
		what += " on " + c.onNode
	}
	return what
}

// line contains the waiting requests of all processes.
type line struct {
	mu    sync.Mutex
	calls []*call
}

func (l *line) add(c *call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, c)
}

// waiting returns the waiting calls, sorted, because the goroutines of the product send them in random order.
func (l *line) waiting() []*call {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.SortStableFunc(l.calls, func(a, b *call) int {
		return strings.Compare(a.from.name+a.String()+string(a.body), b.from.name+b.String()+string(b.body))
	})
	return slices.Clone(l.calls)
}

func (l *line) take(c *call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.calls, c); i >= 0 {
		l.calls = slices.Delete(l.calls, i, i+1)
	}
}

// transport sends the requests of one process to the API server of the model.
type transport struct {
	p *process
	l *line
}

var errDown = &netError{syscall.ECONNREFUSED}

// netError is the error of a broken connection.
type netError struct{ error }

func (e *netError) Unwrap() error { return e.error }

// RoundTrip puts the request into the line, and returns when the request is answered, its context ends, or the process ends.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if discovers(r) {
		return &http.Response{Status: http.StatusText(http.StatusNotFound), StatusCode: http.StatusNotFound, Body: http.NoBody, Request: r, ProtoMajor: 1, ProtoMinor: 1}, nil
	}
	c, err := parse(r)
	must(err)
	c.from, c.begun = t.p, t.p.busySince()
	if t.p.dead() {
		return nil, errDown
	}
	t.l.add(c)
	select {
	case <-c.answered:
	case <-r.Context().Done():
	case <-t.p.ctx.Done():
	}
	switch {
	case c.done:
	case t.p.dead():
		c.left = true
		return nil, errDown
	default:
		c.left = true
		return nil, context.Cause(r.Context())
	}
	if c.err != nil {
		return nil, c.err
	}
	h := http.Header{"Content-Type": {"application/json"}}
	if c.status == http.StatusTooManyRequests {
		h.Set("Retry-After", "1")
	}
	return &http.Response{Status: http.StatusText(c.status), StatusCode: c.status, Header: h, Body: io.NopCloser(bytes.NewReader(c.answer)), Request: r, ProtoMajor: 1, ProtoMinor: 1}, nil
}

// discovers reports whether a request asks which APIs the API server has. The model responds to such a request with status
// 404 at once. The plugin sends such requests only at its start, before it checks its rights, and does not check the rights
// for kinds that it does not find.
func discovers(r *http.Request) bool {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	return parts[0] == "api" && len(parts) <= 2 || parts[0] == "apis" && len(parts) <= 3
}

// parse converts a request into a call, like the routes of the API server.
func parse(r *http.Request) (*call, error) {
	c := &call{verb: r.Method, answered: make(chan struct{}), form: types.PatchType(r.Header.Get("Content-Type"))}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		parts = parts[3:]
	default:
		return nil, fmt.Errorf("%s %s: the model does not serve this path", r.Method, r.URL.Path)
	}
	namespace := ""
	if parts[0] == "namespaces" && len(parts) > 2 {
		namespace, parts = parts[1]+"/", parts[2:]
	}
	i := slices.IndexFunc(kinds, func(k *kind) bool { return k.resource.Resource == parts[0] })
	if i < 0 {
		return nil, fmt.Errorf("%s %s: the model does not serve this resource", r.Method, r.URL.Path)
	}
	c.kind = kinds[i]
	if len(parts) > 1 {
		c.key = namespace + parts[1]
	}
	if len(parts) > 2 {
		c.subresource = parts[2]
	}
	c.labels = r.URL.Query().Get("labelSelector")
	if f := r.URL.Query().Get("fieldSelector"); f != "" {
		node, ok := strings.CutPrefix(f, "spec.nodeName=")
		if !ok || c.kind != pods {
			return nil, fmt.Errorf("%s %s: the model does not support the field selector %s", r.Method, r.URL.Path, f)
		}
		c.onNode = node
	}
	if r.Body != nil {
		var err error
		if c.body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// carryOut executes a call on the server, and stores the answer in the call.
func (s *server) carryOut(c *call) {
	s.serving = c
	o, err := s.serve(c)
	s.serving = nil
	if err != nil {
		c.refuse(err)
		return
	}
	c.status, c.answer = http.StatusOK, o
}

// refuse stores an error of the API server as the answer of a call.
func (c *call) refuse(err error) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		must(err)
	}
	st := status.Status()
	st.Kind, st.APIVersion = "Status", "v1"
	data, err := json.Marshal(st)
	must(err)
	c.status, c.answer = int(st.Code), data
}

// reply returns the answer to the process.
func (c *call) reply() {
	c.done = true
	close(c.answered)
}

func (s *server) serve(c *call) ([]byte, error) {
	by := c.from.name
	switch c.verb {
	case http.MethodGet:
		if c.key == "" {
			return s.serveList(c)
		}
		o, err := s.get(c.kind, c.key)
		return o.data, err
	case http.MethodPost:
		switch c.subresource {
		case "binding":
			var b corev1.Binding
			if err := json.Unmarshal(c.body, &b); err != nil {
				return nil, apierrors.NewBadRequest(err.Error())
			}
			return success, s.bind(c.key, &b, by)
		case "eviction":
			var e policyv1.Eviction
			if err := json.Unmarshal(c.body, &e); err != nil {
				return nil, apierrors.NewBadRequest(err.Error())
			}
			return success, s.remove(pods, c.key, e.DeleteOptions.Preconditions, false, by)
		}
		o, err := decode(c)
		if err != nil {
			return nil, err
		}
		return s.data(s.create(c.kind, o, by))
	case http.MethodPut:
		o, err := decode(c)
		if err != nil {
			return nil, err
		}
		return s.data(s.update(c.kind, o, c.subresource, by))
	case http.MethodPatch:
		return s.data(s.patch(c.kind, c.key, c.form, c.body, c.subresource, by))
	case http.MethodDelete:
		var opts metav1.DeleteOptions
		if len(c.body) > 0 {
			if err := json.Unmarshal(c.body, &opts); err != nil {
				return nil, apierrors.NewBadRequest(err.Error())
			}
		}
		return success, s.remove(c.kind, c.key, opts.Preconditions, false, by)
	}
	return nil, apierrors.NewBadRequest("the model does not support the verb " + c.verb)
}

var success = []byte(`{"kind":"Status","apiVersion":"v1","status":"Success"}`)

func decode(c *call) (client.Object, error) {
	o := c.kind.make()
	if err := json.Unmarshal(c.body, o); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return o, nil
}

// data returns an object as JSON, or err if it is not nil.
func (s *server) data(o client.Object, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	return json.Marshal(o)
}

func (s *server) serveList(c *call) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"kind":"%sList","apiVersion":%q,"metadata":{"resourceVersion":"%d"},"items":[`, c.kind.gvk.Kind, c.kind.gvk.GroupVersion(), s.rev)
	first := true
	for _, o := range s.list(c.kind) {
		if pod, ok := o.obj.(*corev1.Pod); ok && c.onNode != "" && pod.Spec.NodeName != c.onNode {
			continue
		}
		if selector, err := labels.Parse(c.labels); err != nil || !selector.Matches(labels.Set(o.obj.GetLabels())) {
			continue
		}
		if !first {
			b.WriteByte(',')
		}
		first = false
		b.Write(o.data)
	}
	b.WriteString("]}")
	return b.Bytes(), nil
}

// config returns the client configuration of a process.
func (p *process) config() *rest.Config {
	return &rest.Config{
		Host:          "http://api",
		Transport:     transport{p, &p.w.line},
		QPS:           -1,
		ContentConfig: rest.ContentConfig{ContentType: "application/json"},
	}
}
