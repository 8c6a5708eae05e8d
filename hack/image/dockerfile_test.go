// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestOurDockerfile checks that the Dockerfile has one image for the scheduler and one for the controller, and that
// each image contains only its program and does not run as root.
func TestOurDockerfile(t *testing.T) {
	file, err := os.Open(filepath.Join("..", "..", "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	got, err := ReadDockerfile(file)
	if err != nil {
		t.Fatal(err)
	}
	var want []Recipe
	for _, program := range []string{"fixedip-scheduler", "fixedip-controller"} {
		want = append(want, Recipe{
			Name:       program,
			Files:      []File{{From: "bin/" + program, To: "/" + program}},
			User:       "65532:65532",
			Entrypoint: []string{"/" + program},
		})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("recipes (-want +got): %s", diff)
	}
}

// TestReadDockerfile checks the recipe of accepted instructions and the errors for refused ones.
func TestReadDockerfile(t *testing.T) {
	const build = "FROM --platform=$BUILDPLATFORM golang AS build\nWORKDIR /src\nRUN make \\\n  build\n"
	for name, c := range map[string]struct {
		text, err string
		want      []Recipe
	}{
		"files": {
			text: build + "from scratch as a\n# why\ncopy --from=build /src/bin/a /src/LICENSE /\nCOPY --from=build /src/x /etc/y\nUSER 1\nENTRYPOINT [\"/a\", \"-v\"]",
			want: []Recipe{{Name: "a", User: "1", Entrypoint: []string{"/a", "-v"}, Files: []File{
				{From: "bin/a", To: "/a"}, {From: "LICENSE", To: "/LICENSE"}, {From: "x", To: "/etc/y"},
			}}},
		},
		"no such stage":   {text: build, err: "no stage is from scratch"},
		"no name":         {text: build + "FROM scratch", err: "line 5: FROM scratch: give the stage a name"},
		"incomplete":      {text: build + "FROM scratch AS a\nUSER 1", err: "stage a must have COPY, USER and ENTRYPOINT"},
		"not supported":   {text: build + "FROM scratch AS a\nENV A=b", err: "line 6: ENV A=b: a stage from scratch may have only COPY"},
		"two lines":       {text: build + "FROM scratch AS a\nCOPY --from=build /src/a \\\n/", err: "line 6"},
		"user by name":    {text: build + "FROM scratch AS a\nUSER web", err: "USER must be numeric"},
		"shell":           {text: build + "FROM scratch AS a\nENTRYPOINT /a", err: "the image has no shell"},
		"copy of context": {text: build + "FROM scratch AS a\nCOPY a /", err: "COPY must have the form"},
		"other stage":     {text: build + "FROM scratch AS a\nCOPY --from=biuld /src/a /", err: "no earlier stage is named biuld"},
		"outside":         {text: build + "FROM scratch AS a\nCOPY --from=build /src/../etc/passwd /", err: "is not the path of a file in /src"},
		"pattern":         {text: build + "FROM scratch AS a\nCOPY --from=build /src/bin/* /", err: "is not the path of a file in /src"},
		"destination":     {text: build + "FROM scratch AS a\nCOPY --from=build /src/a /src/b /c", err: "must end in / if there are several files"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ReadDockerfile(strings.NewReader(c.text))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got error %v, want one that contains %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("recipes (-want +got): %s", diff)
			}
		})
	}
}
