// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
)

// options contains the command-line settings. It implements startup.Options.
type options struct {
	dir                    string
	etcdDir                string
	bindAddress            string
	securePort             int
	serviceRange           string
	nodes                  []string
	crds                   []string
	nodeMonitorGracePeriod time.Duration
	podGCThreshold         int
	nodeCIDRs              []string
	nodeCIDRMaskSizes      []int
	noControllers          bool
	auditLog               string
	readyTimeout           time.Duration
	readyFD                int
}

func newOptions() *options {
	return &options{
		bindAddress:            "127.0.0.1",
		serviceRange:           "10.96.0.0/16",
		nodeMonitorGracePeriod: 50 * time.Second,
		podGCThreshold:         12500,
		readyTimeout:           90 * time.Second,
		readyFD:                -1,
	}
}

// AddFlags adds a flag for each option to fs. The current values of o are the defaults.
func (o *options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.dir, "dir", o.dir, "Work folder for certificates, tokens, kubeconfigs and the data of etcd. A control plane that is started again on the same folder continues with its state.")
	fs.StringVar(&o.etcdDir, "etcd-dir", o.etcdDir, "Data folder of etcd; if empty, <dir>/etcd.")
	fs.IntVar(&o.securePort, "secure-port", o.securePort, "Port of the API server; 0 means the port of the last run on this folder, or a free one.")
	fs.StringVar(&o.bindAddress, "bind-address", o.bindAddress, "Address of this machine on which the API server listens. It is also the endpoint of the Service \"kubernetes\" unless it is a loopback address.")
	fs.StringVar(&o.serviceRange, "service-cluster-ip-range", o.serviceRange, "CIDRs of services, one for each family, as in kube-apiserver.")
	fs.StringArrayVar(&o.nodes, "node", o.nodes, "Name of a node for whose kubelet a kubeconfig is written; may be given more than once.")
	fs.StringArrayVar(&o.crds, "crds", o.crds, "File or folder with CustomResourceDefinitions to create before the controllers start; may be given more than once.")
	fs.DurationVar(&o.nodeMonitorGracePeriod, "node-monitor-grace-period", o.nodeMonitorGracePeriod, "Time without a heartbeat after which a node is marked as unhealthy, as in kube-controller-manager.")
	fs.IntVar(&o.podGCThreshold, "terminated-pod-gc-threshold", o.podGCThreshold, "Number of terminated pods above which the pod garbage collector deletes some, as in kube-controller-manager.")
	fs.StringSliceVar(&o.nodeCIDRs, "node-cidrs", o.nodeCIDRs, "CIDRs, one per family, from which Node.spec.podCIDRs are allocated, as by kube-controller-manager's --allocate-node-cidrs and --cluster-cidr; if empty, none are allocated.")
	fs.IntSliceVar(&o.nodeCIDRMaskSizes, "node-cidr-mask-sizes", o.nodeCIDRMaskSizes, "Prefix length of the subnet of a node, one for each of --node-cidrs.")
	fs.StringVar(&o.auditLog, "audit-log", o.auditLog, "Path of the audit log of the API server, one event of audit.k8s.io/v1 per line; if empty, there is no audit log.")
	fs.BoolVar(&o.noControllers, "no-controllers", o.noControllers, "Do not start the controller manager, so that no controller changes objects. Pods can be created only in namespaces whose default service account is created by hand.")
	fs.DurationVar(&o.readyTimeout, "ready-timeout", o.readyTimeout, "Maximum time until the control plane is ready. A start takes a few seconds if etcd has few objects, and minutes if it has many.")
	fs.IntVar(&o.readyFD, "ready-fd", o.readyFD, "Inherited file descriptor to which one line is written when the control plane is ready; -1 means none.")
}

// Validate validates the options, makes dir absolute, and sets the default of etcdDir.
func (o *options) Validate() error {
	if o.dir == "" {
		return errors.New("--dir, the work folder, is required")
	}
	abs, err := filepath.Abs(o.dir)
	if err != nil {
		return fmt.Errorf("--dir=%q: %w", o.dir, err)
	}
	o.dir = abs
	if o.etcdDir == "" {
		o.etcdDir = filepath.Join(o.dir, "etcd")
	}
	if _, err := netip.ParseAddr(o.bindAddress); err != nil {
		return fmt.Errorf("--bind-address=%q: not an IP address", o.bindAddress)
	}
	for cidr := range strings.SplitSeq(o.serviceRange, ",") {
		if _, err := netip.ParsePrefix(cidr); err != nil {
			return fmt.Errorf("--service-cluster-ip-range=%q: %q is not a CIDR", o.serviceRange, cidr)
		}
	}
	for _, node := range o.nodes {
		if problems := validation.IsDNS1123Subdomain(node); len(problems) > 0 {
			return fmt.Errorf("--node=%q: %s", node, strings.Join(problems, "; "))
		}
	}
	if o.securePort < 0 || o.securePort > 65535 {
		return fmt.Errorf("--secure-port=%d: a port from 0 to 65535 is needed", o.securePort)
	}
	for _, path := range o.crds {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("--crds=%q: %w", path, err)
		}
	}
	// A kubelet renews its lease every 10 s, and kube-controller-manager looks for renewed leases every 5 s. With a grace
	// period of 10 s or less, a node could be marked as unhealthy although its kubelet renews the lease.
	if o.nodeMonitorGracePeriod < 11*time.Second {
		return fmt.Errorf("--node-monitor-grace-period=%s: at least 11s is needed", o.nodeMonitorGracePeriod)
	}
	if len(o.nodeCIDRs) != len(o.nodeCIDRMaskSizes) {
		return fmt.Errorf("--node-cidr-mask-sizes=%v: one prefix length is needed for each CIDR of --node-cidrs=%v", o.nodeCIDRMaskSizes, o.nodeCIDRs)
	}
	for _, s := range o.nodeCIDRs {
		if _, err := netip.ParsePrefix(s); err != nil {
			return fmt.Errorf("--node-cidrs=%q: %w", s, err)
		}
	}
	if o.readyFD >= 0 && o.readyFD < 3 {
		return fmt.Errorf("--ready-fd=%d: 0, 1 and 2 are the standard streams", o.readyFD)
	}
	return nil
}
