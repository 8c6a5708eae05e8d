// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"fixedip.io/fixedip/hack/realcluster"
)

// sandbox is the network sandbox of a pod, as containerd and the kernel show it.
type sandbox struct {
	node string
	// id is the ID of the sandbox in containerd.
	id             string
	namespace, pod string
	uid            string
	addresses      []string
	mac            string
	// path is the path of the network namespace of the sandbox.
	path string
}

func (s sandbox) key() string { return s.namespace + "/" + s.pod }

// wire inspects the networks of pods through containerd and the kernel, independently of Kubernetes and Cilium.
type wire struct {
	cluster *realcluster.Cluster

	mu sync.Mutex
	// known contains the containers whose configuration was read. The field path is empty if a container is not a sandbox
	// with its own network. Key: the path of the configuration.
	known map[string]sandbox
}

func newWire(c *realcluster.Cluster) *wire { return &wire{cluster: c, known: map[string]sandbox{}} }

// tasks is the folder, relative to the root of a node, in which containerd keeps the configuration of running containers.
const tasks = "run/containerd/io.containerd.runtime.v2.task/k8s.io"

// runtimeSpec is the relevant part of the configuration of a container (OCI runtime specification).
type runtimeSpec struct {
	Annotations map[string]string `json:"annotations"`
	Linux       struct {
		Namespaces []struct{ Type, Path string } `json:"namespaces"`
	} `json:"linux"`
}

// sandboxes returns the sandboxes on a node that have an interface with addresses; nil if the node does not run.
func (w *wire) sandboxes(node string) ([]sandbox, error) {
	init := w.cluster.Process(node)
	if init == nil || !init.Running() {
		return nil, nil
	}
	root := fmt.Sprintf("/proc/%d/root", init.PID())
	entries, err := os.ReadDir(filepath.Join(root, tasks))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return nil, nil // the node is being powered on or off
		}
		return nil, fmt.Errorf("list the containers of node %s: %w", node, err)
	}
	var found []sandbox
	for _, entry := range entries {
		s, ok := w.read(root, node, entry.Name())
		if !ok {
			continue
		}
		// A sandbox that was removed meanwhile has no address, and is left out.
		if s.addresses, s.mac, err = interfaceOf(s.path); err == nil && len(s.addresses) > 0 {
			found = append(found, s)
		}
	}
	return found, nil
}

// read returns the sandbox of a container from its configuration. The second result is false if the container is not a
// sandbox with its own network, or its configuration cannot be read.
func (w *wire) read(root, node, id string) (sandbox, bool) {
	path := filepath.Join(root, tasks, id, "config.json")
	w.mu.Lock()
	s, known := w.known[path]
	w.mu.Unlock()
	if known {
		return s, s.path != ""
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return s, false
	}
	var spec runtimeSpec
	if err := json.Unmarshal(data, &spec); err != nil {
		return s, false // the configuration is being written
	}
	const prefix = "io.kubernetes.cri."
	if spec.Annotations[prefix+"container-type"] == "sandbox" {
		s = sandbox{
			node: node, id: id,
			namespace: spec.Annotations[prefix+"sandbox-namespace"], pod: spec.Annotations[prefix+"sandbox-name"],
			uid: spec.Annotations[prefix+"sandbox-uid"],
		}
		for _, ns := range spec.Linux.Namespaces {
			if ns.Type == "network" && ns.Path != "" {
				// On the node, /var/run is a symbolic link to /run. If the link is absolute, it leads to a folder outside
				// the root of the node.
				s.path = filepath.Join(root, "run", strings.TrimPrefix(strings.TrimPrefix(ns.Path, "/var"), "/run"))
			}
		}
	}
	w.mu.Lock()
	w.known[path] = s
	w.mu.Unlock()
	return s, s.path != ""
}

// interfaceOf returns the addresses of eth0 in a network namespace, without link-local addresses, and the MAC address of
// eth0.
func interfaceOf(path string) (addresses []string, mac string, err error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, "", err
	}
	defer ns.Close()
	handle, err := netlink.NewHandleAt(ns)
	if err != nil {
		return nil, "", err
	}
	defer handle.Close()
	link, err := handle.LinkByName("eth0")
	if err != nil {
		return nil, "", err
	}
	list, err := handle.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, "", err
	}
	for _, a := range list {
		if !a.IP.IsLinkLocalUnicast() {
			addresses = append(addresses, a.IP.String())
		}
	}
	return addresses, link.Attrs().HardwareAddr.String(), nil
}

// sandboxOf returns the sandbox on a node of the pod with this UID.
func (w *wire) sandboxOf(node, uid string) (sandbox, error) {
	all, err := w.sandboxes(node)
	if err != nil {
		return sandbox{}, err
	}
	for _, s := range all {
		if s.uid == uid {
			return s, nil
		}
	}
	return sandbox{}, fmt.Errorf("node %s has no sandbox with addresses for the pod with the UID %s", node, uid)
}

// fetchTimeout is the time limit of a request. It is longer than a request takes if three packets in a row are lost.
const fetchTimeout = 8 * time.Second

// answer is the answer of a test pod: its hostname and addresses. See hack/realcluster/testpod.
type answer struct {
	Hostname  string   `json:"hostname"`
	Addresses []string `json:"addresses"`
}

// fetch sends a request to an address from the network of this pod, over a new connection, and returns the answer.
func (s sandbox) fetch(ctx context.Context, address string) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: s.dial}
	defer transport.CloseIdleConnections()
	var a answer
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(address, "8080")+"/", nil)
	if err != nil {
		return a, err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return a, err
	}
	if response.StatusCode != http.StatusOK {
		return a, fmt.Errorf("the response has the status %s: %s", response.Status, data)
	}
	return a, json.Unmarshal(data, &a)
}

// dial connects to an address from the network of the pod. A socket stays in the network in which it was created.
func (s sandbox) dial(ctx context.Context, network, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		ns, err := netns.GetFromPath(s.path)
		if err != nil {
			done <- result{err: err}
			return
		}
		defer ns.Close()
		if err := unix.Setns(int(ns), unix.CLONE_NEWNET); err != nil {
			done <- result{err: err}
			return
		}
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		done <- result{conn, err}
	}()
	r := <-done
	if r.err != nil {
		return nil, fmt.Errorf("connect from %s on node %s to %s: %w", s.key(), s.node, address, r.err)
	}
	return r.conn, nil
}

// reach connects from the network of one node to the kubelet of another. It returns an error if that fails.
func (w *wire) reach(ctx context.Context, from, to string) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	address, err := w.cluster.NodeAddress(to)
	if err != nil {
		return err
	}
	init := w.cluster.Process(from)
	if init == nil {
		return fmt.Errorf("there is no node %s", from)
	}
	node := sandbox{node: from, pod: "kubelet", path: fmt.Sprintf("/proc/%d/ns/net", init.PID())}
	conn, err := node.dial(ctx, "tcp", net.JoinHostPort(address.String(), "10250"))
	if err != nil {
		return err
	}
	return conn.Close()
}

// String describes the sandbox.
func (s sandbox) String() string {
	return fmt.Sprintf("%s (%s, sandbox %.12s) with %s", s.key(), s.node, s.id, strings.Join(s.addresses, ","))
}
