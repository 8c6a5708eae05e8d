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

// history is what our programs asked the API server about pools and what they were told, each with its
// times, as porcupine reads it. Its methods may be called from several goroutines.
type history struct {
	mu    sync.Mutex
	calls []*call
}

// call is one request about one CiliumNode.
type call struct {
	program string
	// uid is that of the CiliumNode, which has another pool than one of its name before; empty where neither
	// the request nor the answer tells.
	uid string
	// changes are what a patch does to the pool. Key: the address.
	changes map[string]change
	began   time.Time
	// ended is when the answer was back; zero: it never was, or it told nothing.
	ended time.Time
	// refused: the answer said that nothing was written.
	refused bool
	// pool is the one that the answer showed; nil: none. Key: the address. Value: as entryText has it.
	pool map[string]string
}

// change is what a patch asks of one entry and makes of it.
type change struct {
	// entry is the whole entry that is asked for, where it is. owner and resource are what is asked of its
	// fields, where it is.
	entry, owner, resource *string
	// to is the entry afterwards, as entryText has it; nil: it stays.
	to *string
}

// absent stands for no entry.
const absent = "none"

// entryText is an entry as the model compares them.
func entryText(owner, resource string) string { return fmt.Sprintf("%q for %q", owner, resource) }

// wireEntry and wireNode are what the tests read of a CiliumNode: not with the product's code.
type wireEntry struct{ Owner, Resource string }

func (e wireEntry) String() string { return entryText(e.Owner, e.Resource) }

type wireNode struct {
	Metadata struct{ UID string }
	Spec     struct {
		IPAM struct{ Pool map[string]wireEntry }
	}
}

var nodePath = regexp.MustCompile(`^/apis/cilium\.io/v2/ciliumnodes/[^/]+$`)

// recording hands on, and notes what is said about pools on the way.
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
		// One who is killed is told nothing.
		if r.Context().Err() == nil {
			h.end(c, seen.code, seen.body.Bytes())
		}
	})
}

// unanswered notes a request whose author is not told what came of it.
func (h *history) unanswered(program string, r *http.Request, body []byte) {
	if aboutPool(r) {
		h.begin(program, body)
	}
}

// aboutPool tells whether a request is about the pool of one node, as it stands.
func aboutPool(r *http.Request) bool {
	return nodePath.MatchString(r.URL.Path) &&
		(r.Method == http.MethodPatch || r.Method == http.MethodGet && !r.URL.Query().Has("resourceVersion"))
}

// copied is an answer that is kept as it passes.
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

// Unwrap lets the proxy flush.
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

// changesOf reads a JSON patch of a CiliumNode.
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
		// Another value than a text is not asked for where one is.
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

// allows tells whether an entry is what the patch asks for.
func (c change) allows(state string) bool {
	owner, resource, _ := strings.Cut(state, " for ")
	return (c.entry == nil || *c.entry == state) &&
		(c.owner == nil || fmt.Sprintf("%q", *c.owner) == owner) &&
		(c.resource == nil || fmt.Sprintf("%q", *c.resource) == resource)
}

// told is what the author of an operation knows afterwards of one entry.
type told struct {
	// unknown: nothing. refused: nothing was written.
	unknown, refused bool
	// shown is the entry in the answer.
	shown string
}

// entryModel is one entry of one pool, as if everything happened one after the other: a write finds what it
// asks for and leaves what it says, a read shows what stands, and a write whose outcome nobody knows has
// happened or has not. Two claims of one address can't both find it free.
var entryModel = porcupine.NondeterministicModel{
	Init: func() []any { return []any{absent} },
	Step: func(state, input, output any) []any {
		s, c, o := state.(string), input.(change), output.(told)
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
		c, o := input.(change), output.(told)
		to := "reads"
		if c.to != nil {
			to = "writes " + *c.to
		}
		return fmt.Sprintf("%s, told %+v", to, o)
	},
}

// operations are the history of each entry that anybody wrote. Key: the UID of the CiliumNode and the
// address. writes counts those that change something, and unknown those among them whose outcome their
// author does not know.
func (h *history) operations() (byEntry map[string][]porcupine.Operation, writes, unknown int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	// written has the addresses of each pool. Key: the UID of the CiliumNode.
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
			wish, writes := c.changes[a]
			o := told{unknown: c.ended.IsZero(), refused: c.refused, shown: absent}
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
			byEntry[key] = append(byEntry[key], porcupine.Operation{ClientId: clients[c.program], Input: wish, Output: o, Call: c.began.UnixNano(), Return: returned})
		}
	}
	return byEntry, writes, unknown
}

// linearizable fails the test unless every entry behaved as if its operations had happened one at a time.
func (h *history) linearizable(t *testing.T) {
	t.Helper()
	began := time.Now()
	byEntry, writes, unknown := h.operations()
	model := entryModel.ToModel()
	operations := 0
	for key, ops := range byEntry {
		operations += len(ops)
		switch porcupine.CheckOperationsTimeout(model, ops, patience) {
		case porcupine.Illegal:
			t.Errorf("the history of %s has no order:\n%s", key, tell(ops))
		case porcupine.Unknown:
			t.Errorf("whether the history of %s has an order was not found out within %s:\n%s", key, patience, tell(ops))
		}
	}
	if writes == 0 {
		t.Error("the history has no write")
	}
	t.Logf("%d patches of pools, the outcome of %d unknown, are linearizable: %d operations on %d entries, checked in %s", writes, unknown, operations, len(byEntry), time.Since(began).Round(time.Millisecond))
}

// tell shows a history to people.
func tell(ops []porcupine.Operation) string {
	ops = slices.Clone(ops)
	slices.SortFunc(ops, func(x, y porcupine.Operation) int { return int(x.Call - y.Call) })
	var b strings.Builder
	for _, o := range ops {
		fmt.Fprintf(&b, "%d to %d, client %d: %s\n", o.Call-ops[0].Call, o.Return-ops[0].Call, o.ClientId, entryModel.DescribeOperation(o.Input, o.Output))
	}
	return b.String()
}
