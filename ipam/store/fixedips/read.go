// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedips

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/ledger"
)

// Read reads the FixedIPs that a ledger knows from a cache, without those that are gone. Reading the known ones is
// cheaper than listing all FixedIPs of a large cluster.
func Read(ctx context.Context, cached client.Reader, known []ledger.Reservation) ([]*v1alpha1.FixedIP, error) {
	var found []*v1alpha1.FixedIP
	for _, k := range known {
		namespace, name, _ := strings.Cut(k.Record, "/")
		fip := &v1alpha1.FixedIP{}
		switch err := cached.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, fip); {
		case err == nil:
			found = append(found, fip)
		case !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("read FixedIP %s from the cache: %w", k.Record, err)
		}
	}
	return found, nil
}
