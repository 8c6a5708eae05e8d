// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"fixedip.io/fixedip/hack/realcluster"
)

// truth records which sandbox of a node has which address, from the file that the container runtime writes for each
// successful CNI ADD. This record does not depend on the agent.
type truth struct {
	cluster *realcluster.Cluster
	node    string
	// dir is the folder with a file for each sandbox that has a network.
	dir string

	mu sync.Mutex
	// boxes contains all sandboxes that were ever seen. Key: the name of the file.
	boxes map[string]*sandbox
}

// sandbox is the sandbox of the pod namespace/name. first and last are the times at which its file was first and last seen.
type sandbox struct {
	pod         string
	addrs       []netip.Addr
	first, last time.Time
}

func newTruth(c *realcluster.Cluster, node string) *truth {
	return &truth{
		cluster: c, node: node, boxes: map[string]*sandbox{},
		dir: filepath.Join(c.Dir(), "nodes", node, "disk", "lib", "cni", "results"),
	}
}

// run calls poll ten times a second until ctx ends.
func (t *truth) run(ctx context.Context) {
	for ctx.Err() == nil {
		t.poll()
		pause(ctx, 100*time.Millisecond)
	}
}

// poll reads dir and updates boxes.
func (t *truth) poll() {
	now := time.Now()
	files, err := os.ReadDir(t.dir)
	if err != nil {
		return // The folder does not exist before the first pod has a network.
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range files {
		if box := t.boxes[f.Name()]; box != nil {
			box.last = now
		} else if box := t.read(f.Name()); box != nil {
			box.first, box.last = now, now
			t.boxes[f.Name()] = box
		}
	}
}

// read returns the sandbox of a file. It returns nil if the file does not exist, is incomplete, or is that of the loopback
// interface.
func (t *truth) read(name string) *sandbox {
	data, err := os.ReadFile(filepath.Join(t.dir, name))
	if err != nil {
		return nil
	}
	var file struct {
		CNIArgs [][2]string `json:"cniArgs"`
		Network string      `json:"networkName"`
		Result  struct {
			IPs []struct{ Address netip.Prefix }
		} `json:"result"`
	}
	if err := json.Unmarshal(data, &file); err != nil || file.Network == "cni-loopback" {
		return nil
	}
	args := map[string]string{}
	for _, arg := range file.CNIArgs {
		args[arg[0]] = arg[1]
	}
	box := &sandbox{pod: args["K8S_POD_NAMESPACE"] + "/" + args["K8S_POD_NAME"]}
	for _, ip := range file.Result.IPs {
		box.addrs = append(box.addrs, ip.Address.Addr())
	}
	return box
}

// seen polls and returns copies of the sandboxes that were last seen after the given time.
func (t *truth) seen(after time.Time) []sandbox {
	t.poll()
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []sandbox
	for _, box := range t.boxes {
		if box.last.After(after) {
			list = append(list, *box)
		}
	}
	return list
}

// endpoint reports whether the agent has an endpoint with the address. The file of a sandbox exists for a moment after the
// agent has released its address, so the file alone proves nothing. endpoint retries until the agent answers. If ctx ends
// first, it returns false.
func (t *truth) endpoint(ctx context.Context, a netip.Addr) bool {
	for ctx.Err() == nil {
		found, err := t.endpoints(ctx)
		if err == nil {
			return found[a]
		}
		pause(ctx, 200*time.Millisecond)
	}
	return false
}

// endpoints returns the addresses of all endpoints of the agent.
func (t *truth) endpoints(ctx context.Context) (map[netip.Addr]bool, error) {
	socket := fmt.Sprintf("/proc/%d/root/run/cilium/cilium.sock", t.cluster.Process(t.node).PID())
	agent := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/v1/endpoint", nil)
	if err != nil {
		return nil, err
	}
	answer, err := agent.Do(request)
	if err != nil {
		return nil, fmt.Errorf("request the endpoints of the agent of node %s: %w", t.node, err)
	}
	defer answer.Body.Close()
	var list []struct {
		Status struct {
			Networking struct {
				Addressing []struct{ IPv4, IPv6 string }
			}
		}
	}
	if err := json.NewDecoder(answer.Body).Decode(&list); err != nil {
		return nil, fmt.Errorf("decode the endpoints of the agent of node %s: %w", t.node, err)
	}
	found := map[netip.Addr]bool{}
	for _, e := range list {
		for _, pair := range e.Status.Networking.Addressing {
			for _, text := range []string{pair.IPv4, pair.IPv6} {
				if a, err := netip.ParseAddr(text); err == nil {
					found[a] = true
				}
			}
		}
	}
	return found, nil
}
