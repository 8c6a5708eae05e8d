// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
)

// options contains the command-line settings. It implements startup.Options.
type options struct {
	kubeconfig       string
	nodeName         string
	nodeIPs          []string
	ipv4, ipv6       bool
	updateRate       time.Duration
	poolPoll         time.Duration
	maxPods          int64
	sandboxDelay     time.Duration
	sandboxRetry     time.Duration
	stopDelay        time.Duration
	leaseRenewal     time.Duration
	labels           map[string]string
	debugAddress     string
	endpointInterval time.Duration
	oldAgent         bool
	rebooted         bool
}

func newOptions() *options {
	return &options{
		ipv4:             true,
		updateRate:       15 * time.Second,
		poolPoll:         200 * time.Millisecond,
		maxPods:          110,
		sandboxDelay:     100 * time.Millisecond,
		sandboxRetry:     2 * time.Second,
		stopDelay:        200 * time.Millisecond,
		leaseRenewal:     3 * time.Second,
		endpointInterval: 10 * time.Second,
	}
}

// AddFlags adds a flag for each option to fs. The current values of o are the defaults.
func (o *options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.kubeconfig, "kubeconfig", o.kubeconfig, "Kubeconfig of a user with the rights of a kubelet and an agent.")
	fs.StringVar(&o.nodeName, "node-name", o.nodeName, "Name of the node.")
	fs.StringSliceVar(&o.nodeIPs, "node-ip", o.nodeIPs, "Addresses of the node itself, one per family; if empty, they are derived from the name, in 100.64.0.0/10 and fd00:64::/64.")
	fs.BoolVar(&o.ipv4, "ipv4", o.ipv4, "Give pods IPv4 addresses.")
	fs.BoolVar(&o.ipv6, "ipv6", o.ipv6, "Give pods IPv6 addresses.")
	fs.DurationVar(&o.updateRate, "update-rate", o.updateRate, "Minimum interval between two reports of the agent, like --ipam-cilium-node-update-rate of a real agent.")
	fs.DurationVar(&o.poolPoll, "pool-poll", o.poolPoll, "Interval at which the allocator checks whether the pool of a new node has enough entries; 5s in a real agent.")
	fs.Int64Var(&o.maxPods, "max-pods", o.maxPods, "Maximum number of pods on the node.")
	fs.DurationVar(&o.sandboxDelay, "sandbox-delay", o.sandboxDelay, "Time from the bind of a pod to its first address request, in which a real kubelet creates the sandbox. If it is 0, the agent may not have seen a claim that was written just before the bind.")
	fs.DurationVar(&o.sandboxRetry, "sandbox-retry", o.sandboxRetry, "Time until a failed address request is retried; 10-13s in a real kubelet.")
	fs.DurationVar(&o.stopDelay, "stop-delay", o.stopDelay, "Time that containers take to stop, if the pod's grace period is not shorter.")
	fs.DurationVar(&o.leaseRenewal, "lease-renewal", o.leaseRenewal, "Interval at which the node renews its lease and checks its condition Ready.")
	fs.DurationVar(&o.endpointInterval, "endpoint-interval", o.endpointInterval, "Interval at which the agent checks that the CiliumEndpoints of its pods exist.")
	fs.BoolVar(&o.oldAgent, "old-agent", o.oldAgent, "Do not create a CiliumEndpoint again that another program deleted, like Cilium v1.18.0.")
	fs.BoolVar(&o.rebooted, "rebooted", o.rebooted, "Start like a node after a reboot: existing pods have lost their sandboxes and get new ones, with the same pod objects.")
	fs.StringToStringVar(&o.labels, "labels", o.labels, "Additional labels of the Node.")
	fs.StringVar(&o.debugAddress, "debug-address", o.debugAddress, "Address that serves /allocations, the state of the allocator as JSON; if empty, it is not served.")
}

// Validate validates the options and sets nodeIPs if it is empty.
func (o *options) Validate() error {
	if _, err := os.Stat(o.kubeconfig); err != nil {
		return fmt.Errorf("--kubeconfig=%q: %w", o.kubeconfig, err)
	}
	if errs := validation.IsDNS1123Subdomain(o.nodeName); len(errs) > 0 {
		return fmt.Errorf("--node-name=%q: %s", o.nodeName, errs[0])
	}
	if !o.ipv4 && !o.ipv6 {
		return fmt.Errorf("--ipv4=%t and --ipv6=%t: at least one family is needed", o.ipv4, o.ipv6)
	}
	if o.maxPods < 1 {
		return fmt.Errorf("--max-pods=%d: at least 1 is needed", o.maxPods)
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
		least time.Duration
	}{
		{"update-rate", o.updateRate, time.Millisecond},
		{"pool-poll", o.poolPoll, time.Millisecond},
		{"sandbox-delay", o.sandboxDelay, 0},
		{"sandbox-retry", o.sandboxRetry, time.Millisecond},
		{"stop-delay", o.stopDelay, 0},
		{"lease-renewal", o.leaseRenewal, 100 * time.Millisecond},
		{"endpoint-interval", o.endpointInterval, 100 * time.Millisecond},
	} {
		if d.value < d.least {
			return fmt.Errorf("--%s=%s: at least %s is needed", d.flag, d.value, d.least)
		}
	}
	for key, value := range o.labels {
		errs := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...)
		if len(errs) > 0 {
			return fmt.Errorf("--labels=%s=%s: %s", key, value, errs[0])
		}
	}
	for _, s := range o.nodeIPs {
		if _, err := netip.ParseAddr(s); err != nil {
			return fmt.Errorf("--node-ip=%q: %w", s, err)
		}
	}
	if o.debugAddress != "" {
		if _, _, err := net.SplitHostPort(o.debugAddress); err != nil {
			return fmt.Errorf("--debug-address=%q: %w", o.debugAddress, err)
		}
	}
	if len(o.nodeIPs) == 0 {
		o.nodeIPs = deriveNodeIPs(o.nodeName, o.ipv4, o.ipv6)
	}
	return nil
}

// deriveNodeIPs derives stable addresses of the node from its name. No program connects to them. They are not loopback
// addresses, because the API server refuses loopback addresses in endpoints.
func deriveNodeIPs(name string, ipv4, ipv6 bool) []string {
	h := fnv.New32a()
	h.Write([]byte(name))
	n := h.Sum32()
	var ips []string
	if ipv4 {
		ips = append(ips, netip.AddrFrom4([4]byte{100, 64 | byte(n>>16)&0x3f, byte(n >> 8), byte(n)}).String())
	}
	if ipv6 {
		b := [16]byte{0: 0xfd, 3: 0x64, 12: byte(n >> 24), 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)}
		ips = append(ips, netip.AddrFrom16(b).String())
	}
	return ips
}
