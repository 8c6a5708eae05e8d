// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	fence := "```"
	for name, tc := range map[string]struct {
		text string
		want Page
		err  string
	}{
		"no block":      {text: "# Title\n\nText.", want: Page{Families: "IPv4"}},
		"script":        {text: "a\n" + fence + "sh\nx=1\necho $x\n" + fence + "\nb", want: Page{Families: "IPv4", Steps: []Step{{Line: 3, Command: "x=1\necho $x"}}}},
		"not a command": {text: fence + "yaml\nsh: 1\n" + fence, want: Page{Families: "IPv4"}},
		"console": {
			text: fence + "console\n$ a \\\n  b\none\ntwo\n$ c\n" + fence,
			want: Page{Families: "IPv4", Steps: []Step{
				{Line: 2, Command: "a \\\n  b", Output: []string{"one", "two"}}, {Line: 6, Command: "c", Output: []string{}},
			}},
		},
		"cluster":             {text: "<!-- cluster: IPv4,IPv6 -->\n", want: Page{Families: "IPv4,IPv6"}},
		"no language":         {text: "a\n" + fence + "\nls\n" + fence, err: `page.md:2: the block has the language ""`},
		"other language":      {text: fence + "bash\nls\n" + fence, err: `page.md:1: the block has the language "bash"`},
		"no end":              {text: fence + "sh\nls\n", err: "page.md:1: the block has no end"},
		"output at the start": {text: fence + "console\none\n$ a\n" + fence, err: "page.md:1: the block begins with output"},
		"comment in a script": {text: fence + "sh\n<!-- cluster: IPv6 -->\n" + fence, want: Page{Families: "IPv4", Steps: []Step{{Line: 2, Command: "<!-- cluster: IPv6 -->"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse("page.md", tc.text)
			if tc.err != "" {
				if err == nil || !strings.HasPrefix(err.Error(), tc.err) {
					t.Fatalf("got error %v, want %s", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			tc.want.File = "page.md"
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("page (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMatch(t *testing.T) {
	for name, tc := range map[string]struct {
		want []string
		got  string
		err  string
	}{
		"equal":             {want: []string{"a", "b"}, got: "a\nb\n"},
		"columns":           {want: []string{"NAME   READY", "web-0 True"}, got: "NAME READY\nweb-0      True \n"},
		"pattern":           {want: []string{"web-0 10.240.*"}, got: "web-0 10.240.1.254"},
		"not a pattern":     {want: []string{"a.c"}, got: "abc", err: `line 1 is "abc", want "a.c"`},
		"any lines":         {want: []string{"a", "...", "z"}, got: "a\nb\nc\nz"},
		"no lines between":  {want: []string{"a", "...", "z"}, got: "a\nz"},
		"last line missing": {want: []string{"a", "...", "z"}, got: "a\nb", err: "the output does not match"},
		"too short":         {want: []string{"a", "b"}, got: "a", err: `the output ends before the line "b"`},
		"too long":          {want: []string{"a"}, got: "a\nb", err: `the output has the further line "b"`},
		"nothing":           {want: []string{}, got: ""},
		"unexpected output": {want: []string{}, got: "a", err: `the output has the further line "a"`},
		"empty last line":   {want: []string{"a", ""}, got: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			err := Match(tc.want, tc.got)
			if (err == nil) != (tc.err == "") || err != nil && !strings.HasPrefix(err.Error(), tc.err) {
				t.Errorf("got error %v, want %q", err, tc.err)
			}
		})
	}
}

func TestRun(t *testing.T) {
	counter := filepath.Join(t.TempDir(), "count")
	for name, tc := range map[string]struct {
		step Step
		err  string
	}{
		"script":                   {step: Step{Command: "test $word = yes"}},
		"script with a late error": {step: Step{Line: 7, Command: "false\ntrue"}, err: "run the script of line 7: exit status 1"},
		"pipe with an error":       {step: Step{Line: 7, Command: "false | true"}, err: "run the script of line 7"},
		"output":                   {step: Step{Command: "echo $word", Output: []string{"yes"}}},
		"status does not count":    {step: Step{Command: "echo found; exit 1", Output: []string{"found"}}},
		"output of a later run":    {step: Step{Command: "echo x >> " + counter + "; wc -l < " + counter, Output: []string{"2"}}},
		"another output":           {step: Step{Line: 9, Command: "echo no", Output: []string{"yes"}}, err: `command "echo no" of line 9 (exit status 0): line 1 is "no", want "yes"`},
	} {
		t.Run(name, func(t *testing.T) {
			s := Shell{Dir: t.TempDir(), Env: []string{"word=yes", "PATH=" + os.Getenv("PATH")}, RetryFor: 2 * time.Second}
			err := s.Run(context.Background(), tc.step)
			if (err == nil) != (tc.err == "") || err != nil && !strings.HasPrefix(err.Error(), tc.err) {
				t.Errorf("got error %v, want %q", err, tc.err)
			}
		})
	}
}

// TestRunEnded checks that the error of a console command contains the output of the last run if ctx ends during the wait for
// the next run.
func TestRunEnded(t *testing.T) {
	ran := filepath.Join(t.TempDir(), "ran")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(ran); err == nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		// Let bash exit.
		time.Sleep(retryInterval / 5)
		cancel()
	}()
	s := Shell{Dir: t.TempDir(), Env: []string{"PATH=" + os.Getenv("PATH")}, RetryFor: time.Minute}
	err := s.Run(ctx, Step{Line: 9, Command: "echo no; touch " + ran, Output: []string{"yes"}})
	if want := "it printed:\nno\n"; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("got error %v, want one that ends with %q", err, want)
	}
}
