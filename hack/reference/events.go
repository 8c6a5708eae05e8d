// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
)

// event is a reason of events or conditions. kind is Normal or Warning; empty for a constant, and if the code chooses it at
// run time.
type event struct{ reason, kind, text, part string }

// verb matches a verb of a format, such as %s and %[2]d.
var verb = regexp.MustCompile(`%(\[\d+\])?[#+]?[svdqxt]`)

// eventPage returns the page about events.
func eventPage(root string) (string, error) {
	files, err := sources(root)
	if err != nil {
		return "", err
	}
	list := events(files)
	if len(list) < 30 {
		return "", fmt.Errorf("found %d reasons of events, want at least 30; have the calls changed?", len(list))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Events\n\n"+header+"\n", "the code")
	b.WriteString("Both programs report what they do as events and conditions of the objects concerned: pods, workloads, FixedIPs, NodeSubnets, Nodes and\n" +
		"CiliumNodes. `kubectl describe` shows them. \"…\" stands for a value. The reasons of events that kube-scheduler itself records, such as\n" +
		"`FailedScheduling`, are those of Kubernetes.\n\n")
	b.WriteString("| Reason | Type | Text, or meaning of the reason | Written by |\n|---|---|---|---|\n")
	for _, e := range list {
		fmt.Fprintf(&b, "| `%s` | %s | %s | `%s` |\n", e.reason, e.kind, cell(e.text), e.part)
	}
	return b.String(), nil
}

// events returns the reasons in calls of Eventf and warn, in constants whose names begin with Reason, in values of the type
// problem, and in the map reasons. They are sorted by reason.
func events(files []source) []event {
	var all []event
	for _, f := range files {
		part := path.Dir(f.path)
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				all = append(all, ofCall(n, part)...)
			case *ast.CompositeLit:
				if name, ok := n.Type.(*ast.Ident); ok && name.Name == "problem" && len(n.Elts) == 2 {
					if reason, ok := text(n.Elts[0]); ok {
						all = append(all, event{reason, "Warning", formatOf(n.Elts[1]), part})
					}
				}
			case *ast.ValueSpec:
				if len(n.Names) == 1 && n.Names[0].Name == "reasons" && len(n.Values) == 1 {
					all = append(all, ofMap(n.Values[0], part)...)
				}
			}
			return true
		})
	}
	for _, c := range constants(files) {
		if strings.HasPrefix(c.name, "Reason") {
			meaning := strings.TrimPrefix(c.comment, c.name+" ")
			for _, verb := range []string{"means that ", "is the ", "means "} {
				meaning = strings.TrimPrefix(meaning, verb)
			}
			all = append(all, event{c.value, "", capital(meaning), path.Dir(c.path)})
		}
	}
	slices.SortFunc(all, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.reason, b.reason), cmp.Compare(a.part, b.part), cmp.Compare(a.text, b.text))
	})
	return slices.Compact(all)
}

// ofCall returns the event of a call Eventf(regarding, related, type, reason, action, note, …) or
// warn(node, reason, action, note, …). It returns nil for other calls, and if the reason is not a string literal.
func ofCall(call *ast.CallExpr, part string) []event {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return nil
	}
	var at int
	var kind string
	switch {
	case method.Sel.Name == "Eventf" && len(call.Args) >= 6:
		at, kind = 3, eventType(call.Args[2])
	case method.Sel.Name == "warn" && len(call.Args) >= 4:
		at, kind = 1, "Warning"
	default:
		return nil
	}
	reason, ok := text(call.Args[at])
	if !ok {
		return nil
	}
	return []event{{reason, kind, formatOf(call.Args[at+2]), part}}
}

// ofMap returns an event for each string literal among the values of a map literal; nil for other expressions.
func ofMap(e ast.Expr, part string) []event {
	lit, ok := e.(*ast.CompositeLit)
	if !ok {
		return nil
	}
	var all []event
	for _, element := range lit.Elts {
		pair, ok := element.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		if reason, ok := text(pair.Value); ok {
			all = append(all, event{reason, "Warning", "The condition Exclusive has the text.", part})
		}
	}
	return all
}

// eventType returns Normal or Warning from an expression such as corev1.EventTypeWarning; empty if the expression is not a
// selector.
func eventType(e ast.Expr) string {
	if s, ok := e.(*ast.SelectorExpr); ok {
		return strings.TrimPrefix(s.Sel.Name, "EventType")
	}
	return ""
}

// formatOf returns the text of a format, or of the format of a call of fmt.Sprintf, with "…" for each value. If the format
// is no string literal or is only "%s", it returns a sentence that says that the text depends on the case.
func formatOf(e ast.Expr) string {
	if call, ok := e.(*ast.CallExpr); ok && len(call.Args) > 0 {
		e = call.Args[0]
	}
	format, ok := text(e)
	if !ok || format == "%s" {
		return "The text depends on the case."
	}
	return verb.ReplaceAllString(format, "…")
}

func capital(text string) string {
	if text == "" {
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}
