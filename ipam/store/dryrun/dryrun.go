// Package dryrun stands between the controller and the API server and keeps it from writing: each
// write is sent as a dry run, so that the API server judges it as it would judge a real one, and what
// would have been written is told in the log. Nothing is stored.
//
// It decides nothing, and knows nothing of addresses.
package dryrun

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Client reads as the client does that it was made from, and writes nothing.
type Client struct {
	// Client sends every write as a dry run.
	client.Client
	told *told
}

// told are the writes that were told, by all clients of one dry run.
type told struct {
	log logr.Logger

	mu sync.Mutex
	// writes has each of them. Key: a hash of all that is in it. Since nothing is stored, the same one
	// is tried again and again.
	writes map[[sha256.Size]byte]struct{}
}

// New makes a Client over one that writes.
func New(api client.Client, log logr.Logger) *Client {
	return &Client{Client: client.NewDryRunClient(api), told: &told{log: log, writes: map[[sha256.Size]byte]struct{}{}}}
}

// Over makes another Client of the same dry run, which reads otherwise.
func (c *Client) Over(api client.Client) *Client {
	return &Client{Client: client.NewDryRunClient(api), told: c.told}
}

// Writes is how many different writes there would have been so far.
func (c *Client) Writes() int {
	c.told.mu.Lock()
	defer c.told.mu.Unlock()
	return len(c.told.writes)
}

// lease tells whether an object is a Lease: those are the means of agreement between writers, and
// who does not write needs none. One that was not created can't be updated either.
func lease(obj client.Object) bool {
	_, ok := obj.(*coordinationv1.Lease)
	return ok
}

// tell logs a write that the API server would have accepted, the first time.
func (c *Client) tell(verb string, obj client.Object, body []byte, err error) error {
	if err != nil {
		return err
	}
	kind := ""
	if gvk, err := c.GroupVersionKindFor(obj); err == nil {
		kind = gvk.Kind
	}
	key := client.ObjectKeyFromObject(obj).String()
	hash := sha256.Sum256([]byte(verb + "\x00" + kind + "\x00" + key + "\x00" + string(body)))
	c.told.mu.Lock()
	_, known := c.told.writes[hash]
	c.told.writes[hash] = struct{}{}
	count := len(c.told.writes)
	c.told.mu.Unlock()
	if !known {
		c.told.log.Info("Would write", "verb", verb, "kind", kind, "object", key, "body", string(body), "writes", count)
	}
	return nil
}

// body is an object as it would be stored, without what only the API server knows.
func body(obj client.Object) []byte {
	shown, ok := obj.DeepCopyObject().(client.Object)
	if !ok {
		return nil
	}
	shown.SetManagedFields(nil)
	shown.SetResourceVersion("")
	data, err := json.Marshal(shown)
	if err != nil {
		return []byte(err.Error())
	}
	return data
}

// Create implements client.Client.
func (c *Client) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	if lease(obj) {
		return nil
	}
	asked := body(obj)
	return c.tell("create", obj, asked, c.Client.Create(ctx, obj, opts...))
}

// Update implements client.Client.
func (c *Client) Update(ctx context.Context, obj client.Object, opts ...client.UpdateOption) error {
	if lease(obj) {
		return nil
	}
	asked := body(obj)
	return c.tell("update", obj, asked, c.Client.Update(ctx, obj, opts...))
}

// Patch implements client.Client.
func (c *Client) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if lease(obj) {
		return nil
	}
	data, err := patch.Data(obj)
	if err != nil {
		return err
	}
	return c.tell("patch", obj, data, c.Client.Patch(ctx, obj, patch, opts...))
}

// Delete implements client.Client.
func (c *Client) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	return c.tell("delete", obj, []byte(obj.GetUID()), c.Client.Delete(ctx, obj, opts...))
}

// DeleteAllOf implements client.Client.
func (c *Client) DeleteAllOf(ctx context.Context, obj client.Object, opts ...client.DeleteAllOfOption) error {
	return c.tell("delete all of", obj, nil, c.Client.DeleteAllOf(ctx, obj, opts...))
}

// Status implements client.Client.
func (c *Client) Status() client.SubResourceWriter { return c.SubResource("status") }

// SubResource implements client.Client.
func (c *Client) SubResource(name string) client.SubResourceClient {
	return subResource{SubResourceClient: c.Client.SubResource(name), name: name, of: c}
}

// subResource tells the writes of one subresource.
type subResource struct {
	client.SubResourceClient
	name string
	of   *Client
}

// Create implements client.SubResourceClient.
func (s subResource) Create(ctx context.Context, obj, sub client.Object, opts ...client.SubResourceCreateOption) error {
	asked := body(sub)
	return s.of.tell("create "+s.name+" of", obj, asked, s.SubResourceClient.Create(ctx, obj, sub, opts...))
}

// Update implements client.SubResourceClient.
func (s subResource) Update(ctx context.Context, obj client.Object, opts ...client.SubResourceUpdateOption) error {
	asked := body(obj)
	return s.of.tell("update "+s.name+" of", obj, asked, s.SubResourceClient.Update(ctx, obj, opts...))
}

// Patch implements client.SubResourceClient.
func (s subResource) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	data, err := patch.Data(obj)
	if err != nil {
		return err
	}
	return s.of.tell("patch "+s.name+" of", obj, data, s.SubResourceClient.Patch(ctx, obj, patch, opts...))
}

// Recorder takes events and sends none.
type Recorder struct{ Log logr.Logger }

// Eventf implements events.EventRecorder.
func (r Recorder) Eventf(regarding, _ runtime.Object, _, reason, _, note string, args ...any) {
	name := ""
	if obj, ok := regarding.(client.Object); ok {
		name = client.ObjectKeyFromObject(obj).String()
	}
	r.Log.V(2).Info("Would record an event", "object", name, "reason", reason, "note", fmt.Sprintf(note, args...))
}
