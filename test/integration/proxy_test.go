// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"crypto/tls"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// proxy starts a proxy in front of the API server for one user, and returns the path of a kubeconfig that uses the proxy.
// pass handles each request, and may forward it with onward.
func (e *env) proxy(user, name string, pass func(w http.ResponseWriter, r *http.Request, onward http.Handler)) (kubeconfig string) {
	e.t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", e.Kubeconfig(user))
	e.must(err)
	target, err := url.Parse(cfg.Host)
	e.must(err)
	// The transport needs no credentials, because the requests contain the token of the user.
	transport, err := rest.TransportFor(&rest.Config{TLSClientConfig: cfg.TLSClientConfig})
	e.must(err)
	onward := httputil.NewSingleHostReverseProxy(target)
	onward.Transport, onward.FlushInterval = transport, -1
	// Programs and control planes that a test kills close their connections. The resulting errors are not logged.
	onward.ErrorLog = log.New(io.Discard, "", 0)
	onward.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }

	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { pass(w, r, onward) }))
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	server.EnableHTTP2 = true
	server.StartTLS()
	e.t.Cleanup(func() {
		// Without a listener clients do not reconnect. Close alone would wait for the end of their watches.
		server.Listener.Close()
		server.CloseClientConnections()
		server.Close()
	})

	config, err := clientcmd.LoadFromFile(e.Kubeconfig(user))
	e.must(err)
	for _, c := range config.Clusters {
		*c = clientcmdapi.Cluster{
			Server:                   server.URL,
			CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
		}
	}
	data, err := clientcmd.Write(*config)
	e.must(err)
	kubeconfig = filepath.Join(e.Dir(), name+".yaml")
	e.must(os.WriteFile(kubeconfig, data, 0o600))
	return kubeconfig
}
