// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

const (
	// configVersion and configKind are the apiVersion and kind of the configuration file. Its other keys are flag names.
	configVersion = "config.fixedip.io/v1alpha1"
	configKind    = "FixedIPControllerConfiguration"

	podNamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
)

// notInFile are flags that a configuration file cannot set.
var notInFile = []string{"config", "help", "version"}

// settings records the sources of flag values: the command line, then the file of --config, then the environment.
type settings struct {
	fs *pflag.FlagSet
	// origins contains the source of each flag that was not set on the command line. Key: the name of the flag. Value: a
	// description for messages.
	origins  map[string]string
	warnings []string
}

// settle sets the flags that the command line did not set. An error names the source and the value.
func settle(fs *pflag.FlagSet, configFile string, getenv func(string) string) (*settings, error) {
	s := &settings{fs: fs, origins: map[string]string{}}
	var err error
	if s.warnings, err = settleAliases(fs); err != nil {
		return nil, err
	}
	if configFile != "" {
		if err := s.readFile(configFile); err != nil {
			return nil, fmt.Errorf("--config %s: %w", configFile, err)
		}
	}
	return s, s.readEnvironment(getenv)
}

func (s *settings) readFile(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var file map[string]json.RawMessage
	if err := yaml.UnmarshalStrict(data, &file); err != nil {
		return errors.New(strings.Join(strings.Fields(err.Error()), " "))
	}
	for key, want := range map[string]string{"apiVersion": configVersion, "kind": configKind} {
		var have string
		if err := json.Unmarshal(file[key], &have); err != nil || have != want {
			return fmt.Errorf("%s is %s; write %s", key, cmp.Or(string(file[key]), "missing"), want)
		}
		delete(file, key)
	}
	for _, key := range slices.Sorted(maps.Keys(file)) {
		for _, a := range aliases {
			if a.old == key {
				return fmt.Errorf("key %s is named %s here", key, a.new)
			}
		}
		flag := s.fs.Lookup(key)
		if flag == nil || slices.Contains(notInFile, key) {
			return fmt.Errorf("unknown key %q; keys are the names of flags", key)
		}
		if flag.Changed {
			continue
		}
		if err := setFromFile(flag, file[key]); err != nil {
			return fmt.Errorf("key %s: %s: %w", key, file[key], err)
		}
		s.set(flag, "the file "+path)
	}
	return nil
}

// setFromFile sets a flag to a value of the file: a list for flags that take several values, the JSON text of an object
// or number for others.
func setFromFile(flag *pflag.Flag, raw json.RawMessage) error {
	var text string
	var list []json.RawMessage
	switch {
	case string(raw) == "null":
		return errors.New("the value is missing")
	case json.Unmarshal(raw, &text) == nil:
		return flag.Value.Set(text)
	case json.Unmarshal(raw, &list) != nil:
		return flag.Value.Set(string(raw))
	}
	values, ok := flag.Value.(pflag.SliceValue)
	if !ok {
		return errors.New("the flag takes one value")
	}
	texts := make([]string, len(list))
	for i, element := range list {
		if flag.Value.Type() == "intSlice" && json.Unmarshal(element, new(float64)) == nil {
			texts[i] = string(element)
		} else if string(element) == "null" || json.Unmarshal(element, &texts[i]) != nil {
			return fmt.Errorf("element %d is not text", i)
		}
	}
	return values.Replace(texts)
}

func (s *settings) readEnvironment(getenv func(string) string) error {
	for _, v := range variables {
		value := getenv(v.name)
		flag := s.fs.Lookup(v.flag)
		if value == "" || flag == nil || flag.Changed {
			continue
		}
		if v.name == clientcmd.RecommendedConfigPathEnvVar && !exists(value) && getenv("KUBERNETES_SERVICE_HOST") != "" {
			// Manifests of the guide name files of the host that they do not mount.
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

// explain adds the source of the value to an error about a flag, unless it was the command line.
func (s *settings) explain(err error) error {
	if err == nil {
		return nil
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "--"), " ")
	if origin, ok := s.origins[strings.TrimSuffix(name, ":")]; ok {
		return fmt.Errorf("%w (from %s)", err, origin)
	}
	return err
}

// ownNamespace returns the namespace of the kubeconfig or, in a pod, of the pod; empty if there is none.
func ownNamespace(kubeconfig string) string {
	if kubeconfig == "" {
		data, err := os.ReadFile(podNamespaceFile)
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(data))
	}
	// Errors of the file are reported when the client is created.
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
