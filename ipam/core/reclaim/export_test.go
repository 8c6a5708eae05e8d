// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

// Rules returns the names of all rules, in order.
func Rules() []string {
	var names []string
	for _, rules := range [][]rule{unrecorded, active, deleting, questions} {
		for _, r := range rules {
			names = append(names, r.name)
		}
	}
	return names
}
