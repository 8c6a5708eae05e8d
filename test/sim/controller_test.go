// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	ipamcontroller "fixedip.io/fixedip/ipam/controller"
	ipamconfig "fixedip.io/fixedip/ipam/controller/config"
	"fixedip.io/fixedip/ipam/controller/conflict"
	"fixedip.io/fixedip/ipam/controller/conformance"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/nodepool"
	"fixedip.io/fixedip/ipam/store/workloads"
)

// coolDown is the duration of a cooldown. It equals the default of --address-cooldown.
const coolDown = time.Minute

// orphanGrace is the grace period of orphaned subnets.
const orphanGrace = 2 * time.Minute

func controllerConfig(s setup) ipamconfig.Config {
	verify := conformance.DefaultConfig()
	verify.Endpoints, verify.EndpointTermination = s.endpoints.on, endpointTermination
	cfg := ipamconfig.Config{
		Watermark:          nodepool.Watermark{Excess: 2},
		WritesPerMinute:    30,
		StripManagedFields: true,
		Cooldown:           coolDown,
		FinalizerDeadline:  10 * time.Minute,
		ResyncPeriod:       ipamconfig.DefaultResyncPeriod,
		Namespace:          "kube-system",
		CiliumConfig:       types.NamespacedName{Namespace: "kube-system", Name: "cilium-config"},
		Verify:             verify,
		MetricsPerNode:     metrics.PerNodeOn,
	}
	settings := s.settings()
	settings.Complete()
	must(settings.Validate(nil).ToAggregate())
	must(cfg.Apply(settings))
	return cfg
}

// controller is one process of fixedip-controller. All of it is real, from its setup to its last reconcile, except
// controller-runtime's manager, informers and queues.
type controller struct {
	*process
	// The embedded interface is nil: a method that the model does not implement panics.
	manager.Manager
	caches    cache.Cache
	client    client.Client
	mapper    meta.RESTMapper
	runnables []manager.Runnable
	queues    []*queue
}

func (w *world) startController() *controller {
	c := &controller{process: w.newProcess("controller")}
	c.busySince = c.oldest
	cfg := controllerConfig(w.setup)
	must(cfg.Validate().ToAggregate())
	c.caches, _ = c.newCaches(nil, ipamcontroller.CacheOptions(cfg))
	var versions []schema.GroupVersion
	for _, k := range kinds {
		versions = append(versions, k.gvk.GroupVersion())
	}
	m := meta.NewDefaultRESTMapper(versions)
	for _, k := range kinds {
		scope := meta.RESTScope(meta.RESTScopeNamespace)
		if k == nodes || k == ciliumNodes || k == nodeSubnets || k == volumes {
			scope = meta.RESTScopeRoot
		}
		m.Add(k.gvk, scope)
	}
	c.mapper = m
	var err error
	c.client, err = client.New(c.config(), client.Options{Scheme: w.scheme, Mapper: m, Cache: &client.CacheOptions{Reader: c.caches}})
	must(err)
	must(ipamcontroller.Setup(c.ctx, c, cfg))
	for _, r := range c.runnables {
		if s, ok := r.(*workloads.Store); ok {
			must(s.UseInformer(identity.StatefulSets, c.informer(statefulSets)))
			if w.setup.slots {
				must(s.UseInformer(identity.ReplicaSets, c.informer(replicaSets)))
			}
			c.run(r)
		}
	}
	w.controllers = append(w.controllers, c)
	w.waitIdle()
	return c
}

func (c *controller) run(r manager.Runnable) {
	go func() {
		if err := r.Start(c.ctx); err != nil && !c.dead() {
			c.w.violate("a runnable of %s returned an error: %v", c, err)
		}
	}()
}

// lead starts the runnables that need leader election, as a manager does when it is elected.
func (c *controller) lead() {
	c.leads = true
	for _, r := range c.runnables {
		if l, ok := r.(manager.LeaderElectionRunnable); ok && l.NeedLeaderElection() {
			c.takeQueue(r)
			c.run(r)
			// The runnables have to start in the same order in each run.
			c.w.waitIdle()
		}
	}
}

// takeQueue replaces the queue of a controller with one that the world controls.
func (c *controller) takeQueue(r manager.Runnable) {
	field := reflect.ValueOf(r).Elem().FieldByName("NewQueue")
	field.Set(reflect.ValueOf(func(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
		q := newQueue(name, c, limiter)
		c.w.mu.Lock()
		defer c.w.mu.Unlock()
		c.queues = append(c.queues, q)
		return q
	}))
}

// String returns the name of the process.
func (c *controller) String() string { return c.name }

func (c *controller) GetClient() client.Client { return c.client }
func (c *controller) GetConfig() *rest.Config  { return c.config() }
func (c *controller) GetHTTPClient() *http.Client {
	return &http.Client{Transport: transport{c.process, &c.w.line}}
}
func (c *controller) GetCache() cache.Cache                { return c.caches }
func (c *controller) GetFieldIndexer() client.FieldIndexer { return c.caches }
func (c *controller) GetScheme() *runtime.Scheme           { return c.w.scheme }
func (c *controller) GetRESTMapper() meta.RESTMapper       { return c.mapper }
func (c *controller) GetLogger() logr.Logger               { return logr.New(sink{c.process}) }
func (c *controller) GetEventRecorder(string) events.EventRecorder {
	return recorder{c.process}
}
func (c *controller) GetControllerOptions() config.Controller {
	// The controllers of all processes have the same names.
	return config.Controller{SkipNameValidation: ptr.To(true)}
}
func (c *controller) AddReadyzCheck(string, healthz.Checker) error { return nil }
func (c *controller) Add(r manager.Runnable) error {
	c.runnables = append(c.runnables, r)
	return nil
}

// recorder adds events to the history, and notes the events that the user follows at rest: see obey and obeyEndpoints.
type recorder struct{ p *process }

// Eventf implements events.EventRecorder.
func (r recorder) Eventf(regarding, _ runtime.Object, _, reason, _, note string, args ...any) {
	name := ""
	if o, ok := regarding.(client.Object); ok {
		name = keyOf(o)
	}
	if _, ok := regarding.(*corev1.Pod); ok && reason == conflict.ReasonWrongPodAddress {
		r.p.w.noteMisassigned(name)
	}
	r.p.w.noteEndpointAdvice(regarding, reason, fmt.Sprintf(note, args...))
	r.p.w.logUnordered("  %s reports on %s: %s: %s", r.p, name, reason, fmt.Sprintf(note, args...))
}

// sink adds the errors that the controller logs to the history. A panic is a violation.
type sink struct{ p *process }

func (s sink) Init(logr.RuntimeInfo)          {}
func (s sink) Enabled(int) bool               { return false }
func (s sink) Info(int, string, ...any)       {}
func (s sink) WithValues(...any) logr.LogSink { return s }
func (s sink) WithName(string) logr.LogSink   { return s }
func (s sink) Error(err error, text string, _ ...any) {
	s.p.w.logf("  %s: %s: %v", s.p, text, err)
	if strings.Contains(fmt.Sprint(err), "panic") {
		s.p.w.violate("panic: %s: %v", s.p, err)
	}
}

// oldest returns the start of the oldest running reconcile; the current time if none runs.
func (c *controller) oldest() time.Time {
	at := time.Now()
	for _, q := range c.queues {
		q.mu.Lock()
		for _, i := range q.items {
			if i.worked && i.begun.Before(at) {
				at = i.begun
			}
		}
		q.mu.Unlock()
	}
	return at
}
