// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumpool

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/core/pool"
)

// policy is an API server with an admission policy that refuses every patch that names the pod db/bad-0. It delays the
// first patch until first is closed.
type policy struct {
	*apiServer
	first chan struct{}
}

func (p *policy) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if p.patches == 0 {
		<-p.first
	}
	data, err := patch.Data(obj)
	if err != nil {
		return err
	}
	if bytes.Contains(data, []byte("db/bad-0")) {
		p.patches++
		return apierrors.NewForbidden(resource, obj.GetName(), nil)
	}
	return p.apiServer.Patch(ctx, obj, patch, opts...)
}

// TestRefusedRequestFailsAlone checks that the other requests of a patch are fulfilled if the API server refuses the patch
// because of one request (finding S10 in docs/project/findings.md).
func TestRefusedRequestFailsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &policy{newAPI(t, ciliumNode(reports)), make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		w := NewWriter(ctx, New(api), func(string) (pool.NodePool, bool) { return FromCiliumNode(ciliumNode(reports)), true })
		errs := map[string]error{}
		done := make(chan struct{})
		claim := func(name, ip string) {
			entry := pool.OwnedEntry("db", name, "StatefulSet", "x")
			err := w.Write(ctx, WriteRequest{Node: "n", Decide: func(n pool.NodePool) ([]pool.EntryChange, error) { return n.Claim([]netip.Addr{addr(ip)}, entry) }})
			w.mu.Lock()
			errs[name] = err
			w.mu.Unlock()
			done <- struct{}{}
		}
		go claim("first-0", "10.0.1.200")
		synctest.Wait()
		go claim("good-0", "10.0.1.201")
		go claim("bad-0", "10.0.1.202")
		go claim("good-1", "10.0.1.203")
		synctest.Wait()
		close(api.first)
		for range 4 {
			<-done
		}
		cancel()
		w.Wait()
		entries := api.entries(t)
		for name, ip := range map[string]string{"first-0": "10.0.1.200", "good-0": "10.0.1.201", "good-1": "10.0.1.203"} {
			if errs[name] != nil || entries[addr(ip)].Owner() != "db/"+name {
				t.Errorf("%s: got error %v and entry %v, want its own entry", name, errs[name], entries[addr(ip)])
			}
		}
		if err := errs["bad-0"]; !errors.Is(err, ErrRefused) || entries[addr("10.0.1.202")].Owner() != "" {
			t.Errorf("bad-0: got error %v and entry %v, want error %v and no entry", err, entries[addr("10.0.1.202")], ErrRefused)
		}
	})
}

// TestFirstConflictCostsNoPause checks that the Writer retries without a pause after the first conflict, and with a pause
// after further conflicts (finding S10 in docs/project/findings.md).
func TestFirstConflictCostsNoPause(t *testing.T) {
	for conflicts, paused := range []bool{false, false, true} {
		synctest.Test(t, func(t *testing.T) {
			api := newAPI(t, ciliumNode(reports))
			api.fail = func(n int) (error, bool) {
				return only(n <= conflicts, apierrors.NewConflict(resource, "n", nil)), false
			}
			ctx, cancel := context.WithCancel(t.Context())
			w := NewWriter(ctx, New(api), func(string) (pool.NodePool, bool) { return FromCiliumNode(ciliumNode(reports)), true })
			began := time.Now()
			err := w.Write(ctx, WriteRequest{Node: "n", Decide: func(n pool.NodePool) ([]pool.EntryChange, error) {
				return n.Claim([]netip.Addr{addr("10.0.1.200")}, mysql0)
			}})
			if took := time.Since(began); err != nil || (took > 0) != paused {
				t.Errorf("%d conflicts: the write took %v and returned error %v, want pause: %v", conflicts, took, err, paused)
			}
			cancel()
			w.Wait()
		})
	}
}
