// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package world

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

// Write writes all objects of the world into the etcd in dir, which must not be running. log gets a line for each kind.
func (w *World) Write(ctx context.Context, dir string, log func(format string, args ...any)) error {
	s, err := startSeeder(dir, log)
	if err != nil {
		return err
	}
	defer s.etcd.Close()
	running := func(i int) Place {
		if i < w.Fixed {
			return w.FixedPod(i)
		}
		return w.OrdinaryPod(i - w.Fixed)
	}
	records := w.Fixed + w.Absent
	if w.WithoutFixedIPs {
		records = 0
	}
	replicaSets := (w.Ordinary + w.Expected + replicas - 1) / replicas
	for _, kind := range []struct {
		// prefix is the key prefix of the kind in the storage of the API server.
		prefix string
		count  int
		make   func(i int) client.Object
	}{
		{"namespaces", namespaces, func(i int) client.Object { return namespaceOf(i) }},
		{"serviceaccounts", namespaces, func(i int) client.Object { return serviceAccountOf(i) }},
		{"priorityclasses", 1, func(int) client.Object { return lowPriority() }},
		{"minions", w.Nodes, func(i int) client.Object { return w.node(i) }},
		{"cilium.io/ciliumnodes", w.Nodes, func(i int) client.Object { return w.CiliumNode(i) }},
		{"fixedip.io/nodesubnets", w.Nodes, func(i int) client.Object { return w.nodeSubnet(i) }},
		{"statefulsets", (w.Fixed + w.Absent + w.Unplaced + replicas - 1) / replicas, func(i int) client.Object { return w.statefulSet(i) }},
		{"replicasets", replicaSets, func(i int) client.Object { return w.replicaSet(i) }},
		{"deployments", min(1, w.Searching), func(int) client.Object { return w.slotDeployment() }},
		{"replicasets", min(1, w.Searching), func(int) client.Object { return w.slotReplicaSet() }},
		{"fixedip.io/fixedips", records, func(i int) client.Object { return w.record(w.FixedPod(i)) }},
		{"pods", w.Fixed + w.Ordinary, func(i int) client.Object { return w.Pod(running(i)) }},
		{"cilium.io/ciliumendpoints", w.Fixed + w.Ordinary, func(i int) client.Object { return w.endpoint(running(i)) }},
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
		ObjectMeta: metav1.ObjectMeta{Name: NamespaceName(i), UID: uid('a', i)},
		Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
		Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
	}
}

// serviceAccountOf returns the default service account of a namespace, without which no pod can be created.
func serviceAccountOf(i int) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta: metav1.ObjectMeta{Namespace: NamespaceName(i), Name: "default", UID: uid('t', i)},
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
