// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package controllertest

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// MergedEvents is an events.EventRecorder that merges events as the events library of client-go does: of several events with
// the same objects, type, reason and action, only the note of the first is seen.
type MergedEvents struct {
	// Notes are the notes that are seen, in the order of the events.
	Notes []string
	keys  []string
}

// Eventf implements events.EventRecorder.
func (m *MergedEvents) Eventf(regarding, related runtime.Object, eventType, reason, action, note string, args ...any) {
	key := fmt.Sprint(objectKey(regarding), objectKey(related), eventType, " ", reason, " ", action)
	if !slices.Contains(m.keys, key) {
		m.keys, m.Notes = append(m.keys, key), append(m.Notes, fmt.Sprintf(note, args...))
	}
}

func objectKey(o runtime.Object) string {
	if of, ok := o.(client.Object); ok {
		return fmt.Sprintf("%T %s ", o, client.ObjectKeyFromObject(of))
	}
	return ""
}
