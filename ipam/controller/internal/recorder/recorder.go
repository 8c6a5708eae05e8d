// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
)

// maxNote is the maximum length of the note of an event in bytes, according to the API of Kubernetes.
const maxNote = 1024

// cut ends a note that was shortened.
const cut = " …"

// Recorder records events with another recorder, and shortens their notes.
type Recorder struct{ events.EventRecorder }

// Eventf implements events.EventRecorder.
func (r Recorder) Eventf(regarding, related runtime.Object, eventType, reason, action, note string, args ...any) {
	text := fmt.Sprintf(note, args...)
	if len(text) > maxNote {
		// The cut may be in the middle of a character that has several bytes.
		text = strings.ToValidUTF8(text[:maxNote-len(cut)], "") + cut
	}
	r.EventRecorder.Eventf(regarding, related, eventType, reason, action, "%s", text)
}
