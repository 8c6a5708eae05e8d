// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// ciliumVersions contains the versions of the agents. Key: the minor version, such as 1.19.
var ciliumVersions = map[string]string{"1.18": "v1.18.6", "1.19": "v1.19.4", "1.20": "v1.20.2"}

// kubernetesVersions contains the versions of the control planes and kubelets. Key: the minor version, such as 1.34.
var kubernetesVersions = map[string]string{OwnKubernetes: "v1.34.9", "1.35": "v1.35.4"}

// OwnKubernetes is the minor version whose libraries the product is built with.
const OwnKubernetes = "1.34"

// Routing is the routing mode between nodes.
type Routing string

// The kinds of routing.
const (
	Tunnel Routing = "tunnel" // VXLAN
	Native Routing = "native" // the nodes are on one link and have routes to one another's subnets
)

// Families of addresses, as in the setting ipFamilies of FixedIPConfiguration.
const (
	IPv4 = "IPv4"
	IPv6 = "IPv6"
)

// Options describe a cluster.
type Options struct {
	// Cilium is the minor version of the agents: 1.18, 1.19 or 1.20.
	Cilium string
	// Kubernetes is the minor version of the control plane and the kubelets: 1.34 or 1.35.
	Kubernetes string
	// Nodes is the number of nodes that are started with the cluster. Spare is the number of further nodes that the control
	// plane knows and that can be started later.
	Nodes, Spare int
	// Families are the families of pods, nodes and services: IPv4, IPv6 or both, with the preferred one first.
	Families []string
	Routing  Routing
	// UpdateRate is the minimum interval between two reports of an agent. The default of Cilium is 15 s.
	UpdateRate time.Duration
	// Network is the number of the network of nodes, from 0 to MaxNetwork. Clusters on one machine have different
	// numbers.
	Network int
}

// MaxNetwork is the highest number of a network of nodes.
const MaxNetwork = 255

// Defaults returns two nodes with Kubernetes 1.34, Cilium 1.19, IPv4 and VXLAN. The agents may report
// every second, which shortens waits.
func Defaults() Options {
	return Options{Cilium: "1.19", Kubernetes: OwnKubernetes, Nodes: 2, Families: []string{IPv4}, Routing: Tunnel, UpdateRate: time.Second}
}

// maxNodes is the maximum number of nodes, including spare nodes.
const maxNodes = 100

// Validate returns an error that names the first invalid option; nil if all options are valid.
func (o Options) Validate() error {
	if _, known := ciliumVersions[o.Cilium]; !known {
		return fmt.Errorf("version %q of Cilium is not among 1.18, 1.19 and 1.20", o.Cilium)
	}
	if _, known := kubernetesVersions[o.Kubernetes]; !known {
		return fmt.Errorf("version %q of Kubernetes is neither 1.34 nor 1.35", o.Kubernetes)
	}
	if o.Nodes < 1 || o.Spare < 0 || o.Nodes+o.Spare > maxNodes {
		return fmt.Errorf("%d nodes and %d spare nodes: at least one node and at most %d in total are possible", o.Nodes, o.Spare, maxNodes)
	}
	if len(o.Families) == 0 || len(o.Families) > 2 || len(slices.Compact(slices.Sorted(slices.Values(o.Families)))) != len(o.Families) {
		return fmt.Errorf("families %v: IPv4, IPv6 or both are possible", o.Families)
	}
	for _, f := range o.Families {
		if f != IPv4 && f != IPv6 {
			return fmt.Errorf("family %q is neither IPv4 nor IPv6", f)
		}
	}
	if o.Routing != Tunnel && o.Routing != Native {
		return fmt.Errorf("routing %q is neither %s nor %s", o.Routing, Tunnel, Native)
	}
	if o.Network < 0 || o.Network > MaxNetwork {
		return fmt.Errorf("network %d is not between 0 and %d", o.Network, MaxNetwork)
	}
	if o.UpdateRate <= 0 {
		return fmt.Errorf("the update rate %s is not a positive time", o.UpdateRate)
	}
	return nil
}

// CiliumVersion returns the full version of Cilium, such as v1.19.4.
func (o Options) CiliumVersion() string { return ciliumVersions[o.Cilium] }

// KubernetesVersion returns the full version of Kubernetes, such as v1.34.9.
func (o Options) KubernetesVersion() string { return kubernetesVersions[o.Kubernetes] }

// KubernetesPrograms returns the folder of the control plane and the kubelet; bin is the folder of all programs.
func (o Options) KubernetesPrograms(bin string) string {
	if o.Kubernetes == OwnKubernetes {
		return bin
	}
	return filepath.Join(bin, "kubernetes-"+o.Kubernetes)
}

// Has reports whether pods have addresses of the family.
func (o Options) Has(family string) bool { return slices.Contains(o.Families, family) }

// NodeNames returns the names of the nodes that are started with the cluster.
func (o Options) NodeNames() []string { return names(1, o.Nodes) }

// SpareNames returns the names of the spare nodes.
func (o Options) SpareNames() []string { return names(o.Nodes+1, o.Spare) }

func names(first, count int) []string {
	list := make([]string, 0, count)
	for i := range count {
		list = append(list, fmt.Sprintf("node-%d", first+i))
	}
	return list
}

// network contains the CIDRs of one family. nodes is a format whose argument is the number of the network.
type network struct {
	nodes, pods, services string
	// route is the default route.
	route string
}

// networks contains the CIDRs of each family. Key: the family. The IPv4 networks of nodes are in the CIDR for benchmarks
// (RFC 2544), which the machine is unlikely to use.
var networks = map[string]network{
	IPv4: {nodes: "198.18.%d.0/24", pods: "10.240.0.0/16", services: "10.96.0.0/16", route: "0.0.0.0/0"},
	IPv6: {nodes: "fd00:198:18:%x::/64", pods: "fd00:10:240::/112", services: "fd00:10:96::/112", route: "::/0"},
}

// PodCIDR returns the cluster pool of a family.
func PodCIDR(family string) string { return networks[family].pods }

// DefaultRoute returns the destination of the default route.
func DefaultRoute(family string) netip.Prefix { return netip.MustParsePrefix(networks[family].route) }

// ServiceCIDRs returns the service CIDRs of all families in the format of kube-apiserver.
func (o Options) ServiceCIDRs() string {
	var list []string
	for _, f := range o.Families {
		list = append(list, networks[f].services)
	}
	return strings.Join(list, ",")
}

// ServiceAddress returns the cluster IP of the Service "kubernetes": the first address of the service CIDR of the first
// family.
func (o Options) ServiceAddress() netip.Addr {
	return netip.MustParsePrefix(networks[o.Families[0]].services).Addr().Next()
}

// dnsAddress returns the tenth address of the service CIDR, which is usually the cluster IP of the DNS service.
func (o Options) dnsAddress() netip.Addr {
	address := o.ServiceAddress()
	for range 9 {
		address = address.Next()
	}
	return address
}

// APIServerPort is the port of the API server.
const APIServerPort = 6443

// NodeNetworks returns the networks of nodes of both families, even if Families contains only one.
func (o Options) NodeNetworks() []netip.Prefix {
	var list []netip.Prefix
	for _, n := range networks {
		list = append(list, netip.MustParsePrefix(fmt.Sprintf(n.nodes, o.Network)))
	}
	return list
}

// ControlPlane returns the address at which nodes reach the API server, in the preferred family.
func (o Options) ControlPlane() netip.Addr { return o.ControlPlaneAddresses()[0].Addr() }

// ControlPlaneAddresses returns the addresses of the control plane in the network of nodes, one per family.
func (o Options) ControlPlaneAddresses() []netip.Prefix { return o.addresses(1) }

// NodeAddresses returns the addresses of a node in the network of nodes, one per family, or an error if the options have no
// such node.
func (o Options) NodeAddresses(node string) ([]netip.Prefix, error) {
	var i int
	if _, err := fmt.Sscanf(node, "node-%d", &i); err != nil || i < 1 || i > o.Nodes+o.Spare {
		return nil, fmt.Errorf("node %q is not among the nodes %v and the spare nodes %v", node, o.NodeNames(), o.SpareNames())
	}
	return o.addresses(byte(10 + i)), nil
}

// addresses returns the addresses in the network of nodes that have the given last byte, one per family.
func (o Options) addresses(last byte) []netip.Prefix {
	var list []netip.Prefix
	for _, f := range o.Families {
		prefix := netip.MustParsePrefix(fmt.Sprintf(networks[f].nodes, o.Network))
		bytes := prefix.Addr().AsSlice()
		bytes[len(bytes)-1] = last
		address, _ := netip.AddrFromSlice(bytes) // bytes has the length of an address
		list = append(list, netip.PrefixFrom(address, prefix.Bits()))
	}
	return list
}
