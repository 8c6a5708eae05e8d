// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command mutate puts bugs into the product, one at a time, and checks that the model notices each.
//
//	go run ./test/sim/mutate [-checks N] [name ...]
//
// If names are given, the command tries only the mutations whose names contain one of them. The command fails if one of the
// names matches no mutation. It also fails if the model does not notice a bug, because the model then lacks a check, or if the
// test of the model does not run to its end.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// mutation is a bug: in the file, it replaces the text in the field from, which occurs there once, with the text in the field
// to. Each mutation breaks a promise. If two places of the product prevent a bug independently, the map named also contains
// the second place: the model could not notice a change of only one of them.
type mutation struct{ name, file, from, to string }

var mutations = []mutation{
	// Most writes test their entries and the whole spec, and either test protects the write. So all tests except that of the
	// UID are dropped.
	{"drop the test operations", "ipam/store/ciliumpool/patch.go",
		"	return ops\n}\n\n// expect returns", "	return slices.DeleteFunc(ops, func(o operation) bool { return o.Op == \"test\" && o.Path != uidPath })\n}\n\n// expect returns"},
	{"let another node inherit the subnet of a node that has lost its CiliumNode", "ipam/controller/subnet/assign.go",
		"[]client.Object{&corev1.Node{}, &ciliumv2.CiliumNode{}}", "[]client.Object{&ciliumv2.CiliumNode{}}"},
	{"let a node of another zone inherit a subnet", "ipam/core/subnetplan/subnet.go",
		`if lost.Zone != "" && h.Zone != lost.Zone || `, "if "},
	{"make a new pool without the addresses of running pods", "ipam/core/subnetplan/firstpool.go",
		"running = slices.Clone(running)", "running = nil"},
	{"release a FixedIP without the live read", "ipam/controller/release/controller.go",
		"s, ok, err := c.Gatherer.Identity(callCtx, reader, key)", "_ = reader\n\t\t\ts, ok, err := c.Gatherer.Identity(callCtx, c.FromCaches(), key)"},
	{"release addresses that a pod may use", "ipam/core/reclaim/decide.go",
		"return v.isHeld && !RunsWithout(v.Pod, v.held.Addrs)", "return v.isHeld && len(v.held.Addrs) == 0"},
	{"let moved entries expire", "ipam/core/nodepool/state.go",
		"if e.Kind != pool.Cooldown {", "if e.Kind != pool.Cooldown && e.Kind != pool.Moved {"},
	{"end a cooldown at once if the agent does not report the address as used", "ipam/core/nodepool/state.go",
		"due := at.Add(cooldown)", "none := func(netip.Addr) bool { return false }\n\t\tdue, s := at.Add(0*cooldown), &State{Now: s.Now, Cooldown: s.Cooldown, OnOtherNode: none, Held: none, Acknowledged: func(pool.NodePool, netip.Addr) bool { return true }}"},
	{"end a cooldown that the agent has not seen", "ipam/core/nodepool/state.go",
		"case s.Acknowledged(n, a):", "default:"},
	{"remove surplus entries without an acknowledgement of the agent", "ipam/core/nodepool/watermark.go",
		"edit := n.Set(a, pool.WithdrawnEntry(now))", "edit, _ := n.Drop(a)"},
	{"move an address that the former pod may still use", "ipam/core/pool/move.go",
		"if !m.Down && n.InUse(a) {", "if false {"},
	{"bind a pod to the target node of a move before the FixedIP names that node", "plugins/fixedip/binder/reservation.go",
		"return !r.hasFixedIP || r.recordedNode == node", "return node != \"\""},
	{"let addresses move before the agent has acknowledged the barrier", "ipam/controller/internal/gather/prove.go",
		"if answered.IsZero() {", "if false {"},
	{"count a report from before the probe as the acknowledgement", "ipam/core/agentview/agentview.go",
		"case slices.Contains(n.Probes, b.Probe):", "case false:"},
	{"accept the acknowledgement of an agent that has not restored its endpoints", "ipam/core/agentview/agentview.go",
		"case n.Unreported:", "case false:"},
	{"count addresses as free before the agent has reported", "ipam/store/ciliumpool/entries.go",
		"n.Unreported = !pool.ReportsNode(n.Used)", "n.Unreported = false"},
	{"never make a pod the owner of its withdrawn address", "ipam/controller/conformance/adopt.go",
		"if err := c.Allocator.Allocate(ctx, r); err != nil {", "if err := error(errNotReported); err != nil {"},
	{"make a pod at once the owner of an address that is offered to all pods", "ipam/core/reclaim/entries.go",
		"n.Set(a, pool.CooldownEntry(\"\", at))", "n.Set(a, pool.ForOwner(owner))"},
	{"leave moved entries out of the first pool of a home node", "ipam/core/subnetplan/firstpool.go",
		"if node, ok := runningOn[k.Addr]; ok {", "if node, ok := runningOn[k.Addr]; ok && false {"},
	{"do not correct pods that have lost their entry", "ipam/core/identity/identity.go",
		"if !slices.Contains(a.Schedulers, pod.Spec.SchedulerName) {", "if !slices.Contains(a.Schedulers, pod.Spec.SchedulerName) || true {"},
	{"bind before the claim", "plugins/fixedip/binder/claim.go",
		"if b.Cache.Ledger.IsClaimed(claim) && p.certain() {", "if claim.Owner != \"\" {"},
	{"delete the FixedIPs of existing pods", "ipam/core/reclaim/decide.go",
		"case v.Pod != nil:\n\t\treturn false\n\tcase !v.Workload.Exists:", "case !v.Workload.Exists:"},
	{"claim an address without a check of its entry in the pool", "ipam/core/pool/claim.go",
		"n.ClaimBlocker(a, entry.Owner(), nil)", "n.ClaimBlocker(a, entry.Owner(), func(Entry) bool { return true })"},
	{"never release moved entries", "ipam/core/reclaim/entries.go", "range s.Moved {", "range s.Moved[:0] {"},
	// Slots.
	{"keep the slots of a workload that opted out", "ipam/controller/internal/gather/gather.go",
		"w.OptsOut = found.OptsOut()", ""},
	{"keep the surplus slots of a workload that was scaled down", "ipam/core/reclaim/identities.go",
		"surplus[i] = true", "surplus[i] = false"},
	{"release the slots of a workload that retains them", "ipam/core/reclaim/decide.go",
		"return v.Workload.Excludes && v.spec.Reclaim.WhenScaled == v1alpha1.Delete", "return v.Workload.Excludes"},
	{"create two slots with one address", "ipam/core/reclaim/identities.go",
		"taken[j], s.Held, s.Holder = true,", "taken[j], s.Held, s.Holder = false,"},
	{"let the FixedIP of a slot name its former pod", "ipam/core/reclaim/decide.go",
		"if v.Slot {\n\t\tspec.PodName = v.Holder", "if false {\n\t\tspec.PodName = v.Holder"},
	// Strict nodes.
	{"place unreserved pods on strict nodes without an entry", "plugins/fixedip/binder/claim.go",
		"if p.exempt || !b.onStrictNode(node) {", "if true {"},
	{"keep the entries of unreserved pods that ended on a strict node", "ipam/core/nodepool/strict.go",
		"stale := map[netip.Addr]pool.Entry{}", "stale := map[netip.Addr]pool.Entry{}\n\tstays = func(string, string) bool { return true }"},
	// Adoption.
	{"adopt no pod that the selector matches", "ipam/core/identity/identity.go",
		"if !optsIn && (a.Selector == nil || !a.Selector.Matches(labels.Set(pod.Labels))) {", "if !optsIn {"},
	// Findings.
	{"treat a new FixedIP as restored from a backup (finding C6)", "ipam/core/reclaim/decide.go",
		"return ok && uid != string(r.UID)", "return uid != string(r.UID) || !ok"},
	{"restart no pod that runs with a wrong address (promise 3)", "ipam/core/conformance/conformance.go",
		"if where != \"\" && !returns {\n\t\t\tf.reason", "if where != \"\" && !returns || true {\n\t\t\tf.reason"},
	{"keep the addresses of replicas that a scale-down removed", "ipam/core/identity/workload.go",
		"return ordinal < first || ordinal-first-skipped >= int64(*w.Replicas)", "return ordinal < first"},
	{"leave the addresses of running pods without a FixedIP out of a new pool (finding C2)", "ipam/core/subnetplan/firstpool.go",
		"case r.unrecorded(a) && !double:", "case r.unrecorded(a):\n\t\t\t\tcontinue"},
	// CiliumEndpoints.
	{"delete CiliumEndpoints without a precondition", "ipam/controller/ciliumendpoint/keeper.go",
		"err := k.Live.Delete(ctx, cep, client.Preconditions{UID: &cep.UID, ResourceVersion: &cep.ResourceVersion})", "err := k.Live.Delete(ctx, cep)"},
	{"correct the owner of a CiliumEndpoint without a precondition", "ipam/controller/ciliumendpoint/keeper.go",
		"client.MergeFromWithOptions(cep, client.MergeFromWithOptimisticLock{})", "client.MergeFrom(cep)"},
	{"read the pod before its CiliumEndpoint", "ipam/controller/ciliumendpoint/keeper.go",
		"cep, err := index.Get[ciliumv2.CiliumEndpoint](ctx, from, key)\n\tif err != nil {\n\t\treturn Healthy, nil, nil, err\n\t}\n\tpod, err := index.Get[corev1.Pod](ctx, from, key)", "pod, err := index.Get[corev1.Pod](ctx, from, key)\n\tif err != nil {\n\t\treturn Healthy, nil, nil, err\n\t}\n\tcep, err := index.Get[ciliumv2.CiliumEndpoint](ctx, from, key)"},
	{"judge CiliumEndpoints by the caches alone", "ipam/controller/ciliumendpoint/keeper.go",
		"readIssue(ctx, k.Live, req.NamespacedName)", "readIssue(ctx, k.Cached, req.NamespacedName)"},
	{"delete a CiliumEndpoint that the agent took over before the pod has an IP", "ipam/controller/ciliumendpoint/issue.go",
		"podutil.AwaitsIP(pod) && pod.Status", "false && pod.Status"},
	{"leave the owner reference of a CiliumEndpoint as it is", "ipam/controller/ciliumendpoint/keeper.go",
		"after.OwnerReferences[o].UID = pod.UID", "after.OwnerReferences[o].UID = cep.OwnerReferences[o].UID"},
	{"leave CiliumEndpoints of former pods", "ipam/controller/ciliumendpoint/issue.go",
		"to remove it.\n\treturn Stale", "to remove it.\n\treturn Healthy"},
	{"leave CiliumEndpoints without a pod", "ipam/controller/ciliumendpoint/issue.go",
		"return Podless\n", "return Healthy\n"},
	{"leave CiliumEndpoints with addresses of a former sandbox", "ipam/controller/ciliumendpoint/issue.go",
		"return MisAddressed\n", "return Healthy\n"},
	{"leave the finalizers of CiliumEndpoints", "ipam/controller/ciliumendpoint/keeper.go",
		"if len(cep.Finalizers) == 0 {", "if true {"},
	{"restart no pod without a CiliumEndpoint", "ipam/core/conformance/conformance.go",
		"f.reason, f.grace = ReasonNoCiliumEndpoint, s.Grace.Endpoint", "f.reason, f.curable = ReasonNoCiliumEndpoint, false"},
}

// also contains the second place of each bug that two places prevent independently. Key: the name of the mutation.
var also = map[string]mutation{
	"let another node inherit the subnet of a node that has lost its CiliumNode": {"", "ipam/controller/subnet/snapshot.go", "return !pooled && s.nodes[name] == nil", "return !pooled"},
	"let moved entries expire": {"", "ipam/core/nodepool/state.go", "case s.OnOtherNode(a):", "case e.Kind == pool.Cooldown && s.OnOtherNode(a):"},
	"move an address that the former pod may still use": {"", "plugins/fixedip/binder/reservation.go",
		"case used >= 0:\n\t\treturn fmt.Sprintf(\"the agent on node %s still reports %s as used\", r.node, r.addrs[used])\n\tcase moves && r.movableFor != p.uid:",
		"case used >= 0 && false:\n\t\treturn fmt.Sprintf(\"the agent on node %s still reports %s as used\", r.node, r.addrs[used])\n\tcase moves && r.movableFor != p.uid && false:"},
}

func main() {
	checks := flag.Int("checks", 3334, "maximum number of runs of the model for each bug; the default makes about a million steps")
	flag.Parse()
	if err := run(*checks, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var failed = regexp.MustCompile(`failed after (\d+) tests`)

// choose returns the mutations whose names contain an element of only; all if only is empty. It returns an error if an element of
// only matches no mutation.
func choose(only []string) ([]mutation, error) {
	for _, s := range only {
		if !slices.ContainsFunc(mutations, func(m mutation) bool { return strings.Contains(m.name, s) }) {
			return nil, fmt.Errorf("no mutation has a name that contains %q", s)
		}
	}
	return slices.DeleteFunc(slices.Clone(mutations), func(m mutation) bool {
		return len(only) > 0 && !slices.ContainsFunc(only, func(s string) bool { return strings.Contains(m.name, s) })
	}), nil
}

func run(checks int, only []string) error {
	chosen, err := choose(only)
	if err != nil {
		return err
	}
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var unnoticed, untested []string
	for _, m := range chosen {
		began := time.Now()
		out, err := m.try(root, dir, checks)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		found := failed.FindStringSubmatch(out)
		if found == nil {
			if !strings.HasPrefix(out, "ok ") && !strings.Contains(out, "OK, passed") {
				untested = append(untested, m.name)
				fmt.Printf("the test of the model did not run to its end: %s\n%s", m.name, out)
				continue
			}
			unnoticed = append(unnoticed, m.name)
			fmt.Printf("NOT NOTICED in %d runs, %v: %s\n", checks, time.Since(began).Round(time.Second), m.name)
			continue
		}
		fmt.Printf("noticed in run %s, %v: %s\n    %s\n", found[1], time.Since(began).Round(time.Second), m.name, verdict(out))
	}
	if len(unnoticed)+len(untested) > 0 {
		return fmt.Errorf("bugs that the model did not notice: %d (%s); bugs whose test did not run to its end: %d (%s)", len(unnoticed), strings.Join(unnoticed, "; "), len(untested), strings.Join(untested, "; "))
	}
	return nil
}

// verdict returns the first violation in the output of the model; "?" if there is none.
func verdict(out string) string {
	for line := range strings.Lines(out) {
		if _, text, ok := strings.Cut(line, "!! "); ok {
			return strings.TrimSpace(text)
		}
	}
	return "?"
}

// texts returns the texts of the files that the mutation changes. Key: the path below root.
func (m mutation) texts(root string) (map[string]string, error) {
	texts := map[string]string{}
	for _, place := range m.places() {
		if _, read := texts[place.file]; !read {
			text, err := os.ReadFile(filepath.Join(root, place.file))
			if err != nil {
				return nil, err
			}
			texts[place.file] = string(text)
		}
		if n := strings.Count(texts[place.file], place.from); n != 1 {
			return nil, fmt.Errorf("%s contains %q %d times, want once", place.file, place.from, n)
		}
		texts[place.file] = strings.Replace(texts[place.file], place.from, place.to, 1)
	}
	return texts, nil
}

// places returns the mutation, and its second place if there is one.
func (m mutation) places() []mutation {
	if second, ok := also[m.name]; ok {
		return []mutation{m, second}
	}
	return []mutation{m}
}

// try runs the model against the product with the bug and returns the output. The source tree is not changed.
func (m mutation) try(root, dir string, checks int) (string, error) {
	texts, err := m.texts(root)
	if err != nil {
		return "", err
	}
	// replace contains the files with the bug. Key: the original file.
	replace := map[string]string{}
	for file, text := range texts {
		broken := filepath.Join(dir, fmt.Sprintf("broken%d.go", len(replace)))
		if err := os.WriteFile(broken, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(root, file)] = broken
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return "", err
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		return "", err
	}
	// go test fails if the model notices the bug, so its error is ignored.
	out, _ := exec.Command("go", "test", "-count=1", "-timeout=2h", "-vet=off", "-ldflags=-s -w", "-overlay="+list, "./test/sim", "-run=TestModel$",
		"-rapid.nofailfile", "-rapid.shrinktime=0s", "-sim.shrink=0s", "-rapid.seed=1", fmt.Sprintf("-rapid.checks=%d", checks)).CombinedOutput()
	return string(out), nil
}
