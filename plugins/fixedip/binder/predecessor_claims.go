// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// predecessorClaims are the identities with a pod that waits for the claim of the former pod of its name, which is in
// flight to another node. That claim may be taking the address from the very node on which the new pod would count on
// it. The zero value is ready.
type predecessorClaims struct {
	mu sync.Mutex
	// owners are the identities, as pool entries name them. One is removed when a claim of it has ended.
	owners map[string]bool
}

func (c *predecessorClaims) wait(owner string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.owners == nil {
		c.owners = map[string]bool{}
	}
	c.owners[owner] = true
}

// ended reports, once, whether a pod waited for the end of a claim of the identity.
func (c *predecessorClaims) ended(owner string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	waited := c.owners[owner]
	delete(c.owners, owner)
	return waited
}

// predecessorClaim returns the node on which a former pod of the identity has a claim in flight, if that is another
// node. Its end makes an event, after the claim is gone.
func (s *Shared) predecessorClaim(uid types.UID, owner, node string) (at string, ok bool) {
	if _, ok = s.Cache.Ledger.ClaimedElsewhere(uid, owner, node); !ok {
		return "", false
	}
	s.predecessors.wait(owner)
	// The claim may have ended before wait.
	return s.Cache.Ledger.ClaimedElsewhere(uid, owner, node)
}
