// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"fixedip.io/fixedip/hack/cluster"
)

const mebibyte = 1 << 20

// program is a running program of fixedip. metrics and health are URLs; began is the time of the start.
type program struct {
	*cluster.Process
	metrics, health string
	began           time.Time
}

// figures contains the memory of a program at one moment, in bytes.
type figures struct {
	// resident is the resident memory and peak its maximum so far. proportional counts only a share of memory that is shared
	// with other processes.
	resident, peak, proportional int64
	// heap is the memory of all objects on the Go heap that were not collected yet.
	heap int64
}

// freePort returns a port on which no program listens.
func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

// observe reads the current figures of the program.
func (p *program) observe(ctx context.Context) (figures, error) {
	var f figures
	status, err := kilobytes(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		return f, err
	}
	rollup, err := kilobytes(fmt.Sprintf("/proc/%d/smaps_rollup", p.PID()))
	if err != nil {
		return f, err
	}
	f.resident, f.peak, f.proportional = status["VmRSS"]<<10, status["VmHWM"]<<10, rollup["Pss"]<<10
	values, err := p.values(ctx)
	f.heap = int64(values["go_memstats_heap_alloc_bytes"])
	return f, err
}

// kilobytes reads the lines with a number of kB from a file in /proc. Key: the name. Value: the number of kB.
func kilobytes(path string) (map[string]int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read memory figures: %w", err)
	}
	found := map[string]int64{}
	for line := range strings.Lines(string(data)) {
		parts := strings.Fields(line)
		if len(parts) == 3 && parts[2] == "kB" {
			if n, err := strconv.ParseInt(parts[1], 10, 64); err == nil {
				found[strings.TrimSuffix(parts[0], ":")] = n
			}
		}
	}
	return found, nil
}

func get(ctx context.Context, url string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s responded with status %s: %s", url, response.Status, body)
	}
	return string(body), err
}

// values returns the sum of each metric over its labels. Key: the name of the metric.
func (p *program) values(ctx context.Context) (map[string]float64, error) {
	text, err := get(ctx, p.metrics)
	if err != nil {
		return nil, fmt.Errorf("read the metrics of %s: %w", p.Name, err)
	}
	sums := map[string]float64{}
	for scanner := bufio.NewScanner(strings.NewReader(text)); scanner.Scan(); {
		line := scanner.Text()
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		value, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			continue
		}
		name, _, _ := strings.Cut(line[:i], "{")
		sums[name] += value
	}
	return sums, nil
}

// awaitReady waits until the program is ready and returns the time since its start.
func (p *program) awaitReady(ctx context.Context) (time.Duration, error) {
	return p.await(ctx, "to be ready", 100*time.Millisecond, func() (bool, error) {
		_, err := get(ctx, p.health)
		return err == nil, err
	})
}

// poolWrites is the metric that counts writes of CiliumNodes.
const poolWrites = "fixedip_pool_writes_total"

// quietTime is the time without work after which a program counts as idle.
const quietTime = 10 * time.Second

// awaitQuiet waits until the program has been the leader with empty queues and without a write of a pool for quietTime. It
// returns the number of all writes of pools so far.
func (p *program) awaitQuiet(ctx context.Context) (writes int, err error) {
	var since time.Time
	last := -1.0
	_, err = p.await(ctx, "to become idle", time.Second, func() (bool, error) {
		v, err := p.values(ctx)
		if err != nil {
			return false, err
		}
		busy := v["workqueue_depth"] > 0 || v["leader_election_master_status"] == 0 || v[poolWrites] > last
		last = v[poolWrites]
		if busy || since.IsZero() {
			since = time.Now()
		}
		writes = int(v[poolWrites])
		return time.Since(since) >= quietTime, nil
	})
	return writes, err
}

// await polls until done returns true, because the program sends no events about its state. It returns the time since the
// start of the program. what completes the error "wait for NAME ...".
func (p *program) await(ctx context.Context, what string, interval time.Duration, done func() (bool, error)) (time.Duration, error) {
	var last error
	for {
		ok, err := done()
		if ok {
			return time.Since(p.began), nil
		}
		last = err
		select {
		case <-time.After(interval):
		case <-p.Exited():
			return 0, fmt.Errorf("wait for %s %s: the process exited: %s; the log is %s", p.Name, what, p.ExitState(), p.LogPath())
		case <-ctx.Done():
			return 0, fmt.Errorf("wait for %s %s: %w", p.Name, what, errors.Join(context.Cause(ctx), last))
		}
	}
}
