// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package startup

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
	"k8s.io/klog/v2"
)

// Options are the settings of one program.
type Options interface {
	// AddFlags adds the flags of the program.
	AddFlags(fs *pflag.FlagSet)
	// Validate validates the options and sets derived values.
	Validate() error
}

// Main parses the command line, validates o, and calls run with a context that ends when the process receives SIGINT or
// SIGTERM. It adds the flag --v to those of o. With --help, Main prints the flags and does not call run. If one of these steps
// fails, Main prints the error and exits with status 1.
func Main(name string, o Options, run func(context.Context) error) {
	if err := start(name, o, run); err != nil {
		klog.Flush()
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
	klog.Flush()
}

func start(name string, o Options, run func(context.Context) error) error {
	var verbosity int
	flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
	o.AddFlags(flags)
	flags.IntVarP(&verbosity, "v", "v", 0, "Log level.")
	switch err := flags.Parse(os.Args[1:]); {
	case errors.Is(err, pflag.ErrHelp):
		return nil
	case err != nil:
		return err
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case verbosity < 0:
		return fmt.Errorf("--v=%d: the log level must not be negative", verbosity)
	}
	if err := o.Validate(); err != nil {
		return err
	}
	if err := setVerbosity(verbosity); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return run(ctx)
}

// setVerbosity sets the klog level of the process through a separate flag set, because libraries use the global flag set.
// The logging options of Kubernetes programs are not used, because they may be applied only once per process.
func setVerbosity(v int) error {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	if err := flags.Set("v", strconv.Itoa(v)); err != nil {
		return fmt.Errorf("set log level %d: %w", v, err)
	}
	return nil
}
