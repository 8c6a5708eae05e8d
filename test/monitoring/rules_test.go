// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// manifests is the folder of the alerts and the dashboard.
var manifests = filepath.Join("..", "..", "manifests", "prometheus")

// rule is an alert in rules.yaml.
type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// readRules returns the alerts, and their groups as a YAML document in the format of a rule file of Prometheus.
func readRules(t *testing.T) (rules []rule, groups []byte) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(manifests, "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct {
		Spec struct {
			Groups []struct {
				Name  string `json:"name"`
				Rules []rule `json:"rules"`
			} `json:"groups"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(data, &manifest); err != nil {
		t.Fatal(err)
	}
	for _, g := range manifest.Spec.Groups {
		rules = append(rules, g.Rules...)
	}
	if groups, err = yaml.Marshal(manifest.Spec); err != nil {
		t.Fatal(err)
	}
	return rules, groups
}

// promtool runs promtool in a folder, and returns its output. It fails the test if promtool fails.
func promtool(t *testing.T, dir string, args ...string) string {
	t.Helper()
	bin, err := filepath.Abs(filepath.Join(os.Getenv("FIXEDIP_BIN"), "promtool"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); os.Getenv("FIXEDIP_BIN") == "" || err != nil {
		t.Fatal("the environment variable FIXEDIP_BIN must name the folder of promtool; run the tests with make test-monitoring, which builds the program and sets the variable")
	}
	c := exec.Command(bin, args...)
	c.Dir = dir
	out, err := c.CombinedOutput()
	if err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// series contains the values of time series, one value each minute, in the notation of promtool: "1x180" is 1 at the beginning
// and 180 times after that, "0+2x180" grows by 2 each minute, and "_x60" is no value for 60 minutes. Key: the name and the
// labels.
type series map[string]string

// with returns s with the changes applied. An empty value removes a series.
func (s series) with(changes series) series {
	all := maps.Clone(s)
	maps.Copy(all, changes)
	maps.DeleteFunc(all, func(_, values string) bool { return values == "" })
	return all
}

// churn contains the metrics of three hours in a busy cluster in which nothing is wrong. Pods are created and deleted all the
// time. At each moment a FixedIP is being deleted, a pod waits and a claim has no FixedIP yet, but none of them for long. A
// controller and the leading scheduler are replaced, one rollout changes the configuration and the version, and one cluster
// pool is used up while another has room.
var churn = series{
	`fixedip_nodes{family="IPv4"}`:                                                      `50x180`,
	`fixedip_nodes{family="IPv6"}`:                                                      `0x180`,
	`fixedip_nodes_low_on_dynamic_addresses{family="IPv4"}`:                             `0x60 3x3 0x117`,
	`fixedip_nodes_low_on_dynamic_addresses{family="IPv6"}`:                             `0x180`,
	`fixedip_nodes_low_on_free_addresses{family="IPv4"}`:                                `4x180`,
	`fixedip_nodes_low_on_free_addresses{family="IPv6"}`:                                `0x180`,
	`fixedip_addresses{family="IPv4"}`:                                                  `12700x180`,
	`fixedip_addresses{family="IPv6"}`:                                                  `0x180`,
	`fixedip_free_addresses{family="IPv4"}`:                                             `4000x180`,
	`fixedip_free_addresses{family="IPv6"}`:                                             `0x180`,
	`fixedip_cluster_pool_subnets{cidr="10.1.0.0/20",family="IPv4"}`:                    `16x180`,
	`fixedip_cluster_pool_free_subnets{cidr="10.1.0.0/20",family="IPv4"}`:               `0x180`,
	`fixedip_cluster_pool_subnets{cidr="10.2.0.0/16",family="IPv4"}`:                    `256x180`,
	`fixedip_cluster_pool_free_subnets{cidr="10.2.0.0/16",family="IPv4"}`:               `200x180`,
	`fixedip_nodes_without_subnet{family="IPv4"}`:                                       `0x30 2x2 0x147`,
	`fixedip_orphaned_subnets`:                                                          `0x60 1x20 0x99`,
	`fixedip_oldest_pod_waiting_for_node_seconds{state="ready"}`:                        `40x180`,
	`fixedip_oldest_pod_waiting_for_node_seconds{state="cordoned"}`:                     `0x30 0+60x10 0x140`,
	`fixedip_oldest_pod_waiting_for_node_seconds{state="gone"}`:                         `0x180`,
	`fixedip_oldest_unplaced_pod_seconds{reason="free_address"}`:                        `90x180`,
	`fixedip_oldest_unplaced_pod_seconds{reason="node"}`:                                `600x180`,
	`fixedip_oldest_unplaced_pod_seconds{reason="annotation"}`:                          `0x180`,
	`fixedip_overlapping_subnet_nodes`:                                                  `0x180`,
	`leader_election_master_status{name="cilium-ipam-leader",instance="a"}`:             `1x60 0x119`,
	`leader_election_master_status{name="cilium-ipam-leader",instance="b"}`:             `0x61 1x118`,
	`leader_election_master_status{name="kube-scheduler",instance="s"}`:                 `1x90 0x89`,
	`leader_election_master_status{name="kube-scheduler",instance="t"}`:                 `0x91 1x88`,
	`leader_election_master_status{name="kube-scheduler",instance="default-scheduler"}`: `1x180`,
	`fixedip_cache_nodes{instance="s"}`:                                                 `50x180`,
	`fixedip_cache_nodes{instance="t"}`:                                                 `50x180`,
	`fixedip_informer_synced{instance="a",resource="pods"}`:                             `1x60 0x2 1x117`,
	`fixedip_informer_synced{instance="s",resource="fixedips"}`:                         `1x180`,
	`fixedip_config_info{instance="a",hash="1"}`:                                        `1x60 _x120`,
	`fixedip_config_info{instance="a",hash="2"}`:                                        `_x60 1x120`,
	`fixedip_config_info{instance="s",hash="1"}`:                                        `1x65 _x115`,
	`fixedip_config_info{instance="s",hash="2"}`:                                        `_x65 1x115`,
	`fixedip_build_info{instance="a",version="v1"}`:                                     `1x60 _x120`,
	`fixedip_build_info{instance="a",version="v2"}`:                                     `_x60 1x120`,
	`fixedip_build_info{instance="s",version="v1"}`:                                     `1x90 _x90`,
	`fixedip_build_info{instance="s",version="v2"}`:                                     `_x90 1x90`,
	`fixedip_reservations{state="InUse"}`:                                               `4000x180`,
	`fixedip_reservations{state="Releasing"}`:                                           `7x180`,
	`fixedip_claims_without_fixedip`:                                                    `5x180`,
	`fixedip_oldest_claim_without_fixedip_seconds`:                                      `3x180`,
	`fixedip_oldest_release_seconds`:                                                    `35x180`,
	`fixedip_last_reconcile_timestamp_seconds{controller="fixedip",instance="a"}`:       `0+60x180`,
	`fixedip_last_reconcile_timestamp_seconds{controller="fixedip",instance="b"}`:       `0x180`,
	`fixedip_resync_period_seconds{instance="a"}`:                                       `300x180`,
	`fixedip_conflicting_addresses{kind="pods"}`:                                        `0x180`,
	`fixedip_mismatched_pods{reason="WrongAddress"}`:                                    `1x180`,
	`fixedip_mismatched_pods{reason="RestartBlocked"}`:                                  `0x60 1x5 0x114`,
	`fixedip_oldest_mismatch_seconds`:                                                   `25x60 120+60x5 25x114`,
	`fixedip_restarts_total{result="evicted"}`:                                          `0+1x180`,
	`fixedip_restarts_total{result="blocked"}`:                                          `0x60 0+2x5 10x114`,
	`fixedip_ciliumendpoint_evictions_paused`:                                           `0x180`,
	`fixedip_agent_barriers_overdue`:                                                    `0x60 1x8 0x111`,
	`fixedip_pool_writes_total{result="applied"}`:                                       `0+120x180`,
	`fixedip_pool_writes_total{result="conflict"}`:                                      `0+6x180`,
	`fixedip_claims_total{result="written"}`:                                            `0+60x180`,
	`fixedip_claims_total{result="existing"}`:                                           `0+60x180`,
	`fixedip_claims_total{result="conflict"}`:                                           `0+3x180`,
	`fixedip_claims_total{result="timeout"}`:                                            `0x60 0+1x3 3x116`,
	`fixedip_claims_total{result="error"}`:                                              `0x180`,
	`fixedip_pod_address_duration_seconds_bucket{le="4"}`:                               `0+60x180`,
	`fixedip_pod_address_duration_seconds_bucket{le="64"}`:                              `0+63x180`,
	`fixedip_pod_address_duration_seconds_bucket{le="512"}`:                             `0+64x180`,
	`fixedip_pod_address_duration_seconds_bucket{le="+Inf"}`:                            `0+64x180`,
}

// faults contains, for each alert, faults with which the alert fires. Keys: the alert, and the description of the fault.
// Value: the changes of churn.
var faults = map[string]map[string]series{
	"FixedIPPoolLow":            {"one node for five minutes": {`fixedip_nodes_low_on_dynamic_addresses{family="IPv4"}`: `0x173 1x7`}},
	"FixedIPSubnetFull":         {"a quarter of the nodes": {`fixedip_nodes_low_on_free_addresses{family="IPv4"}`: `13x180`}},
	"FixedIPAddressesLow":       {"9 % of all addresses are free": {`fixedip_free_addresses{family="IPv4"}`: `1100x180`}},
	"FixedIPClusterPoolLow":     {"all cluster pools of the family": {`fixedip_cluster_pool_free_subnets{cidr="10.2.0.0/16",family="IPv4"}`: `20x180`}},
	"FixedIPNodesWithoutSubnet": {"one node": {`fixedip_nodes_without_subnet{family="IPv4"}`: `1x180`}},
	"FixedIPSubnetsOrphaned":    {"one subnet": {`fixedip_orphaned_subnets`: `1x180`}},
	"FixedIPPodsWaitForNode": {
		"a drained node":               {`fixedip_oldest_pod_waiting_for_node_seconds{state="cordoned"}`: `0+60x180`},
		"a node that is gone":          {`fixedip_oldest_pod_waiting_for_node_seconds{state="gone"}`: `1000x180`},
		"a standby also serves a zero": {`fixedip_oldest_pod_waiting_for_node_seconds{state="gone",instance="a"}`: `1000x180`, `fixedip_oldest_pod_waiting_for_node_seconds{state="gone",instance="b"}`: `0x180`},
	},
	"FixedIPPodsUnplaced": {
		"no free address":       {`fixedip_oldest_unplaced_pod_seconds{reason="free_address"}`: `0+60x180`},
		"an invalid annotation": {`fixedip_oldest_unplaced_pod_seconds{reason="annotation"}`: `901x180`},
	},
	"FixedIPSubnetsOverlap": {"two nodes": {`fixedip_overlapping_subnet_nodes`: `2x180`}},
	"FixedIPNoLeader": {
		"all replicas are standbys": {`leader_election_master_status{name="cilium-ipam-leader",instance="b"}`: `0x180`},
		"no replica is scraped": {
			`leader_election_master_status{name="cilium-ipam-leader",instance="a"}`: ``, `leader_election_master_status{name="cilium-ipam-leader",instance="b"}`: ``,
		},
	},
	"FixedIPSchedulerNoLeader": {
		"all replicas are standbys": {`leader_election_master_status{name="kube-scheduler",instance="t"}`: `0x180`},
		"no replica is scraped": {
			`leader_election_master_status{name="kube-scheduler",instance="s"}`: ``, `leader_election_master_status{name="kube-scheduler",instance="t"}`: ``,
			`fixedip_cache_nodes{instance="s"}`: ``, `fixedip_cache_nodes{instance="t"}`: ``,
		},
	},
	"FixedIPNotSynced":         {"a missing CRD": {`fixedip_informer_synced{instance="s",resource="fixedips"}`: `0x180`}},
	"FixedIPConfigurationSkew": {"the scheduler keeps the old configuration": {`fixedip_config_info{instance="s",hash="1"}`: `1x180`, `fixedip_config_info{instance="s",hash="2"}`: ``}},
	"FixedIPVersionSkew":       {"the scheduler keeps the old version": {`fixedip_build_info{instance="s",version="v1"}`: `1x180`, `fixedip_build_info{instance="s",version="v2"}`: ``}},
	"FixedIPClaimsUnrecorded":  {"one claim for three hours": {`fixedip_oldest_claim_without_fixedip_seconds`: `0+60x180`}},
	"FixedIPReleaseStuck":      {"one FixedIP for three hours": {`fixedip_oldest_release_seconds`: `0+60x180`}},
	"FixedIPSweepStopped": {
		"the reconciles end":  {`fixedip_last_reconcile_timestamp_seconds{controller="fixedip",instance="a"}`: `0+60x120 7200x59`},
		"no reconcile at all": {`fixedip_last_reconcile_timestamp_seconds{controller="fixedip",instance="a"}`: `1x180`},
	},
	"FixedIPDuplicate":    {"two pods with one address": {`fixedip_conflicting_addresses{kind="pods"}`: `1x180`}},
	"FixedIPWrongAddress": {"one pod": {`fixedip_oldest_mismatch_seconds`: `0+60x180`}},
	"FixedIPRestartsBlocked": {"a PodDisruptionBudget": {
		`fixedip_mismatched_pods{reason="RestartBlocked"}`: `1x180`, `fixedip_restarts_total{result="blocked"}`: `0+2x180`,
	}},
	"FixedIPCiliumEndpointsMissing": {"evictions are paused": {`fixedip_ciliumendpoint_evictions_paused`: `1x180`}},
	"FixedIPAgentsOverdue":          {"one agent for three hours": {`fixedip_agent_barriers_overdue`: `1x180`}},
	"FixedIPPoolConflicts":          {"another writer": {`fixedip_pool_writes_total{result="conflict"}`: `0+60x180`}},
	"FixedIPClaimsFail": {
		"one in ten times out": {`fixedip_claims_total{result="timeout"}`: `0+14x180`},
		"all fail":             {`fixedip_claims_total{result="written"}`: `0x180`, `fixedip_claims_total{result="existing"}`: `0x180`, `fixedip_claims_total{result="error"}`: `0+9x180`},
	},
	"FixedIPAddressSlow": {"a quarter of the pods take minutes": {
		`fixedip_pod_address_duration_seconds_bucket{le="64"}`: `0+48x180`, `fixedip_pod_address_duration_seconds_bucket{le="4"}`: `0+40x180`,
	}},
}

// silent contains situations other than churn in which no alert fires. Key: the description. Value: the changes of churn.
var silent = map[string]series{
	"an idle cluster": {
		`fixedip_claims_total{result="written"}`: `100x180`, `fixedip_claims_total{result="existing"}`: `100x180`, `fixedip_claims_total{result="conflict"}`: `1x180`,
		`fixedip_claims_total{result="timeout"}`: `0x180`, `fixedip_pool_writes_total{result="applied"}`: `100x180`, `fixedip_pool_writes_total{result="conflict"}`: `3x180`,
		`fixedip_pod_address_duration_seconds_bucket{le="4"}`: `9x180`, `fixedip_pod_address_duration_seconds_bucket{le="64"}`: `9x180`,
		`fixedip_pod_address_duration_seconds_bucket{le="512"}`: `9x180`, `fixedip_pod_address_duration_seconds_bucket{le="+Inf"}`: `9x180`,
	},
	"few writes, half of them conflicts": {
		`fixedip_pool_writes_total{result="applied"}`: `0+1x180`, `fixedip_pool_writes_total{result="conflict"}`: `0+1x180`,
	},
	"a long resync period": {
		`fixedip_resync_period_seconds{instance="a"}`: `7200x180`, `fixedip_last_reconcile_timestamp_seconds{controller="fixedip",instance="a"}`: `0x120 7200x59`,
	},
	"no leader election of the scheduler": {
		`leader_election_master_status{name="kube-scheduler",instance="s"}`: ``, `leader_election_master_status{name="kube-scheduler",instance="t"}`: ``,
	},
}

// evalTimes returns the times at which churn and silent are evaluated: about every ten minutes, and between the changes of
// the rollout.
func evalTimes() []string {
	times := []string{"61m", "62m", "63m", "64m", "66m", "68m", "92m"}
	for _, hour := range []string{"0h", "1h", "2h"} {
		for _, minute := range []string{"10m", "20m", "30m", "40m", "50m", "59m"} {
			times = append(times, hour+minute)
		}
	}
	return times
}

// unitTest is a test of promtool: series, and the alerts that fire at each time.
type unitTest struct {
	Name     string            `json:"name"`
	Interval string            `json:"interval"`
	Series   []map[string]any  `json:"input_series"`
	Exprs    []map[string]any  `json:"promql_expr_test"`
	External map[string]string `json:"external_labels,omitempty"`
}

// newUnitTest returns the test that exactly the given alerts fire at each of the times.
func newUnitTest(name string, s series, alerts []string, times ...string) unitTest {
	test := unitTest{Name: name, Interval: "1m"}
	for _, key := range slices.Sorted(maps.Keys(s)) {
		test.Series = append(test.Series, map[string]any{"series": key, "values": s[key]})
	}
	samples := []map[string]any{}
	for _, alert := range alerts {
		samples = append(samples, map[string]any{"labels": `{alertname="` + alert + `"}`, "value": 1})
	}
	for _, at := range times {
		test.Exprs = append(test.Exprs, map[string]any{
			"expr": `group by (alertname) (ALERTS{alertstate="firing"})`, "eval_time": at, "exp_samples": samples,
		})
	}
	return test
}

// TestRules checks the alerts with promtool: each alert fires with each of its faults, no other alert fires then, and no
// alert fires with churn or with a situation of silent.
func TestRules(t *testing.T) {
	rules, groups := readRules(t)
	dir := t.TempDir()
	write := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("rules.yaml", groups)
	promtool(t, dir, "check", "rules", "--lint=all", "--lint-fatal", "rules.yaml")

	tests := []unitTest{newUnitTest("churn", churn, nil, evalTimes()...)}
	for name, changes := range silent {
		tests = append(tests, newUnitTest(name, churn.with(changes), nil, evalTimes()...))
	}
	names := map[string]bool{}
	for _, r := range rules {
		names[r.Alert] = true
		if len(faults[r.Alert]) == 0 {
			t.Errorf("alert %s has no fault with which it fires", r.Alert)
		}
		for fault, changes := range faults[r.Alert] {
			tests = append(tests, newUnitTest(r.Alert+": "+fault, churn.with(changes), []string{r.Alert}, "2h59m"))
		}
	}
	for alert := range faults {
		if !names[alert] {
			t.Errorf("there are faults for alert %s, which does not exist", alert)
		}
	}
	data, err := yaml.Marshal(map[string]any{"rule_files": []string{"rules.yaml"}, "evaluation_interval": "1m", "tests": tests})
	if err != nil {
		t.Fatal(err)
	}
	write("tests.yaml", data)
	promtool(t, dir, "test", "rules", "tests.yaml")
}
