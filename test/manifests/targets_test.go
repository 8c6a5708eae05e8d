// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/yaml"
)

var (
	// makeCommand matches a make command in a document: at the beginning of a code span or of a line, or after &&.
	makeCommand = regexp.MustCompile("(?m)(?:`|^[ \\t]*(?:sudo )?|&& (?:sudo )?)make ([^`\\n&|;]+)")
	makeTarget  = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
	makeSetting = regexp.MustCompile(`^([A-Z][A-Z0-9_]*)=`)
	targetRule  = regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):(?:[^=]|$)`)
	settingUse  = regexp.MustCompile(`\$\(([A-Z][A-Z0-9_]*)\)`)
)

// makeUses returns the targets and variables of the make commands in a text, such as "make e2e CILIUM=1.20".
func makeUses(text string) (targets, variables []string) {
	for _, match := range makeCommand.FindAllStringSubmatch(text, -1) {
		for word := range strings.FieldsSeq(match[1]) {
			if setting := makeSetting.FindStringSubmatch(word); setting != nil {
				variables = append(variables, setting[1])
				continue
			}
			if !makeTarget.MatchString(word) {
				break
			}
			targets = append(targets, word)
		}
	}
	return targets, variables
}

// declared returns the first groups of all matches of a pattern.
func declared(pattern *regexp.Regexp, text string) sets.Set[string] {
	names := sets.New[string]()
	for _, match := range pattern.FindAllStringSubmatch(text, -1) {
		names.Insert(match[1])
	}
	return names
}

// TestMakeUses checks which targets and variables makeUses finds in a text.
func TestMakeUses(t *testing.T) {
	for name, c := range map[string]struct{ text, targets, variables string }{
		"code span":             {"Run `make e2e CILIUM=1.20 RUN='a b'` first.", "e2e", "CILIUM RUN"},
		"code block":            {"```sh\nmake setup\nmake demo     # KEEP=1 leaves it running\n```", "setup demo", ""},
		"a package, and a file": {"```sh\nsudo apt-get install -y make gcc && make bin/kubectl-fixedip\n```", "", ""},
		"after &&":              {"```sh\ncd fixedip && make setup && sudo make demo KEEP=1\n```", "setup demo", "KEEP"},
		"two targets":           {"`make setup test`", "setup test", ""},
		"a table":               {"| `make fuzz FUZZTIME=1m` | Fuzz targets |", "fuzz", "FUZZTIME"},
		"prose":                 {"We make pods wait, and `makes` is no command.", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			targets, variables := makeUses(c.text)
			if got := strings.Join(targets, " "); got != c.targets {
				t.Errorf("got targets %q, want %q", got, c.targets)
			}
			if got := strings.Join(variables, " "); got != c.variables {
				t.Errorf("got variables %q, want %q", got, c.variables)
			}
		})
	}
}

// TestDocumentedTargets checks that the Makefile has every target, and uses every variable, that a document names in a
// command.
func TestDocumentedTargets(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	targets, variables := declared(targetRule, string(makefile)), declared(settingUse, string(makefile))
	checked := 0
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && (name == "bin" || name == "dist" || strings.HasPrefix(name, ".") && strings.Trim(name, ".") != "") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".md") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		named, set := makeUses(string(text))
		checked += len(named)
		for _, target := range named {
			if !targets.Has(target) {
				t.Errorf("%s: the Makefile has no target %s", path, target)
			}
		}
		for _, variable := range set {
			if !variables.Has(variable) {
				t.Errorf("%s: the Makefile uses no variable %s", path, variable)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if checked < 50 {
		t.Errorf("got %d targets named in documents, want at least 50", checked)
	}
}

// TestIssueForms checks that the repository has the expected forms for issues, and that GitHub can read them. A form has a
// name and a description. Each field has a known type and, unless the type is markdown, a label and an identifier of its
// own. At least one field is required.
func TestIssueForms(t *testing.T) {
	forms, err := filepath.Glob(filepath.Join(root, ".github", "ISSUE_TEMPLATE", "*.yml"))
	if err != nil {
		t.Fatal(err)
	}
	read := sets.New[string]()
	for _, file := range forms {
		if filepath.Base(file) == "config.yml" {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var form struct {
			Name, Description string
			Labels            []string
			Body              []struct {
				Type, ID    string
				Attributes  map[string]string
				Validations struct{ Required bool }
			}
		}
		if err := yaml.UnmarshalStrict(text, &form); err != nil {
			t.Errorf("parse %s: %v", file, err)
			continue
		}
		read.Insert(filepath.Base(file))
		if form.Name == "" || form.Description == "" {
			t.Errorf("%s: the form needs a name and a description", file)
		}
		ids, required := sets.New[string](), 0
		for _, field := range form.Body {
			switch field.Type {
			case "markdown":
				if field.Attributes["value"] == "" {
					t.Errorf("%s: a field of the type markdown has no text", file)
				}
			case "input", "textarea":
				if field.Attributes["label"] == "" || field.ID == "" || ids.Has(field.ID) {
					t.Errorf("%s: the field %q needs a label and an identifier of its own", file, field.ID)
				}
				ids.Insert(field.ID)
				if field.Validations.Required {
					required++
				}
			default:
				t.Errorf("%s: the field %q has the type %q, want markdown, input or textarea", file, field.ID, field.Type)
			}
		}
		if required == 0 {
			t.Errorf("%s: no field is required", file)
		}
	}
	if want := sets.New("bug.yml", "feature.yml", "question.yml"); !read.Equal(want) {
		t.Errorf("got the forms %v, want %v", sets.List(read), sets.List(want))
	}
}
