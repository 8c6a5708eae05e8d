// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// history contains the requests of our programs about pools, the answers and the times. The library porcupine checks
// them for linearizability. The methods of history are safe for concurrent use.
type history struct {
	mu    sync.Mutex
	calls []*call
}

// call is one request about one CiliumNode.
type call struct {
	program string
	// uid is the UID of the CiliumNode; empty if neither the request nor the answer contains it. A CiliumNode that is created
	// again with the same name has another pool.
	uid string
	// changes are the tests and the effects of a patch on the pool. Key: the address.
	changes map[string]change
	began   time.Time
	// ended is the time of the answer; zero if there was no answer, or an answer with an unknown outcome.
	ended time.Time
	// refused is true if the answer reports that nothing was written.
	refused bool
	// pool is the pool in the answer; nil if there was no answer, or one without a CiliumNode. Key: the address. Value: the
	// entry in the format of entryText.
	pool map[string]string
}

// change contains the tests of a patch on one entry, and the effect of the patch on that entry.
type change struct {
	// entry is the expected value of the whole entry, in the format of entryText. owner and resource are the expected values of
	// its fields. A pointer is nil if the patch does not test the value.
	entry, owner, resource *string
	// to is the entry after the patch, in the format of entryText; nil if the patch does not change it.
	to *string
}

// absent is the text for no entry.
const absent = "none"

// entryText returns an entry as text.
func entryText(owner, resource string) string { return fmt.Sprintf("%q for %q", owner, resource) }

// wireEntry and wireNode contain the fields of a CiliumNode that the history reads. They do not use code of the product.
type wireEntry struct{ Owner, Resource string }

func (e wireEntry) String() string { return entryText(e.Owner, e.Resource) }

type wireNode struct {
	Metadata struct{ UID string }
	Spec     struct {
		IPAM struct{ Pool map[string]wireEntry }
	}
}

var nodePath = regexp.MustCompile(`^/apis/cilium\.io/v2/ciliumnodes/[^/]+$`)

// recording returns a handler that passes requests on, and records the requests about pools with their answers.
func (h *history) recording(program string, onward http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !aboutPool(r) {
			onward.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		c := h.begin(program, body)
		seen := &copied{ResponseWriter: w, code: http.StatusOK}
		onward.ServeHTTP(seen, r)
		// A killed program gets no answer.
		if r.Context().Err() == nil {
			h.end(c, seen.code, seen.body.Bytes())
		}
	})
}

// unanswered records a request whose client gets no answer, or an answer that does not show whether the request was
// executed.
func (h *history) unanswered(program string, r *http.Request, body []byte) {
	if aboutPool(r) {
		h.begin(program, body)
	}
}

// aboutPool reports whether a request patches one CiliumNode (not its status) or reads its newest version. A GET with a
// resourceVersion may be answered with an old version, so the history does not contain it.
func aboutPool(r *http.Request) bool {
	return nodePath.MatchString(r.URL.Path) &&
		(r.Method == http.MethodPatch || r.Method == http.MethodGet && !r.URL.Query().Has("resourceVersion"))
}

// copied is a response writer that also records the response.
type copied struct {
	http.ResponseWriter
	code int
	body bytes.Buffer
}

func (c *copied) WriteHeader(code int) {
	c.code = code
	c.ResponseWriter.WriteHeader(code)
}

func (c *copied) Write(b []byte) (int, error) {
	c.body.Write(b)
	return c.ResponseWriter.Write(b)
}

// Unwrap returns the original response writer, so that the proxy can flush it.
func (c *copied) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (h *history) begin(program string, patch []byte) *call {
	c := &call{program: program, began: time.Now()}
	c.uid, c.changes = changesOf(patch)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, c)
	return c
}

func (h *history) end(c *call, code int, answer []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case code >= 500:
		return
	case code >= 300:
		c.ended, c.refused = time.Now(), true
		return
	}
	c.ended = time.Now()
	var node wireNode
	if json.Unmarshal(answer, &node) != nil {
		return
	}
	c.uid, c.pool = node.Metadata.UID, map[string]string{}
	for a, e := range node.Spec.IPAM.Pool {
		c.pool[a] = e.String()
	}
}

// changesOf parses a JSON patch of a CiliumNode. It returns the UID that the patch tests, and the changes of entries. Key:
// the address. Both are empty if the text is not a JSON patch, such as the empty body of a read.
func changesOf(patch []byte) (uid string, changes map[string]change) {
	var ops []struct {
		Op, Path string
		Value    json.RawMessage
	}
	if json.Unmarshal(patch, &ops) != nil {
		return "", nil
	}
	changes = map[string]change{}
	for _, op := range ops {
		var text string
		// text stays empty if the value is not a string. Only tests of the UID, an owner or a resource use text, and their
		// values are strings.
		_ = json.Unmarshal(op.Value, &text)
		if op.Op == "test" && op.Path == "/metadata/uid" {
			uid = text
		}
		path, ok := strings.CutPrefix(op.Path, "/spec/ipam/pool/")
		if !ok {
			continue
		}
		address, field, _ := strings.Cut(path, "/")
		whole := absent
		if len(op.Value) > 0 && string(op.Value) != "null" {
			var e wireEntry
			_ = json.Unmarshal(op.Value, &e)
			whole = e.String()
		}
		c := changes[address]
		switch {
		case op.Op == "test" && field == "owner":
			c.owner = &text
		case op.Op == "test" && field == "resource":
			c.resource = &text
		case op.Op == "test":
			c.entry = &whole
		case op.Op == "remove":
			gone := absent
			c.to = &gone
		default:
			c.to = &whole
		}
		changes[address] = c
	}
	return uid, changes
}

// allows reports whether an entry passes the tests of the patch.
func (c change) allows(state string) bool {
	owner, resource, _ := strings.Cut(state, " for ")
	return (c.entry == nil || *c.entry == state) &&
		(c.owner == nil || fmt.Sprintf("%q", *c.owner) == owner) &&
		(c.resource == nil || fmt.Sprintf("%q", *c.resource) == resource)
}

// outcome is the information about one entry that the client has after an operation.
type outcome struct {
	// unknown is true if the client does not know whether the operation was executed; refused is true if nothing was
	// written.
	unknown, refused bool
	// shown is the entry in the answer, in the format of entryText; absent if the answer has no such entry or there is no
	// answer.
	shown string
}

// entryModel models one entry of one pool with sequential operations. A write can succeed only if the entry passes the tests
// of the patch, and then changes the entry. A read shows the entry. A write with an unknown outcome may or may not have been
// executed. So two claims of one address cannot both succeed.
var entryModel = porcupine.NondeterministicModel{
	Init: func() []any { return []any{absent} },
	Step: func(state, input, output any) []any {
		s, c, o := state.(string), input.(change), output.(outcome)
		after := s
		if c.to != nil {
			after = *c.to
		}
		switch {
		case o.refused:
			return []any{s}
		case o.unknown && c.allows(s):
			return []any{s, after}
		case o.unknown:
			return []any{s}
		case c.allows(s) && after == o.shown:
			return []any{after}
		}
		return nil
	},
	DescribeOperation: func(input, output any) string {
		c, o := input.(change), output.(outcome)
		to := "reads"
		if c.to != nil {
			to = "writes " + *c.to
		}
		return fmt.Sprintf("%s, outcome %+v", to, o)
	},
}

// operations returns the history of each entry that a patch changes or tests. Key: the UID of the CiliumNode, a space and the
// address. writes is the number of patches that change or test entries, and unknown the number of those with an unknown
// outcome.
func (h *history) operations() (byEntry map[string][]porcupine.Operation, writes, unknown int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	// written contains the addresses of each pool that patches change or test. Key: the UID of the CiliumNode.
	written := map[string]map[string]bool{}
	end := time.Now().UnixNano()
	for _, c := range h.calls {
		for a := range c.changes {
			if written[c.uid] == nil {
				written[c.uid] = map[string]bool{}
			}
			written[c.uid][a] = true
		}
	}
	clients := map[string]int{}
	byEntry = map[string][]porcupine.Operation{}
	for _, c := range h.calls {
		if _, known := clients[c.program]; !known {
			clients[c.program] = len(clients)
		}
		if len(c.changes) > 0 {
			writes++
			if c.ended.IsZero() {
				unknown++
			}
		}
		for a := range written[c.uid] {
			input, writes := c.changes[a]
			o := outcome{unknown: c.ended.IsZero(), refused: c.refused, shown: absent}
			if e, exists := c.pool[a]; exists {
				o.shown = e
			}
			if !writes && (o.unknown || o.refused) {
				continue
			}
			returned := c.ended.UnixNano()
			if o.unknown {
				returned = end
			}
			key := c.uid + " " + a
			byEntry[key] = append(byEntry[key], porcupine.Operation{ClientId: clients[c.program], Input: input, Output: o, Call: c.began.UnixNano(), Return: returned})
		}
	}
	return byEntry, writes, unknown
}

// linearizable fails the test unless the operations of every entry are linearizable and the history has a write. It also fails
// the test if the check of an entry takes longer than stepTimeout.
func (h *history) linearizable(t *testing.T) {
	t.Helper()
	began := time.Now()
	byEntry, writes, unknown := h.operations()
	model := entryModel.ToModel()
	operations := 0
	for key, ops := range byEntry {
		operations += len(ops)
		switch porcupine.CheckOperationsTimeout(model, ops, stepTimeout) {
		case porcupine.Illegal:
			t.Errorf("the history of entry %s is not linearizable:\n%s", key, historyText(ops))
		case porcupine.Unknown:
			t.Errorf("the check of the history of entry %s has not ended within %s:\n%s", key, stepTimeout, historyText(ops))
		}
	}
	if writes == 0 {
		t.Error("the history has no write")
	}
	t.Logf("%d patches of pools, %d of them with an unknown outcome: checked %d operations on %d entries in %s", writes, unknown, operations, len(byEntry), time.Since(began).Round(time.Millisecond))
}

// historyText returns a history as text.
func historyText(ops []porcupine.Operation) string {
	ops = slices.Clone(ops)
	slices.SortFunc(ops, func(x, y porcupine.Operation) int { return int(x.Call - y.Call) })
	var b strings.Builder
	for _, o := range ops {
		fmt.Fprintf(&b, "%d to %d, client %d: %s\n", o.Call-ops[0].Call, o.Return-ops[0].Call, o.ClientId, entryModel.DescribeOperation(o.Input, o.Output))
	}
	return b.String()
}
