// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Page is a page of the documentation.
type Page struct {
	// File is the path of the page.
	File string
	// Families are the IP families of the cluster that the page needs, joined by a comma.
	Families string
	// Steps are the commands, in order.
	Steps []Step
}

// Step is a script or a command of a page.
type Step struct {
	// Line is the number of the line of the page at which the step begins.
	Line int
	// Command is the text for the shell.
	Command string
	// Output contains the lines of the expected output of a console command; nil for a script.
	Output []string
}

// DefaultFamilies are the families of a page without a comment about its cluster.
const DefaultFamilies = "IPv4"

// silent are the languages of blocks that are not run.
var silent = map[string]bool{"yaml": true, "text": true, "json": true}

var clusterComment = regexp.MustCompile(`^<!-- cluster: (\S+) -->$`)

// Read reads the page in a file.
func Read(file string) (Page, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return Page{}, fmt.Errorf("read page: %w", err)
	}
	return Parse(file, string(text))
}

// Parse parses the text of a page. An error names the file and the line.
func Parse(file, text string) (Page, error) {
	p := Page{File: file, Families: DefaultFamilies}
	var (
		language string
		begin    int
		block    []string
		inside   bool
	)
	for i, line := range strings.Split(text, "\n") {
		fence, isFence := strings.CutPrefix(strings.TrimRight(line, " "), "```")
		switch {
		case isFence && !inside:
			inside, language, begin, block = true, fence, i+2, nil
		case isFence && fence == "":
			inside = false
			steps, err := stepsOf(language, begin, block)
			if err != nil {
				return Page{}, fmt.Errorf("%s:%d: %w", file, begin-1, err)
			}
			p.Steps = append(p.Steps, steps...)
		case inside:
			block = append(block, line)
		default:
			if match := clusterComment.FindStringSubmatch(line); match != nil {
				p.Families = match[1]
			}
		}
	}
	if inside {
		return Page{}, fmt.Errorf("%s:%d: the block has no end", file, begin-1)
	}
	return p, nil
}

// stepsOf returns the steps of a block, whose first line has the number begin; nil if the block is not run. It returns an
// error for an unknown language and for a console block that does not begin with a command.
func stepsOf(language string, begin int, block []string) ([]Step, error) {
	switch {
	case silent[language]:
		return nil, nil
	case language == "sh":
		return []Step{{Line: begin, Command: strings.Join(block, "\n")}}, nil
	case language == "console":
		return console(begin, block)
	}
	return nil, fmt.Errorf("the block has the language %q; write sh, console, yaml, text or json", language)
}

// console returns the commands of a console block with their output. A command that ends with a backslash continues in the
// next line. It returns an error if the block does not begin with a command.
func console(begin int, block []string) ([]Step, error) {
	var steps []Step
	continued := false
	for i, line := range block {
		command, starts := strings.CutPrefix(line, "$ ")
		switch {
		case continued:
			last := &steps[len(steps)-1]
			last.Command += "\n" + line
			continued = strings.HasSuffix(line, "\\")
		case starts:
			steps = append(steps, Step{Line: begin + i, Command: command, Output: []string{}})
			continued = strings.HasSuffix(line, "\\")
		case len(steps) == 0:
			return nil, fmt.Errorf("the block begins with output; write \"$ \" before the command")
		default:
			last := &steps[len(steps)-1]
			last.Output = append(last.Output, line)
		}
	}
	return steps, nil
}
