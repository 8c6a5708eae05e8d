// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package serverversion

import (
	"context"
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/version"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

type server struct {
	version string
	err     error
}

func (s server) ServerVersion() (*version.Info, error) {
	return &version.Info{GitVersion: s.version}, s.err
}

func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		server       server
		wantErr, log string
	}{
		"older than supported":                            {server: server{version: "v1.29.14"}, wantErr: "the API server has version v1.29.14, and this program needs Kubernetes 1.30 or later: the reason; upgrade the API server, or use a version of fixedip that supports it"},
		"the oldest supported":                            {server: server{version: "v1.30.0"}},
		"the version of the program":                      {server: server{version: "v1.34.9"}},
		"the next version":                                {server: server{version: "v1.35.4"}},
		"two versions newer":                              {server: server{version: "v1.36.0-rc.1"}, log: "The API server is newer than the versions that this program was tested with"},
		"with a suffix of a vendor":                       {server: server{version: "v1.34.3-eks-1a2b3c4"}},
		"older than supported, with a suffix of a vendor": {server: server{version: "v1.28.3+k3s1"}, wantErr: "the API server has version v1.28.3+k3s1, and this program needs Kubernetes 1.30 or later: the reason; upgrade the API server, or use a version of fixedip that supports it"},
		"a version that is not 1.x":                       {server: server{version: "v0.0.0-master+$Format:%H$"}, log: "The version of the API server cannot be parsed or is not 1.x; the version is not checked"},
		"no response":                                     {server: server{err: errors.New("connection refused")}, log: "Could not read the version of the API server; the version is not checked"},
	} {
		t.Run(name, func(t *testing.T) {
			logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
			err := Check(klog.NewContext(context.Background(), logger), c.server, 30, "the reason")
			if (err == nil) != (c.wantErr == "") || err != nil && err.Error() != c.wantErr {
				t.Errorf("got error %v, want %q", err, c.wantErr)
			}
			if got := logger.GetSink().(ktesting.Underlier).GetBuffer().String(); !strings.Contains(got, c.log) || c.log == "" && got != "" {
				t.Errorf("got log %q, want %q", got, c.log)
			}
		})
	}
}
