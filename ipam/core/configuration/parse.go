// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package configuration

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Parse returns the configuration in a file, complete, adapted to the settings of Cilium, and valid. If cilium is nil, a
// setting whose default depends on the settings of Cilium stays absent and is not validated, unless the file contains it. An
// error names the field and the value.
func Parse(data []byte, cilium *CiliumSettings) (Configuration, error) {
	c, err := Decode(data)
	if err != nil {
		return c, err
	}
	c.Complete()
	if cilium != nil {
		c.AdaptTo(*cilium)
	}
	if errs := c.Validate(nil); len(errs) > 0 {
		return c, errs.ToAggregate()
	}
	return c, nil
}

// Decode returns the configuration in a file without defaults. It returns an error for an unknown or repeated field, a value
// of the wrong type, and another apiVersion or kind. It does not validate other values.
func Decode(data []byte) (c Configuration, err error) {
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		// The error may have several lines.
		return c, errors.New(strings.Join(strings.Fields(err.Error()), " "))
	}
	for _, f := range []struct{ key, have, want string }{{"apiVersion", c.APIVersion, Version}, {"kind", c.TypeMeta.Kind, Kind}} {
		if f.have != f.want {
			return c, fmt.Errorf("%s is %s; write %s", f.key, cmp.Or(f.have, "missing"), f.want)
		}
	}
	return c, nil
}

// Hash returns a hash of a complete configuration, as 12 hexadecimal digits. Configurations with different effects have
// different hashes. A file and flags that set the same values have the same hash; two texts for one selector of pods to adopt
// count as the same value. Both programs export the hash, so that an alert can compare their configurations.
func (c Configuration) Hash() (string, error) {
	c.TypeMeta = metav1.TypeMeta{}
	if c.Adoption.PodSelector != nil {
		c.Adoption.PodSelector = canonical(c.Adoption.PodSelector)
	}
	data, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("encode the configuration: %w", err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:6]), nil
}

// canonical returns a selector with the same effect that is written as expressions in a fixed order.
func canonical(s *metav1.LabelSelector) *metav1.LabelSelector {
	expressions := s.DeepCopy().MatchExpressions
	for _, e := range expressions {
		slices.Sort(e.Values)
	}
	for key, value := range s.MatchLabels {
		expressions = append(expressions, metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{value}})
	}
	slices.SortFunc(expressions, func(a, b metav1.LabelSelectorRequirement) int { return strings.Compare(a.String(), b.String()) })
	return &metav1.LabelSelector{MatchExpressions: expressions}
}
