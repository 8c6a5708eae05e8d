// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	apiserveroptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

// portFile is the file in the work folder that stores the port of the API server. A restarted control plane uses the same
// port, so that kubeconfigs stay valid.
const portFile = "secure-port"

// part is a running part of the control plane. done receives the result of the part when the part ends.
type part struct {
	done <-chan error
}

// serverConfig contains the settings of the API server that depend on options and on other parts.
type serverConfig struct {
	listener     net.Listener
	etcdURL      string
	keys         *pki
	tokenFile    string
	serviceRange string
	// auditLog is the path of the audit log; if empty, there is no audit log. dir is the work folder, to which
	// startAPIServer writes the audit policy.
	auditLog, dir string
}

// auditPolicy logs the metadata of each request when its response is complete. It also logs the metadata of each
// long-running request, such as a watch, when its response starts.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

// listen opens the port of the API server and stores its number in portFile. A port of 0 means the port of the last run, or
// a free one if there was none.
func listen(dir, address string, port int) (net.Listener, error) {
	file := filepath.Join(dir, portFile)
	if port == 0 {
		data, err := os.ReadFile(file)
		switch {
		case err == nil:
			if port, err = strconv.Atoi(strings.TrimSpace(string(data))); err != nil {
				return nil, fmt.Errorf("parse the port of the last run in %s: %w", file, err)
			}
		case !errors.Is(err, os.ErrNotExist):
			return nil, fmt.Errorf("read the port of the last run: %w", err)
		}
	}
	l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("listen on the port of the API server: %w", err)
	}
	_, actual, err := net.SplitHostPort(l.Addr().String())
	if err == nil {
		err = writePrivate(file, []byte(actual+"\n"))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("determine and store the port of the API server: %w", err), l.Close())
	}
	return l, nil
}

// startAPIServer starts the API server, which runs until ctx ends. It does not use the command kube-apiserver, because that
// command handles the signals of the process itself.
func startAPIServer(ctx context.Context, c serverConfig) (*part, error) {
	o := apiserveroptions.NewServerRunOptions()
	fs := pflag.NewFlagSet("kube-apiserver", pflag.ContinueOnError)
	named := o.Flags()
	for _, set := range named.FlagSets {
		fs.AddFlagSet(set)
	}
	host, port, err := net.SplitHostPort(c.listener.Addr().String())
	if err != nil {
		return nil, fmt.Errorf("parse the address on which the API server listens: %w", err)
	}
	reconciler := "lease"
	if net.ParseIP(host).IsLoopback() {
		// The API server refuses a loopback address as an endpoint. A cluster of simulated nodes needs no endpoint, because
		// none of its programs connects to the Service "kubernetes".
		reconciler = "none"
	}
	args := []string{
		"--etcd-servers=" + c.etcdURL,
		"--bind-address=" + host,
		"--advertise-address=" + host,
		"--secure-port=" + port,
		"--tls-cert-file=" + c.keys.certFile,
		"--tls-private-key-file=" + c.keys.keyFile,
		"--token-auth-file=" + c.tokenFile,
		"--authorization-mode=Node,RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.keys.serviceAccountKeyFile,
		"--service-account-signing-key-file=" + c.keys.serviceAccountKeyFile,
		"--service-cluster-ip-range=" + c.serviceRange,
		"--endpoint-reconciler-type=" + reconciler,
		"--kubelet-client-certificate=" + c.keys.kubeletClientCertFile,
		"--kubelet-client-key=" + c.keys.kubeletClientKeyFile,
		"--kubelet-preferred-address-types=InternalIP",
		"--allow-privileged=true",
		"--profiling=false",
	}
	if c.auditLog != "" {
		policy := filepath.Join(c.dir, "audit-policy.yaml")
		if err := writePrivate(policy, []byte(auditPolicy)); err != nil {
			return nil, fmt.Errorf("write the audit policy: %w", err)
		}
		args = append(args, "--audit-policy-file="+policy, "--audit-log-path="+c.auditLog)
	}
	if err := fs.Parse(args); err != nil {
		return nil, fmt.Errorf("configure the API server: %w", err)
	}
	o.SecureServing.Listener = c.listener

	// ComponentGlobalsRegistry contains the feature gates of the whole process, so the controller manager uses the same
	// gates.
	if err := o.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return nil, fmt.Errorf("set the feature gates: %w", err)
	}
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	completed, err := o.Complete(ctx)
	if err != nil {
		return nil, fmt.Errorf("complete the options of the API server: %w", err)
	}
	if errs := completed.Validate(); len(errs) > 0 {
		return nil, fmt.Errorf("validate the options of the API server: %w", utilerrors.NewAggregate(errs))
	}
	done := make(chan error, 1)
	go func() { done <- app.Run(ctx, completed); close(done) }()
	return &part{done: done}, nil
}

// waitServing polls until the API server is ready, because there is no event for that.
func waitServing(ctx context.Context, cfg *rest.Config, ended <-chan error) error {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("create a client for the API server: %w", err)
	}
	var last error
	err = wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		select {
		case err := <-ended:
			return false, partEnded("the API server", err)
		default:
		}
		last = client.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the API server to be ready: %w", errors.Join(err, last))
	}
	return nil
}
