// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// replacedFor is the maximum time for which a version counts as replaced. If the API server is restored from a backup, the
// cache may show that version forever.
const replacedFor = 30 * time.Second

// replaced stores the versions of FixedIPs that this controller has replaced by a write, until the cache shows a later version.
// A decision from such a version would repeat the write, and the API server would refuse it with a conflict. This would be
// frequent when pods restart: the event that shows the IPs of a pod arrives soon after the write that follows its binding. The
// zero value is ready to use.
type replaced struct {
	// versions contains the last replaced version of each FixedIP. Key: namespace/name. Value: a version.
	versions sync.Map
}

// version is a resourceVersion, and the time at which it was replaced.
type version struct {
	resource string
	at       time.Time
}

// add stores the version of before, which a write has replaced by after. If the write changed nothing, add stores nothing.
func (r *replaced) add(before, after *v1alpha1.FixedIP, now time.Time) {
	if before.ResourceVersion != after.ResourceVersion {
		r.versions.Store(client.ObjectKeyFromObject(before).String(), version{before.ResourceVersion, now})
	}
}

// has reports whether the FixedIP has the stored version, and this version was replaced less than replacedFor ago. If the
// FixedIP has another version, or that time is over, has deletes the stored version. record may be nil.
func (r *replaced) has(record *v1alpha1.FixedIP, now time.Time) bool {
	if record == nil {
		return false
	}
	key := client.ObjectKeyFromObject(record).String()
	stored, ok := r.versions.Load(key)
	if !ok {
		return false
	}
	if v := stored.(version); v.resource == record.ResourceVersion && now.Before(v.at.Add(replacedFor)) {
		return true
	}
	r.versions.CompareAndDelete(key, stored)
	return false
}

// forget deletes the stored version of a FixedIP that does not exist. key is its namespace/name.
func (r *replaced) forget(key string) { r.versions.Delete(key) }
