// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// metricsOptions returns the options of the metrics server. With --metrics-secure, the server asks the API server,
// through a client with the configuration reviews, whether a user may read the metrics. reviews must not be the
// configuration of a dry run, which would refuse these requests as writes.
func (o *options) metricsOptions(reviews *rest.Config) server.Options {
	metrics := server.Options{BindAddress: o.metricsBindAddress, SecureServing: o.metricsSecure}
	if o.metricsSecure {
		metrics.FilterProvider = func(*rest.Config, *http.Client) (server.Filter, error) {
			httpClient, err := rest.HTTPClientFor(reviews)
			if err != nil {
				return nil, fmt.Errorf("create a client that checks the users of /metrics: %w", err)
			}
			return filters.WithAuthenticationAndAuthorization(reviews, httpClient)
		}
	}
	return metrics
}
