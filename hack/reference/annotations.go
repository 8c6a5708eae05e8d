// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// annotation is an annotation or a label. on names the objects, values the allowed values and their default.
type annotation struct{ name, on, values, meaning string }

// written are the annotations and labels that users write.
var written = []annotation{
	{"fixedip.io/enabled", "pod template, pod", "`true`, `false`; default: `true` for StatefulSets, by the configuration for other kinds, `false` for bare pods that request no addresses", "Whether the pods have fixed addresses."},
	{"fixedip.io/ips", "workload, pod template, pod", "addresses, ranges and CIDRs, joined by commas", "Requests addresses. Applies when a pod gets its first address."},
	{"fixedip.io/ips-assignment", "where `fixedip.io/ips` is", "`ordinal` (default if pods have ordinals), `any`", "How the pods share the list."},
	{"cni.projectcalico.org/ipAddrs", "pod template, pod", "a JSON list", "Calico's request, which is read too."},
	{"fixedip.io/sticky-mac", "pod template, pod", "`true`, `false` (default)", "Whether the next pod has the same MAC address."},
	{"cni.cilium.io/mac-address", "pod template, pod", "a MAC address", "Cilium's annotation. The scheduler sets it for `fixedip.io/sticky-mac`; a value that a user set is not changed."},
	{"fixedip.io/failover", "workload, pod template, bare pod", "`Wait`, `Migrate`, `Reassign`; default: `failover` of the configuration", "What happens to a pod whose node cannot take it."},
	{"fixedip.io/mismatch-policy", "workload, pod", "`Restart`, `Report`; default: `mismatchPolicy` of the configuration", "What happens to a pod that does not run with its fixed address or has no CiliumEndpoint."},
	{"fixedip.io/when-deleted", "workload, pod template, bare pod", "`Delete` (default; `Retain` for bare pods), `Retain`", "What happens to the addresses if the workload or the bare pod is deleted."},
	{"fixedip.io/when-scaled", "workload, pod template", "`Retain` (default), `Delete`", "What happens to the address of a pod that the workload no longer expects."},
	{"fixedip.io/retention-ttl", "workload, pod template, bare pod", "a duration, such as `30m`", "Delays the release."},
	{"fixedip.io/strict", "Node (label)", "`true`", "Makes the node a strict node. `strictNodes` of the configuration selects the label."},
	{"fixedip.io/replaces-node", "Node (label)", "the name of a node", "The node inherits the subnets of that node."},
	{"fixedip.io/allow-deletion", "CustomResourceDefinition", "`true`", "The API server admits the deletion of the CustomResourceDefinition."},
}

// ours are the annotations and labels that the programs write.
var ours = []annotation{
	{"fixedip.io/uid", "FixedIP", "a UID", "The UID of the FixedIP. Differs from `metadata.uid` if the FixedIP was restored from a backup."},
	{"fixedip.io/node", "FixedIP (label)", "the name of a node", "The node whose pool has the addresses, for label selectors."},
	{"fixedip.io/workload", "FixedIP (label)", "the name of a workload", "The workload of the addresses, for label selectors."},
	{"fixedip.io/workload-kind", "FixedIP (label)", "the kind of a workload", "The kind of the workload, for label selectors."},
	{"fixedip.io/scale-down-annotations", "Node", "names of annotations", "The annotations by which the controller protects the node from autoscalers."},
}

// notAnnotations are constants of the same form that name no annotation or label: a finalizer, the owners of pool entries
// that are markers, and the owner of a probe.
var notAnnotations = []string{"fixedip.io/pool-entry", "fixedip.io/cooldown", "fixedip.io/moved", "fixedip.io/move-target", "fixedip.io/agent-barrier"}

var annotationName = regexp.MustCompile(`^(fixedip\.io|cni\.cilium\.io|cni\.projectcalico\.org)/[a-zA-Z-]+$`)

// annotationPage returns the page about annotations and labels. A constant of the code that names an annotation or a label
// without a row is an error.
func annotationPage(root string) (string, error) {
	files, err := sources(root)
	if err != nil {
		return "", err
	}
	known := slices.Clone(notAnnotations)
	for _, a := range slices.Concat(written, ours) {
		known = append(known, a.name)
	}
	found := 0
	for _, c := range constants(files) {
		switch {
		case !annotationName.MatchString(c.value):
		case !slices.Contains(known, c.value):
			return "", fmt.Errorf("%s: constant %s has the value %q, which has no row in hack/reference/annotations.go", c.path, c.name, c.value)
		default:
			found++
		}
	}
	if found < 12 {
		return "", fmt.Errorf("found %d annotations in the code, want at least 12; have the constants changed?", found)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Annotations and labels\n\n"+header+"\n", "`hack/reference`")
	b.WriteString("An annotation of the workload takes precedence over the one of its pod template. An invalid value is refused when the object is\nwritten, and otherwise reported (event `InvalidAnnotation`).\n\n")
	table(&b, "For users", written)
	b.WriteString("\n")
	table(&b, "Written by fixedip", ours)
	return b.String(), nil
}

func table(b *strings.Builder, title string, rows []annotation) {
	fmt.Fprintf(b, "## %s\n\n| Name | On | Values | Meaning |\n|---|---|---|---|\n", title)
	for _, a := range rows {
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", a.name, a.on, a.values, a.meaning)
	}
}
