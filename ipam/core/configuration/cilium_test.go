// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package configuration_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fixedip.io/fixedip/ipam/core/configuration"
)

// TestCiliumSettings checks the settings that are read from the ConfigMap of Cilium, and the timeouts that depend on these
// settings.
func TestCiliumSettings(t *testing.T) {
	for name, c := range map[string]struct {
		data                map[string]string
		want                configuration.CiliumSettings
		answer, firstReport time.Duration
	}{
		"no ConfigMap": {answer: 2 * time.Minute, firstReport: time.Minute},
		"defaults of Cilium": {
			data:   map[string]string{"ipam": "crd", "routing-mode": "tunnel", "ipam-cilium-node-update-rate": "15s", "disable-endpoint-crd": "false"},
			want:   configuration.CiliumSettings{IPAMMode: "crd", RoutingMode: "tunnel", ReportInterval: 15 * time.Second},
			answer: 2 * time.Minute, firstReport: time.Minute,
		},
		"agents that report rarely": {
			data:   map[string]string{"ipam-cilium-node-update-rate": "1m"},
			want:   configuration.CiliumSettings{ReportInterval: time.Minute},
			answer: 8 * time.Minute, firstReport: 150 * time.Second,
		},
		"agents that report often": {
			data:   map[string]string{"ipam-cilium-node-update-rate": "1s"},
			want:   configuration.CiliumSettings{ReportInterval: time.Second},
			answer: 2 * time.Minute, firstReport: 32 * time.Second,
		},
		"invalid values": {
			data:   map[string]string{"ipam-cilium-node-update-rate": "often", "disable-endpoint-crd": "perhaps"},
			answer: 2 * time.Minute, firstReport: time.Minute,
		},
		"a negative interval":       {data: map[string]string{"ipam-cilium-node-update-rate": "-1s"}, answer: 2 * time.Minute, firstReport: time.Minute},
		"without CiliumEndpoints":   {data: map[string]string{"disable-endpoint-crd": "true"}, want: configuration.CiliumSettings{EndpointsDisabled: true}, answer: 2 * time.Minute, firstReport: time.Minute},
		"another IPAM mode, native": {data: map[string]string{"ipam": "cluster-pool", "routing-mode": "native"}, want: configuration.CiliumSettings{IPAMMode: "cluster-pool", RoutingMode: "native"}, answer: 2 * time.Minute, firstReport: time.Minute},
	} {
		got := configuration.CiliumSettingsOf(c.data)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: settings (-want +got):\n%s", name, diff)
		}
		if a, f := got.AnswerTimeout(), got.FirstReportTimeout(); a != c.answer || f != c.firstReport {
			t.Errorf("%s: got timeouts %v for an answer and %v for the first report, want %v and %v", name, a, f, c.answer, c.firstReport)
		}
	}
}

// TestAdaptTo checks that the routing mode of Cilium decides whether addresses may migrate if the file does not define it,
// and that the failover policy Migrate is valid only if addresses may migrate.
func TestAdaptTo(t *testing.T) {
	const pool = "subnets: {clusterPools: [{cidr: 10.240.0.0/16}]}\n"
	const migrate = "failover: Migrate\n"
	for name, c := range map[string]struct {
		file, mode string
		want, bad  bool
	}{
		"tunnel":                           {mode: "tunnel", want: true},
		"tunnel, Migrate":                  {file: migrate, mode: "tunnel", want: true},
		"native":                           {mode: "native"},
		"native, Migrate":                  {file: migrate, mode: "native", bad: true},
		"not known":                        {},
		"not known, Migrate":               {file: migrate, bad: true},
		"native, but allowed":              {file: migrate + "allowAddressMigration: true\n", mode: "native", want: true},
		"tunnel, but not allowed":          {file: "allowAddressMigration: false\n", mode: "tunnel"},
		"tunnel, Migrate, but not allowed": {file: migrate + "allowAddressMigration: false\n", mode: "tunnel", bad: true},
	} {
		settings := configuration.CiliumSettings{RoutingMode: c.mode}
		got, err := configuration.Parse([]byte(head+pool+c.file), &settings)
		if (err != nil) != c.bad {
			t.Errorf("%s: got error %v, want an error: %t", name, err, c.bad)
		}
		if got.MigrationAllowed() != c.want {
			t.Errorf("%s: MigrationAllowed returns %t, want %t", name, got.MigrationAllowed(), c.want)
		}
	}
}

// TestHashOfEffectiveValues checks that the hash covers the value that a setting gets from Cilium: both programs export the
// same hash only if they have read the same value.
func TestHashOfEffectiveValues(t *testing.T) {
	hash := func(file, mode string) string {
		t.Helper()
		c, err := configuration.Parse([]byte(head+"subnets: {clusterPools: [{cidr: 10.240.0.0/16}]}\n"+file), &configuration.CiliumSettings{RoutingMode: mode})
		if err != nil {
			t.Fatal(err)
		}
		h, err := c.Hash()
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	if got, want := hash("", "tunnel"), hash("allowAddressMigration: true\n", "native"); got != want {
		t.Errorf("got hash %s in tunnel mode, want %s, the hash of a file with the same effect", got, want)
	}
	if one, other := hash("", "tunnel"), hash("", ""); one == other {
		t.Errorf("got hash %s whether or not the routing mode is known, want different hashes", one)
	}
}
