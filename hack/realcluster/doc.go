// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package realcluster runs a cluster of real nodes on one Linux machine, as root: the control plane of package cluster, and
// nodes that are namespaces with their own containerd, kubelet, cilium-agent and cilium-cni. Pods are containers, and packets
// go through eBPF. The end-to-end tests, the tests of the documentation and make cluster use this package.
//
// Cluster embeds cluster.Cluster, which provides kubeconfigs, Apply and processes by name.
//
//	c, err := realcluster.Start(ctx, realcluster.Options{Options: layout.Defaults(), Dir: dir, Bin: bin, Source: root})
//	defer c.Stop()
//	node := c.Node("node-1")
//	err = node.Kill(realcluster.Agent)        // SIGKILL; pods keep running
//	err = node.Start(ctx, realcluster.Agent)  // restarts it with the state of the node
//	err = node.Reboot(ctx, true)              // kills all processes of the node and starts it; false also deletes its disk
//	err = node.Partition()                    // drops its packets until Heal
//	err = c.AddNode(ctx, "node-3")            // one of the spare nodes
//	out, err := node.Run(ctx, "ip", "route")  // a command on the node
//	pod, err := node.Fetch(ctx, "10.240.1.7") // a request from the node to the test pod at that address
//
// Stop removes everything except the work folder. If the process that started the cluster dies, the kernel ends the
// processes of the cluster; with Detach they keep running until Down. Start begins with Down, so it also replaces a cluster
// that was started only partly.
package realcluster
