// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package poolguard writes the CIDRs in which users may reserve addresses into a ConfigMap, for the admission policy of
// FixedIPs.
//
// An admission policy cannot read a file, and the cluster pools are in the configuration file. The active controller copies
// them into the ConfigMap, so that users have to write them only once, in the configuration. It reads the ConfigMap every minute
// instead of watching it, so that it needs no right to watch ConfigMaps, and writes only if the CIDRs differ.
package poolguard
