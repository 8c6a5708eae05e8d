// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

//go:debug randseednop=0

package sim

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"maps"
	oldrand "math/rand"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	schedulermetrics "k8s.io/kubernetes/pkg/scheduler/metrics"
	"pgregory.net/rapid"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"fixedip.io/fixedip/ipam/scheme"
)

var (
	stepsOf   = flag.Int("sim.length", 300, "maximum number of steps of a run")
	shrinkFor = flag.Duration("sim.shrink", 20*time.Second, "maximum time to search for a shorter failing run")
)

func TestMain(m *testing.M) {
	flag.Parse()
	klog.SetLogger(logr.Discard())
	ctrllog.SetLogger(logr.Discard())
	// Functions of the framework that the plugin calls increment these metrics.
	schedulermetrics.Register()
	m.Run()
}

// choices are the input of a run.
type choices struct {
	// never is a set of the actions and faults that do not happen in this run. The hash of a name selects its bit. A run with
	// few kinds of actions often finds failures that a run with all kinds does not find.
	never uint64
	// populated is true if workloads already run when the first step begins.
	populated bool
	// setup is the configuration of the cluster and of the product.
	setup setup
	steps []step
}

// draw draws the input of a run: rapid draws the seed of a generator, and the generator draws the input. rapid itself
// prefers small values, but the steps should be uniform.
func draw(rt *rapid.T) choices {
	seed := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(rt, "seed")
	return drawFrom(rand.New(rand.NewPCG(binary.LittleEndian.Uint64(seed), binary.LittleEndian.Uint64(seed[8:]))))
}

func drawFrom(from *rand.Rand) choices {
	var c choices
	switch from.IntN(4) {
	case 0:
	case 1:
		c.never = from.Uint64()
	default:
		c.never = from.Uint64() | from.Uint64()
	}
	c.populated = from.IntN(4) > 0
	c.setup = drawSetup(from)
	c.steps = make([]step, *stepsOf)
	for i := range c.steps {
		v := from.Uint64()
		c.steps[i] = step{uint16(v), uint16(v >> 16), uint16(v >> 32), uint16(v >> 48)}
	}
	c.setup.endpoints = drawEndpoints(from)
	c.setup.volumes = from.IntN(4) == 0
	return c
}

// minimize returns a shorter version of a failing run. It removes steps without which the run also fails, until it finds no
// such step or the time until has passed.
func minimize(t *testing.T, c choices, until time.Time) choices {
	steps := c.steps
	fails := func(steps []step) bool {
		return run(t, choices{c.never, c.populated, c.setup, steps}, map[string]int{}).err != nil
	}
	for size := len(steps) / 2; size > 0; {
		removed := false
		for i := 0; i < len(steps) && time.Now().Before(until); {
			without := slices.Concat(steps[:i], steps[min(i+size, len(steps)):])
			if fails(without) {
				steps, removed = without, true
			} else {
				i += size
			}
		}
		if !removed || size > 1 {
			size /= 2
		}
	}
	return choices{c.never, c.populated, c.setup, steps}
}

// outcome is the result of a run. taken is the number of its steps.
type outcome struct {
	err     error
	history []string
	taken   int
}

// run makes the steps in a new world, and then lets the world come to rest. If a step violates an invariant, the run ends with
// that step. run counts actions, faults and results in stats.
func run(t *testing.T, c choices, stats map[string]int) (o outcome) {
	kinds, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	//nolint:staticcheck // Retries take their jitter from this source. Each run starts it again.
	oldrand.Seed(1)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		w := newWorld(ctx, kinds, c.setup, stats)
		w.never = c.never
		if c.populated {
			w.startWorkloads(c.never)
		}
		for _, s := range c.steps {
			o.taken++
			if o.err = w.do(s); o.err != nil {
				break
			}
		}
		if o.err == nil {
			o.err = w.rest()
		}
		o.history = w.history
		cancel()
		synctest.Wait()
	})
	return o
}

// requiredActions are the actions, faults and results that have to happen at least once if TestModel makes enough steps.
// They are keys of the field stats of world.
var requiredActions = []string{
	"CiliumEndpoint cleaned up by an agent", "CiliumEndpoint collected by cilium-operator", "CiliumEndpoint collected by gc", "CiliumEndpoint deleted by the keeper", "CiliumEndpoint made again by its agent",
	"CiliumEndpoint not deleted after an error", "CiliumEndpoint of another refused by the agent", "CiliumEndpoint read from a cache that is behind", "CiliumEndpoint taken over by the agent", "CiliumEndpoint taken over as the keeper looks at it",
	"agent ends before it has stored the UID of a CiliumEndpoint", "answer about a new CiliumEndpoint lost", "delete CiliumEndpoint", "delete all CiliumEndpoints", "exchange CiliumEndpoint for a former one",
	"finalizers of a CiliumEndpoint removed by the keeper", "hold CiliumEndpoint with a finalizer", "owner of a CiliumEndpoint corrected by the keeper", "pod replaced as the keeper looks at it", "restore CiliumEndpoint", "setup: CiliumEndpoints", "status of endpoint changes",
	"agent restart", "CiliumNode deleted", "CiliumNode deleted, agent restarted", "request the moved address", "call", "call carried out late", "call lost on its way", "calm", "cordon", "crash", "nearly full node unseen by a scheduler", "create", "cycle", "delete", "delete pod", "drain", "edit",
	"edit FixedIP", "elected", "end job", "fault: 409 instead of", "fault: 429 instead of", "fault: 500 instead of", "fault: answer lost after",
	"fault: connection lost before", "force-delete pod", "force-delete with its workload", "force-delete with its workload and CiliumNode", "force-delete pod before its address is reported", "force-delete as its agent restarts", "force-delete pod that has moved, both CiliumNodes deleted", "foreign write", "reservation is ended with claim unseen by an agent", "reservation is ended with claim unseen by an agent and scheduler", "reservation is ended with claim unseen by an agent, scheduler killed", "hand-written entry", "heal", "jobs deleted and created", "join in another zone after a loss", "join while a node is cut off without its CiliumNode", "new claim is not seen by the agent", "new claim is not seen by the agent and scheduler", "new claim is not seen by the agent, scheduler killed", "lease stolen", "move is not recorded", "node delete", "node join",
	"node loss", "notices", "opt out", "orphan", "other pods placed on home of an unrecorded move", "out of service", "partition", "pin", "power on", "process back", "process cut off", "reboot",
	"reconcile", "recreate behind the controller", "report before the restore", "release", "release behind the scheduler", "replacement", "roll", "scale", "second controller", "second scheduler", "stale list", "start", "start job", "next leading scheduler has not seen the claims",
	"taint eviction", "time passes", "kubectl writes new managed fields", "two controllers assign subnets to nodes", "unreserved pod bound to a strict node", "slot taken over", "pod adopted by the selector", "setup: adoption by a selector", "setup: slots", "setup: strict nodes", "setup: volumes", "delete volume", "create ReplicaSet", "delete ReplicaSet", "edit ReplicaSet", "force-delete slot pod", "opt out ReplicaSet", "restart ReplicaSet", "restart slot pods behind the scheduler", "cooldown entry ends before the agent has seen it", "scale ReplicaSet", "watch", "watch before Filter", "watch before PreBind", "watch before PreFilter", "watch before Reserve", "watch drop", "watch moves", "watch stalls", "pod with unreported IP is deleted with its workload", "unreported IP is moved",
}

// enough is the minimum number of steps for which TestModel checks requiredActions.
const enough = 600_000

// TestModel draws runs. It checks every write against the invariants, and that the world comes to rest after each run.
func TestModel(t *testing.T) {
	stats, taken, runs, history := map[string]int{}, 0, 0, ""
	defer func() {
		if history != "" {
			t.Log(history)
		}
	}()
	rapid.Check(t, func(rt *rapid.T) {
		c := draw(rt)
		o := run(t, c, stats)
		taken += o.taken
		runs++
		if o.err == nil {
			return
		}
		if history == "" {
			c = minimize(t, choices{c.never, c.populated, c.setup, c.steps[:o.taken]}, time.Now().Add(*shrinkFor))
			if again := run(t, c, map[string]int{}); again.err != nil {
				o = again
			}
			history = fmt.Sprintf("%v\nThe history, in %d steps with %+v:\n%s\n!! %v", o.err, len(c.steps), c.setup, strings.Join(o.history, "\n"), o.err)
		}
		rt.Fatal("the run violates an invariant; the log of the test contains the history of the first such run")
	})
	t.Logf("%d steps in %d runs", taken, runs)
	if taken >= enough {
		for _, name := range requiredActions {
			if stats[name] == 0 {
				t.Errorf("%q did not happen in %d steps, want at least once", name, taken)
			}
		}
	}
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(stats)) {
		lines = append(lines, fmt.Sprintf("%8d %s", stats[name], name))
	}
	t.Log("counts of actions, faults, options of the setup and results:\n" + strings.Join(lines, "\n"))
}

// TestSameHistory checks that the same choices have the same history. Otherwise a seed could not reproduce a failure.
func TestSameHistory(t *testing.T) {
	from := rand.New(rand.NewPCG(1, 2))
	for range 5 {
		c := drawFrom(from)
		first, second := run(t, c, map[string]int{}), run(t, c, map[string]int{})
		if len(first.history) != len(second.history) {
			t.Errorf("two runs of the same choices have %d and %d lines of history", len(first.history), len(second.history))
		}
		for i := range min(len(first.history), len(second.history)) {
			if first.history[i] != second.history[i] {
				t.Fatalf("line %d of the history differs between two runs of the same choices:\n%s\n%s", i, first.history[i], second.history[i])
			}
		}
	}
}
