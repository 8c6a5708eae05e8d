// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"context"
	"fmt"
	"os/exec"
	"time"
)

// Shell runs the steps of pages with bash.
type Shell struct {
	// Dir is the current folder of the commands.
	Dir string
	// Env contains the environment variables of the commands, as NAME=value.
	Env []string
	// RetryFor is the time for which a console command is run again if its output is not as expected.
	RetryFor time.Duration
}

// retryInterval is the time between two runs of a console command.
const retryInterval = time.Second

// Run runs a step. It returns an error if a script fails, or if the output of a console command is still not as expected
// when RetryFor is over or ctx ends. The error contains the output of the last run.
func (s Shell) Run(ctx context.Context, step Step) error {
	if step.Output == nil {
		out, err := s.run(ctx, step.Command)
		if err != nil {
			return fmt.Errorf("run the script of line %d: %w; it printed: %s", step.Line, err, out)
		}
		return nil
	}
	deadline := time.Now().Add(s.RetryFor)
	for {
		out, failure := s.run(ctx, step.Command)
		err := Match(step.Output, out)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil && !time.Now().After(deadline) {
			select {
			case <-time.After(retryInterval):
				continue
			case <-ctx.Done():
			}
		}
		status := "exit status 0"
		if failure != nil {
			status = failure.Error()
		}
		return fmt.Errorf("command %q of line %d (%s): %w; it printed:\n%s", step.Command, step.Line, status, err, out)
	}
}

// run runs a script with bash, which stops at the first error. It returns the output of bash, even if bash fails.
func (s Shell) run(ctx context.Context, text string) (string, error) {
	command := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", text)
	command.Dir, command.Env = s.Dir, s.Env
	// A process that outlives bash, such as a background process, keeps the output open. WaitDelay ends the wait for it.
	command.WaitDelay = time.Second
	out, err := command.CombinedOutput()
	return string(out), err
}
