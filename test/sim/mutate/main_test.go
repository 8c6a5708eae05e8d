// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"slices"
	"testing"
)

// TestMutationsApply checks that the text that each mutation replaces occurs exactly once in its file. Otherwise make
// sim-mutations would fail after a change of that line.
func TestMutationsApply(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	// names contains the names of the mutations.
	names := map[string]bool{}
	for _, m := range mutations {
		if names[m.name] {
			t.Errorf("two mutations are named %q", m.name)
		}
		names[m.name] = true
		for _, place := range m.places() {
			if place.from == place.to {
				t.Errorf("mutation %q replaces a text of %s with the same text", m.name, place.file)
			}
		}
		if _, err := m.texts(root); err != nil {
			t.Errorf("mutation %q: %v", m.name, err)
		}
	}
	for name := range also {
		if !names[name] {
			t.Errorf("the map named also has the key %q, want the name of a mutation", name)
		}
	}
}

// TestChoose checks which mutations the arguments of the command choose.
func TestChoose(t *testing.T) {
	const slots, cooldown = "create two slots with one address", "end a cooldown that the agent has not seen"
	for name, c := range map[string]struct {
		only, want []string
		// err is the error; empty: none.
		err string
	}{
		"one":                  {only: []string{"two slots"}, want: []string{slots}},
		"two":                  {only: []string{"two slots", "cooldown that"}, want: []string{cooldown, slots}},
		"no mutation":          {only: []string{"typo"}, err: `no mutation has a name that contains "typo"`},
		"one name is mistaken": {only: []string{"two slots", "typo"}, err: `no mutation has a name that contains "typo"`},
	} {
		t.Run(name, func(t *testing.T) {
			chosen, err := choose(c.only)
			var got []string
			for _, m := range chosen {
				got = append(got, m.name)
			}
			text := ""
			if err != nil {
				text = err.Error()
			}
			if !slices.Equal(got, c.want) || text != c.err {
				t.Errorf("got mutations %q and error %q, want %q and %q", got, text, c.want, c.err)
			}
		})
	}
	if all, err := choose(nil); err != nil || len(all) != len(mutations) {
		t.Errorf("without names: got %d mutations and error %v, want %d and none", len(all), err, len(mutations))
	}
}
