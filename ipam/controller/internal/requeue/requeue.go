// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package requeue says when a controller looks at an object again that it could not bring to its end.
//
// It may not read an object or decide about one.
package requeue

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"fixedip.io/fixedip/ipam/store/workloads"
)

const (
	// AfterConflict is how long a step waits whose state has changed meanwhile.
	AfterConflict = time.Second
	// WhileUnknown is how long an identity waits whose kind of workload is not known: its watch has just begun, or its
	// API is not installed.
	WhileUnknown = 5 * time.Second
)

// ErrSuperseded is the error of a step whose state has changed since it was decided.
var ErrSuperseded = errors.New("the state has changed meanwhile")

// WhenKnown returns a later look for an identity whose workload is not known yet, and any other error as it is.
func WhenKnown(ctx context.Context, err error) (ctrl.Result, error) {
	if errors.Is(err, workloads.ErrUnknown) {
		klog.FromContext(ctx).V(3).Info("The workload is not known yet", "err", err)
		return ctrl.Result{RequeueAfter: WhileUnknown}, nil
	}
	return ctrl.Result{}, err
}
