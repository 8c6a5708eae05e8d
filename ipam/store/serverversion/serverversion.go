// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package serverversion compares the version of the API server with those that a program works with, so that a program
// ends with one clear error and does not wait for an API that the server does not have.
package serverversion

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
	baseversion "k8s.io/component-base/version"
	"k8s.io/klog/v2"
)

// Own is the minor version of the Kubernetes libraries of this program.
var Own = version.MustParseGeneric(baseversion.DefaultKubeBinaryVersion).Minor()

// Check returns an error if the API server is older than Kubernetes 1.oldest; why says what the program needs that
// version for. It logs a server that is newer than any that was tested, which are those of Own and the next minor version. A
// server that does not answer is no error: it may be restarting, and whatever the program asks next waits for it.
func Check(ctx context.Context, server discovery.ServerVersionInterface, oldest uint, why string) error {
	log := klog.FromContext(ctx)
	info, err := server.ServerVersion()
	if err != nil {
		log.Error(err, "The API server could not be asked for its version")
		return nil
	}
	v, err := version.ParseGeneric(info.GitVersion)
	switch newest := Own + 1; {
	case err != nil || v.Major() != 1:
		log.Info("The version of the API server is unknown", "version", info.GitVersion)
	case v.Minor() < oldest:
		return fmt.Errorf("the API server is of Kubernetes %s, and 1.%d is the oldest that this program works with: %s", info.GitVersion, oldest, why)
	case v.Minor() > newest:
		log.Info("The API server is newer than those that this program was tested with", "version", info.GitVersion, "newestTested", fmt.Sprintf("1.%d", newest))
	}
	return nil
}
