// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// Mebibyte is 1 MiB in bytes.
const Mebibyte = 1 << 20

// clockTick is the unit of CPU times in /proc: one second divided by USER_HZ, which is 100 on every architecture that Go
// supports.
const clockTick = 10 * time.Millisecond

// Process contains the memory of a process at one moment, in bytes, and its CPU time so far.
type Process struct {
	// Resident is the resident memory and Peak its maximum so far. Proportional counts only a share of memory that is shared
	// with other processes.
	Resident     int64 `json:"residentBytes"`
	Peak         int64 `json:"peakBytes"`
	Proportional int64 `json:"proportionalBytes"`
	// CPU is the CPU time in user and system mode.
	CPU time.Duration `json:"cpuNanoseconds"`
}

// OfProcess reads the figures of a process from /proc.
func OfProcess(pid int) (Process, error) {
	status, err := kilobytes(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Process{}, err
	}
	rollup, err := kilobytes(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return Process{}, err
	}
	cpu, err := CPU(pid)
	return Process{Resident: status["VmRSS"] << 10, Peak: status["VmHWM"] << 10, Proportional: rollup["Pss"] << 10, CPU: cpu}, err
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

// CPU returns the CPU time of a process so far.
func CPU(pid int) (time.Duration, error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("read CPU times: %w", err)
	}
	// The second field, the name of the program in parentheses, may contain spaces.
	_, rest, ok := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	// utime and stime are fields 14 and 15 of the line, and rest begins with field 3: proc_pid_stat(5).
	if !ok || len(fields) < 13 {
		return 0, fmt.Errorf("read CPU times: %s has the unknown content %q", path, data)
	}
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read CPU times from %s: %w", path, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}

// FreePort returns a port on which no program listens.
func FreePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}
