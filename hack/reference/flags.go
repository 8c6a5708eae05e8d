// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
)

// usageLine matches a line of the usage that describes a flag: its name, the type of its value, and its text.
var usageLine = regexp.MustCompile(`^ +(?:-\w, )?--([a-zA-Z0-9-]+)(?: ([^ ]+))?  +(.*)$`)

// flagPage returns the page about the flags of both programs.
func flagPage(root string) (string, error) {
	command := exec.Command("go", "run", "./cmd/fixedip-controller", "--help")
	command.Dir = root
	usage, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("run fixedip-controller --help: %w", err)
	}
	rows, err := flagRows(string(usage))
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Flags\n\n"+header+"\n", "`fixedip-controller --help`")
	b.WriteString("Settings that both programs share are in the [configuration](configuration.md). Flags of the controller for such settings, such as\n" +
		"`--cluster-pool-ipv4-cidr`, take precedence over the file, but the scheduler does not see them.\n\n")
	b.WriteString("## fixedip-controller\n\n| Flag | Meaning |\n|---|---|\n")
	b.WriteString(rows)
	b.WriteString("\nNames of flags and variables of a guide are in [Coming from a guide](../operate/from-a-guide.md).\n")
	b.WriteString("\n## fixedip-scheduler\n\nIt has the flags of kube-scheduler, and none of its own: `fixedip-scheduler --help`. The installation sets `--config`, the file with the profiles.\n" +
		"The [arguments of the plugin](configuration.md#settings-of-one-program) are in that file.\n")
	return b.String(), nil
}

// flagRows returns a row for each flag of a usage except --help.
func flagRows(usage string) (string, error) {
	var b strings.Builder
	found := 0
	for lines := bufio.NewScanner(strings.NewReader(usage)); lines.Scan(); {
		match := usageLine.FindStringSubmatch(lines.Text())
		if match == nil || match[1] == "help" {
			continue
		}
		found++
		name := "--" + match[1]
		if match[2] != "" {
			name += " " + match[2]
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", name, cell(strings.TrimSpace(match[3])))
	}
	if found < 20 {
		return "", fmt.Errorf("found %d flags in the usage, want at least 20; has its form changed?", found)
	}
	return b.String(), nil
}
