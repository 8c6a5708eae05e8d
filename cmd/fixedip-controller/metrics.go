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

// metricsOptions returns the options of the metrics server. reviews is the configuration of the client that asks the API
// server about the users of metrics. It must not be that of a dry run, which would refuse the reviews as writes.
func (o *options) metricsOptions(reviews *rest.Config) server.Options {
	metrics := server.Options{BindAddress: o.metricsBindAddress, SecureServing: o.metricsSecure}
	if o.metricsSecure {
		metrics.FilterProvider = func(*rest.Config, *http.Client) (server.Filter, error) {
			httpClient, err := rest.HTTPClientFor(reviews)
			if err != nil {
				return nil, fmt.Errorf("create a client for the users of metrics: %w", err)
			}
			return filters.WithAuthenticationAndAuthorization(reviews, httpClient)
		}
	}
	return metrics
}
