// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// letThrough executes a call, or makes it fail. how determines the fault; 0 means no fault, but a call that its client
// no longer waits for is lost.
func (w *world) letThrough(c *call, how uint16) {
	w.requests++
	fault := ""
	switch how % 40 {
	case 31:
		fault = "connection lost before"
	case 32, 33:
		fault = "answer lost after"
	case 34:
		fault = "500 instead of"
	case 35:
		fault = "429 instead of"
	case 36:
		if c.write() && c.verb != http.MethodPost {
			fault = "409 instead of"
		}
	}
	w.line.take(c)
	if c.left {
		// The client does not wait any more. Either the call is lost, or it is executed late.
		if how%2 == 0 {
			w.stats["call lost on its way"]++
			w.logf("%s: %s is lost on its way", c.from, c)
			return
		}
		w.stats["call carried out late"]++
		w.logf("%s: %s is executed late", c.from, c)
		w.server.carryOut(c)
		return
	}
	switch fault {
	case "connection lost before":
		c.err = &netError{syscall.ECONNRESET}
	case "500 instead of":
		c.refuse(apierrors.NewInternalError(errors.New("etcdserver: request timed out")))
	case "429 instead of":
		c.refuse(apierrors.NewTooManyRequests("the server has received too many requests and has asked us to try again later", 1))
	case "409 instead of":
		c.refuse(apierrors.NewConflict(c.kind.group(), c.key, errors.New("the object has been modified; please apply your changes to the latest version and try again")))
	case "answer lost after":
		w.logf("%s: %s", c.from, c)
		w.server.carryOut(c)
		c.err = &netError{syscall.ECONNRESET}
	default:
		if c.write() {
			w.logf("%s: %s", c.from, c)
		}
		w.server.carryOut(c)
		if c.status >= 400 && c.status != http.StatusNotFound {
			w.logf("%s: %s is refused: %s", c.from, c, c.answer)
		}
	}
	if fault != "" {
		w.stats["fault: "+fault]++
		w.logf("%s: %s %s", c.from, fault, c)
	}
	c.reply()
}

// faultActions returns the possible faults of processes and watches, and the possible ends of faults.
func (w *world) faultActions() []action {
	var d []action
	add := func(name string, do func()) { d = append(d, action{name, do}) }
	controllers, schedulers := 0, 0
	for _, p := range w.live() {
		if strings.HasPrefix(p.name, "controller") {
			controllers++
		} else {
			schedulers++
		}
		add("crash: "+p.name, p.kill)
		if !p.cut {
			add("process cut off: "+p.name, func() { p.cut = true })
		} else {
			add("process back: "+p.name, func() { p.cut = false })
		}
		for _, i := range p.informers {
			if i.synced && !i.broken {
				add(fmt.Sprintf("watch drop: of %ss of %s", i.of, p), func() { i.broken = true })
			}
			switch {
			case i.stalled:
				add(fmt.Sprintf("watch moves: of %ss of %s", i.of, p), func() { i.stalled = false })
			case i.synced:
				add(fmt.Sprintf("watch stalls: of %ss of %s", i.of, p), func() { i.stalled = true })
			}
			if !p.cut && (!i.synced || i.broken) {
				add(fmt.Sprintf("stale list: of %ss of %s", i.of, p), func() { w.logf("%s", i.step(1+w.choose(6))) })
			}
		}
	}
	if controllers < 2 {
		add("second controller: starts", func() { w.startController() })
	}
	if schedulers < 2 {
		add("second scheduler: starts", func() { w.startScheduler() })
	}
	for _, c := range w.controllers {
		if !c.dead() && !c.leads && c.synced() {
			add("lease stolen: by "+c.name, func() {
				for _, other := range w.controllers {
					other.lost = other.lost || other.leads
				}
				c.lead()
			})
		}
	}
	for _, s := range w.schedulers {
		if !s.dead() && !s.leads && s.synced() {
			add("lease stolen: by "+s.name, func() {
				for _, other := range w.schedulers {
					other.lost = other.lost || other.leads
				}
				s.leads = true
			})
		}
	}
	return d
}
