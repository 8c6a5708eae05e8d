// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/realcluster"
	"fixedip.io/fixedip/hack/realcluster/layout"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/scheme"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

const (
	// poolSize is the number of entries of a pool. It is small, so that a new pod is likely to get an address that was
	// withdrawn a moment ago if the agent still offers that address.
	poolSize = 9
	// podsPerNode is the number of pods that are created and deleted on each node. The pool also has entries for the
	// router and for two withdrawn addresses.
	podsPerNode = 4
)

// lab is a running cluster on which barriers are tested.
type lab struct {
	options options
	cluster *realcluster.Cluster
	api     client.WithWatch
	pools   *ciliumpool.Client
	nodes   []*site
	end     context.CancelFunc
	running sync.WaitGroup
	// calm is true while no pods are created or deleted.
	calm atomic.Bool

	mu      sync.Mutex
	results []result
}

// site is one node of the lab.
type site struct {
	*lab
	name   string
	node   *realcluster.Node
	prefix netip.Prefix
	// changed gets a value after each change of the CiliumNode, unless it has one already.
	changed chan struct{}
	truth   *truth
}

func startLab(ctx context.Context, o options) (*lab, error) {
	l := &lab{options: o}
	ctx, l.end = context.WithCancel(ctx)
	co, err := o.clusterOptions(l.connect)
	if err != nil {
		return nil, err
	}
	for i := range o.nodes {
		l.nodes = append(l.nodes, &site{
			lab: l, name: fmt.Sprintf("node-%d", i+1), changed: make(chan struct{}, 1),
			prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 240, byte(i + 1), 0}), 24),
		})
	}
	if l.cluster, err = realcluster.Start(ctx, co); err != nil {
		l.end()
		return nil, err
	}
	for _, s := range l.nodes {
		s.node = l.cluster.Node(s.name)
		s.truth = newTruth(l.cluster, s.name)
		l.running.Go(func() { s.watch(ctx) })
		l.running.Go(func() { s.truth.run(ctx) })
		for i := range podsPerNode {
			l.running.Go(func() { s.churn(ctx, fmt.Sprintf("%s-pod-%d", s.name, i)) })
		}
	}
	return l, nil
}

func (l *lab) stop() {
	l.end()
	l.running.Wait()
	l.cluster.Stop()
}

// connect creates the clients and starts to write the first pool of each node. An agent without a pool does not become
// ready.
func (l *lab) connect(ctx context.Context, c *realcluster.Cluster) error {
	cfg, err := c.RESTConfig(cluster.Admin)
	if err != nil {
		return err
	}
	kinds, err := scheme.New()
	if err != nil {
		return err
	}
	if l.api, err = client.NewWithWatch(cfg, client.Options{Scheme: kinds}); err != nil {
		return fmt.Errorf("create a client: %w", err)
	}
	l.pools = ciliumpool.New(l.api)
	for _, s := range l.nodes {
		go func() {
			for ctx.Err() == nil && s.firstPool(ctx) != nil {
				time.Sleep(100 * time.Millisecond)
			}
		}()
	}
	return nil
}

func (s *site) firstPool(ctx context.Context) error {
	entries := ipamtypes.AllocationMap{}
	for a := s.prefix.Addr(); len(entries) < poolSize; {
		a = a.Next()
		entries[a.String()] = ipamtypes.AllocationIP{}
	}
	return s.patchSpec(ctx, map[string]any{"pool": entries, "podCIDRs": []string{s.prefix.String()}})
}

// patchSpec merges fields into spec.ipam.
func (s *site) patchSpec(ctx context.Context, ipam map[string]any) error {
	data, err := json.Marshal(map[string]any{"spec": map[string]any{"ipam": ipam}})
	if err != nil {
		return err
	}
	cn := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: s.name}}
	return s.api.Patch(ctx, cn, client.RawPatch(types.MergePatchType, data))
}

// get reads the CiliumNode from the API server. It retries errors until ctx ends, because the API server of a busy machine
// may not respond in time.
func (s *site) get(ctx context.Context) (pool.NodePool, error) {
	for {
		n, err := s.getOnce(ctx)
		if err == nil || ctx.Err() != nil {
			return n, err
		}
		pause(ctx, 200*time.Millisecond)
	}
}

func (s *site) getOnce(ctx context.Context) (pool.NodePool, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return s.pools.Get(ctx, s.name)
}

// watch sends to changed after each change of the CiliumNode, until ctx ends.
func (s *site) watch(ctx context.Context) {
	for ctx.Err() == nil {
		w, err := s.api.Watch(ctx, &ciliumv2.CiliumNodeList{}, client.MatchingFields{"metadata.name": s.name})
		if err != nil {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		for range w.ResultChan() {
			select {
			case s.changed <- struct{}{}:
			default:
			}
		}
	}
}

// churn creates a pod with this name on the node and deletes it after some seconds, repeatedly until ctx ends. It
// pauses while calm is true.
func (s *site) churn(ctx context.Context, name string) {
	meta := metav1.ObjectMeta{Namespace: "default", Name: name}
	for ctx.Err() == nil {
		if s.calm.Load() {
			pause(ctx, 200*time.Millisecond)
			continue
		}
		pod := &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{
			NodeName: s.name, TerminationGracePeriodSeconds: ptr.To[int64](0), AutomountServiceAccountToken: ptr.To(false),
			Containers: []corev1.Container{{Name: "web", Image: layout.WebImage, ImagePullPolicy: corev1.PullNever}},
		}}
		if err := s.api.Create(ctx, pod); err != nil && !apierrors.IsAlreadyExists(err) {
			pause(ctx, time.Second)
			continue
		}
		pause(ctx, 2*time.Second+rand.N(5*time.Second))
		for s.calm.Load() && ctx.Err() == nil {
			pause(ctx, 200*time.Millisecond)
		}
		if err := s.api.Delete(ctx, &corev1.Pod{ObjectMeta: meta}, client.GracePeriodSeconds(1)); err != nil {
			continue
		}
		for ctx.Err() == nil && !apierrors.IsNotFound(s.api.Get(ctx, client.ObjectKey{Namespace: "default", Name: name}, pod)) {
			pause(ctx, 100*time.Millisecond)
		}
	}
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// add stores a result and appends it to the file options.out, if that is set.
func (l *lab) add(r result) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.results = append(l.results, r)
	if l.options.out == "" {
		return nil
	}
	return appendResult(l.options, r)
}

// runDisturbance tries n barriers on each node under the disturbance.
func (l *lab) runDisturbance(ctx context.Context, d disturbance, n int) error {
	l.calm.Store(d.calm)
	began := time.Now()
	var wg sync.WaitGroup
	errs := make([]error, len(l.nodes))
	for i, s := range l.nodes {
		wg.Go(func() {
			for range n {
				// Begin the barriers of different nodes at different times.
				pause(ctx, rand.N(time.Second))
				r, err := s.try(ctx, d)
				if err != nil {
					errs[i] = fmt.Errorf("node %s: %w", s.name, err)
					return
				}
				if err := l.add(r); err != nil {
					errs[i] = err
					return
				}
			}
		})
	}
	wg.Wait()
	fmt.Fprintf(os.Stderr, "disturbance %s: done after %s\n", d.name, time.Since(began).Round(time.Second))
	return errors.Join(errs...)
}
