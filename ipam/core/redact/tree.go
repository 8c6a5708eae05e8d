// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package redact

import (
	"maps"
	"slices"
	"strings"
)

// Removed is the text that replaces values that no report contains.
const Removed = "(removed)"

// ours is the prefix of the labels and annotations that a report contains.
const ours = "fixedip.io/"

// dropped are the fields that no report contains. secret are the fields whose content is replaced by Removed. literal are
// the fields whose strings Tree keeps.
var (
	dropped = map[string]bool{"managedFields": true, "eni": true, "azure": true, "alibaba-cloud": true, "instance-id": true, "encryption": true, "bootid": true}
	secret  = map[string]bool{"matchLabels": true, "matchExpressions": true, "nodeSelector": true, "labelSelector": true, "data": true, "stringData": true, "binaryData": true}
	literal = map[string]bool{"apiVersion": true, "kind": true, "uid": true, "resourceVersion": true}
)

// Strip returns a copy of an object, as encoding/json decodes it, without the values that no report contains, redacted or
// not: managedFields, values of environment variables, labels and annotations except those of fixedip, label and node
// selectors, data of ConfigMaps and Secrets, identifiers of cloud providers, and the fields encryption and bootid.
func Strip(tree any) any {
	switch v := tree.(type) {
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = Strip(v[i])
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for key, value := range v {
			switch {
			case dropped[key]:
			case key == "labels" || key == "annotations":
				if kept := own(value); len(kept) > 0 {
					out[key] = kept
				}
			case secret[key]:
				out[key] = Removed
			case key == "env":
				out[key] = namesOnly(value)
			default:
				out[key] = Strip(value)
			}
		}
		return out
	}
	return tree
}

// own returns the labels or annotations of fixedip.
func own(value any) map[string]any {
	kept := map[string]any{}
	all, _ := value.(map[string]any)
	for key, v := range all {
		if strings.HasPrefix(key, ours) {
			kept[key] = v
		}
	}
	return kept
}

// namesOnly returns environment variables without their values.
func namesOnly(value any) any {
	all, ok := value.([]any)
	if !ok {
		return Removed
	}
	out := make([]any, len(all))
	for i := range all {
		variable, _ := all[i].(map[string]any)
		out[i] = map[string]any{"name": variable["name"]}
	}
	return out
}

// LearnTree calls Learn for each message in an object, as encoding/json decodes it. A message is a string with a space.
func (r *Redactor) LearnTree(tree any) {
	switch v := tree.(type) {
	case string:
		if strings.Contains(v, " ") {
			r.Learn(v)
		}
	case []any:
		for i := range v {
			r.LearnTree(v[i])
		}
	case map[string]any:
		// Tokens are numbered in the order in which names are found, so the keys are sorted.
		for _, key := range slices.Sorted(maps.Keys(v)) {
			r.LearnTree(v[key])
		}
	}
}

// Tree returns a copy of an object, as encoding/json decodes it, in which each string is replaced by the result of Text. Keys
// are replaced if they are addresses. The values of apiVersion, kind, uid and resourceVersion are kept.
func (r *Redactor) Tree(tree any) any {
	switch v := tree.(type) {
	case string:
		return r.Text(v)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = r.Tree(v[i])
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for key, value := range v {
			if token, ok := r.addr(key); ok {
				key = token
			}
			if _, text := value.(string); text && literal[key] {
				out[key] = value
				continue
			}
			out[key] = r.Tree(value)
		}
		return out
	}
	return tree
}
