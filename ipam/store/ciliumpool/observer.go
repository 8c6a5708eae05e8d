// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumpool

import "errors"

// Observer is told what a Writer does: for metrics, which are no business of the store's. It is
// called by the goroutines that write and must not keep them.
type Observer interface {
	// Wrote: one patch was applied, and it fulfils so many requests.
	Wrote(requests int)
	// Conflicted: a patch was refused, since what it relied on had changed meanwhile.
	Conflicted()
}

// Observe names who is told. Call it before the first Write.
func (w *Writer) Observe(o Observer) { w.observer = o }

// observe tells of the end of one patch. Where nobody knows whether it was applied, nobody is told
// anything.
func (w *Writer) observe(requests int, err error) {
	switch {
	case w.observer == nil:
	case err == nil:
		w.observer.Wrote(requests)
	case errors.Is(err, ErrChanged):
		w.observer.Conflicted()
	}
}
