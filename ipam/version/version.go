// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package version returns the version of fixedip and that of the Kubernetes libraries.
package version

import (
	"fmt"

	"k8s.io/component-base/version"
)

// fixedip is the version of fixedip. The linker sets it.
var fixedip = "unknown"

// Fixedip returns the version of fixedip, such as v0.1.0; "unknown" if the program was built without one.
func Fixedip() string { return fixedip }

// Kubernetes returns the version of Kubernetes whose libraries the program uses, such as v1.34.9.
func Kubernetes() string { return version.Get().GitVersion }

// Text returns the text that a program prints for --version, without a newline.
func Text(program string) string {
	return fmt.Sprintf("%s %s (Kubernetes %s)", program, Fixedip(), Kubernetes())
}
