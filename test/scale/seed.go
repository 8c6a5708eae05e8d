// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"path"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// seedBatch is the number of objects per transaction; etcd accepts 128 at most.
	seedBatch = 100
	// seedWriters is the number of concurrent transactions.
	seedWriters = 8
)

// seeder writes objects directly into etcd, encoded as the API server encodes them, before the API server starts. Writing
// the same objects through the API would take a quarter of an hour.
type seeder struct {
	etcd    *embed.Etcd
	builtin runtime.Serializer
	log     func(format string, args ...any)
}

func startSeeder(dir string, log func(format string, args ...any)) (*seeder, error) {
	cfg := embed.NewConfig()
	cfg.Dir, cfg.UnsafeNoFsync, cfg.EnableGRPCGateway = dir, true, false
	// Only fatal messages are logged, because etcd logs its stop as an error.
	cfg.LogLevel, cfg.LogOutputs = "fatal", []string{"stderr"}
	loopback := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls, cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = loopback, loopback, loopback, loopback
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, fmt.Errorf("start etcd in %s: %w", dir, err)
	}
	<-e.Server.ReadyNotify()
	return &seeder{etcd: e, builtin: protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), log: log}, nil
}

func (s *seeder) stop() { s.etcd.Close() }

// seed writes all objects of the world.
func (s *seeder) seed(ctx context.Context, w *world) error {
	for _, kind := range []struct {
		// prefix is the key prefix of the kind in the storage of the API server.
		prefix string
		count  int
		make   func(i int) client.Object
	}{
		{"namespaces", namespaces, func(i int) client.Object { return namespaceOf(i) }},
		{"minions", w.nodes, func(i int) client.Object { return w.node(i) }},
		{"cilium.io/ciliumnodes", w.nodes, func(i int) client.Object { return w.ciliumNode(i) }},
		{"statefulsets", (w.fixed + replicas - 1) / replicas, func(i int) client.Object { return w.statefulSet(i) }},
		{"fixedip.io/fixedips", w.fixed, func(i int) client.Object { return w.record(w.place(i)) }},
		{"pods", w.pods, func(i int) client.Object { return w.pod(w.place(i)) }},
		{"cilium.io/ciliumendpoints", w.pods, func(i int) client.Object { return w.endpoint(w.place(i)) }},
	} {
		if err := s.seedKind(ctx, kind.prefix, kind.count, kind.make); err != nil {
			return fmt.Errorf("write %s: %w", kind.prefix, err)
		}
	}
	return nil
}

func namespaceOf(i int) *corev1.Namespace {
	return &corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("team-%03d", i), UID: uid('a', i)},
		Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
		Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
	}
}

func (s *seeder) seedKind(ctx context.Context, prefix string, count int, make func(i int) client.Object) error {
	began := time.Now()
	var written atomic.Int64
	writers, ctx := errgroup.WithContext(ctx)
	writers.SetLimit(seedWriters)
	for first := 0; first < count; first += seedBatch {
		writers.Go(func() error {
			txn := &etcdserverpb.TxnRequest{}
			for i := first; i < min(first+seedBatch, count); i++ {
				o := make(i)
				data, err := s.encode(o)
				if err != nil {
					return fmt.Errorf("encode %s/%s: %w", o.GetNamespace(), o.GetName(), err)
				}
				written.Add(int64(len(data)))
				key := path.Join("/registry", prefix, o.GetNamespace(), o.GetName())
				txn.Success = append(txn.Success, &etcdserverpb.RequestOp{Request: &etcdserverpb.RequestOp_RequestPut{
					RequestPut: &etcdserverpb.PutRequest{Key: []byte(key), Value: data},
				}})
			}
			_, err := s.etcd.Server.Txn(ctx, txn)
			return err
		})
	}
	if err := writers.Wait(); err != nil {
		return err
	}
	s.log("  %-28s %7d objects of %5d bytes in %s", prefix, count, written.Load()/max(1, int64(count)), time.Since(began).Round(100*time.Millisecond))
	return nil
}

// encode encodes an object as the API server does: protobuf for built-in kinds, JSON for custom resources.
func (s *seeder) encode(o client.Object) ([]byte, error) {
	if !scheme.Scheme.Recognizes(o.GetObjectKind().GroupVersionKind()) {
		return json.Marshal(o)
	}
	var b bytes.Buffer
	err := s.builtin.Encode(o, &b)
	return b.Bytes(), err
}
