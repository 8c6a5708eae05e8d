// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

const (
	logDir = "logs"
	// logTail is the maximum number of bytes that tail returns from the end of a log.
	logTail = 2000
)

var (
	errNotStarted = errors.New("the process was never started")
	errStopped    = errors.New("the cluster was stopped")
)

// Starter starts processes from one thread, which runs until Stop. The kernel sends the parent death signal when the
// thread that started the child ends, not when the parent process ends (prctl(2)). Go may end any thread that is not
// locked.
type Starter struct {
	requests chan func()
	done     chan struct{}
	once     sync.Once
}

// NewStarter creates the thread and calls enter on it, for example to enter the namespaces of another process. The Starter
// then starts processes in these namespaces.
func NewStarter(enter func() error) (*Starter, error) {
	s := &Starter{requests: make(chan func()), done: make(chan struct{})}
	entered := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		err := enter()
		entered <- err
		if err != nil {
			return
		}
		for {
			select {
			case request := <-s.requests:
				request()
			case <-s.done:
				return
			}
		}
	}()
	if err := <-entered; err != nil {
		return nil, err
	}
	return s, nil
}

// Start starts the command from the thread.
func (s *Starter) Start(cmd *exec.Cmd) error { return s.Do(cmd.Start) }

// Do runs f on the thread and returns its error, or errStopped after Stop.
func (s *Starter) Do(f func() error) error {
	result := make(chan error, 1)
	select {
	case s.requests <- func() { result <- f() }:
		return <-result
	case <-s.done:
		return errStopped
	}
}

// Stop ends the thread. The kernel then kills the running processes that have a parent death signal.
func (s *Starter) Stop() { s.once.Do(func() { close(s.done) }) }

// Program describes a process.
type Program struct {
	Bin  string
	Args []string
	// Env is added to the environment, as NAME=value.
	Env []string
	// AwaitReady is true if the program has the flag --ready-fd. Its start is complete when it writes a line to that
	// descriptor.
	AwaitReady bool
	// Cloneflags are the new namespaces of the process, as in clone(2).
	Cloneflags uintptr
	// Start starts the command, for example in the namespaces of another process. If it is nil, the Starter of the cluster
	// starts the command.
	Start func(*exec.Cmd) error
}

// Process is a process of the cluster. It can be killed and restarted under the same name.
type Process struct {
	// Name is unique in the cluster.
	Name string

	cluster *Cluster
	program Program

	starting sync.Mutex // held while the process is started, so that two calls of Restart do not start it twice
	mu       sync.Mutex
	run      *run // the current or last run; nil before the first; guarded by mu
}

// run is one run of a process, from its start to its exit.
type run struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has ended
	err    error         // the result of Wait; read only after exited is closed
}

// LogPath returns the path of the file with the output of all runs of the process.
func (p *Process) LogPath() string {
	return filepath.Join(p.cluster.opts.Dir, logDir, p.Name+".log")
}

// PID returns the process id of the current or last run; 0 if there was none.
func (p *Process) PID() int {
	if r := p.current(); r != nil {
		return r.cmd.Process.Pid
	}
	return 0
}

// Exited returns a channel that is closed when the current run ends. If the process is not running, the channel is already
// closed.
func (p *Process) Exited() <-chan struct{} {
	if r := p.current(); r != nil {
		return r.exited
	}
	closed := make(chan struct{})
	close(closed)
	return closed
}

// Running reports whether the process runs.
func (p *Process) Running() bool {
	select {
	case <-p.Exited():
		return false
	default:
		return true
	}
}

// ExitState returns the exit state of the last run, such as "exit status 0" or "signal: killed". It is empty while the
// process runs and if it was never started.
func (p *Process) ExitState() string {
	r := p.current()
	if r == nil {
		return ""
	}
	select {
	case <-r.exited:
		return r.cmd.ProcessState.String()
	default:
		return ""
	}
}

// Wait waits until the process has exited and returns its exit error, or nil if the exit status is 0. If ctx ends
// first, the error wraps the cause of ctx.
func (p *Process) Wait(ctx context.Context) error {
	r := p.current()
	if r == nil {
		return fmt.Errorf("wait for %s: %w", p.Name, errNotStarted)
	}
	select {
	case <-r.exited:
		return r.err
	case <-ctx.Done():
		return fmt.Errorf("wait for %s: %w", p.Name, context.Cause(ctx))
	}
}

// Signal sends a signal to the process, for example SIGSTOP or SIGCONT.
func (p *Process) Signal(sig os.Signal) error {
	r := p.current()
	if r == nil {
		return fmt.Errorf("send signal %q to process %s: %w", sig, p.Name, errNotStarted)
	}
	if err := r.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("send signal %q to process %s: %w", sig, p.Name, err)
	}
	return nil
}

// Kill kills the process with SIGKILL and waits until it has exited.
func (p *Process) Kill() error {
	r := p.current()
	if r == nil {
		return fmt.Errorf("kill %s: %w", p.Name, errNotStarted)
	}
	if err := r.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.Name, err)
	}
	<-r.exited
	return nil
}

// Terminate sends SIGTERM and waits until the process has exited; it kills the process if ctx ends first. It returns an
// error if the process did not exit cleanly.
func (p *Process) Terminate(ctx context.Context) error {
	r := p.current()
	if r == nil {
		return fmt.Errorf("stop %s: %w", p.Name, errNotStarted)
	}
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.Name, err)
	}
	select {
	case <-r.exited:
	case <-ctx.Done():
		if err := p.Kill(); err != nil {
			return err
		}
		return fmt.Errorf("stop %s: the process did not exit in time and was killed", p.Name)
	}
	// SIGTERM ends a program without a handler; that is a clean exit too.
	if endedBy(r.err, syscall.SIGTERM) {
		return nil
	}
	return r.err
}

// endedBy reports whether err is the exit error of a process that was ended by the signal.
func endedBy(err error, signal syscall.Signal) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == signal
}

// Restart starts the process with the same arguments, for the first time or again. It terminates a running process first. If
// Program.AwaitReady is set, Restart returns when the process is ready. If ctx ends before that, Restart returns an error, but
// the process keeps running.
func (p *Process) Restart(ctx context.Context) error {
	p.starting.Lock()
	defer p.starting.Unlock()
	if p.Running() {
		if err := p.Terminate(ctx); err != nil {
			p.cluster.opts.Log("restarting %s: %v", p.Name, err)
		}
	}
	r, ready, err := p.launch()
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	p.mu.Lock()
	p.run = r
	p.mu.Unlock()
	p.cluster.opts.Log("started %s, pid %d", p.Name, r.cmd.Process.Pid)
	if ready == nil {
		return nil
	}
	if err := p.awaitReady(ctx, r, ready); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	return nil
}

// RSS returns the resident memory of the process in bytes.
func (p *Process) RSS() (int64, error) {
	path := fmt.Sprintf("/proc/%d/status", p.PID())
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("read the memory of %s: %w", p.Name, err)
	}
	for line := range strings.Lines(string(data)) {
		if value, found := strings.CutPrefix(line, "VmRSS:"); found {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("parse VmRSS of %s in %s: %w", p.Name, path, err)
			}
			return kb << 10, nil
		}
	}
	return 0, fmt.Errorf("read the memory of %s: no VmRSS in %s", p.Name, path)
}

func (p *Process) current() *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run
}

// launch starts the program once. The second result is the pipe on which the program reports that it is ready; nil if
// AwaitReady is not set.
func (p *Process) launch() (*run, *os.File, error) {
	log, err := os.OpenFile(p.LogPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("open the log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(p.program.Bin, p.program.Args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(append(os.Environ(), dirVariable+"="+p.cluster.opts.Dir), p.program.Env...)
	if p.cluster.opts.Detach {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	} else {
		// In a separate process group the process gets no SIGINT from Ctrl-C in the terminal, so that Stop decides in
		// which order processes end.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	}
	cmd.SysProcAttr.Cloneflags = p.program.Cloneflags
	if p.program.Start != nil {
		// Go sets the parent death signal in the child and then checks the pid of the parent. In another PID namespace
		// that pid is 0, and Go would assume that the parent has died. A child in such a namespace ends with process 1 of
		// the namespace instead.
		cmd.SysProcAttr.Pdeathsig = 0
	}
	var ready *os.File
	if p.program.AwaitReady {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, nil, fmt.Errorf("create the readiness pipe: %w", err)
		}
		defer w.Close()
		cmd.ExtraFiles = []*os.File{w} // the first extra file is descriptor 3
		cmd.Args = append(cmd.Args, "--ready-fd=3")
		ready = r
	}
	start := p.program.Start
	if start == nil {
		start = p.cluster.starter.Start
	}
	if err := start(cmd); err != nil {
		if ready != nil {
			err = errors.Join(err, ready.Close())
		}
		return nil, nil, err
	}
	pidFile := filepath.Join(p.cluster.opts.Dir, pidDir, p.Name)
	if err := writePID(pidFile, cmd.Process.Pid); err != nil {
		p.cluster.opts.Log("%s: %v", p.Name, err)
	}
	r := &run{cmd: cmd, exited: make(chan struct{})}
	go func() {
		r.err = cmd.Wait()
		removePID(pidFile, cmd.Process.Pid)
		close(r.exited)
	}()
	return r, ready, nil
}

// awaitReady waits for the line on the pipe. The end of the pipe without a line means that the process has exited.
func (p *Process) awaitReady(ctx context.Context, r *run, ready *os.File) error {
	defer ready.Close()
	line := make(chan bool, 1)
	go func() { line <- bufio.NewScanner(ready).Scan() }()
	select {
	case ok := <-line:
		if ok {
			return nil
		}
		<-r.exited
		return fmt.Errorf("the process exited before it was ready: %s; the end of its log:\n%s", r.cmd.ProcessState, tail(p.LogPath()))
	case <-ctx.Done():
		return fmt.Errorf("the process was not ready in time: %w; the end of its log:\n%s", context.Cause(ctx), tail(p.LogPath()))
	}
}

// tail returns the last logTail bytes of a file, or the text of the error if the file cannot be read.
func tail(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-logTail):])
}

// LogTail returns the last logTail bytes of the log of the process.
func (p *Process) LogTail() string { return tail(p.LogPath()) }
