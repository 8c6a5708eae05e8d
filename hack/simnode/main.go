// Command fixedip-simnode is one node of a cluster without machines: it plays the kubelet, and runs Cilium's
// own CRD allocator (pkg/ipam) where the agent would. Addresses are therefore given out, refused, restored
// and reported by the code that does it on a real node.
//
// It makes nothing up: an address comes from the allocator, or the pod stays in ContainerCreating. It runs no
// containers; probes, readiness gates and CiliumEndpoints are left out. One process is one node, since the
// allocator's node store is a package global.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	ciliumclient "github.com/cilium/cilium/pkg/k8s/client/clientset/versioned"

	"fixedip.io/fixedip/hack/cluster/lifeline"
)

func main() {
	o := newOptions()
	flags := pflag.NewFlagSet("fixedip-simnode", pflag.ContinueOnError)
	o.addFlags(flags)
	if err := flags.Parse(os.Args[1:]); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return
		}
		fail(err)
	}
	if err := o.validate(flags.Args()); err != nil {
		fail(err)
	}
	if err := setVerbosity(o.verbosity); err != nil {
		fail(err)
	}
	if o.exitWithParent {
		if err := lifeline.Bind(); err != nil {
			fail(err)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx = klog.NewContext(ctx, klog.Background().WithValues("node", o.nodeName))
	if err := run(ctx, o); err != nil {
		klog.Flush()
		fail(err)
	}
	klog.Flush()
}

// fail prints the one line that says why the process ends, and ends it.
func fail(err error) {
	fmt.Fprintln(os.Stderr, "fixedip-simnode:", err)
	os.Exit(1)
}

// setVerbosity sets klog's level through a flag set of its own: the global one belongs to the libraries.
func setVerbosity(v int) error {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	if err := flags.Set("v", strconv.Itoa(v)); err != nil {
		return fmt.Errorf("set log level %d: %w", v, err)
	}
	return nil
}

// clients are the two faces of the API server that a node needs.
type clients struct {
	kube   kubernetes.Interface
	cilium ciliumclient.Interface
}

func newClients(kubeconfig, nodeName string) (*clients, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", kubeconfig, err)
	}
	cfg.QPS, cfg.Burst = 200, 400
	cfg = rest.AddUserAgent(cfg, "fixedip-simnode/"+nodeName)
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a Kubernetes client from %s: %w", kubeconfig, err)
	}
	cilium, err := ciliumclient.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a Cilium client from %s: %w", kubeconfig, err)
	}
	return &clients{kube: kube, cilium: cilium}, nil
}

// run brings the node up in the order of a real one: the Node exists and is not ready, the agent waits for
// its addresses, then pods may start and the Node turns ready. Pods stay when the process ends.
func run(ctx context.Context, o *options) error {
	c, err := newClients(o.kubeconfig, o.nodeName)
	if err != nil {
		return err
	}
	node := newNode(c.kube, o)
	node.register(ctx)
	kubelet := newKubelet(c.kube, o)
	agent := newAgent(c, o)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { node.keepLease(ctx); return nil })
	group.Go(func() error { return kubelet.run(ctx) })
	if o.debugAddress != "" {
		group.Go(func() error { return serveDebug(ctx, o.debugAddress, agent) })
	}
	group.Go(func() error {
		if err := kubelet.waitForPods(ctx); err != nil {
			return nil // stopped
		}
		restored, err := agent.start(ctx, kubelet.runningPods())
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		kubelet.attachNetwork(agent, restored)
		node.keepStatus(ctx)
		return nil
	})
	return group.Wait()
}
