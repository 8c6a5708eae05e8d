// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"fixedip.io/fixedip/ipam/core/configuration"
)

const podNamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// settings contains the sources of flag values. In order of precedence, the sources are the command line, the file of
// --config, the environment and, if any flag was set by its name in the guide (see aliases), the guide's defaults. If the
// file sets the field of a flag, the flag gets no value from the environment or from the guide's defaults.
type settings struct {
	fs *pflag.FlagSet
	// origins contains the source of each flag that was set from the environment or from the guide's defaults. Key: the name
	// of the flag. Value: a description for messages.
	origins map[string]string
	// inFile contains the flags whose fields the file sets.
	inFile   sets.Set[string]
	warnings []string
}

// resolve reads the file of --config into o.file. Flags that neither the command line nor the file sets get values from
// the environment and, if they apply, from the guide's defaults. The result contains the warnings for the user. An error
// names the flag, the file or the variable that is wrong.
func resolve(fs *pflag.FlagSet, o *options, getenv func(string) string) (*settings, error) {
	s := &settings{fs: fs, origins: map[string]string{}, inFile: sets.New[string]()}
	guide, err := s.resolveAliases()
	if err != nil {
		return nil, err
	}
	if o.configFile != "" {
		if o.file, err = s.readFile(o.configFile); err != nil {
			return nil, fmt.Errorf("--config %s: %w", o.configFile, err)
		}
	}
	if err := s.readEnvironment(getenv); err != nil {
		return nil, err
	}
	if guide {
		return s, s.useGuideDefaults()
	}
	return s, nil
}

// readFile returns the configuration in a file, and adds the flags whose fields the file sets to s.inFile.
func (s *settings) readFile(path string) (c configuration.Configuration, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	if c, err = configuration.Decode(data); err != nil {
		return c, err
	}
	var file map[string]json.RawMessage
	if err := yaml.Unmarshal(data, &file); err != nil {
		return c, err
	}
	for _, f := range sharedFlags {
		if hasField(file, f.field) {
			s.inFile.Insert(f.flag)
		}
	}
	return c, nil
}

// changed reports whether a source other than the file has set a flag.
func (s *settings) changed(flag string) bool { return s.fs.Changed(flag) }

func (s *settings) readEnvironment(getenv func(string) string) error {
	for _, v := range variables {
		value := getenv(v.name)
		flag := s.fs.Lookup(v.flag)
		if value == "" || flag == nil || flag.Changed || s.inFile.Has(v.flag) {
			continue
		}
		if v.name == clientcmd.RecommendedConfigPathEnvVar && !exists(value) && getenv("KUBERNETES_SERVICE_HOST") != "" {
			// Manifests of the guide set the variable to a file of the host that they do not mount.
			s.warnings = append(s.warnings, fmt.Sprintf("Variable %s names %s, which does not exist; using the service account of the pod", v.name, value))
			continue
		}
		if err := flag.Value.Set(value); err != nil {
			return fmt.Errorf("variable %s=%q: %w", v.name, value, err)
		}
		s.set(flag, "the variable "+v.name)
		if v.deprecated {
			s.warnings = append(s.warnings, fmt.Sprintf("Variable %s is deprecated; use --%s", v.name, v.flag))
		}
	}
	return nil
}

func (s *settings) set(flag *pflag.Flag, origin string) {
	flag.Changed = true
	s.origins[flag.Name] = origin
}

// withOrigin adds the source of the value to an error about a flag, unless the source is the command line.
func (s *settings) withOrigin(err error) error {
	if err == nil {
		return nil
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "--"), " ")
	if origin, ok := s.origins[strings.TrimSuffix(name, ":")]; ok {
		return fmt.Errorf("%w (from %s)", err, origin)
	}
	return err
}

// ownNamespace returns the namespace of the kubeconfig's current context or, if kubeconfig is empty, that of the pod; empty
// if it is unknown.
func ownNamespace(kubeconfig string) string {
	if kubeconfig == "" {
		data, err := os.ReadFile(podNamespaceFile)
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(data))
	}
	// restConfig reports errors of the file.
	cfg, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil || cfg.Contexts[cfg.CurrentContext] == nil {
		return ""
	}
	return cfg.Contexts[cfg.CurrentContext].Namespace
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// aliases contains the flags that have another name in a guide to fixed addresses on Cilium. old is the name in the guide,
// and new the name of the flag. fallback is the guide's default if it differs from the default of the flag; empty
// otherwise.
var aliases = []struct{ old, new, fallback string }{
	{"labelSector", "label-selector", `{"matchLabels":{"noStatic":"true"}}`},
	{"ipRateNum", "min-free-ips", "255"},
	{"maxAllocatedIP", "max-dynamic-ips", "255"},
	{"enableIPv6", "enable-ipv6", "false"},
	{"enableStaticPodIPv6", "enable-static-pod-ipv6", "false"},
	{"excludeDbbranchPrefixs", "exclude-dbbranch-prefixes", ""},
	{"cepTerminationTimeout", "cep-termination-timeout", ""},
	{"logLevel", "v", "4"},
}

// variable is an environment variable that sets a flag if neither the command line nor the configuration file does.
type variable struct {
	name, flag string
	// deprecated is true for variables that exist only for manifests of the guide. Their use causes a warning.
	deprecated bool
}

// variables contains the environment variables that resolve reads.
var variables = []variable{
	{name: "KUBECONFIG", flag: "kubeconfig"},
	{name: "POD_NAMESPACE", flag: "leader-election-namespace"},
	{name: "CLUSTER_POOL_IPV4_CIDR", flag: "cluster-pool-ipv4-cidr", deprecated: true},
	{name: "CLUSTER_POOL_IPV4_MASK_SIZE", flag: "cluster-pool-ipv4-mask-size", deprecated: true},
	{name: "CLUSTER_POOL_IPV6_CIDR", flag: "cluster-pool-ipv6-cidr", deprecated: true},
	{name: "CLUSTER_POOL_IPV6_MASK_SIZE", flag: "cluster-pool-ipv6-mask-size", deprecated: true},
}

// logLevel is the value of the alias --logLevel. It sets the verbosity -v from a log level of the guide: 0 panic, 1 fatal, 2
// error, 3 warning, 4 info, 5 debug, 6 trace.
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

// resolveAliases marks a flag as changed if its alias was set, and adds a warning about the alias. guide is true if any
// alias was set. Setting a flag under both names is an error.
func (s *settings) resolveAliases() (guide bool, err error) {
	for _, a := range aliases {
		alias, target := s.fs.Lookup(a.old), s.fs.Lookup(a.new)
		if alias == nil || !alias.Changed {
			continue
		}
		if target.Changed {
			return false, fmt.Errorf("--%s and --%s are the same flag; set --%s only", a.old, a.new, a.new)
		}
		guide, target.Changed = true, true
		s.warnings = append(s.warnings, fmt.Sprintf("Flag --%s is deprecated; use --%s", a.old, a.new))
	}
	return guide, nil
}

// useGuideDefaults gives the guide's default to each flag that no source has set, because a manifest with the guide's
// flag names relies on these defaults.
func (s *settings) useGuideDefaults() error {
	var used []string
	for _, a := range aliases {
		target := s.fs.Lookup(a.new)
		if a.fallback == "" || target == nil || target.Changed || s.inFile.Has(a.new) {
			continue
		}
		if err := s.fs.Lookup(a.old).Value.Set(a.fallback); err != nil {
			return fmt.Errorf("set --%[2]s to its default %[1]s: %[3]w", a.fallback, a.old, err)
		}
		s.set(target, "the default of --"+a.old)
		used = append(used, fmt.Sprintf("--%s=%s", a.new, target.Value))
	}
	if len(used) > 0 {
		s.warnings = append(s.warnings, fmt.Sprintf("Deprecated flag names are set, so these flags have the defaults of the guide (see docs/operate/from-a-guide.md): %s; set a flag to use another value", strings.Join(used, " ")))
	}
	s.warnings = append(s.warnings, "The guide's alerts CiliumIPAMPoolLow and CiliumIPAMLeaderElectionLost do not work, because the guide's metrics are not served; use FixedIPPoolLow and FixedIPNoLeader in manifests/prometheus/rules.yaml")
	return nil
}
