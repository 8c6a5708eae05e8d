// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package serverversion compares the version of the API server with the versions that a program supports. A program for
// which the API server is too old exits with one clear error instead of waiting for an API that the server does not
// have.
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

// Check returns an error if the API server is older than Kubernetes 1.oldest; why is the reason for that minimum. Programs
// are tested with the minor version Own and the next one: if the API server is newer, Check logs that. If the API server
// does not respond, Check logs that and returns nil: the API server may be restarting, and later requests are retried. It does
// the same if the version cannot be parsed or is not 1.x.
func Check(ctx context.Context, server discovery.ServerVersionInterface, oldest uint, why string) error {
	log := klog.FromContext(ctx)
	info, err := server.ServerVersion()
	if err != nil {
		log.Error(err, "Could not read the version of the API server; the version is not checked")
		return nil
	}
	v, err := version.ParseGeneric(info.GitVersion)
	switch newest := Own + 1; {
	case err != nil || v.Major() != 1:
		log.Info("The version of the API server cannot be parsed or is not 1.x; the version is not checked", "version", info.GitVersion)
	case v.Minor() < oldest:
		return fmt.Errorf("the API server has version %s, and this program needs Kubernetes 1.%d or later: %s; upgrade the API server, or use a version of fixedip that supports it", info.GitVersion, oldest, why)
	case v.Minor() > newest:
		log.Info("The API server is newer than the versions that this program was tested with", "version", info.GitVersion, "newestTested", fmt.Sprintf("1.%d", newest))
	}
	return nil
}
