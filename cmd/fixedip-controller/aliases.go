// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/pflag"
)

// aliases are the flags that a guide to fixed addresses on Cilium names differently. They have the meaning of the guide.
var aliases = []struct{ old, new string }{
	{"labelSector", "label-selector"},
	{"ipRateNum", "min-free-ips"},
	{"maxAllocatedIP", "max-dynamic-ips"},
	{"enableIPv6", "enable-ipv6"},
	{"enableStaticPodIPv6", "enable-static-pod-ipv6"},
	{"excludeDbbranchPrefixs", "exclude-dbbranch-prefixes"},
	{"cepTerminationTimeout", "cep-termination-timeout"},
	{"logLevel", "v"},
}

// variable is an environment variable that sets a flag if neither the command line nor the configuration file does.
type variable struct {
	name, flag string
	// deprecated is true for variables of the guide; their use gives a warning.
	deprecated bool
}

// variables are the environment variables that are read.
var variables = []variable{
	{name: "KUBECONFIG", flag: "kubeconfig"},
	{name: "POD_NAMESPACE", flag: "leader-election-namespace"},
	{name: "CLUSTER_POOL_IPV4_CIDR", flag: "cluster-pool-ipv4-cidr", deprecated: true},
	{name: "CLUSTER_POOL_IPV4_MASK_SIZE", flag: "cluster-pool-ipv4-mask-size", deprecated: true},
	{name: "CLUSTER_POOL_IPV6_CIDR", flag: "cluster-pool-ipv6-cidr", deprecated: true},
	{name: "CLUSTER_POOL_IPV6_MASK_SIZE", flag: "cluster-pool-ipv6-mask-size", deprecated: true},
}

// logLevel sets the verbosity -v by a log level of the guide: 0 panic, 1 fatal, 2 error, 3 warning, 4 info, 5 debug,
// 6 trace.
type logLevel struct{ pflag.Value }

func (v logLevel) Set(level string) error {
	n, err := strconv.Atoi(level)
	if err != nil || n < 0 || n > 6 {
		return errors.New("must be a number from 0 (panic) to 6 (trace)")
	}
	return v.Value.Set(strconv.Itoa([]int{0, 0, 0, 0, 2, 4, 6}[n]))
}

// addAliases adds the aliases of existing flags, hidden from the usage.
func addAliases(fs *pflag.FlagSet) {
	for _, a := range aliases {
		target := fs.Lookup(a.new)
		if target == nil {
			continue
		}
		value := target.Value
		if a.old == "logLevel" {
			value = logLevel{value}
		}
		fs.AddFlag(&pflag.Flag{Name: a.old, Usage: "Deprecated: use --" + a.new, Value: value, NoOptDefVal: target.NoOptDefVal, Hidden: true})
	}
}

// settleAliases marks the flags of the aliases that were set as changed, and returns a warning for each. Setting a flag
// under both names is an error.
func settleAliases(fs *pflag.FlagSet) (warnings []string, err error) {
	for _, a := range aliases {
		given, target := fs.Lookup(a.old), fs.Lookup(a.new)
		if given == nil || !given.Changed {
			continue
		}
		if target.Changed {
			return nil, fmt.Errorf("--%s and --%s are the same flag; set --%s only", a.old, a.new, a.new)
		}
		target.Changed = true
		warnings = append(warnings, fmt.Sprintf("Flag --%s is deprecated; use --%s", a.old, a.new))
	}
	return warnings, nil
}
