// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command preflight prints the missing prerequisites of a cluster of real nodes and exits with status 2. If none is missing,
// it prints nothing.
//
//	preflight [-nodes 2]
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"

	"fixedip.io/fixedip/hack/realcluster/preflight"
)

func main() {
	nodes := flag.Int("nodes", 2, "Number of nodes of the cluster")
	flag.Parse()
	err := preflight.Check(*nodes)
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "preflight: %v\n", err)
	if missing := (*preflight.Missing)(nil); errors.As(err, &missing) {
		os.Exit(preflight.ExitCode)
	}
	os.Exit(1)
}
