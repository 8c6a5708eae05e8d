// Package integration holds the tests that need a real API server, and those that need Cilium's own
// allocator beside it. Our programs run in them as processes of their own, built with the race
// detector, as the service accounts and with the rights that the manifests give them.
package integration

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// patience is how long a step may take on a slow machine before the test says what is missing. It
// is no measure of anything.
const patience = 90 * time.Second

// bin is the folder of the programs.
var bin string

func TestMain(m *testing.M) {
	flag.Parse()
	ctrllog.SetLogger(logr.Discard())
	bin = os.Getenv("FIXEDIP_BIN")
	if _, err := os.Stat(filepath.Join(bin, "fixedip-controlplane")); bin == "" || err != nil {
		fmt.Fprintln(os.Stderr, "FIXEDIP_BIN has to name the folder of the programs; make test-integration builds them and sets it")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// within is a context for one step of a test.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, errors.New("not so after "+patience.String()))
	t.Cleanup(cancel)
	return ctx
}
