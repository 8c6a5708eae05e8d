// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/explain"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func node(conditions ...corev1.NodeCondition) *corev1.Node {
	return &corev1.Node{Status: corev1.NodeStatus{Conditions: conditions}}
}

var ready = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}

func pools() *ledger.Ledger {
	l := ledger.New()
	entries := func(all map[string]pool.Entry) map[netip.Addr]pool.Entry {
		out := map[netip.Addr]pool.Entry{}
		for a, e := range all {
			out[netip.MustParseAddr(a)] = e
		}
		return out
	}
	l.SetNode(pool.NodePool{
		Name: "node-1", PodCIDRs: []string{"10.0.1.0/24", "fd00:1::/120"},
		Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24"), netip.MustParsePrefix("fd00:1::/120")},
		Entries: entries(map[string]pool.Entry{
			"10.0.1.1": {}, "10.0.1.2": {}, "fd00:1::1": {}, "10.0.1.254": pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"),
			"fd00:1::fe": pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"), "10.0.1.253": pool.CooldownEntry("", now),
			"10.0.1.252": pool.OwnedEntry("web", "web-0", "StatefulSet", "web"),
		}),
		Used: map[netip.Addr]string{netip.MustParseAddr("10.0.1.2"): "web/other"},
	})
	l.SetNode(pool.NodePool{Name: "node-2", PodCIDRs: []string{"10.0.2.0/24"}, Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.2.0/24")}})
	l.SetNode(pool.NodePool{Name: "node-3", PodCIDRs: []string{"10.0.2.128/25"}, Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.2.128/25")}})
	l.SetNode(pool.NodePool{Name: "node-4"})
	return l
}

func records() []v1alpha1.FixedIP {
	seen := []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
	record := func(name string, age time.Duration, status v1alpha1.FixedIPStatus, ips ...string) v1alpha1.FixedIP {
		return v1alpha1.FixedIP{
			ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, CreationTimestamp: metav1.Time{Time: now.Add(-age)}},
			Spec:       v1alpha1.FixedIPSpec{IPs: ips, NodeName: "node-1", PodName: name, Owner: v1alpha1.OwnerReference{Kind: "StatefulSet", Name: "mysql", UID: "1"}},
			Status:     status,
		}
	}
	mine := record("mysql-9", time.Minute, v1alpha1.FixedIPStatus{})
	mine.Spec.NodeName = ""
	return []v1alpha1.FixedIP{mine, record("mysql-1", 50*time.Hour, v1alpha1.FixedIPStatus{Conditions: seen}, "10.0.1.250"), record("mysql-0", 50*time.Hour, v1alpha1.FixedIPStatus{PodUID: "uid-mysql-0", Conditions: seen}, "10.0.1.254", "fd00:1::fe")}
}

func pods() []corev1.Pod {
	stopping := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "web-0", DeletionTimestamp: &metav1.Time{Time: now}}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	return []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mysql-0"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}, stopping}
}

// TestGolden compares the output of the commands with golden files. If the environment variable UPDATE_GOLDEN is set, it
// writes the files.
func TestGolden(t *testing.T) {
	nodes := map[string]*corev1.Node{"node-1": node(ready), "node-2": node(), "node-4": node(ready)}
	nodes["node-1"].Spec.Unschedulable = true
	rows := func(namespace string) []fixedAddress { return addressRows(records(), pods(), pools(), namespace) }
	for name, write := range map[string]func(*bytes.Buffer) error{
		"get-all":     func(b *bytes.Buffer) error { return writeAddresses(b, rows(""), "", true, now) },
		"get-wide":    func(b *bytes.Buffer) error { return writeAddresses(b, rows(""), inWide, true, now) },
		"get-db":      func(b *bytes.Buffer) error { return writeAddresses(b, rows("db"), "", false, now) },
		"get-name":    func(b *bytes.Buffer) error { return writeAddresses(b, rows(""), asNames, true, now) },
		"get-json":    func(b *bytes.Buffer) error { return write(b, inJSON, listOf(rows("")), nil) },
		"get-yaml":    func(b *bytes.Buffer) error { return write(b, inYAML, listOf(rows("web")), nil) },
		"get-empty":   func(b *bytes.Buffer) error { return writeAddresses(b, rows("none"), "", false, now) },
		"get-no-json": func(b *bytes.Buffer) error { return write(b, inJSON, listOf(rows("none")), nil) },
		"top":         func(b *bytes.Buffer) error { return writeNodes(b, nodeUses(pools(), nodes), "") },
		"top-wide":    func(b *bytes.Buffer) error { return writeNodes(b, nodeUses(pools(), nodes), inWide) },
		"top-name":    func(b *bytes.Buffer) error { return writeNodes(b, nodeUses(pools(), nodes), asNames) },
		"top-json":    func(b *bytes.Buffer) error { return write(b, inJSON, listOf(nodeUses(pools(), nodes)), nil) },
		"drain-check": func(b *bytes.Buffer) error {
			here := pods()[:1]
			here[0].Labels = map[string]string{"app": "mysql"}
			budget := policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mysql"}}
			budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: here[0].Labels}
			return drainText(b, explain.DrainInputs{Pods: here, Records: records(), Budgets: []policyv1.PodDisruptionBudget{budget}, Failover: v1alpha1.Wait})
		},
		"drain-check-none": func(b *bytes.Buffer) error {
			return drainText(b, explain.DrainInputs{Pods: pods(), Failover: v1alpha1.Wait})
		},
		"explain": func(b *bytes.Buffer) error {
			record := records()[2]
			return writeReport(b, explain.Explain(explain.Inputs{
				Namespace: "db", Name: "mysql-0", Record: &record, Pools: pools(), Nodes: nodes, Schedulers: []string{"fixedip-scheduler"}, Now: now,
				Endpoint: &metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Kind: "Pod", UID: "1"}}},
			}))
		},
	} {
		var got bytes.Buffer
		if err := write(&got); err != nil {
			t.Errorf("%s: got the error %v, want none", name, err)
		}
		path := filepath.Join("testdata", name+".txt")
		if os.Getenv("UPDATE_GOLDEN") != "" {
			if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got.String()); diff != "" {
			t.Errorf("%s (-want +got): %s", name, diff)
		}
	}
}

// drainText writes the text that drain-check shows for the inputs.
func drainText(out *bytes.Buffer, in explain.DrainInputs) error {
	drained, report := explain.Drain(in)
	return writeDrain(out, drainReport{Pods: drained, Report: report})
}
