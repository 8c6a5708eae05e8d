// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/rand"
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const (
	productNamespace      = "fixedip-system"
	controllerManagerUser = "kube-controller-manager"
	kubeletPrefix         = "kubelet-"     // prefix of the kubeconfig names of kubelets
	nodeUserPrefix        = "system:node:" // prefix of the users that the node authorizer accepts as kubelets
	clusterName           = "fixedip"
	clientQPS             = 1000
	clientBurst           = 2000
)

// identity is a user of the API server.
type identity struct {
	name   string // name of the kubeconfig
	user   string
	groups []string
	token  string
}

// knownIdentities returns the users with a kubeconfig. The programs of fixedip have the names of their service
// accounts, so that the RBAC rules of the manifests apply to them. The kubelet of each named node has the name that
// the node authorizer expects.
func knownIdentities(nodes []string) []identity {
	account := func(name string) identity {
		return identity{
			name:   name,
			user:   serviceaccount.MakeUsername(productNamespace, name),
			groups: serviceaccount.MakeGroupNames(productNamespace),
		}
	}
	master := func(name, username string) identity {
		return identity{name: name, user: username, groups: []string{user.SystemPrivilegedGroup}}
	}
	list := []identity{
		master("admin", "admin"),
		account("fixedip-scheduler"),
		account("fixedip-controller"),
		master("simnode", "simnode"),
		master("cilium", "cilium"),
		master(controllerManagerUser, user.KubeControllerManager),
		{name: "kube-scheduler", user: user.KubeScheduler},
	}
	for _, node := range nodes {
		list = append(list, identity{
			name: kubeletPrefix + node, user: nodeUserPrefix + node, groups: []string{user.NodesGroup},
		})
	}
	return list
}

// identities contains the known identities with their tokens.
type identities struct {
	file string // the token file of the API server
	list []identity
}

// ensureIdentities returns the users with their tokens. It reads the tokens of an earlier run, so that clients stay
// authenticated across restarts, creates missing tokens, and writes the token file.
func ensureIdentities(file string, nodes []string) (*identities, error) {
	tokens, err := readTokens(file)
	if err != nil {
		return nil, err
	}
	list := knownIdentities(nodes)
	var buf bytes.Buffer
	w := csv.NewWriter(&buf)
	for i := range list {
		id := &list[i]
		if id.token = tokens[id.user]; id.token == "" {
			id.token = rand.Text()
		}
		if err := w.Write([]string{id.token, id.user, id.name, strings.Join(id.groups, ",")}); err != nil {
			return nil, fmt.Errorf("encode the token of %s: %w", id.user, err)
		}
	}
	w.Flush()
	if err := w.Error(); err != nil {
		return nil, fmt.Errorf("encode the tokens: %w", err)
	}
	if err := writePrivate(file, buf.Bytes()); err != nil {
		return nil, err
	}
	return &identities{file: file, list: list}, nil
}

// readTokens returns the tokens in a token file; nil if the file does not exist. Key: the user name. Value: the token.
func readTokens(file string) (map[string]string, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the token file: %w", err)
	}
	r := csv.NewReader(bytes.NewReader(data))
	r.FieldsPerRecord = 4
	records, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("parse the token file %s: %w", file, err)
	}
	tokens := make(map[string]string, len(records))
	for _, rec := range records {
		tokens[rec[1]] = rec[0]
	}
	return tokens, nil
}

// restConfig returns a client configuration for the user whose kubeconfig has this name.
func (ids *identities) restConfig(name, server string, caPEM []byte) (*rest.Config, error) {
	for _, id := range ids.list {
		if id.name == name {
			return &rest.Config{
				Host:            server,
				BearerToken:     id.token,
				TLSClientConfig: rest.TLSClientConfig{CAData: caPEM},
				QPS:             clientQPS,
				Burst:           clientBurst,
			}, nil
		}
	}
	return nil, fmt.Errorf("no user has a kubeconfig with the name %q", name)
}

// writeKubeconfigs writes the kubeconfig of each user to <dir>/<name>.yaml.
func writeKubeconfigs(dir, server string, caPEM []byte, ids *identities) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create the kubeconfig folder: %w", err)
	}
	for _, id := range ids.list {
		cfg := clientcmdapi.NewConfig()
		cfg.Clusters[clusterName] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: caPEM}
		cfg.AuthInfos[id.name] = &clientcmdapi.AuthInfo{Token: id.token}
		cfg.Contexts[clusterName] = &clientcmdapi.Context{Cluster: clusterName, AuthInfo: id.name}
		cfg.CurrentContext = clusterName
		data, err := clientcmd.Write(*cfg)
		if err != nil {
			return fmt.Errorf("encode the kubeconfig of %s: %w", id.name, err)
		}
		if err := writePrivate(filepath.Join(dir, id.name+".yaml"), data); err != nil {
			return err
		}
	}
	return nil
}
