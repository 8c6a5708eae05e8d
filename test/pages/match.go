// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"fmt"
	"regexp"
	"strings"
)

// anyLines is the line of an expected output that stands for any number of lines.
const anyLines = "..."

// Match returns nil if the output of a command is as expected. Otherwise the error names the first line that differs or, if a
// line "..." comes before the difference, that line. want contains the expected lines in the notation of a console block; see
// the comment of the package.
func Match(want []string, output string) error {
	got := strings.Split(strings.TrimRight(output, "\n"), "\n")
	if strings.TrimSpace(output) == "" {
		got = nil
	}
	want = trimEmpty(want)
	if matchLines(want, got) {
		return nil
	}
	for i, line := range want {
		switch {
		case line == anyLines:
			return fmt.Errorf("the output does not match the expected lines from line %d (%q) on", i+1, anyLines)
		case i >= len(got):
			return fmt.Errorf("the output ends before the line %q", line)
		case !matchLine(line, got[i]):
			return fmt.Errorf("line %d is %q, want %q", i+1, got[i], line)
		}
	}
	return fmt.Errorf("the output has the further line %q", got[len(want)])
}

func matchLines(want, got []string) bool {
	switch {
	case len(want) == 0:
		return len(got) == 0
	case want[0] == anyLines:
		return matchLines(want[1:], got) || len(got) > 0 && matchLines(want, got[1:])
	}
	return len(got) > 0 && matchLine(want[0], got[0]) && matchLines(want[1:], got[1:])
}

// matchLine reports whether the line got of an output is as expected. In want, "*" stands for any text.
func matchLine(want, got string) bool {
	parts := strings.Split(strings.Join(strings.Fields(want), " "), "*")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	return regexp.MustCompile("^" + strings.Join(parts, ".*") + "$").MatchString(strings.Join(strings.Fields(got), " "))
}

// trimEmpty returns lines without the empty lines at the end.
func trimEmpty(lines []string) []string {
	for len(lines) > 0 && strings.TrimSpace(lines[len(lines)-1]) == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}
