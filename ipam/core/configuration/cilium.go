// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package configuration

import (
	"strconv"
	"time"

	"k8s.io/utils/ptr"
)

// The keys of the ConfigMap cilium-config that fixedip reads. They are flags of cilium-agent.
const (
	ciliumIPAM        = "ipam"
	ciliumRoutingMode = "routing-mode"
	ciliumUpdateRate  = "ipam-cilium-node-update-rate"
	// ciliumDisableCRD disables CiliumEndpoints; from v1.20 on, Cilium can create CiliumEndpointSlices without them (Cilium
	// fact 26).
	ciliumDisableCRD = "disable-endpoint-crd"
)

// Values of Cilium settings that fixedip looks for.
const (
	// IPAMModeCRD is the only IPAM mode of Cilium that fixedip works with.
	IPAMModeCRD   = "crd"
	routingTunnel = "tunnel"
)

// defaultReportInterval is Cilium's default of ipam-cilium-node-update-rate.
const defaultReportInterval = 15 * time.Second

// CiliumSettings are the settings of Cilium that settings of fixedip depend on. The zero value means that nothing is known.
type CiliumSettings struct {
	// IPAMMode is the IPAM mode, such as crd; empty if it is not known.
	IPAMMode string
	// RoutingMode is tunnel or native; empty if it is not known.
	RoutingMode string
	// ReportInterval is the minimum time between two reports of an agent; 0 if it is not known.
	ReportInterval time.Duration
	// EndpointsDisabled is true if Cilium creates no CiliumEndpoints.
	EndpointsDisabled bool
}

// CiliumSettingsOf returns the settings in the data of the ConfigMap cilium-config. A missing value counts as not known, and
// so does an interval that is invalid or not positive. EndpointsDisabled is false if its value is missing or invalid.
func CiliumSettingsOf(data map[string]string) CiliumSettings {
	s := CiliumSettings{IPAMMode: data[ciliumIPAM], RoutingMode: data[ciliumRoutingMode]}
	if d, err := time.ParseDuration(data[ciliumUpdateRate]); err == nil && d > 0 {
		s.ReportInterval = d
	}
	s.EndpointsDisabled, _ = strconv.ParseBool(data[ciliumDisableCRD])
	return s
}

func (s CiliumSettings) reportInterval() time.Duration {
	if s.ReportInterval == 0 {
		return defaultReportInterval
	}
	return s.ReportInterval
}

// AnswerTimeout returns the time without an answer after which an agent counts as not answering: two minutes, or eight
// report intervals if that is longer. A running agent answers within one report interval, or within two if its report
// conflicts with another write of the CiliumNode. The rest of the time is for an agent that restarts: it reads the CiliumNode
// when it starts, and then answers too.
func (s CiliumSettings) AnswerTimeout() time.Duration {
	return max(2*time.Minute, 8*s.reportInterval())
}

// FirstReportTimeout returns the time for which the controller waits for the first report of an agent before it asks for
// one: half a minute to start, and two report intervals.
func (s CiliumSettings) FirstReportTimeout() time.Duration {
	return 30*time.Second + 2*s.reportInterval()
}

// AdaptTo sets absent settings whose defaults depend on the settings of Cilium. Call it after Complete and before Validate.
// Hash covers the values that AdaptTo sets, so both programs have to read the same settings of Cilium.
func (c *Configuration) AdaptTo(s CiliumSettings) {
	if c.AllowAddressMigration == nil {
		// A tunnel carries the packets of each single address to the node that has it. With native routing, only the subnets
		// of nodes have routes, unless an administrator has set up more.
		c.AllowAddressMigration = ptr.To(s.RoutingMode == routingTunnel)
	}
}

// MigrationAllowed reports whether an address may move to a node whose subnet does not contain it.
func (c Configuration) MigrationAllowed() bool { return ptr.Deref(c.AllowAddressMigration, false) }
