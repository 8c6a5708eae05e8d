// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command fixedip-kubectl is kubectl, unchanged, in the version of Kubernetes that this module is built with. It is for
// machines without kubectl.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

func main() {
	// As in kubectl's main: the verbosity must be set before the command is created.
	_, _ = logs.GlogSetter(cmd.GetLogVerbosity(os.Args))
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err)
	}
}
