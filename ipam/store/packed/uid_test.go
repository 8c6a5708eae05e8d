// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package packed

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestUIDs checks the length of the short form of each UID, that longUID converts the short form back to the UID, and that
// shortUIDs does not change the UIDs of the caller's object.
func TestUIDs(t *testing.T) {
	const canonical = "0b2f1c58-9f0e-4f6a-8a55-3f1a7d6c2e91"
	for name, c := range map[string]struct {
		uid    types.UID
		length int
	}{
		"a UUID":                    {canonical, 17},
		"a UUID in capital letters": {"0B2F1C58-9F0E-4F6A-8A55-3F1A7D6C2E91", 36},
		"a UUID without hyphens":    {"0b2f1c589f0e4f6a8a553f1a7d6c2e91", 32},
		"a UUID as a URN":           {"urn:uuid:" + canonical, 45},
		"another text":              {"uid-of-web-0", 12},
		"17 characters":             {"uid-of-the-pod-17", 17},
		"no UID":                    {"", 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := metav1.ObjectMeta{UID: c.uid, OwnerReferences: []metav1.OwnerReference{{UID: c.uid}}}
			short := shortUIDs(m)
			if got := len(short.UID); got != c.length {
				t.Errorf("shortUIDs(%q): got %d bytes, want %d", c.uid, got, c.length)
			}
			if m.UID != c.uid || m.OwnerReferences[0].UID != c.uid {
				t.Errorf("shortUIDs has changed its argument: %+v", m)
			}
			convertUIDs(&short, longUID)
			if short.UID != c.uid || short.OwnerReferences[0].UID != c.uid {
				t.Errorf("after longUID: got UIDs %q and %q, want %q", short.UID, short.OwnerReferences[0].UID, c.uid)
			}
		})
	}
}
