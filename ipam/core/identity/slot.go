// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"strings"
)

// maxName is the maximum length of an object name.
const maxName = 253

// SlotName returns the name of the FixedIP of a slot: the workload and the first address of the slot, such as
// web-10-240-1-254.
func SlotName(workload string, addr netip.Addr) string {
	suffix := "-" + strings.NewReplacer(".", "-", ":", "-").Replace(addr.String())
	if strings.HasSuffix(suffix, "-") {
		// The address ends in colons, and a name has to end in a letter or a digit.
		suffix += "0"
	}
	if len(workload)+len(suffix) > maxName {
		sum := sha256.Sum256([]byte(workload))
		hash := "-" + hex.EncodeToString(sum[:4])
		workload = strings.TrimRight(workload[:maxName-len(suffix)-len(hash)], "-.") + hash
	}
	return workload + suffix
}
