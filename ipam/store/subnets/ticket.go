// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package subnets gives nodes their subnets, from the cluster pools or from nodes that are gone, so
// that no two nodes ever have the same one: not even when two controllers believe to lead.
//
// The choice itself is made by ipam/core/plan; this package guards it with a ticket at the API
// server and publishes it, together with what is kept in the subnets. It may not fill pools.
package subnets

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TicketName is the Lease that a controller has to write before it gives a subnet away.
const TicketName = "fixedip-subnets"

// intentsAnnotation holds the intents that nobody knows the end of, as JSON.
const intentsAnnotation = "fixedip.io/intents"

// intent is what a holder of the ticket set out to publish. It may have been killed before it could.
type intent struct {
	Node string `json:"node"`
	UID  string `json:"uid"`
	// Onto are the podCIDRs that the node has to have for the publication to succeed: as soon as it
	// has others, the intent can't be carried out any more.
	Onto    []string       `json:"onto,omitempty"`
	Subnets []netip.Prefix `json:"subnets"`
}

// ticket is the fence around subnet allocation. A leader election alone does not fence: a leader
// that was paused may go on where it stopped, after another has taken over. Whoever writes the
// ticket with the version that it last read knows that nobody has given away a subnet since.
type ticket struct {
	api       client.Client
	namespace string
	// lease is the ticket as this process last read or wrote it; nil: not read yet, or lost to
	// another process.
	lease *coordinationv1.Lease
}

// held tells whether this process was the last to write the ticket, as far as it knows.
func (t *ticket) held() bool { return t.lease != nil }

// take reads the ticket, and makes it where there is none. What it says is what others set out to
// publish and may not have.
func (t *ticket) take(ctx context.Context) ([]intent, error) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: t.namespace, Name: TicketName}}
	err := t.api.Get(ctx, client.ObjectKeyFromObject(lease), lease)
	if apierrors.IsNotFound(err) {
		err = t.api.Create(ctx, lease)
	}
	if err != nil {
		return nil, fmt.Errorf("take Lease %s/%s: %w", t.namespace, TicketName, err)
	}
	var open []intent
	if text := lease.Annotations[intentsAnnotation]; text != "" {
		if err := json.Unmarshal([]byte(text), &open); err != nil {
			return nil, fmt.Errorf("read annotation %s of Lease %s/%s: %w", intentsAnnotation, lease.Namespace, lease.Name, err)
		}
	}
	t.lease = lease
	return open, nil
}

// write stakes the intents that are open. It fails, and the ticket is no longer held, where another
// process has written the ticket since.
func (t *ticket) write(ctx context.Context, open []intent) error {
	text, err := json.Marshal(open)
	if err != nil {
		return fmt.Errorf("encode the intents of Lease %s/%s: %w", t.namespace, TicketName, err)
	}
	lease := t.lease.DeepCopy()
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, intentsAnnotation, string(text))
	// Update carries the resourceVersion that was read: that is the fence.
	if err := t.api.Update(ctx, lease); err != nil {
		t.lease = nil
		return fmt.Errorf("write Lease %s/%s: %w", t.namespace, TicketName, err)
	}
	t.lease = lease
	return nil
}
