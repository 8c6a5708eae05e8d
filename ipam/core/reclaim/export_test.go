// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

// Rules returns the names of all rules in the order in which Decide tries them.
func Rules() []string {
	var names []string
	for _, rules := range [][]rule{unrecorded, active, deleting, evidenceRules} {
		for _, r := range rules {
			names = append(names, r.name)
		}
	}
	return names
}
