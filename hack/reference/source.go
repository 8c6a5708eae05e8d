// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
)

// source is a Go file of the product.
type source struct {
	// path is relative to the root of the repository.
	path string
	ast  *ast.File
}

// sources parses the Go files of the folders ipam, plugins and cmd, except tests.
func sources(root string) ([]source, error) {
	var all []source
	for _, folder := range []string{"ipam", "plugins", "cmd"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(root, path)
			all = append(all, source{filepath.ToSlash(name), parsed})
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("parse the code of %s: %w", folder, err)
		}
	}
	return all, nil
}

// constant is a string constant of the file path. comment is its documentation on one line.
type constant struct{ path, name, value, comment string }

// constants returns the package-level string constants of the files.
func constants(files []source) []constant {
	var all []constant
	for _, f := range files {
		for _, d := range f.ast.Decls {
			decl, ok := d.(*ast.GenDecl)
			if !ok || decl.Tok != token.CONST {
				continue
			}
			for _, s := range decl.Specs {
				spec := s.(*ast.ValueSpec)
				for i, name := range spec.Names {
					if i >= len(spec.Values) {
						continue
					}
					if value, ok := text(spec.Values[i]); ok {
						comment := spec.Doc.Text()
						if comment == "" && len(decl.Specs) == 1 {
							comment = decl.Doc.Text()
						}
						all = append(all, constant{f.path, name.Name, value, oneLine(comment)})
					}
				}
			}
		}
	}
	return all
}

// text returns the value of an expression that is a string literal.
func text(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	value, err := strconv.Unquote(lit.Value)
	return value, err == nil
}
