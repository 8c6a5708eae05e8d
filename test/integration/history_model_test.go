// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"testing"

	"github.com/anishathalye/porcupine"
)

// TestHistoryModel checks that entryModel accepts linearizable histories and rejects others, in particular two
// successful claims of one address.
func TestHistoryModel(t *testing.T) {
	const web0, web1, released = "db/web-0", "db/web-1", "fixedip.io/cooldown"
	// patch returns a claim, a release or the removal of an entry, in the format of our programs. from and to are the owners
	// before and after; empty: no entry.
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
	type exchange struct {
		from, to string
		read     bool
		// code is the status of the answer; 0: there was none.
		code int
		// shows is the owner in the answer; empty: no entry.
		shows string
		// concurrent is true if the request began before the answer to the previous request.
		concurrent bool
	}
	claim := func(owner string, code int) exchange { return exchange{to: owner, code: code, shows: owner} }
	release := func(owner string, code int) exchange {
		return exchange{from: owner, to: released, code: code, shows: released}
	}
	read := func(owner string) exchange { return exchange{read: true, code: 200, shows: owner} }
	for name, c := range map[string]struct {
		exchanges []exchange
		want      bool
	}{
		"claimed, released, claimed by another pod":         {[]exchange{claim(web0, 200), release(web0, 200), {from: released, code: 200}, claim(web1, 200)}, true},
		"two claims, one refused":                           {[]exchange{claim(web0, 200), claim(web1, 422), read(web0)}, true},
		"a second claim that succeeds":                      {[]exchange{claim(web0, 200), claim(web1, 200)}, false},
		"two concurrent claims that succeed":                {[]exchange{claim(web0, 200), {to: web1, code: 200, shows: web1, concurrent: true}}, false},
		"two claims without an answer":                      {[]exchange{claim(web0, 0), claim(web1, 0)}, true},
		"a claim without an answer that was executed":       {[]exchange{claim(web0, 0), read(web0)}, true},
		"a claim without an answer that was not executed":   {[]exchange{claim(web0, 0), read("")}, true},
		"a claim without an answer that was executed late":  {[]exchange{claim(web0, 0), read(""), read(web0)}, true},
		"a claim without an answer that is lost later":      {[]exchange{claim(web0, 0), read(web0), read("")}, false},
		"an answer with an error counts as none":            {[]exchange{claim(web0, 500), read(web0)}, true},
		"a refused claim that was executed":                 {[]exchange{claim(web0, 422), read(web0)}, false},
		"a release of another owner's entry":                {[]exchange{claim(web1, 200), release(web0, 200)}, false},
		"a release that is not seen":                        {[]exchange{claim(web0, 200), release(web0, 200), read(web0)}, false},
		"a claim that is lost":                              {[]exchange{claim(web0, 200), read("")}, false},
		"a claim answered with an error overwrites another": {[]exchange{claim(web0, 500), claim(web1, 200), read(web0)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := &history{}
			var open func()
			for _, s := range c.exchanges {
				var body []byte
				if !s.read {
					body = patch(s.from, s.to)
				}
				if open != nil && !s.concurrent {
					open()
				}
				before := open
				call := h.begin("program", body)
				open = func() {
					if s.code != 0 {
						h.end(call, s.code, answer(s.shows))
					}
				}
				if s.concurrent {
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
					t.Errorf("linearizable: got %t, want %t\n%s", got, c.want, historyText(ops))
				}
			}
		})
	}
}
