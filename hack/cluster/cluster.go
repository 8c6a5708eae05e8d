// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	nodeutil "k8s.io/component-helpers/node/util"
)

// Users for which the control plane writes a kubeconfig.
const (
	// Admin has all rights.
	Admin = "admin"
	// Scheduler is the service account of fixedip-scheduler, with the rights of the manifests.
	Scheduler = "fixedip-scheduler"
	// Controller is the service account of fixedip-controller, with the rights of the manifests.
	Controller = "fixedip-controller"
	// KubeScheduler is the user of the default scheduler, with the rights of kube-scheduler.
	KubeScheduler = "kube-scheduler"
	// SimNode is the user of simulated nodes, with all rights.
	SimNode = "simnode"
)

const (
	controlPlaneName = "control-plane"
	startTimeout     = 2 * time.Minute
	// stopTimeout is the time between SIGTERM and SIGKILL. The control plane needs at most about 7 s.
	stopTimeout = 10 * time.Second

	clientQPS   = 200
	clientBurst = 400
)

// Binaries are the paths of the programs. The path of a program that is not started may be empty.
type Binaries struct {
	ControlPlane, SimNode string
}

// Options configure a cluster.
type Options struct {
	// Dir is the work folder, which contains the state, logs and kubeconfigs. A cluster that is started in the folder of an
	// earlier cluster continues with the state of that cluster.
	Dir string
	// Binaries are the programs.
	Binaries Binaries
	// Manifests are YAML files and folders of them, applied before Start returns.
	Manifests []string
	// CiliumCRDs is a folder with the CRDs of Cilium. If empty, Start uses those of CiliumNode and CiliumEndpoint in the
	// Cilium module.
	CiliumCRDs string
	// Prepare is called before the control plane is started, for example to create the address on which the control plane
	// listens. It may be nil.
	Prepare func(context.Context, *Cluster) error
	// ControlPlaneArgs are additional arguments of the control plane.
	ControlPlaneArgs []string
	// StartTimeout limits Prepare, the start of the control plane and the manifests together; 0 means two minutes. For a
	// longer time, also set --ready-timeout in ControlPlaneArgs: its default is 90 s.
	StartTimeout time.Duration
	// Detach lets the processes of the cluster outlive the process that starts them; StopDetached stops them.
	Detach bool
	// Log is called for each step; nil discards the messages.
	Log func(format string, args ...any)
}

// Cluster is a running cluster. Its methods are safe for concurrent use.
type Cluster struct {
	opts    Options
	starter *Starter
	applier *applier

	mu sync.Mutex
	// processes contains the latest process of each name, even if it has exited or could not be started. Key: the name. A
	// name is reused only if its process does not run.
	processes map[string]*Process
	// order contains the names in the order of their first use.
	order []string
}

// Start starts the control plane, creates the CRDs of Cilium and of the manifests before controllers start, and
// applies the manifests. It returns an error if a cluster with the same work folder is running. If a later step fails, Start
// stops every process that it started.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("make the path %q of the work folder absolute: %w", o.Dir, err)
	}
	o.Dir = dir
	for _, sub := range []string{logDir, pidDir, crdDir} {
		if err := os.MkdirAll(filepath.Join(o.Dir, sub), 0o700); err != nil {
			return nil, fmt.Errorf("create the work folder: %w", err)
		}
	}
	if err := refuseSecond(o.Dir); err != nil {
		return nil, err
	}
	if err := writeCRDs(filepath.Join(o.Dir, crdDir), o.CiliumCRDs, o.Manifests); err != nil {
		return nil, err
	}
	here, err := NewStarter(func() error { return nil })
	if err != nil {
		return nil, err
	}
	c := &Cluster{opts: o, starter: here, processes: map[string]*Process{}}
	if err := c.start(ctx); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.opts.StartTimeout, startTimeout))
	defer cancel()
	if c.opts.Prepare != nil {
		if err := c.opts.Prepare(ctx, c); err != nil {
			return err
		}
	}
	began := time.Now()
	args := append([]string{
		"--dir=" + filepath.Join(c.opts.Dir, controlPlaneName),
		"--crds=" + filepath.Join(c.opts.Dir, crdDir),
	}, c.opts.ControlPlaneArgs...)
	control := Program{Bin: c.opts.Binaries.ControlPlane, Args: args, AwaitReady: true}
	if _, err := c.Run(ctx, controlPlaneName, control); err != nil {
		return err
	}
	c.opts.Log("control plane ready after %s", time.Since(began).Round(10*time.Millisecond))

	admin, err := c.RESTConfig(Admin)
	if err != nil {
		return err
	}
	if c.applier, err = newApplier(admin); err != nil {
		return err
	}
	if len(c.opts.Manifests) == 0 {
		return nil
	}
	return c.Apply(ctx, c.opts.Manifests...)
}

// ControlPlane returns the process of the control plane. Its Restart returns when the control plane is ready again, on the
// same port and with its state.
func (c *Cluster) ControlPlane() *Process { return c.Process(controlPlaneName) }

// Process returns the latest process with this name, even if it has exited or could not be started; nil if there is none.
func (c *Cluster) Process(name string) *Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.processes[name]
}

// Processes returns the latest process of each name, in the order in which the names were first used.
func (c *Cluster) Processes() []*Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]*Process, 0, len(c.order))
	for _, name := range c.order {
		list = append(list, c.processes[name])
	}
	return list
}

// StartProcess starts a program whose output goes to <Dir>/logs/<name>.log.
func (c *Cluster) StartProcess(name, bin string, args ...string) (*Process, error) {
	return c.Run(context.Background(), name, Program{Bin: bin, Args: args})
}

// Run starts a program. If program.AwaitReady is set, Run returns when the program has reported that it is ready. Run returns
// an error if a process with the name is running. If ctx ends before the program is ready, Run returns an error, but the
// process keeps running; Process returns it.
func (c *Cluster) Run(ctx context.Context, name string, program Program) (*Process, error) {
	p, err := c.add(name, program)
	if err != nil {
		return nil, err
	}
	if err := p.Restart(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

// StartNode starts a simulated node. It does not wait until the node is ready, which requires a filled pool; see
// WaitNodeReady.
func (c *Cluster) StartNode(ctx context.Context, name string, args ...string) (*Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("start node %s: %w", name, err)
	}
	return c.StartProcess(name, c.opts.Binaries.SimNode, append([]string{
		"--kubeconfig=" + c.Kubeconfig(SimNode), "--node-name=" + name,
	}, args...)...)
}

// WaitNodeReady returns when the condition Ready of the Node is true.
func (c *Cluster) WaitNodeReady(ctx context.Context, name string) error {
	cfg, err := c.RESTConfig(Admin)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("create a client: %w", err)
	}
	lw := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", metav1.NamespaceNone,
		fields.OneTermEqualSelector("metadata.name", name))
	err = waitFor(ctx, lw, func(e watch.Event) (bool, error) {
		node, ok := e.Object.(*corev1.Node)
		if !ok || e.Type == watch.Deleted {
			return false, nil
		}
		_, ready := nodeutil.GetNodeCondition(&node.Status, corev1.NodeReady)
		return ready != nil && ready.Status == corev1.ConditionTrue, nil
	})
	if err != nil {
		return fmt.Errorf("wait for node %s to be ready: %w", name, err)
	}
	return nil
}

// Dir returns the work folder.
func (c *Cluster) Dir() string { return c.opts.Dir }

// Kubeconfig returns the path of a user's kubeconfig.
func (c *Cluster) Kubeconfig(user string) string {
	return filepath.Join(c.opts.Dir, controlPlaneName, "kubeconfig", user+".yaml")
}

// RESTConfig returns the client configuration of a user, without the low default rate limit of client-go.
func (c *Cluster) RESTConfig(user string) (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig(user))
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig of %s: %w", user, err)
	}
	cfg.QPS, cfg.Burst = clientQPS, clientBurst
	return cfg, nil
}

// Apply applies every document of the YAML files and folders with server-side apply. After each CRD it waits until the CRD
// is established.
func (c *Cluster) Apply(ctx context.Context, paths ...string) error {
	docs, err := readManifests(paths)
	if err != nil {
		return err
	}
	if err := c.applier.apply(ctx, docs); err != nil {
		return err
	}
	c.opts.Log("applied %d objects from %v", len(docs), paths)
	return nil
}

// Stop terminates all processes, the control plane last. Processes that do not exit in time are killed. To start the cluster
// again, call the function Start with the same work folder.
func (c *Cluster) Stop() {
	c.stop((*Process).Terminate)
}

// Discard stops a cluster that will not be started again. Unlike Stop, it kills the control plane, because a termination of
// the control plane takes some seconds.
func (c *Cluster) Discard() {
	c.stop(func(p *Process, _ context.Context) error { return p.Kill() })
}

func (c *Cluster) stop(controlPlane func(*Process, context.Context) error) {
	list := c.Processes()
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, p := range list {
		if p.Name != controlPlaneName {
			wg.Go(func() { c.logEnd(p, p.Terminate(ctx)) })
		}
	}
	wg.Wait()
	ctx, cancel = context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if p := c.ControlPlane(); p != nil {
		c.logEnd(p, controlPlane(p, ctx))
	}
	c.starter.Stop()
}

// logEnd logs err unless it only means that the process was never started or was killed with SIGKILL.
func (c *Cluster) logEnd(p *Process, err error) {
	if err != nil && !errors.Is(err, errNotStarted) && !endedBy(err, syscall.SIGKILL) {
		c.opts.Log("stopping %s: %v", p.Name, err)
	}
}

// add registers a process under a name without starting it.
func (c *Cluster) add(name string, program Program) (*Process, error) {
	if program.Bin == "" {
		return nil, fmt.Errorf("start %s: the path of the program is empty", name)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.processes[name]; old == nil {
		c.order = append(c.order, name)
	} else if old.Running() {
		return nil, fmt.Errorf("start %s: a process with this name is already running", name)
	}
	p := &Process{Name: name, cluster: c, program: program}
	c.processes[name] = p
	return p, nil
}
