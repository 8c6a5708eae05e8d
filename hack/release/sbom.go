// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"io"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/uuid"
)

// writeSBOMs writes a bill of materials for each program: the modules that are linked into it on any platform, as the Go
// linker recorded them.
func (r *release) writeSBOMs() error {
	// builds contains the build information of a program on each of its platforms. Key: the program.
	builds := map[string][]*debug.BuildInfo{}
	for _, t := range r.targets() {
		info, err := buildinfo.ReadFile(r.built(t))
		if err != nil {
			return fmt.Errorf("read the build information of %s for %s/%s: %w", t.program, t.os, t.arch, err)
		}
		builds[t.program] = append(builds[t.program], info)
	}
	for _, program := range slices.Sorted(maps.Keys(builds)) {
		name := fmt.Sprintf("%s_%s.cdx.json", program, r.version)
		bom := sbom(program, r.version, r.commit, r.time, builds[program])
		err := create(r.file(name), func(w io.Writer) error {
			// More tools read version 1.6 than later ones.
			return cyclonedx.NewBOMEncoder(w, cyclonedx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cyclonedx.SpecVersion1_6)
		})
		if err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}

// sbom returns the bill of materials of a program that was built for one or more platforms.
func sbom(program, version, commit string, created time.Time, builds []*debug.BuildInfo) *cyclonedx.BOM {
	// modules contains the linked modules. Key: the package URL.
	modules := map[string]cyclonedx.Component{}
	for _, b := range builds {
		add(modules, "std", strings.TrimPrefix(b.GoVersion, "go"), "")
		for _, m := range b.Deps {
			replaced := ""
			if m.Replace != nil {
				replaced, m = m.Path, m.Replace
			}
			add(modules, m.Path, m.Version, replaced)
		}
	}
	main := cyclonedx.Component{
		BOMRef: packageURL(builds[0].Main.Path, version) + "#cmd/" + program, Type: cyclonedx.ComponentTypeApplication, Name: program, Version: version,
		PackageURL: packageURL(builds[0].Main.Path, version) + "#cmd/" + program,
		Properties: &[]cyclonedx.Property{{Name: "fixedip.io:commit", Value: commit}},
	}
	refs := slices.Sorted(maps.Keys(modules))
	components := make([]cyclonedx.Component, 0, len(refs))
	for _, ref := range refs {
		components = append(components, modules[ref])
	}
	bom := cyclonedx.NewBOM()
	bom.SerialNumber = serial(program, version, commit, refs)
	bom.Metadata = &cyclonedx.Metadata{Timestamp: created.Format(time.RFC3339), Component: &main}
	bom.Components = &components
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: main.BOMRef, Dependencies: &refs}}
	return bom
}

// add adds a module. replaced is the path of the module that it replaces; empty if it replaces none.
func add(modules map[string]cyclonedx.Component, path, version, replaced string) {
	ref := packageURL(path, version)
	c := cyclonedx.Component{BOMRef: ref, Type: cyclonedx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: ref}
	if replaced != "" && replaced != path {
		c.Properties = &[]cyclonedx.Property{{Name: "fixedip.io:replaces", Value: replaced}}
	}
	modules[ref] = c
}

// packageURL returns the package URL of a Go module; that of the standard library is pkg:golang/std.
func packageURL(path, version string) string {
	return "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
}

// serial returns the serial number of a bill of materials. Equal contents have equal numbers.
func serial(program, version, commit string, refs []string) string {
	var content bytes.Buffer
	fmt.Fprintln(&content, program, version, commit, refs)
	return uuid.NewSHA1(uuid.NameSpaceURL, content.Bytes()).URN()
}
