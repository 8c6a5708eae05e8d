// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cilium/cilium/pkg/ipam"
	ipamoption "github.com/cilium/cilium/pkg/ipam/option"
	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	k8sclient "github.com/cilium/cilium/pkg/k8s/client"
	typedciliumv2 "github.com/cilium/cilium/pkg/k8s/client/clientset/versioned/typed/cilium.io/v2"
	nodetypes "github.com/cilium/cilium/pkg/node/types"
	"github.com/cilium/cilium/pkg/option"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// api is the API server of Cilium's allocator: it serves one CiliumNode and stores its status.
type api struct {
	k8sclient.Clientset
	typedciliumv2.CiliumV2Interface
	typedciliumv2.CiliumNodeInterface
	events *watch.RaceFreeFakeWatcher

	mu      sync.Mutex
	node    *ciliumv2.CiliumNode
	reports int
	// unseen are the versions of the CiliumNode that the model has not processed yet. The watch has sent each of them
	// to Cilium's allocator.
	unseen []*ciliumv2.CiliumNode
	// refuses is true while UpdateStatus fails.
	refuses bool
	// tried is the resource version on which the last call of UpdateStatus was based.
	tried string
}

func (a *api) CiliumV2() typedciliumv2.CiliumV2Interface           { return a }
func (a *api) CiliumNodes() typedciliumv2.CiliumNodeInterface      { return a }
func (a *api) UpdateCiliumNodeResource()                           {}
func (a *api) K8sEventReceived(string, string, string, bool, bool) {}
func (a *api) K8sEventProcessed(string, string, bool)              {}
func (a *api) GetIPPoolForPod(string, ipam.Family) (string, error) {
	return string(ipam.PoolDefault()), nil
}

func (a *api) List(context.Context, metav1.ListOptions) (*ciliumv2.CiliumNodeList, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &ciliumv2.CiliumNodeList{ListMeta: metav1.ListMeta{ResourceVersion: a.node.ResourceVersion}, Items: []ciliumv2.CiliumNode{*a.node.DeepCopy()}}, nil
}

func (a *api) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return a.events, nil
}

// UpdateStatus stores the agent's report, and the watch delivers it like any write. A report that changes nothing makes
// no version: the allocator would take that version for the write of another client, and lose its unwritten answers.
func (a *api) UpdateStatus(_ context.Context, cn *ciliumv2.CiliumNode, _ metav1.UpdateOptions) (*ciliumv2.CiliumNode, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tried = cn.ResourceVersion
	switch {
	case a.refuses:
		return nil, fmt.Errorf("reports are refused")
	case cn.ResourceVersion != a.node.ResourceVersion:
		return nil, fmt.Errorf("conflict: the resource version is %s, want %s", cn.ResourceVersion, a.node.ResourceVersion)
	case !equality.Semantic.DeepEqual(cn.Status, a.node.Status):
		a.reports++
		a.write(func(n *ciliumv2.CiliumNode) { n.Status = *cn.Status.DeepCopy() })
	}
	return a.node.DeepCopy(), nil
}

// write makes a new version of the CiliumNode and sends it to the watch. The caller holds mu.
func (a *api) write(change func(*ciliumv2.CiliumNode)) {
	next := a.node.DeepCopy()
	change(next)
	var version int
	if _, err := fmt.Sscan(next.ResourceVersion, &version); err != nil {
		panic(err)
	}
	next.ResourceVersion = fmt.Sprint(version + 1)
	a.node = next
	a.unseen = append(a.unseen, next)
	a.events.Modify(next.DeepCopy())
}

// cilium returns Cilium's allocator. All tests share it, because package ipam of Cilium keeps the CiliumNode in a
// global variable.
var cilium = sync.OnceValue(func() *real {
	nodetypes.SetName("n")
	r := &real{server: &api{events: watch.NewRaceFreeFake(), node: &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "n", ResourceVersion: "1"}}}}
	r.server.node.Spec.IPAM.Pool = ipamtypes.AllocationMap{r.marker(): {Owner: markerOwner}}
	r.IPAM = ipam.NewIPAM(ipam.NewIPAMParams{
		Logger:        slog.New(slog.DiscardHandler),
		AgentConfig:   &option.DaemonConfig{IPAM: ipamoption.IPAMCRD, EnableIPv4: true, IPAMCiliumNodeUpdateRate: time.Millisecond},
		NodeDiscovery: r.server, K8sEventReg: r.server, Clientset: r.server, Metadata: r.server,
	})
	r.ConfigureAllocator()
	r.RestoreFinished()
	return r
})

type real struct {
	*ipam.IPAM
	server *api
	marks  int
}

// markerOwner is the owner of the marker's entry.
const markerOwner = "marker"

// marker returns the marker of the next version: an address whose entry shows that Cilium's allocator has processed the
// version.
func (r *real) marker() string {
	r.marks++
	return fmt.Sprintf("10.%d.%d.%d", 9+r.marks/62500, r.marks/250%250, r.marks%250+1)
}

// write stores a version with a new marker, and returns when Cilium's allocator has processed the version.
func (r *real) write(t *testing.T, change func(*ciliumv2.CiliumNode)) {
	t.Helper()
	marker := r.marker()
	r.server.mu.Lock()
	r.server.write(func(cn *ciliumv2.CiliumNode) {
		change(cn)
		maps.DeleteFunc(cn.Spec.IPAM.Pool, func(_ string, e ipamtypes.AllocationIP) bool { return e.Owner == markerOwner })
		cn.Spec.IPAM.Pool[marker] = ipamtypes.AllocationIP{Owner: markerOwner}
	})
	r.server.mu.Unlock()
	until(t, "Cilium's allocator has processed the version", func() bool {
		ip := net.ParseIP(marker)
		if _, err := r.AllocateIPWithoutSyncUpstream(ip, markerOwner, ipam.PoolDefault()); err != nil {
			return false
		}
		// ReleaseIP makes the allocator report.
		return r.ReleaseIP(ip, ipam.PoolDefault()) == nil
	})
}

// touch stores a version with the same spec and status, and returns when Cilium's allocator has seen the version. Call
// touch only while reports are refused: the allocator then retries, and each try shows the version on which it is
// based.
func (r *real) touch(t *testing.T) {
	t.Helper()
	r.server.mu.Lock()
	r.server.write(func(cn *ciliumv2.CiliumNode) { cn.Labels = map[string]string{"version": cn.ResourceVersion} })
	last := r.server.node.ResourceVersion
	r.server.mu.Unlock()
	until(t, "Cilium's allocator has seen a version with the same spec and status", func() bool {
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		return r.server.tried == last
	})
}

// refuse makes UpdateStatus fail if all is true, and succeed again otherwise.
func (r *real) refuse(all bool) {
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	r.server.refuses = all
}

// compare lets the model process the versions that Cilium's allocator gets, and returns when the stored report of Cilium's
// allocator equals that of the model. Both then have the same state.
func (r *real) compare(t *testing.T, model *Allocator) {
	t.Helper()
	var diff string
	until(t, "the reports of the model and of Cilium's allocator are equal", func() bool {
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		for _, cn := range r.server.unseen {
			model.See(cn)
		}
		r.server.unseen = nil
		got := r.server.node
		diff = cmp.Diff(status(model.Used(), model.Node.Status.IPAM.ReleaseIPs), status(got.Status.IPAM.Used, got.Status.IPAM.ReleaseIPs))
		return diff == ""
	}, &diff)
}

// status returns the compared parts of a report. Key: an address, or "handshake " and an address. Value: the owner, or the
// state of the handshake.
func status(used ipamtypes.AllocationMap, handshakes map[string]ipamtypes.IPReleaseStatus) map[string]string {
	all := map[string]string{}
	for ip, e := range used {
		all[ip] = e.Owner
	}
	for ip, s := range handshakes {
		all["handshake "+ip] = string(s)
	}
	return all
}

const timeout = 60 * time.Second

// until waits until holds returns true, which depends on goroutines of Cilium. After timeout it fails the test. The
// message contains what, a description of the condition, and the texts in why.
func until(t *testing.T, what string, holds func() bool, why ...*string) {
	t.Helper()
	for deadline := time.Now().Add(timeout); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			for _, text := range why {
				what += " (-model +cilium):\n" + *text
			}
			t.Fatalf("timeout of %v while waiting until %s", timeout, what)
		}
	}
}

// TestAgainstCilium gives the model and Cilium's allocator the same pools and requests, and compares their allocations
// and reports. If the choice of Cilium's allocator depends on the order of a map, that choice has to be one of the
// model's choices. The model then makes the same choice.
func TestAgainstCilium(t *testing.T) {
	real, model := cilium(), New(func(int) int { return 0 })
	real.refuse(false)
	t.Cleanup(func() {
		for ip := range model.Allocated {
			_ = real.ReleaseIP(net.ParseIP(ip), ipam.PoolDefault())
		}
	})
	real.write(t, func(cn *ciliumv2.CiliumNode) {
		cn.Spec.IPAM.Pool = ipamtypes.AllocationMap{"10.0.0.1": {}, "10.0.0.2": {}}
		cn.Status.IPAM.ReleaseIPs = nil
	})
	real.compare(t, model)
	from := rand.New(rand.NewPCG(1, 2))
	pods := []string{"db/a-0", "db/a-1", "db/b-0", "router"}
	marks := []ipamtypes.IPReleaseStatus{ipamoption.IPAMMarkForRelease, ipamoption.IPAMReleased, ipamoption.IPAMReadyForRelease, ipamoption.IPAMDoNotRelease}
	done := map[string]int{}
	for n := range 1500 {
		owner, ip := pods[from.IntN(len(pods))], fmt.Sprintf("10.0.0.%d", 1+from.IntN(6))
		handshake := func(cn *ciliumv2.CiliumNode) {
			keys := maps.Clone(cn.Status.IPAM.ReleaseIPs)
			if keys == nil {
				keys = map[string]ipamtypes.IPReleaseStatus{}
			}
			keys[ip] = marks[from.IntN(len(marks))]
			cn.Status.IPAM.ReleaseIPs = keys
		}
		what := []string{"next", "next", "release", "take", "pool", "pool", "handshake", "handshake with a write in between"}[from.IntN(8)]
		done[what]++
		switch what {
		case "next":
			choice := model.Owned(owner, false)
			if len(choice) == 0 {
				choice = model.Offered(false)
			}
			got, err := real.AllocateNextFamily(ipam.IPv4, owner, ipam.PoolDefault())
			if (err == nil) != (len(choice) > 0) {
				t.Fatalf("step %d: allocation for %s: Cilium's allocator returned error %v, the choices of the model are %v", n, owner, err, choice)
			}
			if err != nil {
				continue
			}
			i := slices.Index(choice, got.IP.String())
			if i < 0 {
				t.Fatalf("step %d: allocation for %s: Cilium's allocator returned %s, want one of the choices of the model, %v", n, owner, got.IP, choice)
			}
			model.choose = func(int) int { return i }
			if gives, err := model.Next(owner, false); err != nil || gives != got.IP.String() {
				t.Fatalf("step %d: allocation for %s: the model returned %q and error %v, want %s", n, owner, gives, err, got.IP)
			}
		case "release":
			// Cilium returns no error if there was nothing to release.
			_ = model.Release(ip)
			if err := real.ReleaseIP(net.ParseIP(ip), ipam.PoolDefault()); err != nil {
				t.Fatal(err)
			}
		case "take":
			want := model.Take(ip, owner)
			if _, err := real.AllocateIPWithoutSyncUpstream(net.ParseIP(ip), owner, ipam.PoolDefault()); (want == nil) != (err == nil) {
				t.Fatalf("step %d: allocation of %s: Cilium's allocator returned error %v, the model %v", n, ip, err, want)
			}
			// AllocateIPWithoutSyncUpstream triggers no report, as when the agent restores endpoints. The following
			// write triggers one.
			real.write(t, func(*ciliumv2.CiliumNode) {})
		case "pool":
			real.write(t, func(cn *ciliumv2.CiliumNode) {
				switch from.IntN(3) {
				case 0:
					delete(cn.Spec.IPAM.Pool, ip)
				case 1:
					cn.Spec.IPAM.Pool[ip] = ipamtypes.AllocationIP{}
				case 2:
					cn.Spec.IPAM.Pool[ip] = ipamtypes.AllocationIP{Owner: owner}
				}
			})
		case "handshake":
			real.write(t, handshake)
		case "handshake with a write in between":
			real.refuse(true)
			real.write(t, handshake)
			real.touch(t)
			real.refuse(false)
		}
		real.compare(t, model)
		for _, s := range model.Node.Status.IPAM.ReleaseIPs {
			if s == ipamoption.IPAMMarkForRelease {
				done["unanswered"]++
			}
		}
	}
	if done["unanswered"] == 0 {
		t.Error("no write of labels made the allocator lose an answer, want at least one lost answer")
	}
	t.Log(done, real.server.reports)
}
