// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tryMounts mounts the kinds of file systems that nodes and containers need, and describes the mounts that fail. The mounts
// end with the mount namespace of this thread.
func tryMounts() []string {
	var missing []string
	for _, m := range []struct{ kind, config, data string }{
		{"tmpfs", "TMPFS", ""},
		{"bpf", "BPF_SYSCALL", ""},
		{"overlay", "OVERLAY_FS", "lowerdir=/usr:/etc"},
	} {
		if err := unix.Mount("none", "/mnt", m.kind, 0, m.data); err != nil {
			missing = append(missing, fmt.Sprintf("file systems of type %s (CONFIG_%s): %v", m.kind, m.config, err))
		}
	}
	return missing
}

// tryNetwork creates the kinds of links that nodes need, in the network namespace of this thread, and checks the kinds of
// eBPF programs and maps. It describes the kinds that are not available.
func tryNetwork() []string {
	var missing []string
	for _, l := range []struct {
		link   netlink.Link
		config string
	}{
		{&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bridge"}}, "BRIDGE"},
		{&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "veth"}, PeerName: "peer"}, "VETH"},
		{&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "vxlan"}, FlowBased: true, Port: 8472}, "VXLAN"},
	} {
		if err := netlink.LinkAdd(l.link); err != nil {
			missing = append(missing, fmt.Sprintf("network links of kind %s (CONFIG_%s): %v", l.link.Type(), l.config, err))
		}
	}
	for _, t := range []ebpf.ProgramType{ebpf.SchedCLS, ebpf.CGroupSockAddr} {
		if err := features.HaveProgramType(t); err != nil {
			missing = append(missing, fmt.Sprintf("eBPF programs of kind %s (CONFIG_BPF_SYSCALL, CONFIG_CGROUP_BPF): %v", t, err))
		}
	}
	for _, t := range []ebpf.MapType{ebpf.LPMTrie, ebpf.LRUHash, ebpf.PerfEventArray} {
		if err := features.HaveMapType(t); err != nil {
			missing = append(missing, fmt.Sprintf("eBPF maps of kind %s: %v", t, err))
		}
	}
	if len(missing) == 0 {
		if err := tryAttach(); err != nil {
			missing = append(missing, fmt.Sprintf("eBPF programs on network links (CONFIG_NET_XGRESS for tcx, or CONFIG_NET_CLS_BPF and CONFIG_NET_SCH_INGRESS): %v", err))
		}
	}
	return missing
}

// tryAttach attaches an eBPF program to a link with tcx or, if that fails, with tc. Cilium uses the same two ways.
func tryAttach() error {
	veth, err := netlink.LinkByName("veth")
	if err != nil {
		return err
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		return fmt.Errorf("load a program: %w", err)
	}
	defer program.Close()
	attached, tcx := link.AttachTCX(link.TCXOptions{Interface: veth.Attrs().Index, Program: program, Attach: ebpf.AttachTCXIngress})
	if tcx == nil {
		return attached.Close()
	}
	qdisc := &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: veth.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT},
		QdiscType:  "clsact",
	}
	err = netlink.QdiscAdd(qdisc)
	if err == nil {
		err = netlink.FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{
				LinkIndex: veth.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL,
			},
			Fd: program.FD(), Name: "preflight", DirectAction: true,
		})
	}
	if err != nil {
		return errors.Join(fmt.Errorf("tcx: %w", tcx), fmt.Errorf("tc: %w", err))
	}
	return nil
}
