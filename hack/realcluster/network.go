// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package realcluster

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"fixedip.io/fixedip/hack/realcluster/layout"
)

const (
	// bridgeName is the name of the bridge between the nodes. The bridge is in the hub, a separate network namespace, so
	// that the firewall of the machine does not affect traffic between nodes.
	bridgeName = "nodes"
	// machineLink and machinePort are the two ends of the link between the machine and the hub; the number of the
	// network is appended to both names. machineLink is on the machine and has the addresses of the control plane. Its
	// alias is the work folder, by which the function release finds the links of a cluster.
	machineLink = "fixedip-hub"
	machinePort = "fixedip-port"
)

// reserve creates the link of the first network of nodes that is not in use on this machine, and returns the number of that
// network.
func reserve(dir string) (int, error) {
	used, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return 0, fmt.Errorf("read the addresses of this machine: %w", err)
	}
	for i := range layout.MaxNetwork + 1 {
		if slices.ContainsFunc(layout.Options{Network: i}.NodeNetworks(), func(p netip.Prefix) bool {
			return slices.ContainsFunc(used, func(a netlink.Addr) bool { return overlap(p, a.IPNet) })
		}) {
			continue
		}
		name := machineLink + strconv.Itoa(i)
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: machinePort + strconv.Itoa(i)}
		err := netlink.LinkAdd(pair)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("create the link %s: %w", name, err)
		}
		if err := netlink.LinkSetAlias(pair, dir); err != nil {
			// The function release does not find a link without the alias.
			return 0, errors.Join(fmt.Errorf("set the alias of the link %s: %w", name, err), netlink.LinkDel(pair))
		}
		return i, nil
	}
	return 0, fmt.Errorf("no network for the nodes is free: all of them are in use on this machine; stop a cluster that is not needed any more")
}

// overlap reports whether p and the network of n overlap.
func overlap(p netip.Prefix, n *net.IPNet) bool {
	address, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return ok && p.Overlaps(netip.PrefixFrom(address.Unmap(), ones))
}

// release removes the links that reserve created for the work folder dir.
func release(dir string) error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list the network links of this machine: %w", err)
	}
	for _, link := range links {
		name := link.Attrs().Name
		if link.Attrs().Alias != dir || !strings.HasPrefix(name, machineLink) {
			continue
		}
		if err := netlink.LinkDel(link); err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) {
			return fmt.Errorf("remove the link %s: %w", name, err)
		}
	}
	return nil
}

// hub is a network namespace with a bridge that connects all nodes. The namespace exists as long as the process pid runs.
type hub struct {
	options layout.Options
	pid     int
}

// withNetwork runs f with a handle to the network namespace of a process.
func withNetwork(pid int, f func(*netlink.Handle) error) error {
	ns, err := netns.GetFromPid(pid)
	if err != nil {
		return fmt.Errorf("open the network namespace of process %d: %w", pid, err)
	}
	defer ns.Close()
	handle, err := netlink.NewHandleAt(ns)
	if err != nil {
		return fmt.Errorf("open a netlink socket in the network namespace of process %d: %w", pid, err)
	}
	defer handle.Close()
	return f(handle)
}

// setUp creates the bridge in the hub and connects the machine to the bridge.
func (h *hub) setUp() error {
	err := withNetwork(h.pid, func(n *netlink.Handle) error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName}}
		if err := n.LinkAdd(bridge); err != nil {
			return fmt.Errorf("create the bridge of the nodes: %w", err)
		}
		return up(n, bridgeName, nil)
	})
	if err != nil {
		return err
	}
	number := strconv.Itoa(h.options.Network)
	machine, err := netlink.NewHandle()
	if err != nil {
		return fmt.Errorf("open a netlink socket in the network namespace of the machine: %w", err)
	}
	defer machine.Close()
	port, err := machine.LinkByName(machinePort + number)
	if err == nil {
		err = machine.LinkSetNsPid(port, h.pid)
	}
	if err != nil {
		return fmt.Errorf("move the link of the machine into the hub: %w", err)
	}
	if err := h.plug(machinePort + number); err != nil {
		return err
	}
	return up(machine, machineLink+number, h.options.ControlPlaneAddresses())
}

// connectNode creates the interface, addresses and default routes of a node.
func (h *hub) connectNode(name string, pid int) error {
	addresses, err := h.options.NodeAddresses(name)
	if err != nil {
		return err
	}
	if err := h.connect(pid, layout.NodeInterface, name); err != nil {
		return err
	}
	return withNetwork(pid, func(n *netlink.Handle) error {
		if err := up(n, "lo", nil); err != nil {
			return err
		}
		if err := up(n, layout.NodeInterface, addresses); err != nil {
			return err
		}
		for i, gateway := range h.options.ControlPlaneAddresses() {
			route := &netlink.Route{
				Dst: ipNet(layout.DefaultRoute(h.options.Families[i])), Gw: gateway.Addr().AsSlice(),
			}
			if err := n.RouteAdd(route); err != nil {
				return fmt.Errorf("add the default route of node %s: %w", name, err)
			}
		}
		return nil
	})
}

// connect creates a pair of links: link is in the network namespace of the process pid, and port is a port of the bridge in
// the hub.
func (h *hub) connect(pid int, link, port string) error {
	ns, err := netns.GetFromPid(h.pid)
	if err != nil {
		return fmt.Errorf("open the network namespace of the hub: %w", err)
	}
	defer ns.Close()
	pair := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: link, Namespace: netlink.NsPid(pid)}, PeerName: port, PeerNamespace: netlink.NsFd(ns),
	}
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("create the link between %s and the hub: %w", port, err)
	}
	return h.plug(port)
}

// plug makes a link a port of the bridge and sets it up.
func (h *hub) plug(port string) error { return h.setMaster(port, true) }

// unplug removes a link from the bridge. The link stays up, so that the interface of the node stays up too.
func (h *hub) unplug(port string) error { return h.setMaster(port, false) }

func (h *hub) setMaster(port string, plugged bool) error {
	return withNetwork(h.pid, func(n *netlink.Handle) error {
		link, err := n.LinkByName(port)
		if err != nil {
			return fmt.Errorf("find port %s of the hub: %w", port, err)
		}
		if !plugged {
			err = n.LinkSetNoMaster(link)
		} else {
			var bridge netlink.Link
			if bridge, err = n.LinkByName(bridgeName); err == nil {
				err = errors.Join(n.LinkSetMaster(link, bridge), n.LinkSetUp(link))
			}
		}
		if err != nil {
			return fmt.Errorf("attach port %s of the hub to the bridge or detach it (attach: %t): %w", port, plugged, err)
		}
		return nil
	})
}

// disconnect removes a port of the hub and with it the interface of the node. The kernel removes them too, but only some
// time after the network namespace of the node has ended.
func (h *hub) disconnect(port string) error {
	return withNetwork(h.pid, func(n *netlink.Handle) error { return removeLink(n, port) })
}

// removeLink removes a link. It returns no error if the link does not exist any more.
func removeLink(n *netlink.Handle, name string) error {
	link, err := n.LinkByName(name)
	if err == nil {
		err = n.LinkDel(link)
	}
	if err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) && !errors.Is(err, syscall.ENODEV) {
		return fmt.Errorf("remove the link %s: %w", name, err)
	}
	return nil
}

// up adds the addresses to a link and sets it up.
func up(n *netlink.Handle, name string, addresses []netip.Prefix) error {
	link, err := n.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find the link %s: %w", name, err)
	}
	for _, a := range addresses {
		address := &netlink.Addr{IPNet: ipNet(a)}
		if a.Addr().Is6() {
			// Disable duplicate address detection: no program could listen on the address while the detection runs, and
			// each address of this network is given to one node or to the control plane only.
			address.Flags = nodad
		}
		if err := n.AddrAdd(link, address); err != nil {
			return fmt.Errorf("link %s: add the address %s: %w", name, a, err)
		}
	}
	if err := n.LinkSetUp(link); err != nil {
		return fmt.Errorf("set the link %s up: %w", name, err)
	}
	return nil
}

// nodad is IFA_F_NODAD of if_addr.h.
const nodad = 0x02

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
