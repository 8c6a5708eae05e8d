// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command fixedip-kubelet is the kubelet of Kubernetes, unchanged, in the version that this module is built with.
// The nodes of package realcluster run it.
package main

import (
	"context"
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // registers the log format json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // registers the metrics of API clients
	_ "k8s.io/component-base/metrics/prometheus/version"  // registers the metric of the build version
	"k8s.io/kubernetes/cmd/kubelet/app"
)

func main() { os.Exit(cli.Run(app.NewKubeletCommand(context.Background()))) }
