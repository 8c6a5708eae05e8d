// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// overtaken are the identities with a pod that waits for the claim of the one before it, which is still in
// flight towards another node. That one may be taking the address from just the node on which the pod would
// count on it. The zero value is ready.
type overtaken struct {
	mu sync.Mutex
	// owners are the identities. Key: as pools name them. One leaves when a claim of it has ended.
	owners map[string]bool
}

func (o *overtaken) wait(owner string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.owners == nil {
		o.owners = map[string]bool{}
	}
	o.owners[owner] = true
}

// ended tells whether a pod waited for the end of a claim of the identity, once.
func (o *overtaken) ended(owner string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	waited := o.owners[owner]
	delete(o.owners, owner)
	return waited
}

// overtakes is the node on which a former pod of the identity has a claim in flight, where that is another one.
// Who asks is told of its end: the news come after the claim has gone.
func (w *world) overtakes(uid types.UID, owner, nodeName string) (node string, ok bool) {
	if _, ok = w.ledger.ClaimedElsewhere(uid, owner, nodeName); !ok {
		return "", false
	}
	w.overtaken.wait(owner)
	// It may have ended before anybody waited for that.
	return w.ledger.ClaimedElsewhere(uid, owner, nodeName)
}
