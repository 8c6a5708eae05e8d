// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/scheme"
	"fixedip.io/fixedip/test/bench/world"
)

// startTimeout limits the start of the API server, which reads all objects, and then the wait for each watch cache.
const startTimeout = 10 * time.Minute

// Options configure an API server.
type Options struct {
	// Bin is the folder of the programs, and Manifests that of the manifests. Dir is the work folder, which is emptied
	// first.
	Bin, Dir, Manifests string
	World               *world.World
	// SaveMemory makes the API server collect garbage more often, unless the environment variable GOGC is set. In a
	// benchmark with a large cluster, the API server uses most of the memory of the machine.
	SaveMemory bool
	Log        func(format string, args ...any)
}

// Start writes all objects into etcd and starts the API server. It returns the cluster and the client configuration of
// an administrator, which has no rate limit.
func Start(ctx context.Context, o Options) (*cluster.Cluster, *rest.Config, error) {
	if err := os.RemoveAll(o.Dir); err != nil {
		return nil, nil, fmt.Errorf("empty the work folder: %w", err)
	}
	store := filepath.Join(o.Dir, "control-plane", "etcd")
	if err := os.MkdirAll(store, 0o700); err != nil {
		return nil, nil, fmt.Errorf("create the work folder: %w", err)
	}
	if err := o.World.Write(ctx, store, o.Log); err != nil {
		return nil, nil, err
	}
	// etcd has been stopped. Return its memory to the operating system.
	debug.FreeOSMemory()
	// Programs that are started later get the default again.
	if o.SaveMemory && os.Getenv("GOGC") == "" {
		if err := os.Setenv("GOGC", "50"); err != nil {
			return nil, nil, err
		}
		defer os.Unsetenv("GOGC")
	}
	c, err := cluster.Start(ctx, cluster.Options{
		Dir:      o.Dir,
		Binaries: cluster.Binaries{ControlPlane: filepath.Join(o.Bin, "fixedip-controlplane")},
		Manifests: []string{
			filepath.Join(o.Manifests, "crd"), filepath.Join(o.Manifests, "namespace.yaml"),
			filepath.Join(o.Manifests, "scheduler-rbac.yaml"), filepath.Join(o.Manifests, "controller-rbac.yaml"),
		},
		ControlPlaneArgs: []string{"--no-controllers", "--ready-timeout=" + startTimeout.String()},
		StartTimeout:     startTimeout,
		Log:              o.Log,
	})
	if err != nil {
		return nil, nil, err
	}
	admin, err := c.RESTConfig(cluster.Admin)
	if err != nil {
		c.Stop()
		return nil, nil, err
	}
	admin.QPS = -1
	if err := awaitWatchCaches(ctx, admin); err != nil {
		c.Stop()
		return nil, nil, err
	}
	return c, admin, nil
}

// awaitWatchCaches waits until the API server has read the custom resources into its watch caches. The API server is ready
// before that. Reading 150,000 CiliumEndpoints takes minutes, and the measured times must not include this time.
func awaitWatchCaches(ctx context.Context, cfg *rest.Config) error {
	api, err := NewClient(cfg)
	if err != nil {
		return err
	}
	fromCache := &client.ListOptions{Raw: &metav1.ListOptions{
		SendInitialEvents: ptr.To(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true,
	}}
	for _, list := range []client.ObjectList{&ciliumv2.CiliumNodeList{}, &ciliumv2.CiliumEndpointList{}, &v1alpha1.FixedIPList{}, &v1alpha1.NodeSubnetList{}} {
		err := wait.PollUntilContextTimeout(ctx, time.Second, startTimeout, true, func(ctx context.Context) (bool, error) {
			w, err := api.Watch(ctx, list, fromCache)
			if apierrors.IsTooManyRequests(err) {
				// The cache is not ready.
				return false, nil
			}
			if err == nil {
				w.Stop()
			}
			return true, err
		})
		if err != nil {
			return fmt.Errorf("wait for the API server's cache of %T: %w", list, err)
		}
	}
	return nil
}

// NewClient returns a client for the kinds of a world.
func NewClient(cfg *rest.Config) (client.WithWatch, error) {
	kinds, err := scheme.New()
	if err != nil {
		return nil, err
	}
	api, err := client.NewWithWatch(cfg, client.Options{Scheme: kinds})
	if err != nil {
		return nil, fmt.Errorf("create a client: %w", err)
	}
	return api, nil
}

// writers is the number of calls that InParallel makes at the same time.
const writers = 32

// InParallel calls each for the numbers 0 to n-1, at most writers calls at the same time. It returns the first error.
func InParallel(ctx context.Context, n int, each func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := range n {
		group.Go(func() error { return each(ctx, i) })
	}
	return group.Wait()
}
