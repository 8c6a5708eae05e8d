// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command realcluster starts and stops a cluster of real nodes on this machine; see package realcluster.
//
//	realcluster up     starts a cluster, which replaces an earlier one, and returns when its nodes are ready
//	realcluster down   stops the cluster and deletes its work folder
//
// With --product=none, up returns when the programs of the nodes are started, because nodes become ready only with fixedip.
// If a prerequisite is missing, the exit status is 2.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/realcluster"
	"fixedip.io/fixedip/hack/realcluster/layout"
	"fixedip.io/fixedip/hack/realcluster/preflight"
)

// Values of the flag product.
const (
	ownProduct = "processes"
	noProduct  = "none"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// Logs of libraries, such as warnings of the API server, go to standard error.
	klog.SetOutput(os.Stderr)
	err := command().ExecuteContext(ctx)
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "realcluster: %v\n", err)
	if missing := (*preflight.Missing)(nil); errors.As(err, &missing) {
		os.Exit(preflight.ExitCode)
	}
	os.Exit(1)
}

func command() *cobra.Command {
	o := realcluster.Options{Options: layout.Defaults(), Detach: true, Log: progress(time.Now())}
	families, routing := strings.Join(o.Families, ","), string(o.Routing)
	product := ownProduct
	root := &cobra.Command{
		Use: "realcluster", Short: "Runs a cluster of real nodes on this machine",
		SilenceUsage: true, SilenceErrors: true,
	}
	root.PersistentFlags().StringVar(&o.Dir, "dir", ".cluster", "Work folder")
	up := &cobra.Command{
		Use: "up", Short: "Starts a cluster and replaces an earlier cluster of the same work folder", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			o.Families, o.Routing = strings.Split(families, ","), layout.Routing(routing)
			switch product {
			case ownProduct:
			case noProduct:
				o.Product, o.Empty, o.Unready = realcluster.NoProduct, true, true
			default:
				return fmt.Errorf("--product is %q; write %s or %s", product, ownProduct, noProduct)
			}
			running, err := realcluster.Start(c.Context(), o)
			if err != nil {
				return err
			}
			fmt.Printf("\nexport KUBECONFIG=%s\n", running.Kubeconfig(cluster.Admin))
			return nil
		},
	}
	up.Flags().IntVar(&o.Nodes, "nodes", o.Nodes, "Number of nodes")
	up.Flags().StringVar(&o.Bin, "bin", "bin", "Folder of the programs")
	up.Flags().StringVar(&o.Source, "source", ".", "Folder of this repository")
	up.Flags().StringVar(&o.Cilium, "cilium", o.Cilium, "Minor version of Cilium: 1.18, 1.19 or 1.20")
	up.Flags().StringVar(&o.Kubernetes, "kubernetes", o.Kubernetes, "Minor version of Kubernetes: 1.34 or 1.35")
	up.Flags().StringVar(&families, "families", families, "Families of addresses: IPv4, IPv6 or both, the preferred one first")
	up.Flags().StringVar(&routing, "routing", routing, "Routing between nodes: tunnel (VXLAN) or native")
	up.Flags().DurationVar(&o.UpdateRate, "update-rate", o.UpdateRate, "Minimum interval between two reports of an agent; Cilium's default is 15s")
	up.Flags().StringVar(&product, "product", product, "processes: start the programs of fixedip as processes; none: start nodes that wait until fixedip is installed")
	up.Flags().StringArrayVar(&o.Images, "image", nil, "Archive of images that every node imports; may be given more than once")
	root.AddCommand(up,
		&cobra.Command{
			Use: "down", Short: "Stops the cluster and deletes its work folder", Args: cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error { return realcluster.Down(o.Dir) },
		},
	)
	return root
}

// progress returns a function that prints a step with the time since began. Paths are printed relative to the current
// folder.
func progress(began time.Time) func(string, ...any) {
	dir, err := os.Getwd()
	return func(format string, args ...any) {
		line := fmt.Sprintf(format, args...)
		if err == nil {
			line = strings.ReplaceAll(line, dir+string(filepath.Separator), "")
		}
		fmt.Printf("%6.1fs  %s\n", time.Since(began).Seconds(), line)
	}
}
