// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// pidDir is the folder with one file for each running process. The file contains "<pid> <start time>". The start time
// distinguishes the process from a later process with the same pid.
const pidDir = "pids"

// dirVariable is the environment variable that contains the work folder, in every process of a cluster.
const dirVariable = "FIXEDIP_CLUSTER_DIR"

// errGone means that the process of a pid file has exited.
var errGone = errors.New("the process has ended")

// StopDetached terminates the processes of a cluster that was started with Detach, the control plane last. It kills
// processes that do not exit in time, and at the end all processes that KillAll finds.
func StopDetached(dir string) error {
	names, err := pidNames(dir)
	if err != nil {
		return err
	}
	var errs []error
	others := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == controlPlaneName })
	errs = append(errs, stopGroup(dir, others))
	if len(others) < len(names) {
		errs = append(errs, stopGroup(dir, []string{controlPlaneName}))
	}
	return errors.Join(append(errs, KillAll(dir))...)
}

// KillAll kills every process of a cluster except the calling process, and waits until all have exited, at most stopTimeout.
// It finds the processes by dirVariable in their environment, including children and processes without a pid file.
func KillAll(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("make the path of the work folder absolute: %w", err)
	}
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return fmt.Errorf("find the processes of the cluster: %w", err)
	}
	var errs []error
	open := map[int]int{} // Key: the pid. Value: the descriptor.
	for _, file := range files {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil || pid == os.Getpid() {
			continue
		}
		// Open the descriptor before reading the environment. If the pid is reused in between, the signal then goes to the
		// exited process and kills no other process. Skip a process that cannot be opened or read, because it has exited or
		// belongs to another user.
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		data, err := os.ReadFile(file)
		if err == nil && slices.Contains(strings.Split(string(data), "\x00"), dirVariable+"="+dir) {
			open[pid] = fd
			err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			if err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("kill process %d of the cluster: %w", pid, err))
			}
		} else if err := unix.Close(fd); err != nil {
			errs = append(errs, fmt.Errorf("close the descriptor of process %d: %w", pid, err))
		}
	}
	deadline := time.Now().Add(stopTimeout)
	for pid, fd := range open {
		if err := errors.Join(waitPID(fd, deadline), unix.Close(fd)); err != nil {
			errs = append(errs, fmt.Errorf("wait for the end of process %d of the cluster: %w", pid, err))
		}
	}
	return errors.Join(errs...)
}

// refuseSecond returns an error if a process of a cluster with the same work folder is running, because two clusters must not
// share their state. It removes the pid files of processes that have exited.
func refuseSecond(dir string) error {
	names, err := pidNames(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		fd, pid, err := openPID(filepath.Join(dir, pidDir, name))
		if err == nil {
			return errors.Join(fmt.Errorf("process %s of a cluster in %s is already running, pid %d; stop that cluster first", name, dir, pid), unix.Close(fd))
		}
		if !errors.Is(err, errGone) {
			return err
		}
		if err := os.Remove(filepath.Join(dir, pidDir, name)); err != nil {
			return fmt.Errorf("remove the pid file of a process that has exited: %w", err)
		}
	}
	return nil
}

func pidNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(dir, pidDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the pid files of the cluster: %w", err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// stopGroup terminates the named processes, waits until all have exited, kills those that do not exit in time, and removes
// the pid files.
func stopGroup(dir string, names []string) error {
	var errs []error
	open := map[string]int{} // Key: the name. Value: the descriptor of the running process.
	for _, name := range names {
		path := filepath.Join(dir, pidDir, name)
		fd, _, err := openPID(path)
		if err == nil {
			open[name] = fd
			err = unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0)
		}
		if err != nil && !errors.Is(err, errGone) && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("stop %s: %w", name, err))
		}
	}
	deadline := time.Now().Add(stopTimeout)
	for name, fd := range open {
		if err := waitPID(fd, deadline); err != nil {
			errs = append(errs, fmt.Errorf("stop %s: the process did not exit after SIGTERM and is killed: %w", name, err))
			if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("kill %s: %w", name, err))
			}
		}
		if err := unix.Close(fd); err != nil {
			errs = append(errs, fmt.Errorf("close the descriptor of %s: %w", name, err))
		}
	}
	for _, name := range names {
		if err := os.Remove(filepath.Join(dir, pidDir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove the pid file of %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// waitPID waits until a process has exited, which makes its descriptor readable, and returns os.ErrDeadlineExceeded at the
// deadline.
func waitPID(fd int, deadline time.Time) error {
	for {
		left := max(0, time.Until(deadline))
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n > 0:
			return nil
		default:
			return os.ErrDeadlineExceeded
		}
	}
}

// openPID returns a descriptor and the pid of the process of a pid file, or errGone if that process has exited. The
// descriptor is opened before the start time is compared, so that it cannot refer to a later process with the same pid.
func openPID(path string) (fd, pid int, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, fmt.Errorf("read the pid file: %w", err)
	}
	number, started, _ := strings.Cut(strings.TrimSpace(string(data)), " ")
	if pid, err = strconv.Atoi(number); err != nil {
		return 0, 0, fmt.Errorf("parse the pid file %s: %w", path, err)
	}
	fd, err = unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return 0, pid, errGone
	}
	if err != nil {
		return 0, pid, fmt.Errorf("open a descriptor of process %d: %w", pid, err)
	}
	actual, err := startTime(pid)
	if err != nil || actual != started {
		return 0, pid, errors.Join(errGone, unix.Close(fd))
	}
	return fd, pid, nil
}

func writePID(path string, pid int) error {
	started, err := startTime(pid)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, fmt.Appendf(nil, "%d %s\n", pid, started), 0o600); err != nil {
		return fmt.Errorf("write the pid file: %w", err)
	}
	return nil
}

// removePID removes the pid file of an exited process, unless a restart has already written the file again.
func removePID(path string, pid int) {
	data, err := os.ReadFile(path)
	if err == nil && strings.HasPrefix(string(data), strconv.Itoa(pid)+" ") {
		// A file that cannot be removed does no harm: openPID finds that the process has exited.
		_ = os.Remove(path)
	}
}

// startTime returns the start time of a process in clock ticks since boot (proc_pid_stat(5), field 22). The name in field 2
// may contain any character, so the fields are counted from its closing bracket.
func startTime(pid int) (string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", fmt.Errorf("read the start time of process %d: %w", pid, err)
	}
	_, rest, found := strings.Cut(string(data[max(0, strings.LastIndexByte(string(data), ')')):]), ") ")
	values := strings.Fields(rest)
	if !found || len(values) < 20 {
		return "", fmt.Errorf("read the start time of process %d: unexpected content of its stat file", pid)
	}
	return values[19], nil
}
