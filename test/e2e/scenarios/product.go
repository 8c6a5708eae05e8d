// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/realcluster"
	"fixedip.io/fixedip/hack/realcluster/layout"
)

const productNamespace = "fixedip-system"

// programs are the programs of fixedip, each with an image and a Deployment of the same name.
var programs = []string{"fixedip-scheduler", "fixedip-controller"}

// images returns the paths of the archives that each node imports.
func (t *trial) images() []string {
	var list []string
	for _, p := range programs {
		list = append(list, filepath.Join(t.options.bin, "images", p+".tar"))
	}
	return list
}

// installation is the format of the kustomization that a user writes beside the manifests. Its arguments are the path of the
// manifests, the tag of each image and the address cooldown. Leases and times are short to shorten the run.
const installation = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [%s]
images:
- {name: fixedip-scheduler, newTag: %q}
- {name: fixedip-controller, newTag: %q}
configMapGenerator:
- {name: fixedip-config, namespace: fixedip-system, behavior: replace, files: [config.yaml, scheduler.yaml]}
patches:
- target: {kind: Deployment, name: fixedip-controller}
  patch: |
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --address-cooldown=%s}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --leader-election-lease-duration=4s}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --leader-election-renew-deadline=3s}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --leader-election-retry-period=500ms}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --v=2}
`

// settings is the format of the settings of both programs. Its argument is the value of allowAddressMigration. Times
// are short to shorten the run.
var settings = `apiVersion: config.fixedip.io/v1alpha1
kind: FixedIPConfiguration
subnets:
  clusterPools:
  - {cidr: "` + layout.PodCIDR(layout.IPv4) + `"}
  - {cidr: "` + layout.PodCIDR(layout.IPv6) + `"}
  orphanedGracePeriod: ` + gracePeriod.String() + `
allowAddressMigration: %t
workloads:
- {apiGroup: apps, kind: Deployment, identity: Slot}
adoption:
  podSelector: {matchLabels: {fixed: by-label}}
mismatchPolicy: Restart
`

// schedulerConfig is the configuration of the scheduler. Its lease is short to shorten the run.
const schedulerConfig = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  resourceNamespace: fixedip-system
  resourceName: fixedip-scheduler
  leaseDuration: 4s
  renewDeadline: 3s
  retryPeriod: 500ms
profiles:
- schedulerName: fixedip-scheduler
  plugins:
    multiPoint:
      enabled:
      - name: FixedIP
  pluginConfig:
  - name: FixedIP
    args:
      configuration: /etc/fixedip/config.yaml
`

// gracePeriod is the grace period of orphaned subnets.
const gracePeriod = 15 * time.Second

// coolDown is the address cooldown.
const coolDown = 20 * time.Second

// install installs our programs before nodes exist, so that the pods of our programs are the first pods.
func (t *trial) install(ctx context.Context, c *realcluster.Cluster) error {
	dir := filepath.Join(t.dir, "installation")
	manifests, err := filepath.Rel(dir, filepath.Join(t.options.source, "manifests"))
	if err != nil {
		return fmt.Errorf("make the path of the manifests relative: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create the folder of the installation: %w", err)
	}
	for name, text := range map[string]string{
		"kustomization.yaml": fmt.Sprintf(installation, manifests, t.options.tag, t.options.tag, coolDown),
		"config.yaml":        fmt.Sprintf(settings, t.options.routing == layout.Tunnel),
		"scheduler.yaml":     schedulerConfig,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("write a file of the installation: %w", err)
		}
	}
	return c.Apply(ctx, dir)
}

// productPods returns the pods of our programs.
func (t *trial) productPods(ctx context.Context) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := t.api.List(ctx, &list, client.InNamespace(productNamespace)); err != nil {
		return nil, fmt.Errorf("list the pods of our programs: %w", err)
	}
	return list.Items, nil
}

// killProduct kills the containers of all replicas of our programs with SIGKILL and deletes their pods, because kubelets
// delay the restart of a container that exits repeatedly.
func (t *trial) killProduct(ctx context.Context) error {
	pods, err := t.productPods(ctx)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	errs := make([]error, len(pods))
	for i, pod := range pods {
		wg.Go(func() {
			// ctr reports "not found" for a container that has exited meanwhile.
			if err := t.killContainer(ctx, &pod); err != nil && !strings.Contains(err.Error(), "not found") {
				errs[i] = err
			}
			err := t.api.Delete(ctx, &pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				errs[i] = errors.Join(errs[i], fmt.Errorf("delete pod %s: %w", pod.Name, err))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// killContainer kills the first container of a pod on its node, if it runs.
func (t *trial) killContainer(ctx context.Context, pod *corev1.Pod) error {
	node := t.cluster.Node(pod.Spec.NodeName)
	if node == nil || len(pod.Status.ContainerStatuses) == 0 || pod.Status.ContainerStatuses[0].State.Running == nil {
		return nil
	}
	id := strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "containerd://")
	err := t.killTask(ctx, node, id)
	if err != nil && !node.Process(realcluster.Containerd).Running() {
		return nil // The power-off of the node has killed the container.
	}
	return err
}

// killTask sends SIGKILL to the first process of a container, by a request to containerd.
func (t *trial) killTask(ctx context.Context, node *realcluster.Node, id string) error {
	_, err := node.Run(ctx, "ctr", "--namespace=k8s.io", "--address="+layout.ContainerdSocket, "tasks", "kill", "--signal=SIGKILL", id)
	return err
}

// productReady returns when at least one pod of each program is ready.
func (t *trial) productReady(ctx context.Context) error {
	return eventually(ctx, func() error {
		pods, err := t.productPods(ctx)
		if err != nil {
			return err
		}
		for _, program := range programs {
			if err := oneReady(program, pods); err != nil {
				return err
			}
		}
		return nil
	})
}

// oneReady returns an error unless at least one pod of a program is ready. The error contains the state of each of its pods,
// because the steps to readiness of a pod count as progress (see eventually): on a busy machine, each may take a minute.
func oneReady(program string, pods []corev1.Pod) error {
	var states []string
	for _, pod := range pods {
		switch {
		case pod.Labels["app"] != program:
		case pod.DeletionTimestamp != nil:
			states = append(states, pod.Name+" is being deleted")
		case isReady(&pod):
			return nil
		default:
			states = append(states, pod.Name+" is "+reasons(&pod))
		}
	}
	if len(states) == 0 {
		states = []string{"it has none"}
	}
	slices.Sort(states)
	return fmt.Errorf("no pod of %s is ready: %s", program, strings.Join(states, "; "))
}

// killer kills our programs repeatedly.
type killer struct {
	trial *trial
	end   context.CancelFunc
	done  chan struct{}

	mu sync.Mutex
	// soon is closed shortly before the next kill, and replaced.
	soon chan struct{}
	errs []error
}

const (
	// killWhenReady is the time, in addition to one report interval of the agents, from the readiness of the programs
	// to the next kill. It suffices for a program to become the leader, ask an agent, and act on the answer. It does not
	// include the start of the programs, which may take longer on a busy machine.
	killWhenReady = 8 * time.Second
	// killAfter is the time from the start of a scenario to the first kill.
	killAfter = time.Second
)

func (t *trial) startKiller(ctx context.Context) *killer {
	ctx, cancel := context.WithCancel(ctx)
	m := &killer{trial: t, end: cancel, done: make(chan struct{}), soon: make(chan struct{})}
	go func() {
		defer close(m.done)
		for {
			// If the programs do not become ready, the kills go on: the scenarios then show the effect on pods.
			if err := t.productReady(ctx); err != nil && ctx.Err() == nil {
				m.fail(err)
			}
			if !wait(ctx, killWhenReady+t.options.updateRate-killAfter) {
				return
			}
			m.mu.Lock()
			close(m.soon)
			m.soon = make(chan struct{})
			m.mu.Unlock()
			if !wait(ctx, killAfter) {
				return
			}
			if err := t.killProduct(ctx); err != nil && ctx.Err() == nil {
				m.fail(err)
			}
		}
	}()
	return m
}

func (m *killer) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.errs = append(m.errs, err)
}

// wait returns true after the duration d, or false if ctx ends first.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// next returns when the next kill is killAfter away, so that no scenario ends before its first kill. It returns an error if
// the kills have stopped or ctx ends.
func (m *killer) next(ctx context.Context) error {
	m.mu.Lock()
	soon := m.soon
	m.mu.Unlock()
	select {
	case <-soon:
		return nil
	case <-m.done:
		return errors.New("the kills have stopped")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stop stops the kills and returns when our programs are ready, with the errors of all kills.
func (m *killer) stop(ctx context.Context) error {
	m.end()
	<-m.done
	return errors.Join(errors.Join(m.errs...), m.trial.productReady(ctx))
}
