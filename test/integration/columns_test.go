// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// TestColumns checks the columns of FixedIPs and NodeSubnets in kubectl get, and the selection of FixedIPs by labels.
func TestColumns(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1"}, controllerArgs: defaultPool})
	e.create(statefulSet("web", 1))
	row := e.awaitRunning(nil, "web-0")["web-0"]
	e.create(beforehand("both", "both-0", "10.240.0.200", "fd00:240::1:a"))
	for _, step := range []struct {
		what, path string
		object     string
		wide       bool
		want       []string
	}{
		{what: "a FixedIP in use", path: "namespaces/" + namespace + "/fixedips", object: "web-0", want: []string{
			"Name=web-0", "IP=" + row.Address, "NODE=node-1", "READY=True", "REASON=InUse", "POD=web-0",
		}},
		{what: "both families", path: "namespaces/" + namespace + "/fixedips", object: "both-0", wide: true, want: []string{
			"Name=both-0", "IP=10.240.0.200", "POD=both-0", "IP2=fd00:240::1:a", "KIND=StatefulSet", "WORKLOAD=both",
		}},
		{what: "a NodeSubnet", path: "nodesubnets", object: "10-240-0-0-24", want: []string{
			"Name=10-240-0-0-24", "CIDR=10.240.0.0/24", "NODE=node-1", "READY=True", "REASON=Assigned",
		}},
	} {
		e.eventually("the columns of "+step.what, func() bool {
			have := map[string]bool{}
			for _, cell := range e.columns(step.path, step.object, step.wide) {
				have[cell] = true
			}
			for _, cell := range step.want {
				if !have[cell] {
					t.Logf("%s: got the columns %v, want also %s", step.what, have, cell)
					return false
				}
			}
			return true
		})
	}
	for label, want := range map[string][]string{
		v1alpha1.LabelWorkload + "=web":             {"web-0"},
		v1alpha1.LabelWorkloadKind + "=StatefulSet": {"both-0", "web-0"},
		v1alpha1.LabelNode + "=node-1":              {"web-0"},
	} {
		key, value, _ := strings.Cut(label, "=")
		var got []string
		e.eventually("the FixedIPs with the label "+label, func() bool {
			var list v1alpha1.FixedIPList
			e.must(e.api.List(within(t), &list, client.InNamespace(namespace), client.MatchingLabels{key: value}))
			got = nil
			for _, f := range list.Items {
				if key != v1alpha1.LabelNode || f.Name == "web-0" {
					got = append(got, f.Name)
				}
			}
			return cmp.Equal(want, got)
		})
	}
}

// columns returns the columns that kubectl get shows for one object, as column=value; nil if the object does not exist. If
// wide is true, the columns of kubectl get -o wide are included.
func (e *env) columns(path, object string, wide bool) (cells []string) {
	e.t.Helper()
	cfg, err := e.RESTConfig(cluster.Admin)
	e.must(err)
	api, err := discovery.NewDiscoveryClientForConfig(cfg)
	e.must(err)
	data, err := api.RESTClient().Get().AbsPath("/apis", v1alpha1.GroupVersion.String(), path).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(within(e.t))
	e.must(err)
	var table metav1.Table
	e.must(json.Unmarshal(data, &table))
	for _, row := range table.Rows {
		if row.Cells[0] != object {
			continue
		}
		for i, c := range table.ColumnDefinitions {
			if wide || c.Priority == 0 {
				cells = append(cells, fmt.Sprintf("%s=%v", c.Name, row.Cells[i]))
			}
		}
	}
	return cells
}
