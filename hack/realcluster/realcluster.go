// Package realcluster runs a cluster of real nodes on one Linux machine, as root: the control plane of package
// cluster, and nodes that are namespaces with a containerd, a kubelet, a cilium-agent and cilium-cni of their own.
// Pods are containers and packets go through eBPF. The end-to-end tests run on it, and make cluster.
//
// A test starts a cluster and has everything of package cluster in it: kubeconfigs, Apply, processes by name.
//
//	c, err := realcluster.Start(ctx, realcluster.Options{Options: layout.Defaults(), Dir: dir, Bin: bin, Source: root})
//	defer c.Stop()
//	node := c.Node("node-1")
//	err = node.Kill(realcluster.Agent)        // SIGKILL; pods go on running
//	err = node.Start(ctx, realcluster.Agent)  // again, with the state of the node
//	err = node.Reboot(ctx, true)              // everything on it dies; false: its disk is empty, too
//	err = node.Partition()                    // its packets are lost, until Heal
//	err = c.AddNode(ctx, "node-3")            // one of the spare nodes
//	out, err := node.Run(ctx, "ip", "route")  // a command on the node
//	pod, err := node.Fetch(ctx, "10.240.1.7") // what the test pod of that address answers to this node
//
// Stop leaves nothing behind, and neither does the death of the process that started the cluster: the kernel ends
// its processes with it. With Detach they go on, and Down ends them. Start begins with what Down does, so that a
// half-made cluster is in nobody's way.
package realcluster

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/hack/realcluster/layout"
	"fixedip.io/fixedip/hack/realcluster/preflight"
)

// readyTimeout is how long the nodes may take. An agent compiles its programs at the start, 7 s on two idle cores
// for two nodes.
const readyTimeout = 5 * time.Minute

// Names of processes, and the prefix of those of a node.
const (
	hubName            = "hub"
	productScheduler   = "fixedip-scheduler"
	productController  = "fixedip-controller"
	nodesDir, toolsDir = "nodes", "tools"
	diskDir            = "disk"
	cniDir             = "cni"
)

// Options say what to start and where.
type Options struct {
	layout.Options
	// Dir is the work folder. What is in it from another time is deleted.
	Dir string
	// Bin has the programs, as make cluster-programs builds them.
	Bin string
	// Source is the folder of this repository: its manifests are applied.
	Source string
	// Product starts whoever gives the nodes their subnets, before there are nodes; nil: our scheduler and
	// controller as processes of the machine, see StartProduct.
	Product func(context.Context, *Cluster) error
	// Images are archives that every node has in its containerd.
	Images []string
	// Detach lets the cluster outlive the process that starts it; Down ends it.
	Detach bool
	// Log gets a line for each thing that happens; nil drops them.
	Log func(format string, args ...any)
}

// Cluster is a running cluster. Its methods may be called from several goroutines.
type Cluster struct {
	*cluster.Cluster
	options Options
	hub     *hub

	mu sync.Mutex
	// nodes are those that were started. Key: the name.
	nodes map[string]*Node
}

// Start brings up a cluster and returns when its nodes are ready. A machine that can't have one is told by a
// *preflight.Missing, before anything is changed.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	for _, path := range []*string{&o.Dir, &o.Bin, &o.Source} {
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return nil, fmt.Errorf("find the folder %q: %w", *path, err)
		}
		*path = absolute
	}
	if err := checkFolder(o.Dir); err != nil {
		return nil, err
	}
	if err := preflight.Check(o.Nodes + o.Spare); err != nil {
		return nil, err
	}
	if err := Down(o.Dir); err != nil {
		return nil, err
	}
	if err := installPackages(ctx, o.Log); err != nil {
		return nil, err
	}
	if err := prepareFolder(o); err != nil {
		return nil, err
	}
	network, err := reserve(o.Dir)
	if err != nil {
		return nil, err
	}
	o.Network = network
	c := &Cluster{options: o, nodes: map[string]*Node{}}
	if err := c.start(ctx); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	began := time.Now()
	args := []string{
		"--bind-address=" + c.options.ControlPlane().String(),
		"--secure-port=" + strconv.Itoa(layout.APIServerPort),
		"--service-cluster-ip-range=" + c.options.ServiceCIDRs(),
	}
	for _, node := range append(c.options.NodeNames(), c.options.SpareNames()...) {
		args = append(args, "--node="+node)
	}
	manifests := filepath.Join(c.options.Source, "manifests")
	// A failed start has stopped what it started.
	running, err := cluster.Start(ctx, cluster.Options{
		Dir:      c.options.Dir,
		Binaries: cluster.Binaries{ControlPlane: c.bin("fixedip-controlplane")},
		Manifests: []string{
			filepath.Join(manifests, "crd"), filepath.Join(manifests, "namespace.yaml"),
			filepath.Join(manifests, "controller-rbac.yaml"), filepath.Join(manifests, "scheduler-rbac.yaml"),
		},
		CiliumCRDs:       filepath.Join(c.ciliumBin(), "crds"),
		ControlPlaneArgs: args,
		Prepare:          c.startHub,
		Detach:           c.options.Detach,
		Log:              c.options.Log,
	})
	if err != nil {
		return err
	}
	c.Cluster = running
	if err := c.startScheduler(ctx); err != nil {
		return err
	}
	startProduct := c.options.Product
	if startProduct == nil {
		startProduct = StartProduct
	}
	if err := startProduct(ctx, c); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	nodes, ctx := errgroup.WithContext(ctx)
	for _, name := range c.options.NodeNames() {
		nodes.Go(func() error { return c.AddNode(ctx, name) })
	}
	if err := nodes.Wait(); err != nil {
		return err
	}
	c.options.Log("cluster ready after %s", time.Since(began).Round(100*time.Millisecond))
	return nil
}

// startHub makes the network of the nodes. The control plane is not there yet.
func (c *Cluster) startHub(ctx context.Context, processes *cluster.Cluster) error {
	p, err := processes.Run(ctx, hubName, cluster.Program{
		Bin: c.bin("fixedip-nodeinit"), AwaitReady: true, Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWPID,
	})
	if err != nil {
		return err
	}
	c.hub = &hub{options: c.options.Options, pid: p.PID()}
	return c.hub.setUp()
}

// startScheduler starts the cluster's own scheduler: ours is a kube-scheduler too, and without a configuration it
// is nothing else.
func (c *Cluster) startScheduler(ctx context.Context) error {
	kubeconfig := c.Kubeconfig(cluster.KubeScheduler)
	_, err := c.Run(ctx, cluster.KubeScheduler, cluster.Program{Bin: c.bin("fixedip-scheduler"), Args: []string{
		"--kubeconfig=" + kubeconfig, "--leader-elect=false", "--secure-port=0", "-v=2",
	}})
	return err
}

// StartProduct starts our controller and scheduler as processes of the machine, with the rights that the manifests
// give them. There is one of each, without leader election: a machine that is busy may stall for longer than a lease
// lasts, and nobody starts a process again that has lost it. A test has them by Process("fixedip-controller") and Process("fixedip-scheduler").
func StartProduct(_ context.Context, c *Cluster) error {
	var pools []string
	for _, family := range c.options.Families {
		flag := "--cluster-pool-ipv4-cidr="
		if family == layout.IPv6 {
			flag = "--cluster-pool-ipv6-cidr="
		}
		pools = append(pools, flag+layout.PodCIDR(family))
	}
	if _, err := product.StartController(c.Cluster, productController, c.bin("fixedip-controller"),
		product.ControllerOptions{Lease: product.QuickLease, Args: append(pools, "--enable-leader-election=false")}); err != nil {
		return err
	}
	_, err := product.StartScheduler(c.Cluster, productScheduler, c.bin("fixedip-scheduler"), product.SchedulerOptions{
		Lease: product.QuickLease, NoElection: true, Families: c.options.Families, Movable: c.options.Routing == layout.Tunnel,
	})
	return err
}

// Node returns the node of this name, nil if none was started.
func (c *Cluster) Node(name string) *Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[name]
}

// NodeAddress is that of a node in the network of the nodes, in the preferred family.
func (c *Cluster) NodeAddress(name string) (netip.Addr, error) {
	addresses, err := c.options.NodeAddresses(name)
	if err != nil {
		return netip.Addr{}, err
	}
	return addresses[0].Addr(), nil
}

// AddNode starts a node and returns when it is ready.
func (c *Cluster) AddNode(ctx context.Context, name string) error {
	if _, err := c.options.NodeAddresses(name); err != nil {
		return err
	}
	n := &Node{Name: name, cluster: c, dir: filepath.Join(c.options.Dir, nodesDir, name)}
	c.mu.Lock()
	if c.nodes[name] != nil {
		c.mu.Unlock()
		return fmt.Errorf("start node %s: it was started already", name)
	}
	c.nodes[name] = n
	c.mu.Unlock()
	began := time.Now()
	if err := n.PowerOn(ctx); err != nil {
		return err
	}
	if err := n.WaitReady(ctx); err != nil {
		return err
	}
	c.options.Log("%s ready after %s", name, time.Since(began).Round(100*time.Millisecond))
	return nil
}

// Stop ends everything and deletes nothing: the logs are there for whoever wants to know. Nothing is left running
// or mounted.
func (c *Cluster) Stop() {
	c.mu.Lock()
	nodes := c.nodes
	c.mu.Unlock()
	var wg sync.WaitGroup
	for _, n := range nodes {
		wg.Go(func() {
			if err := n.PowerOff(); err != nil {
				c.options.Log("stopping: %v", err)
			}
		})
	}
	wg.Wait()
	if c.Cluster != nil {
		// A scheduler without leader election takes the request to end for a failure.
		for _, scheduler := range []string{cluster.KubeScheduler, productScheduler} {
			if p := c.Process(scheduler); p != nil && p.Running() {
				if err := p.Kill(); err != nil {
					c.options.Log("stopping: %v", err)
				}
			}
		}
		c.Cluster.Stop()
	}
	if err := removeTraces(c.options.Dir); err != nil {
		c.options.Log("stopping: %v", err)
	}
}

func (c *Cluster) bin(program string) string { return filepath.Join(c.options.Bin, program) }

// ciliumBin has what belongs to the version of Cilium.
func (c *Cluster) ciliumBin() string {
	return filepath.Join(c.options.Bin, "cilium-"+c.options.CiliumVersion())
}

// checkFolder refuses a work folder whose name can't stand in the configuration of some program.
func checkFolder(dir string) error {
	if i := strings.IndexAny(dir, ",:;\"'\\ \t\n"); i >= 0 {
		return fmt.Errorf("the work folder %q has %q in its name, which some program's configuration takes for something else", dir, dir[i])
	}
	return nil
}

// prepareFolder makes what all nodes share.
func prepareFolder(o Options) error {
	for _, dir := range []string{nodesDir, toolsDir, cniDir} {
		if err := os.MkdirAll(filepath.Join(o.Dir, dir), 0o755); err != nil {
			return fmt.Errorf("make the work folder: %w", err)
		}
	}
	plugins := map[string]string{
		"cilium-cni": filepath.Join(o.Bin, "cilium-"+o.CiliumVersion(), "cilium-cni"),
		"loopback":   loopbackPlugin,
	}
	for name, target := range plugins {
		if err := os.Symlink(target, filepath.Join(o.Dir, cniDir, name)); err != nil {
			return fmt.Errorf("make the folder of CNI plugins: %w", err)
		}
	}
	if err := linkTools(filepath.Join(o.Dir, toolsDir)); err != nil {
		return err
	}
	return makeTestImages(o.Dir, o.Bin)
}
