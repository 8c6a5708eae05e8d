// Package subnets gives nodes their subnets from the cluster pools, so that no two nodes ever have
// the same one: not even when two controllers believe to lead.
//
// The choice itself is made by ipam/core/plan; this package guards it with a ticket at the API
// server and publishes it. It may not look into pools.
package subnets

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TicketName is the Lease that a controller has to write before it gives a subnet away.
const TicketName = "fixedip-subnets"

const (
	nodeAnnotation    = "fixedip.io/node"
	nodeUIDAnnotation = "fixedip.io/node-uid"
	subnetsAnnotation = "fixedip.io/subnets"
)

// intent is what the last holder of the ticket set out to publish. It may have been killed before
// it could.
type intent struct {
	node, uid string
	subnets   []netip.Prefix
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

// take reads the ticket, and makes it where there is none. What it says is what somebody set out to
// publish last.
func (t *ticket) take(ctx context.Context) (intent, error) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: t.namespace, Name: TicketName}}
	err := t.api.Get(ctx, client.ObjectKeyFromObject(lease), lease)
	if apierrors.IsNotFound(err) {
		err = t.api.Create(ctx, lease)
	}
	if err != nil {
		return intent{}, fmt.Errorf("take Lease %s/%s: %w", t.namespace, TicketName, err)
	}
	t.lease = lease
	return read(lease)
}

// write stakes an intent. It fails, and the ticket is no longer held, where another process has
// written the ticket since.
func (t *ticket) write(ctx context.Context, i intent) error {
	lease := t.lease.DeepCopy()
	texts := make([]string, len(i.subnets))
	for n, s := range i.subnets {
		texts[n] = s.String()
	}
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, nodeAnnotation, i.node)
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, nodeUIDAnnotation, i.uid)
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, subnetsAnnotation, strings.Join(texts, ","))
	// Update carries the resourceVersion that was read: that is the fence.
	if err := t.api.Update(ctx, lease); err != nil {
		t.lease = nil
		return fmt.Errorf("write Lease %s/%s for node %s: %w", t.namespace, TicketName, i.node, err)
	}
	t.lease = lease
	return nil
}

func read(lease *coordinationv1.Lease) (intent, error) {
	i := intent{node: lease.Annotations[nodeAnnotation], uid: lease.Annotations[nodeUIDAnnotation]}
	for _, s := range slices.DeleteFunc(strings.Split(lease.Annotations[subnetsAnnotation], ","), func(s string) bool { return s == "" }) {
		subnet, err := netip.ParsePrefix(s)
		if err != nil {
			return intent{}, fmt.Errorf("read annotation %s of Lease %s/%s: %w", subnetsAnnotation, lease.Namespace, lease.Name, err)
		}
		i.subnets = append(i.subnets, subnet)
	}
	return i, nil
}
