// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
)

// withoutPod reports why an address is reserved although the pod does not exist.
func (e *explanation) withoutPod() {
	rec := e.Record
	switch {
	case rec == nil:
		e.withoutRecord()
		return
	case rec.DeletionTimestamp != nil:
		e.wrong(e.blockedHelp(), "FixedIP %s has been in deletion for %s; it is gone when its addresses (%s) are released", rec.Name, e.since(rec.DeletionTimestamp.Time), cmp.Or(strings.Join(rec.Spec.IPs, ", "), "none"))
		return
	case len(rec.Spec.IPs) == 0:
		e.fine("FixedIP %s names no address yet; it gets the addresses of its pod", rec.Name)
		return
	}
	ips := address.ParseAll(rec.Spec.IPs)
	text := fmt.Sprintf("%s %s %s ", plural(ips, "Address", "Addresses"), strings.Join(rec.Spec.IPs, ", "), plural(ips, "is", "are"))
	name := fmt.Sprintf("%s %s", rec.Spec.Owner.Kind, rec.Spec.Owner.Name)
	kept := func(why string, args ...any) {
		e.fineWithHelp(e.releaseCommand()+" releases "+plural(ips, "the address", "the addresses"), text+fmt.Sprintf(why, args...))
	}
	released := func(why string, args ...any) { e.wrong(e.blockedHelp(), text+"about to be released: "+why, args...) }
	// If the last pod of a slot was deleted by force, it may still run.
	vacated := ", when the Cilium agent has confirmed that pod " + rec.Spec.PodName + " has stopped"
	if rec.Status.VacatedBy == rec.Spec.PodName {
		vacated = ""
	}
	switch at := rec.Status.ExpiresAt; {
	case at != nil && !e.Now.Before(at.Time):
		released("the TTL ended at %s", formatTime(at.Time))
	case at != nil && rec.Spec.AssignedTo == v1alpha1.Slot:
		e.fine(text+"reserved until %s in case %s needs the slot again", formatTime(at.Time), name)
	case at != nil && rec.Spec.Owner.Kind == identity.PodKind:
		e.fine(text+"reserved until %s in case the pod is created again", formatTime(at.Time))
	case at != nil:
		e.fine(text+"reserved until %s in case %s expects the pod again", formatTime(at.Time), name)
	case e.Unread != "":
		e.fine(text+"reserved for %s; it is unknown whether that workload exists: %s", name, e.Unread)
	case e.Workload == nil && rec.Spec.Owner.UID == "":
		kept("reserved for %s, which does not exist yet", name)
	case e.Workload == nil && rec.Spec.Reclaim.WhenDeleted == v1alpha1.Retain:
		kept("reserved although %s is deleted: whenDeleted is Retain", name)
	case e.Workload == nil:
		released("%s is deleted", name)
	case e.Workload.OptsOut() && rec.Spec.Reclaim.WhenDeleted == v1alpha1.Retain:
		kept("reserved although new pods of %s have no fixed addresses: whenDeleted is Retain", name)
	case e.Workload.OptsOut():
		released("new pods of %s have no fixed addresses", name)
	case rec.Spec.AssignedTo == v1alpha1.Slot:
		e.fine(text+"a free slot of %s; the next pod of that workload may take it over%s", name, vacated)
	case e.Workload.Excludes(e.Name) && rec.Spec.Reclaim.WhenScaled == v1alpha1.Delete:
		released("%s has no replica with the name of the pod", name)
	case e.Workload.Excludes(e.Name):
		kept("reserved although %s has no replica with the name of the pod: whenScaled is Retain", name)
	default:
		e.fine(text+"reserved for the pod that %s is about to create", name)
	}
}

// withoutRecord reports on the pool entries of a pod that does not exist and has no FixedIP. The rules of package
// reclaim for claims without a FixedIP decide whether the entries are kept or released.
func (e *explanation) withoutRecord() {
	const text = "A pool has an entry for the pod, but neither the pod nor a FixedIP exists"
	if len(e.claims) == 0 {
		e.fine(text + "; the entry is for a pod without a fixed address on a strict node, and the controller removes it")
		return
	}
	switch e.Pools.EntryOf(e.claims[0]).Purpose {
	case pool.UnknownPurpose:
		e.fineWithHelp("if no pod needs the address: in the CiliumNode, change the owner of the entry to fixedip.io/cooldown; the controller then removes the entry when no pod can have the address any more",
			text+"; a user or another program wrote the entry, and it is kept for the pod")
	case pool.ForBarePod:
		e.fine(text + "; the entry is for a bare pod, and the controller releases it")
	default:
		e.fine(text + "; the controller keeps the entry if the workload that it names still expects the pod, or if the kind of that workload is not configured; otherwise it releases the entry")
	}
}

// formatTime returns a time in UTC as text for messages.
func formatTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 MST") }
