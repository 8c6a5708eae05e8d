// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"testing"

	"github.com/anishathalye/porcupine"
)

// TestHistoryModel checks that the checker accepts linearizable histories and rejects others, above all a claim that two
// pods were granted.
func TestHistoryModel(t *testing.T) {
	const web0, web1, released = "db/web-0", "db/web-1", "fixedip.io/cooldown"
	// patch returns a claim, a migration or a release in the format of our programs. from and to are the owners before and
	// after; empty: no entry.
	patch := func(from, to string) []byte {
		test := `{"op":"test","path":"/spec/ipam/pool/10.0.1.9","value":null}`
		if from != "" {
			test = fmt.Sprintf(`{"op":"test","path":"/spec/ipam/pool/10.0.1.9/owner","value":%q}`, from)
		}
		edit := `{"op":"remove","path":"/spec/ipam/pool/10.0.1.9"}`
		if to != "" {
			edit = fmt.Sprintf(`{"op":"add","path":"/spec/ipam/pool/10.0.1.9","value":{"owner":%q}}`, to)
		}
		return []byte(`[{"op":"test","path":"/metadata/uid","value":"u"},` + test + "," + edit + "]")
	}
	answer := func(owner string) []byte {
		pool := `{}`
		if owner != "" {
			pool = fmt.Sprintf(`{"10.0.1.9":{"owner":%q}}`, owner)
		}
		return []byte(`{"metadata":{"uid":"u"},"spec":{"ipam":{"pool":` + pool + `}}}`)
	}
	type said struct {
		from, to string
		read     bool
		// code is the status of the answer; 0: there was none.
		code int
		// shows is the owner in the answer; empty: no entry.
		shows string
		// beside is true if the request began before the previous one was answered.
		beside bool
	}
	claim := func(who string, code int) said { return said{to: who, code: code, shows: who} }
	release := func(who string, code int) said { return said{from: who, to: released, code: code, shows: released} }
	read := func(owner string) said { return said{read: true, code: 200, shows: owner} }
	for name, c := range map[string]struct {
		happens []said
		want    bool
	}{
		"claimed, released, claimed by another":               {[]said{claim(web0, 200), release(web0, 200), {from: released, code: 200}, claim(web1, 200)}, true},
		"two claims, one refused":                             {[]said{claim(web0, 200), claim(web1, 422), read(web0)}, true},
		"two owners":                                          {[]said{claim(web0, 200), claim(web1, 200)}, false},
		"two owners at the same time":                         {[]said{claim(web0, 200), {to: web1, code: 200, shows: web1, beside: true}}, false},
		"two claims without an answer":                        {[]said{claim(web0, 0), claim(web1, 0)}, true},
		"a claim without an answer that was carried out":      {[]said{claim(web0, 0), read(web0)}, true},
		"a claim without an answer that was not carried out":  {[]said{claim(web0, 0), read("")}, true},
		"a claim without an answer that was carried out late": {[]said{claim(web0, 0), read(""), read(web0)}, true},
		"a claim without an answer that came and went":        {[]said{claim(web0, 0), read(web0), read("")}, false},
		"an answer with an error counts as none":              {[]said{claim(web0, 500), read(web0)}, true},
		"a refused claim that was carried out":                {[]said{claim(web0, 422), read(web0)}, false},
		"a release of what is another's":                      {[]said{claim(web1, 200), release(web0, 200)}, false},
		"a release that is not seen":                          {[]said{claim(web0, 200), release(web0, 200), read(web0)}, false},
		"a claim that is lost":                                {[]said{claim(web0, 200), read("")}, false},
		"a claim over one without an answer":                  {[]said{claim(web0, 500), claim(web1, 200), read(web0)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := &history{}
			var open func()
			for _, s := range c.happens {
				var body []byte
				if !s.read {
					body = patch(s.from, s.to)
				}
				if open != nil && !s.beside {
					open()
				}
				before := open
				call := h.begin("program", body)
				open = func() {
					if s.code != 0 {
						h.end(call, s.code, answer(s.shows))
					}
				}
				if s.beside {
					before()
				}
			}
			open()
			byEntry, _, _ := h.operations()
			if len(byEntry) != 1 {
				t.Fatalf("%d entries have a history, want 1: %v", len(byEntry), byEntry)
			}
			for _, ops := range byEntry {
				if got := porcupine.CheckOperations(entryModel.ToModel(), ops); got != c.want {
					t.Errorf("it has an order: %t, want %t\n%s", got, c.want, tell(ops))
				}
			}
		})
	}
}
