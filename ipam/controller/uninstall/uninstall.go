// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package uninstall

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/scaledown"
)

const (
	// pageSize is the number of FixedIPs in one response of the API server.
	pageSize = 500
	// workers is the number of FixedIPs that are written at the same time.
	workers = 20
	// restoreTimeout is the time limit for starting the controller again after an error.
	restoreTimeout = 15 * time.Second
)

// Uninstall contains the clients and settings of one run.
type Uninstall struct {
	// Client reads from the API server, not from a cache. Its scheme has FixedIPs, Nodes and Deployments.
	Client     client.Client
	Kubernetes kubernetes.Interface
	// Deployment is the Deployment of the controller. It is scaled to 0 replicas. If Deployment.Name is empty or the Deployment
	// does not exist, the user must have stopped the controller.
	Deployment types.NamespacedName
	// Lease is the Lease of the leader among the controllers. Identity is the name of this process in that Lease.
	Lease    types.NamespacedName
	Identity string
	// LeaseDuration, RenewDeadline and RetryPeriod are those of leader election.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
}

// Run stops the controller, and removes its finalizers from FixedIPs and its annotations from Nodes. If Run fails before all
// finalizers are removed, it scales the Deployment back to its former number of replicas and returns the error. If Run cannot
// remove annotations of Nodes, it logs the error and succeeds. ctx limits the total time, including the time until the pods of
// the controller have ended, but not the scaling after an error, which has the limit restoreTimeout.
func (u *Uninstall) Run(ctx context.Context) (err error) {
	replicas, err := u.scale(ctx, 0)
	if err != nil {
		return err
	}
	defer func() {
		if err == nil || replicas == 0 {
			return
		}
		// The time of ctx may be over.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreTimeout)
		defer cancel()
		if _, failed := u.scale(ctx, replicas); failed != nil {
			err = errors.Join(err, fmt.Errorf("start the controller again: %w", failed))
		}
	}()
	return u.asLeader(ctx, func(ctx context.Context) error {
		n, err := u.removeFinalizers(ctx)
		if err != nil {
			return err
		}
		klog.FromContext(ctx).Info("No FixedIP has the finalizer of the controller any more; the FixedIPs and the pools stay", "finalizersRemoved", n)
		if err := scaledown.Clear(ctx, u.Client); err != nil {
			// The annotations block no deletion, and a user can remove them.
			klog.FromContext(ctx).Error(err, "Failed to remove the annotations for autoscalers from some Nodes; to remove them, run kubectl annotate node NODE NAME- for each NAME in the annotation that lists them, and for that annotation itself", "annotation", scaledown.ListOfOurs)
		}
		return nil
	})
}

// scale sets the number of replicas of the Deployment, and returns the number that it had; 0 if there is no Deployment.
func (u *Uninstall) scale(ctx context.Context, to int32) (former int32, err error) {
	if u.Deployment.Name == "" {
		return 0, nil
	}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: u.Deployment.Namespace, Name: u.Deployment.Name}}
	scale := &autoscalingv1.Scale{}
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := u.Client.SubResource("scale").Get(ctx, d, scale); err != nil {
			return err
		}
		former, scale.Spec.Replicas = scale.Spec.Replicas, to
		return u.Client.SubResource("scale").Update(ctx, d, client.WithSubResourceBody(scale))
	})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("scale Deployment %s to %d replicas: %w", u.Deployment, to, err)
	}
	return former, nil
}

// asLeader waits until this process is the leader among the controllers, so that none of them is active, and calls act. The
// context of act ends if the Lease is lost.
func (u *Uninstall) asLeader(ctx context.Context, act func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// acted receives the result of act, which LeaderElector calls in a goroutine.
	acted := make(chan error, 1)
	var led atomic.Bool
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: u.Lease.Namespace, Name: u.Lease.Name},
			Client:     u.Kubernetes.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: u.Identity},
		},
		LeaseDuration: u.LeaseDuration, RenewDeadline: u.RenewDeadline, RetryPeriod: u.RetryPeriod,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				led.Store(true)
				acted <- act(ctx)
				cancel()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("set up the leader election with Lease %s: %w", u.Lease, err)
	}
	elector.Run(ctx)
	if led.Load() {
		return <-acted
	}
	return fmt.Errorf("could not acquire the Lease %s (last known holder: %q); if a controller still runs, stop it, then try again: %w", u.Lease, elector.GetLeader(), context.Cause(ctx))
}

// removeFinalizers removes the finalizer of the controller from all FixedIPs, and returns the number of FixedIPs that had it.
func (u *Uninstall) removeFinalizers(ctx context.Context) (int64, error) {
	var removed atomic.Int64
	page := &v1alpha1.FixedIPList{}
	for {
		if err := u.Client.List(ctx, page, client.Limit(pageSize), client.Continue(page.Continue)); err != nil {
			return removed.Load(), fmt.Errorf("list the FixedIPs: %w", err)
		}
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(workers)
		for i := range page.Items {
			record := &page.Items[i]
			g.Go(func() error {
				changed, err := u.removeFinalizer(ctx, record)
				if err != nil {
					return fmt.Errorf("remove the finalizer %s of FixedIP %s: %w", v1alpha1.Finalizer, client.ObjectKeyFromObject(record), err)
				}
				if changed {
					removed.Add(1)
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil || page.Continue == "" {
			return removed.Load(), err
		}
	}
}

// removeFinalizer removes the finalizer of the controller from one FixedIP, and reports whether the FixedIP had it. It reads
// the FixedIP again after a conflict.
func (u *Uninstall) removeFinalizer(ctx context.Context, record *v1alpha1.FixedIP) (changed bool, err error) {
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if changed = controllerutil.RemoveFinalizer(record, v1alpha1.Finalizer); !changed {
			return nil
		}
		err := u.Client.Update(ctx, record)
		if apierrors.IsConflict(err) {
			if err := u.Client.Get(ctx, client.ObjectKeyFromObject(record), record); err != nil {
				return err
			}
		}
		return err
	})
	// A FixedIP that does not exist any more has no finalizer.
	return changed, client.IgnoreNotFound(err)
}
