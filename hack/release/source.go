// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// isVersion matches versions such as v0.1.0 and v0.1.0-rc.1.
var isVersion = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)

// changelog is the file with an entry for each version.
const changelog = "CHANGELOG.md"

// checkSource sets commit, time and notes of r. It returns an error if the version is invalid, if files differ from the
// commit, if the version is a tag of another commit, or if the version has no entry in CHANGELOG.md.
func (r *release) checkSource(ctx context.Context) error {
	if !isVersion.MatchString(r.version) {
		return fmt.Errorf("%q is not a version such as v0.1.0 or v0.1.0-rc.1: set it with make release VERSION=v0.1.0", r.version)
	}
	changes, err := output(ctx, "git", "status", "--porcelain")
	if err != nil {
		return err
	}
	if changes != "" {
		return fmt.Errorf("files differ from the commit, so the release could not be built again from it; commit or remove them:\n%s", changes)
	}
	head, err := output(ctx, "git", "log", "-1", "--format=%H %ct")
	if err != nil {
		return err
	}
	commit, seconds, _ := strings.Cut(head, " ")
	since, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return fmt.Errorf("parse the time of commit %s: %w", commit, err)
	}
	r.commit, r.time = commit, time.Unix(since, 0).UTC()
	tagged, err := output(ctx, "git", "for-each-ref", "--format=%(*objectname)%(objectname)", "refs/tags/"+r.version)
	if err != nil {
		return err
	}
	// For an annotated tag, the first hash is that of the commit.
	if tagged != "" && !strings.HasPrefix(tagged, commit) {
		return fmt.Errorf("the tag %s is not on the commit %s; check out the tag, or choose another version", r.version, commit)
	}
	text, err := os.ReadFile(changelog)
	if err != nil {
		return err
	}
	r.notes, err = entry(string(text), r.version)
	return err
}

// entry returns the text of a version in a changelog in the format of Keep a Changelog, without its heading. If a pre-release,
// such as v0.1.0-rc.1, has no entry, its text is that of the final version. If the final version has no entry either, it is the
// text of Unreleased. entry returns an error if it finds no text.
func entry(text, version string) (string, error) {
	number := strings.TrimPrefix(version, "v")
	names := []string{number}
	if final, _, ok := strings.Cut(number, "-"); ok {
		names = append(names, final, "Unreleased")
	}
	for _, name := range names {
		if found := section(text, name); found != "" {
			return found, nil
		}
	}
	return "", fmt.Errorf("%s has no entry for %s: write the section \"## [%s] - DATE\" with the changes", changelog, version, number)
}

// section returns the text below the heading "## [name]" up to the next heading of that level, without link definitions;
// empty if there is no such heading or no text.
func section(text, name string) string {
	var found strings.Builder
	inside := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "## ") {
			inside = strings.HasPrefix(line, "## ["+name+"]")
			continue
		}
		if inside && !isLink.MatchString(line) {
			found.WriteString(line)
		}
	}
	return strings.TrimSpace(found.String())
}

// isLink matches the definition of a link, such as "[0.1.0]: https://example.com/v0.1.0".
var isLink = regexp.MustCompile(`^\[[^\]]+\]: `)

// output runs a command and returns its standard output without white space at both ends.
func output(ctx context.Context, name string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, name, args...)
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(command.Args, " "), err, strings.TrimSpace(errs.String()))
	}
	return strings.TrimSpace(out.String()), nil
}
