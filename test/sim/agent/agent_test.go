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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// api shows Cilium's allocator one CiliumNode, and takes its status.
type api struct {
	k8sclient.Clientset
	typedciliumv2.CiliumV2Interface
	typedciliumv2.CiliumNodeInterface
	events *watch.RaceFreeFakeWatcher

	mu      sync.Mutex
	node    *ciliumv2.CiliumNode
	reports int
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

// UpdateStatus is the agent's report. It comes back to it as any write does.
func (a *api) UpdateStatus(_ context.Context, cn *ciliumv2.CiliumNode, _ metav1.UpdateOptions) (*ciliumv2.CiliumNode, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if cn.ResourceVersion != a.node.ResourceVersion {
		return nil, fmt.Errorf("conflict: %s is not %s", cn.ResourceVersion, a.node.ResourceVersion)
	}
	a.reports++
	a.write(func(n *ciliumv2.CiliumNode) { n.Status = *cn.Status.DeepCopy() })
	return a.node.DeepCopy(), nil
}

// write makes a new version, and has the watch tell of it. Called under mu.
func (a *api) write(change func(*ciliumv2.CiliumNode)) {
	next := a.node.DeepCopy()
	change(next)
	var version int
	if _, err := fmt.Sscan(next.ResourceVersion, &version); err != nil {
		panic(err)
	}
	next.ResourceVersion = fmt.Sprint(version + 1)
	a.node = next
	a.events.Modify(next.DeepCopy())
}

// marker is that of a version: an address that nobody is given, by which it shows that the version was seen.
func marker(n int) string { return fmt.Sprintf("10.9.%d.%d", n/250, n%250+1) }

const patience = 20 * time.Second

// The model and Cilium's allocator are shown the same pools and asked for the same addresses. Where Cilium's
// goes by the order of a map, its choice has to be one that the model may make, and the model makes it.
func TestAgainstCilium(t *testing.T) {
	nodetypes.SetName("n")
	first := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "n", ResourceVersion: "1"}}
	first.Spec.IPAM.Pool = ipamtypes.AllocationMap{"10.0.0.1": {}, "10.0.0.2": {}, marker(0): {Owner: "sync"}}
	server := &api{events: watch.NewRaceFreeFake(), node: first}
	real := ipam.NewIPAM(ipam.NewIPAMParams{
		Logger:        slog.New(slog.DiscardHandler),
		AgentConfig:   &option.DaemonConfig{IPAM: ipamoption.IPAMCRD, EnableIPv4: true, IPAMCiliumNodeUpdateRate: time.Millisecond},
		NodeDiscovery: server, K8sEventReg: server, Clientset: server, Metadata: server,
	})
	real.ConfigureAllocator()
	real.RestoreFinished()
	model := New(func(int) int { return 0 })
	from := rand.New(rand.NewPCG(1, 2))
	until := func(what string, holds func() bool) {
		t.Helper()
		for deadline := time.Now().Add(patience); !holds(); {
			if time.Now().After(deadline) {
				t.Fatalf("not within %v: %s", patience, what)
			}
			time.Sleep(time.Millisecond)
		}
	}
	// show has both see a new version, and both reports compared.
	show := func(n int, change func(*ciliumv2.CiliumNode)) {
		t.Helper()
		server.mu.Lock()
		server.write(func(cn *ciliumv2.CiliumNode) {
			change(cn)
			for ip, e := range cn.Spec.IPAM.Pool {
				if e.Owner == "sync" {
					delete(cn.Spec.IPAM.Pool, ip)
				}
			}
			cn.Spec.IPAM.Pool[marker(n)] = ipamtypes.AllocationIP{Owner: "sync"}
		})
		shown := server.node.DeepCopy()
		server.mu.Unlock()
		model.See(shown)
		until(fmt.Sprintf("version %d is seen", n), func() bool {
			ip := net.ParseIP(marker(n))
			if _, err := real.AllocateIPWithoutSyncUpstream(ip, "sync", ipam.PoolDefault()); err != nil {
				return false
			}
			return real.ReleaseIP(ip, ipam.PoolDefault()) == nil
		})
	}
	// reported waits until the report says what the model would. A report that lost against a write of this
	// test is made again when the agent has seen another version.
	reported := func(n int) {
		t.Helper()
		var diff string
		again := time.Now().Add(time.Second)
		for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			if time.Now().After(again) {
				show(n, func(*ciliumv2.CiliumNode) {})
				again = time.Now().Add(time.Second)
			}
			want := map[string]any{"used": owners(model.Used()), "handshakes": handshakes(model.Node)}
			server.mu.Lock()
			diff = cmp.Diff(want, map[string]any{"used": owners(server.node.Status.IPAM.Used), "handshakes": handshakes(server.node)})
			last := server.node.DeepCopy()
			server.mu.Unlock()
			if diff == "" {
				model.See(last)
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("step %d: the report differs (-model +cilium):\n%s", n, diff)
			}
		}
	}
	show(1, func(*ciliumv2.CiliumNode) {})
	pods := []string{"db/a-0", "db/a-1", "db/b-0", "router"}
	marks := []ipamtypes.IPReleaseStatus{ipamoption.IPAMMarkForRelease, ipamoption.IPAMReleased, ipamoption.IPAMReadyForRelease, ipamoption.IPAMDoNotRelease}
	done := map[string]int{}
	for n := 2; n < 1500; n++ {
		owner, ip := pods[from.IntN(len(pods))], fmt.Sprintf("10.0.0.%d", 1+from.IntN(6))
		what := []string{"next", "next", "release", "take", "pool", "pool", "handshake"}[from.IntN(7)]
		done[what]++
		switch what {
		case "next":
			owned, offered := model.Owned(owner), model.Offered()
			got, err := real.AllocateNextFamily(ipam.IPv4, owner, ipam.PoolDefault())
			choice := owned
			if len(owned) == 0 {
				choice = offered
			}
			if (err == nil) != (len(choice) > 0) {
				t.Fatalf("step %d: %s: %v, and the model has %v", n, owner, err, choice)
			}
			if err != nil {
				continue
			}
			i := slices.Index(choice, got.IP.String())
			if i < 0 {
				t.Fatalf("step %d: %s gets %s, and the model gives %v", n, owner, got.IP, choice)
			}
			model.choose = func(int) int { return i }
			if gives, err := model.Next(owner); err != nil || gives != got.IP.String() {
				t.Fatalf("step %d: the model gives %s, %v", n, gives, err)
			}
		case "release":
			// Cilium tells nobody that there was nothing to release.
			_ = model.Release(ip)
			if err := real.ReleaseIP(net.ParseIP(ip), ipam.PoolDefault()); err != nil {
				t.Fatal(err)
			}
		case "take":
			// Without a report, as the agent restores.
			want := model.Take(ip, owner)
			if _, err := real.AllocateIPWithoutSyncUpstream(net.ParseIP(ip), owner, ipam.PoolDefault()); (want == nil) != (err == nil) {
				t.Fatalf("step %d: take %s: %v, and in the model %v", n, ip, err, want)
			} else if err != nil {
				continue
			}
		case "pool":
			show(n, func(cn *ciliumv2.CiliumNode) {
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
			show(n, func(cn *ciliumv2.CiliumNode) {
				keys := maps.Clone(cn.Status.IPAM.ReleaseIPs)
				if keys == nil {
					keys = map[string]ipamtypes.IPReleaseStatus{}
				}
				keys[ip] = marks[from.IntN(len(marks))]
				cn.Status.IPAM.ReleaseIPs = keys
			})
		}
		reported(n)
		show(n, func(*ciliumv2.CiliumNode) {})
	}
	t.Log(done, server.reports)
}

// owners are who has each address. The marker is nobody's.
func owners(used ipamtypes.AllocationMap) map[string]string {
	all := map[string]string{}
	for ip, e := range used {
		if e.Owner != "sync" {
			all[ip] = e.Owner
		}
	}
	return all
}

func handshakes(cn *ciliumv2.CiliumNode) map[string]string {
	all := map[string]string{}
	for ip, s := range cn.Status.IPAM.ReleaseIPs {
		all[ip] = string(s)
	}
	return all
}
