// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package redact_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"fixedip.io/fixedip/ipam/core/redact"
)

// decoded returns YAML as encoding/json decodes it.
func decoded(t *testing.T, text string) (tree any) {
	t.Helper()
	encoded, err := yaml.YAMLToJSON([]byte(text))
	if err == nil {
		err = json.Unmarshal(encoded, &tree)
	}
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// TestTree checks the complete result of Strip and Tree, and that the original object is not changed.
func TestTree(t *testing.T) {
	tree := decoded(t, `
apiVersion: web/v1
kind: web
metadata:
  name: web-0
  namespace: acme
  labels: {app: secret, fixedip.io/owner: web}
  annotations: {kubectl.kubernetes.io/last-applied-configuration: secret, fixedip.io/ips: 10.240.1.9}
  managedFields: [{manager: secret}]
spec:
  nodeName: worker-a
  replicas: 3
  selector: {matchLabels: {app: secret}}
  template:
    metadata: {labels: {app: secret}}
    spec:
      containers:
      - env: [{name: TOKEN, value: secret}, {name: REF, valueFrom: {secretKeyRef: {name: secret, key: secret}}}]
        args: [--node=worker-a, --verbose]
  instance-id: secret
  binaryData: {key: c2VjcmV0}
  ipam:
    pool:
      10.240.1.5: {owner: acme/web-0, resource: acme/StatefulSet/web}
      fd00:240:1::5: {}
`)
	before, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	want := decoded(t, `
apiVersion: web/v1
kind: web
metadata:
  name: pod-1
  namespace: namespace-1
  labels: {fixedip.io/owner: workload-1}
  annotations: {fixedip.io/ips: subnet-1+9}
spec:
  nodeName: node-1
  replicas: 3
  selector: {matchLabels: (removed)}
  template:
    metadata: {}
    spec:
      containers:
      - env: [{name: TOKEN}, {name: REF}]
        args: [--node=node-1, --verbose]
  binaryData: (removed)
  ipam:
    pool:
      subnet-1+5: {owner: namespace-1/pod-1, resource: namespace-1/StatefulSet/workload-1}
      subnet-2+5: {}
`)
	if diff := cmp.Diff(want, redactor().Tree(redact.Strip(tree))); diff != "" {
		t.Errorf("tree (-want +got): %s", diff)
	}
	if after, err := json.Marshal(tree); err != nil || string(after) != string(before) {
		t.Errorf("the object was changed to %s, error %v, want no change", after, err)
	}
}

// TestLearnTree checks that names are learned from messages, and not from other strings.
func TestLearnTree(t *testing.T) {
	r := redactor()
	tree := decoded(t, `
status:
  conditions: [{type: Exclusive, message: "IP 10.240.1.5 is in use by pod shop/cart-7 on node gpu-box"}]
  text: node=no-message
`)
	r.LearnTree(tree)
	want := decoded(t, `
status:
  conditions: [{type: Exclusive, message: "IP subnet-1+5 is in use by pod namespace-2/pod-3 on node node-3"}]
  text: node=no-message
`)
	if diff := cmp.Diff(want, r.Tree(tree)); diff != "" {
		t.Errorf("tree (-want +got): %s", diff)
	}
}
