// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package realcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/realcluster/layout"
)

// Part is a program of a node that can be killed and restarted.
type Part string

// The parts of a node.
const (
	Containerd Part = "containerd"
	Kubelet    Part = "kubelet"
	Agent      Part = "cilium-agent"
)

// parts contains all parts in the order in which they are started.
var parts = []Part{Containerd, Kubelet, Agent}

// Node is a node of the cluster: a set of namespaces and the programs that run in them.
type Node struct {
	Name    string
	cluster *Cluster
	// dir is the folder with the disk of the node and the configuration of its programs.
	dir string

	mu sync.Mutex
	// init is process 1 of the node, which keeps the namespaces; nil while the node is off. mu guards init and starter.
	init *cluster.Process
	// starter starts processes in the namespaces of the node.
	starter *cluster.Starter
}

// PowerOn starts the node and its programs. It does not wait until the node is ready; see WaitReady. If PowerOn fails, some
// programs may run; PowerOff stops them.
func (n *Node) PowerOn(ctx context.Context) error {
	if err := n.boot(ctx); err != nil {
		return err
	}
	if err := n.configure(); err != nil {
		return err
	}
	if err := n.Start(ctx, Containerd); err != nil {
		return err
	}
	if err := n.importImages(ctx); err != nil {
		return err
	}
	if err := n.routeService(ctx); err != nil {
		return err
	}
	if err := n.Start(ctx, Kubelet); err != nil {
		return err
	}
	return n.Start(ctx, Agent)
}

// WaitReady returns when the Node, its kubelet and its agent are ready. If a program of the node exits or ctx ends,
// WaitReady returns an error with the ends of the logs.
func (n *Node) WaitReady(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, part := range parts {
		p := n.Process(part)
		if p == nil {
			return fmt.Errorf("wait for node %s: %s was never started", n.Name, part)
		}
		go func() {
			select {
			case <-p.Exited():
				cancel(fmt.Errorf("process %s has exited: %s", p.Name, p.ExitState()))
			case <-ctx.Done():
			}
		}()
	}
	err := n.cluster.WaitNodeReady(ctx, n.Name)
	if err == nil {
		// The condition Ready alone is not enough. After a reboot it stays true until kube-controller-manager has seen no
		// heartbeat for --node-monitor-grace-period. There is no event when the programs are ready, so poll their health
		// endpoints.
		err = wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			for _, health := range []string{layout.KubeletHealth, n.cluster.options.AgentHealth()} {
				if _, err := n.Run(ctx, n.cluster.bin("fixedip-testpod"), "fetch", health); err != nil {
					return false, nil
				}
			}
			return true, nil
		})
	}
	if err != nil {
		return errors.Join(fmt.Errorf("wait for node %s: %w", n.Name, err), context.Cause(ctx), n.logTails())
	}
	return nil
}

// agentSocket is the path of the Unix socket on which the agent of a node serves its API.
const agentSocket = "/run/cilium/cilium.sock"

// WaitEndpoints returns when the agent has regenerated the eBPF programs of all its endpoints. A restarted agent
// reports that it is healthy before this regeneration is complete.
func (n *Node) WaitEndpoints(ctx context.Context) error {
	problem := errors.New("the agent was not queried")
	err := wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		problem = n.endpointsReady(ctx)
		return problem == nil, nil
	})
	if err != nil {
		return errors.Join(fmt.Errorf("wait for the endpoints of node %s: %w", n.Name, err), problem)
	}
	return nil
}

func (n *Node) endpointsReady(ctx context.Context) error {
	response, err := n.Run(ctx, n.cluster.bin("fixedip-testpod"), "fetch", "http://agent/v1/endpoint", agentSocket)
	if err != nil {
		return err
	}
	var endpoints []struct {
		ID     int64
		Status struct{ State string }
	}
	if err := json.Unmarshal([]byte(response), &endpoints); err != nil {
		return fmt.Errorf("decode the endpoints of node %s: %w", n.Name, err)
	}
	if len(endpoints) == 0 {
		return fmt.Errorf("the agent of node %s has no endpoints", n.Name)
	}
	for _, e := range endpoints {
		if e.Status.State != "ready" {
			return fmt.Errorf("endpoint %d of node %s: got state %q, want ready", e.ID, n.Name, e.Status.State)
		}
	}
	return nil
}

// boot starts process 1 of the node in new namespaces and connects their network to the hub.
func (n *Node) boot(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.init != nil {
		return fmt.Errorf("start node %s: the node is already running", n.Name)
	}
	options := n.cluster.options
	init, err := n.cluster.Run(ctx, n.Name, cluster.Program{
		Bin:        n.cluster.bin("fixedip-nodeinit"),
		Args:       []string{"--hostname=" + n.Name, "--disk=" + n.disk(), "--keep=" + options.Dir, "--keep=" + options.Bin},
		AwaitReady: true,
		Cloneflags: nodeNamespaces,
	})
	if err != nil {
		return err
	}
	starter, err := enter(init.PID(), nodeNamespaces)
	if err != nil {
		return errors.Join(err, init.Kill())
	}
	if err := n.cluster.hub.connectNode(n.Name, init.PID()); err != nil {
		err = errors.Join(err, init.Kill())
		// The thread of the starter would keep the namespaces of the node.
		starter.Stop()
		return err
	}
	n.init, n.starter = init, starter
	return nil
}

// PowerOff stops the node like a power cut: all of its processes are killed at once, including pods. The disk is not
// deleted.
func (n *Node) PowerOff() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.init == nil {
		return nil
	}
	err := n.init.Kill()
	// The kernel kills all processes of the PID namespace before it reports the end of process 1.
	for _, part := range parts {
		if p := n.Process(part); p != nil {
			<-p.Exited()
		}
	}
	n.starter.Stop()
	n.init, n.starter = nil, nil
	if err := errors.Join(err, n.cluster.hub.disconnect(n.Name)); err != nil {
		return fmt.Errorf("power off node %s: %w", n.Name, err)
	}
	return nil
}

// Reboot powers the node off and on. If keepState is false, it deletes the disk in between, so that the node starts like a
// newly installed machine.
func (n *Node) Reboot(ctx context.Context, keepState bool) error {
	if err := n.PowerOff(); err != nil {
		return err
	}
	if !keepState {
		// Remove the cgroups first: removeCgroups finds them by the folders of containerd on the disk.
		if err := removeCgroups(n.disk()); err != nil {
			return err
		}
		if err := os.RemoveAll(n.disk()); err != nil {
			return fmt.Errorf("empty the disk of node %s: %w", n.Name, err)
		}
	}
	return n.PowerOn(ctx)
}

// Process returns the process of one of the node's programs; nil if it was never started.
func (n *Node) Process(part Part) *cluster.Process {
	return n.cluster.Process(n.Name + "-" + string(part))
}

// Start starts or restarts one of the node's programs. For Containerd, it returns when containerd accepts connections.
func (n *Node) Start(ctx context.Context, part Part) error {
	if p := n.Process(part); p != nil {
		if err := p.Restart(ctx); err != nil {
			return err
		}
	} else {
		program, err := n.program(part)
		if err != nil {
			return err
		}
		if _, err := n.cluster.Run(ctx, n.Name+"-"+string(part), program); err != nil {
			return err
		}
	}
	if part == Containerd {
		return n.waitContainerd(ctx)
	}
	return nil
}

// Kill kills one of the node's programs with SIGKILL. Pods keep running.
func (n *Node) Kill(part Part) error {
	p := n.Process(part)
	if p == nil {
		return fmt.Errorf("kill %s of node %s: the program was never started", part, n.Name)
	}
	return p.Kill()
}

// Partition drops all packets from and to the node until Heal. The interface of the node stays up.
func (n *Node) Partition() error { return n.cluster.hub.unplug(n.Name) }

// Heal ends a partition.
func (n *Node) Heal() error { return n.cluster.hub.plug(n.Name) }

// Run runs a command in the namespaces of the node and returns its standard output. program is the path of a program that
// the node can see, or a name that is looked up in searchPath.
func (n *Node) Run(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, lookUp(program), args...)
	cmd.Env = n.environment()
	cmd.Dir = "/"
	var out, problems strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &problems
	err := n.start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return out.String(), fmt.Errorf("run %s on node %s: %w: %s", strings.Join(append([]string{program}, args...), " "), n.Name, err, strings.TrimSpace(problems.String()))
	}
	return out.String(), nil
}

// Fetch sends an HTTP request from this node to the test pod at an address and returns the response; see testpod.
func (n *Node) Fetch(ctx context.Context, address string) (string, error) {
	target := url.URL{Scheme: "http", Host: net.JoinHostPort(address, "8080"), Path: "/"}
	return n.Run(ctx, n.cluster.bin("fixedip-testpod"), "fetch", target.String())
}

// start starts a command in the node's namespaces.
func (n *Node) start(cmd *exec.Cmd) error {
	n.mu.Lock()
	starter := n.starter
	n.mu.Unlock()
	if starter == nil {
		return fmt.Errorf("node %s is off", n.Name)
	}
	return starter.Start(cmd)
}

func (n *Node) disk() string { return filepath.Join(n.dir, diskDir) }

func (n *Node) config(name string) string { return filepath.Join(n.dir, "config", name) }

func (n *Node) environment() []string {
	return []string{"PATH=" + filepath.Join(n.cluster.options.Dir, toolsDir) + ":" + searchPath, "HOME=/root", "K8S_NODE_NAME=" + n.Name}
}

// configure writes the configuration of the node's programs.
func (n *Node) configure() error {
	dir := n.cluster.options.Dir
	paths := layout.Paths{
		CNI:        filepath.Join(dir, cniDir),
		BPF:        n.cluster.ciliumBin(),
		Kubeconfig: n.cluster.Kubeconfig("cilium"),
		ClientCA:   filepath.Join(dir, "control-plane", "pki", "ca.crt"),
	}
	containerd, err := layout.ContainerdConfig(paths)
	if err != nil {
		return err
	}
	kubelet, err := n.cluster.options.KubeletConfig(paths)
	if err != nil {
		return err
	}
	files := map[string][]byte{"containerd.toml": containerd, "kubelet.yaml": kubelet}
	for name, value := range n.cluster.options.AgentConfig(paths) {
		files[filepath.Join(string(Agent), name)] = []byte(value)
	}
	for name, data := range files {
		path := n.config(name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, data, 0o644)
		}
		if err != nil {
			return fmt.Errorf("write the configuration of node %s: %w", n.Name, err)
		}
	}
	return nil
}

// program returns the path, arguments and environment with which a part is started.
func (n *Node) program(part Part) (cluster.Program, error) {
	p := cluster.Program{Env: n.environment(), Start: n.start}
	switch part {
	case Containerd:
		p.Bin, p.Args = "/usr/bin/containerd", []string{"--config=" + n.config("containerd.toml")}
	case Kubelet:
		args, err := n.cluster.options.KubeletArgs(n.Name)
		if err != nil {
			return p, err
		}
		p.Bin = filepath.Join(n.cluster.options.KubernetesPrograms(n.cluster.options.Bin), "fixedip-kubelet")
		p.Args = append(args, "--config="+n.config("kubelet.yaml"), "--kubeconfig="+n.cluster.Kubeconfig("kubelet-"+n.Name), "--v=2")
	case Agent:
		p.Bin = filepath.Join(n.cluster.ciliumBin(), "cilium-agent")
		p.Args = []string{"--config-dir=" + n.config(string(Agent))}
	default:
		return p, fmt.Errorf("start a part of node %s: unknown part %q", n.Name, part)
	}
	return p, nil
}

// waitContainerd polls until containerd accepts connections, because there is no event for that.
func (n *Node) waitContainerd(ctx context.Context) error {
	n.mu.Lock()
	init := n.init
	n.mu.Unlock()
	if init == nil {
		return fmt.Errorf("node %s is off", n.Name)
	}
	p := n.Process(Containerd)
	socket := filepath.Join(fmt.Sprintf("/proc/%d/root", init.PID()), layout.ContainerdSocket)
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		if !p.Running() {
			return false, fmt.Errorf("process %s has exited: %s", p.Name, p.ExitState())
		}
		conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
		if err != nil {
			return false, nil
		}
		return true, conn.Close()
	})
	if err != nil {
		return errors.Join(fmt.Errorf("wait for containerd of node %s: %w", n.Name, err), n.logTails())
	}
	return nil
}

// importImages imports the images of the options and the test images into the node, because there is no registry.
func (n *Node) importImages(ctx context.Context) error {
	archives := slices.Clone(n.cluster.options.Images)
	for name := range testImages {
		archives = append(archives, testImage(n.cluster.options.Dir, name))
	}
	for _, archive := range archives {
		if err := n.ImportImage(ctx, archive); err != nil {
			return err
		}
	}
	return nil
}

// ImportImage imports the images of an archive into the containerd of the node.
func (n *Node) ImportImage(ctx context.Context, archive string) error {
	file, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("open the image archive: %w", err)
	}
	defer file.Close()
	// ctr reads the archive from standard input, because the file may not be visible in the node.
	cmd := exec.CommandContext(ctx, "/usr/bin/ctr", "--namespace=k8s.io", "--address="+layout.ContainerdSocket, "images", "import", "-")
	cmd.Env, cmd.Dir, cmd.Stdin = n.environment(), "/", file
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	err = n.start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("import the images of %s on node %s: %w: %s", archive, n.Name, err, strings.TrimSpace(output.String()))
	}
	return nil
}

// routeService redirects connections to the Service "kubernetes" to the API server, as kube-proxy does, if they are opened
// in the network namespace of the node. Pods on the host network know no other address of the API server. Connections to
// other Services are not redirected.
func (n *Node) routeService(ctx context.Context) error {
	o := n.cluster.options
	program := "iptables"
	if o.ControlPlane().Is6() {
		program = "ip6tables"
	}
	_, err := n.Run(ctx, program, "--wait", "-t", "nat", "-A", "OUTPUT", "-d", o.ServiceAddress().String(), "-p", "tcp", "--dport", "443",
		"-j", "DNAT", "--to-destination", net.JoinHostPort(o.ControlPlane().String(), fmt.Sprint(layout.APIServerPort)))
	return err
}

// logTails returns the ends of the logs of the node's programs as an error.
func (n *Node) logTails() error {
	var errs []error
	for _, part := range parts {
		if p := n.Process(part); p != nil {
			errs = append(errs, fmt.Errorf("the end of the log of %s:\n%s", p.Name, p.LogTail()))
		}
	}
	return errors.Join(errs...)
}
