// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// flagLine matches a line of a help text of pflag: short name, name, type and text. Two spaces or more precede the text.
var flagLine = regexp.MustCompile(`^ +(?:-(\w), )?--([a-z0-9-]+)(?: (\S+))? {2,}(\S.*)$`)

// defaultValue matches the default at the end of the text of a flag.
var defaultValue = regexp.MustCompile(` \(default (.+)\)$`)

// flagsPage returns a page with the flags in a help text.
func flagsPage(help string) (string, error) {
	_, list, ok := strings.Cut(help, "\nFlags:\n")
	if !ok {
		return "", errors.New(`the help text of fixedip-controller has no section "Flags:"`)
	}
	var b strings.Builder
	b.WriteString(header("Flags of fixedip-controller", "fixedip-controller --help"))
	b.WriteString(`
Settings that concern both programs belong in the file of ` + "`--config`" + `: see [configuration](configuration.md). The flags
of fixedip-scheduler are those of kube-scheduler (` + "`fixedip-scheduler --help`" + `).

| Flag | Type | Default | Meaning |
|---|---|---|---|
`)
	rows := 0
	for line := range strings.Lines(list) {
		m := flagLine.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil {
			continue
		}
		text, value := m[4], ""
		if d := defaultValue.FindStringSubmatch(text); d != nil {
			text, value = strings.TrimSuffix(text, d[0]), "`"+d[1]+"`"
		}
		kind := m[3]
		if kind == "" {
			kind = "bool"
		}
		fmt.Fprintf(&b, "| `--%s` | %s | %s | %s |\n", m[2], cell(kind), cell(value), cell(text))
		rows++
	}
	if rows == 0 {
		return "", errors.New("the help text of fixedip-controller has no flags in a known form")
	}
	return b.String(), nil
}
