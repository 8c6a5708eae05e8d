// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package realcluster

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/hack/realcluster/layout"
	"fixedip.io/fixedip/hack/realcluster/preflight"
)

// readyTimeout is the time limit for nodes to become ready. Agents compile eBPF programs at their start, which takes
// 7 s for two nodes on two idle cores.
const readyTimeout = 5 * time.Minute

// Names of processes, folders and a CNI plugin. diskDir is in the folder of a node; the other folders are in the work folder.
const (
	hubName            = "hub"
	productScheduler   = "fixedip-scheduler"
	productController  = "fixedip-controller"
	nodesDir, toolsDir = "nodes", "tools"
	diskDir            = "disk"
	cniDir             = "cni"
	ciliumPlugin       = "cilium-cni"
)

// Options configure a cluster.
type Options struct {
	layout.Options
	// Dir is the work folder. The work folder of an earlier cluster is deleted; any other folder must be empty.
	Dir string
	// Bin is the folder of the programs, as built by make cluster-programs.
	Bin string
	// Source is the folder of this repository, whose manifests are applied.
	Source string
	// Product starts the programs that assign subnets to nodes. It is called before nodes are started; nil means
	// StartProduct.
	Product func(context.Context, *Cluster) error
	// Empty leaves out the manifests that StartProduct needs, so that Product can install everything.
	Empty bool
	// Unready leaves out the wait for ready nodes. It is for clusters in which Product does not start fixedip, because nodes
	// become ready only with fixedip.
	Unready bool
	// Images are archives that every node imports into its containerd.
	Images []string
	// Detach lets the cluster outlive the process that starts it; Down stops it.
	Detach bool
	// Log is called for each step; nil discards the messages.
	Log func(format string, args ...any)
}

// Cluster is a running cluster. Its methods are safe for concurrent use.
type Cluster struct {
	*cluster.Cluster
	options Options
	hub     *hub

	mu sync.Mutex
	// nodes contains the nodes that AddNode has added, even if their start failed. Key: the name.
	nodes map[string]*Node
}

// NoProduct is a value of Options.Product that starts nothing. It is for clusters with the options Empty and Unready, on
// which a user installs fixedip later.
func NoProduct(context.Context, *Cluster) error { return nil }

// Start starts a cluster and returns when its nodes are ready or, with the option Unready, when their programs are started.
// If the machine lacks a prerequisite, Start returns a *preflight.Missing before it changes anything. If a later step fails,
// Start stops every process that it started.
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
			return nil, fmt.Errorf("make the path %q absolute: %w", *path, err)
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
	var manifests []string
	for _, name := range []string{"crd", "namespace.yaml", "controller-rbac.yaml", "scheduler-rbac.yaml"} {
		if !c.options.Empty {
			manifests = append(manifests, filepath.Join(c.options.Source, "manifests", name))
		}
	}
	// cluster.Start stops everything that it started if it returns an error.
	running, err := cluster.Start(ctx, cluster.Options{
		Dir:              c.options.Dir,
		Binaries:         cluster.Binaries{ControlPlane: filepath.Join(c.options.KubernetesPrograms(c.options.Bin), "fixedip-controlplane")},
		Manifests:        manifests,
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
	if err := c.createCiliumConfig(ctx); err != nil {
		return err
	}
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
	state := "ready"
	if c.options.Unready {
		state = "started"
	}
	c.options.Log("cluster %s after %s", state, time.Since(began).Round(100*time.Millisecond))
	return nil
}

// startHub starts the process that keeps the network namespace of the hub, and sets up the hub. cluster.Start calls startHub
// before it starts the control plane, because the control plane listens on an address of the hub's network.
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

// createCiliumConfig creates the ConfigMap of Cilium, which the programs of fixedip and kubectl fixedip read. The agents do
// not read the ConfigMap: they have the same settings in files.
func (c *Cluster) createCiliumConfig(ctx context.Context) error {
	data, err := json.Marshal(&corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "cilium-config"},
		Data:       c.options.CiliumConfig(),
	})
	if err != nil {
		return fmt.Errorf("encode the ConfigMap of Cilium: %w", err)
	}
	// Apply the namespace kube-system too, because the API server creates this namespace only a moment after its start.
	namespace := "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + metav1.NamespaceSystem + "}\n---\n"
	file := filepath.Join(c.options.Dir, "cilium-config.yaml")
	if err := os.WriteFile(file, append([]byte(namespace), data...), 0o644); err != nil {
		return fmt.Errorf("write the ConfigMap of Cilium: %w", err)
	}
	return c.Apply(ctx, file)
}

// startScheduler starts the default scheduler of the cluster: fixedip-scheduler without a configuration.
func (c *Cluster) startScheduler(ctx context.Context) error {
	kubeconfig := c.Kubeconfig(cluster.KubeScheduler)
	_, err := c.Run(ctx, cluster.KubeScheduler, cluster.Program{Bin: c.bin("fixedip-scheduler"), Args: []string{
		"--kubeconfig=" + kubeconfig, "--leader-elect=false", "--secure-port=0", "-v=2",
	}})
	return err
}

// StartProduct starts one controller and one scheduler of fixedip as processes of the machine, with the rights of the
// manifests. Both run without leader election, because a busy machine may stall for longer than a lease lasts, and a process
// that loses its lease is not restarted. Tests find the processes with Process("fixedip-controller") and
// Process("fixedip-scheduler").
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

// Node returns the node with this name, even if its start failed; nil if AddNode was not called for the name.
func (c *Cluster) Node(name string) *Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[name]
}

// NodeAddress returns the address of a node in the preferred family, which is the first of the options.
func (c *Cluster) NodeAddress(name string) (netip.Addr, error) {
	addresses, err := c.options.NodeAddresses(name)
	if err != nil {
		return netip.Addr{}, err
	}
	return addresses[0].Addr(), nil
}

// AddNode starts a node and returns when it is ready or, with the option Unready, when its programs are started. AddNode can be
// called only once for a name. If the start fails, the node stays in the cluster. To try again, call PowerOff and PowerOn of that
// node.
func (c *Cluster) AddNode(ctx context.Context, name string) error {
	if _, err := c.options.NodeAddresses(name); err != nil {
		return err
	}
	n := &Node{Name: name, cluster: c, dir: filepath.Join(c.options.Dir, nodesDir, name)}
	c.mu.Lock()
	if c.nodes[name] != nil {
		c.mu.Unlock()
		return fmt.Errorf("start node %s: the node was already started", name)
	}
	c.nodes[name] = n
	c.mu.Unlock()
	began := time.Now()
	if err := n.PowerOn(ctx); err != nil {
		return err
	}
	if c.options.Unready {
		return nil
	}
	if err := n.WaitReady(ctx); err != nil {
		return err
	}
	c.options.Log("%s ready after %s", name, time.Since(began).Round(100*time.Millisecond))
	return nil
}

// Stop stops all processes and removes the links and cgroups of the cluster. Mounts end with the processes of the nodes. The
// work folder is not deleted, so that logs can be read.
func (c *Cluster) Stop() {
	c.mu.Lock()
	nodes := maps.Clone(c.nodes)
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
		// Kill the schedulers: without leader election, they report termination as a failure.
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

// ciliumBin returns the folder of the programs of the Cilium version.
func (c *Cluster) ciliumBin() string {
	return filepath.Join(c.options.Bin, "cilium-"+c.options.CiliumVersion())
}

// checkFolder returns an error if the path of the work folder contains a character that has a special meaning in the
// configuration of a program or in a pattern of filepath.Glob.
func checkFolder(dir string) error {
	if i := strings.IndexAny(dir, ",:;\"'\\ \t\n*?["); i >= 0 {
		return fmt.Errorf("the path of the work folder %q contains %q, which has a special meaning in the configuration of a "+
			"program or in a file name pattern; use another folder", dir, dir[i])
	}
	return nil
}

// prepareFolder creates the files that all nodes share.
func prepareFolder(o Options) error {
	if err := createFolder(o.Dir); err != nil {
		return err
	}
	plugins := map[string]string{
		ciliumPlugin: filepath.Join(o.Bin, "cilium-"+o.CiliumVersion(), ciliumPlugin),
		"loopback":   loopbackPlugin,
	}
	for name, target := range plugins {
		if err := os.Symlink(target, filepath.Join(o.Dir, cniDir, name)); err != nil {
			return fmt.Errorf("link CNI plugin %s: %w", name, err)
		}
	}
	if err := linkTools(filepath.Join(o.Dir, toolsDir)); err != nil {
		return err
	}
	return makeTestImages(o.Dir, o.Bin)
}
