// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

// Recipe describes the content of an image.
type Recipe struct {
	// Name is the name of the stage and of the image.
	Name  string
	Files []File
	// User is the numeric user of the image. The image has no /etc/passwd to resolve names.
	User       string
	Entrypoint []string
}

// File is a file of an image.
type File struct {
	// From is the path relative to the folder that is passed to Make.
	From string
	// To is the absolute path in the image.
	To string
}

// ReadDockerfile returns one recipe for each stage from scratch of a Dockerfile, in order. It reads only the name and
// the WORKDIR of other stages. A recipe names each copied file by its path relative to that WORKDIR, and Make reads the
// file at the same path in the folder that its caller chooses.
func ReadDockerfile(r io.Reader) ([]Recipe, error) {
	p := parser{workDirs: map[string]string{}}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		instruction, rest, _ := strings.Cut(line, " ")
		if err := p.instruction(strings.ToUpper(instruction), strings.TrimSpace(rest)); err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", n, line, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(p.recipes) == 0 {
		return nil, errors.New("no stage is from scratch")
	}
	for _, r := range p.recipes {
		if len(r.Files) == 0 || r.User == "" || len(r.Entrypoint) == 0 {
			return nil, fmt.Errorf("stage %s must have COPY, USER and ENTRYPOINT", r.Name)
		}
	}
	return p.recipes, nil
}

// parser collects the recipes of a Dockerfile.
type parser struct {
	recipes []Recipe
	// workDirs contains the WORKDIR of each stage that is not from scratch. Key: the name of the stage.
	workDirs map[string]string
	// stage is the name of the current stage; empty if it has none.
	stage string
	// scratch is true if the current stage is from scratch. The recipe of that stage is the last element of recipes.
	scratch bool
}

func (p *parser) instruction(name, rest string) error {
	switch {
	case name == "FROM":
		return p.from(rest)
	case !p.scratch:
		if name == "WORKDIR" {
			p.workDirs[p.stage] = rest
		}
		return nil
	case strings.HasSuffix(rest, `\`):
		return errors.New("an instruction on several lines is not supported; write it on one line")
	}
	r := &p.recipes[len(p.recipes)-1]
	switch name {
	case "COPY":
		return p.copy(r, strings.Fields(rest))
	case "USER":
		if !isUser(rest) {
			return errors.New("USER must be numeric, such as 65532:65532: the image has no /etc/passwd")
		}
		r.User = rest
	case "ENTRYPOINT":
		if err := json.Unmarshal([]byte(rest), &r.Entrypoint); err != nil {
			return errors.New(`ENTRYPOINT must be a list, such as ["/program"]: the image has no shell`)
		}
	default:
		return fmt.Errorf("a stage from scratch may have only COPY, USER and ENTRYPOINT")
	}
	return nil
}

// from begins the stage of a FROM instruction.
func (p *parser) from(rest string) error {
	fields := slices.DeleteFunc(strings.Fields(rest), func(f string) bool { return strings.HasPrefix(f, "--platform=") })
	p.stage = ""
	if len(fields) == 3 && strings.EqualFold(fields[1], "AS") {
		p.stage = fields[2]
	}
	p.scratch = len(fields) > 0 && fields[0] == "scratch"
	if !p.scratch {
		p.workDirs[p.stage] = "/"
		return nil
	}
	if p.stage == "" {
		return errors.New("give the stage a name: FROM scratch AS name")
	}
	p.recipes = append(p.recipes, Recipe{Name: p.stage})
	return nil
}

// copy adds the files of a COPY --from=STAGE instruction to the recipe.
func (p *parser) copy(r *Recipe, fields []string) error {
	if len(fields) < 3 || !strings.HasPrefix(fields[0], "--from=") {
		return errors.New("COPY must have the form COPY --from=STAGE FILE... DESTINATION")
	}
	stage := strings.TrimPrefix(fields[0], "--from=")
	workDir, ok := p.workDirs[stage]
	if !ok {
		return fmt.Errorf("no earlier stage is named %s", stage)
	}
	sources, destination := fields[1:len(fields)-1], fields[len(fields)-1]
	folder := strings.HasSuffix(destination, "/")
	if !path.IsAbs(destination) || len(sources) > 1 && !folder {
		return errors.New("the destination must be an absolute path, and must end in / if there are several files")
	}
	for _, source := range sources {
		from, inside := strings.CutPrefix(path.Clean(source), strings.TrimSuffix(workDir, "/")+"/")
		if !inside || strings.ContainsAny(from, "*?[") {
			return fmt.Errorf("%s is not the path of a file in %s, the WORKDIR of stage %s", source, workDir, stage)
		}
		to := destination
		if folder {
			to = path.Join(destination, path.Base(from))
		}
		r.Files = append(r.Files, File{From: from, To: to})
	}
	return nil
}

// isUser reports whether s has the form UID or UID:GID, with numbers.
func isUser(s string) bool {
	parts := strings.Split(s, ":")
	return len(parts) <= 2 && !slices.ContainsFunc(parts, func(part string) bool {
		return part == "" || strings.Trim(part, "0123456789") != ""
	})
}
