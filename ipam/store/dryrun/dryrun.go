// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

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

// Client reads like the client that it wraps, and stores nothing.
type Client struct {
	// Client sends every write as a dry run.
	client.Client
	told *told
}

// told contains the writes that were logged, shared by all clients of one dry run.
type told struct {
	log logr.Logger

	mu sync.Mutex
	// writes contains the logged writes. Key: a hash of the write. Because nothing is stored, the same write is tried
	// repeatedly.
	writes map[[sha256.Size]byte]struct{}
}

// New returns a Client that wraps another client.
func New(api client.Client, log logr.Logger) *Client {
	return &Client{Client: client.NewDryRunClient(api), told: &told{log: log, writes: map[[sha256.Size]byte]struct{}{}}}
}

// Over returns another Client of the same dry run that wraps a different client.
func (c *Client) Over(api client.Client) *Client {
	return &Client{Client: client.NewDryRunClient(api), told: c.told}
}

// Writes returns the number of different writes so far.
func (c *Client) Writes() int {
	c.told.mu.Lock()
	defer c.told.mu.Unlock()
	return len(c.told.writes)
}

// lease reports whether an object is a Lease. A dry run needs none, and a Lease that was not created cannot be updated.
func lease(obj client.Object) bool {
	_, ok := obj.(*coordinationv1.Lease)
	return ok
}

// tell logs a write that the API server accepted, once.
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

// body returns an object as JSON, without fields that the API server sets.
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

// subResource logs the writes of one subresource.
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
