// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package poolguard

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"fixedip.io/fixedip/ipam/core/address"
)

// TestSync checks the writes of Sync for a ConfigMap that is missing, equal or changed, and the result of Sync if another client
// is faster or the controller lacks a right.
func TestSync(t *testing.T) {
	pools := []address.ClusterPool{{CIDR: netip.MustParsePrefix("10.240.0.0/16"), MaskSize: 24}, {CIDR: netip.MustParsePrefix("fd00:240::/48"), MaskSize: 120}}
	const both = "10.240.0.0/16,fd00:240::/48"
	existing := func(data map[string]string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "fixedip-system", Name: Name}, Data: data}
	}
	resource := corev1.Resource("configmaps")
	for name, c := range map[string]struct {
		before  *corev1.ConfigMap
		pools   []address.ClusterPool
		fails   error
		want    map[string]string
		writes  int
		wantErr bool
	}{
		"missing":                     {pools: pools, want: map[string]string{"pools": both}, writes: 1},
		"equal":                       {before: existing(map[string]string{"pools": both}), pools: pools, want: map[string]string{"pools": both}},
		"changed":                     {before: existing(map[string]string{"pools": "0.0.0.0/0", "note": "mine"}), pools: pools, want: map[string]string{"pools": both, "note": "mine"}, writes: 1},
		"emptied":                     {before: existing(nil), pools: pools, want: map[string]string{"pools": both}, writes: 1},
		"subnets of Kubernetes":       {before: existing(map[string]string{"pools": both}), want: map[string]string{"pools": "0.0.0.0/0,::/0"}, writes: 1},
		"another client created it":   {pools: pools, fails: apierrors.NewAlreadyExists(resource, Name), writes: 1},
		"another client was faster":   {before: existing(nil), pools: pools, fails: apierrors.NewConflict(resource, Name, errors.New("changed")), writes: 1},
		"without the right to create": {pools: pools, fails: apierrors.NewForbidden(resource, Name, errors.New("no right")), writes: 1, wantErr: true},
		"without the right to update": {before: existing(nil), pools: pools, fails: apierrors.NewForbidden(resource, Name, errors.New("no right")), writes: 1, wantErr: true},
	} {
		writes := 0
		b := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.CreateOption) error {
				if writes++; c.fails != nil {
					return c.fails
				}
				return w.Create(ctx, o, opts...)
			},
			Update: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
				if writes++; c.fails != nil {
					return c.fails
				}
				return w.Update(ctx, o, opts...)
			},
		})
		if c.before != nil {
			b = b.WithObjects(c.before)
		}
		api := b.Build()
		g := &Guard{API: api, Namespace: "fixedip-system", ClusterPools: c.pools}
		if err := g.Sync(t.Context()); (err != nil) != c.wantErr {
			t.Errorf("%s: got error %v, want an error: %t", name, err, c.wantErr)
		}
		if writes != c.writes {
			t.Errorf("%s: got %d writes, want %d", name, writes, c.writes)
		}
		if c.want == nil {
			continue
		}
		var got corev1.ConfigMap
		if err := api.Get(t.Context(), client.ObjectKey{Namespace: "fixedip-system", Name: Name}, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, got.Data); diff != "" {
			t.Errorf("%s: data (-want +got):\n%s", name, diff)
		}
		if err := g.Sync(t.Context()); err != nil || writes != c.writes {
			t.Errorf("%s, once more: got error %v and %d writes, want none more", name, err, writes-c.writes)
		}
	}
}

// TestLog checks that Start logs an error once while it lasts, and again if it returns after a success.
func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var denied atomic.Bool
		api := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if denied.Load() {
					return apierrors.NewForbidden(corev1.Resource("configmaps"), Name, errors.New("no right"))
				}
				return w.Get(ctx, key, o, opts...)
			},
		}).Build()
		var logged atomic.Int32
		ctx := klog.NewContext(t.Context(), funcr.New(func(_, args string) {
			if strings.Contains(args, "forbidden") {
				logged.Add(1)
			}
		}, funcr.Options{}))
		ctx, cancel := context.WithCancel(ctx)
		g := &Guard{API: api, Namespace: "fixedip-system"}
		denied.Store(true)
		go func() { _ = g.Start(ctx) }()
		for i, step := range []struct {
			denied bool
			want   int32
		}{{true, 1}, {true, 1}, {false, 1}, {true, 2}, {true, 2}} {
			denied.Store(step.denied)
			time.Sleep(interval)
			synctest.Wait()
			if got := logged.Load(); got != step.want {
				t.Errorf("step %d: got %d logged errors, want %d", i, got, step.want)
			}
		}
		cancel()
	})
}
