// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/pflag"
)

// alias is a deprecated name of a flag, from a guide to fixed addresses on Cilium. It has the meaning of the guide.
type alias struct {
	old, new string
	// translate converts a value of the guide; nil if values are the same.
	translate func(string) (string, error)
}

// aliases are the flags of the guide with another name.
var aliases = []alias{
	{old: "labelSector", new: "label-selector"},
	{old: "ipRateNum", new: "min-free-ips"},
	{old: "maxAllocatedIP", new: "max-dynamic-ips"},
	{old: "enableIPv6", new: "enable-ipv6"},
	{old: "enableStaticPodIPv6", new: "enable-static-pod-ipv6"},
	{old: "excludeDbbranchPrefixs", new: "exclude-dbbranch-prefixes"},
	{old: "cepTerminationTimeout", new: "cep-termination-timeout"},
	{old: "logLevel", new: "v", translate: verbosity},
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

// verbosity converts the log levels of the guide (0 panic, 1 fatal, 2 error, 3 warning, 4 info, 5 debug, 6 trace) to -v.
func verbosity(level string) (string, error) {
	n, err := strconv.Atoi(level)
	switch {
	case err != nil || n < 0 || n > 6:
		return "", fmt.Errorf("must be a number from 0 (panic) to 6 (trace)")
	case n < 4:
		return "0", nil
	case n == 4:
		return "2", nil
	case n == 5:
		return "4", nil
	}
	return "6", nil
}

// aliasValue is the value of an alias. Setting it sets the flag.
type aliasValue struct {
	alias
	target *pflag.Flag
}

func (v aliasValue) String() string { return "" }
func (v aliasValue) Type() string   { return v.target.Value.Type() }

func (v aliasValue) Set(s string) error {
	if v.translate != nil {
		var err error
		if s, err = v.translate(s); err != nil {
			return err
		}
	}
	return v.target.Value.Set(s)
}

// addAliases adds the aliases of existing flags, hidden from the usage.
func addAliases(fs *pflag.FlagSet) {
	for _, a := range aliases {
		target := fs.Lookup(a.new)
		if target == nil {
			continue
		}
		fs.AddFlag(&pflag.Flag{
			Name:        a.old,
			Usage:       "Deprecated: use --" + a.new,
			Value:       aliasValue{alias: a, target: target},
			NoOptDefVal: target.NoOptDefVal,
			Hidden:      true,
		})
	}
}

// settleAliases marks the flags of the aliases that were set as changed, and returns a warning for each. Setting a flag
// under both names is an error.
func settleAliases(fs *pflag.FlagSet) (warnings []string, err error) {
	for _, a := range aliases {
		given := fs.Lookup(a.old)
		if given == nil || !given.Changed {
			continue
		}
		target := fs.Lookup(a.new)
		if target.Changed {
			return nil, fmt.Errorf("--%s and --%s are the same flag; set %s only", a.old, a.new, dashed(target))
		}
		target.Changed = true
		warnings = append(warnings, fmt.Sprintf("Flag --%s is deprecated; use %s", a.old, dashed(target)))
	}
	return warnings, nil
}

// dashed returns a flag as it is written on the command line; -v has no long name.
func dashed(f *pflag.Flag) string {
	if f.Shorthand == f.Name {
		return "-" + f.Name
	}
	return "--" + f.Name
}
