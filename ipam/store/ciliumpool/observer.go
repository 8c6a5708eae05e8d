// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumpool

import "errors"

// Observer counts what a Writer does, for metrics. The goroutines that write call it; it must not block.
type Observer interface {
	// Wrote is called after a patch was applied, with the number of requests that it fulfils.
	Wrote(requests int)
	// Conflicted is called after a patch was refused because something that it relied on had changed.
	Conflicted()
}

// Observe sets the Observer. Call it before the first Write.
func (w *Writer) Observe(o Observer) { w.observer = o }

// observe reports the end of one patch. A patch that may or may not have been applied is not counted.
func (w *Writer) observe(requests int, err error) {
	switch {
	case w.observer == nil:
	case err == nil:
		w.observer.Wrote(requests)
	case errors.Is(err, ErrChanged):
		w.observer.Conflicted()
	}
}
