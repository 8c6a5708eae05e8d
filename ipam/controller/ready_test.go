package controller

import "testing"

// Readiness names each watch that is behind, and nothing else.
func TestReadiness(t *testing.T) {
	synced := map[string]bool{}
	w := watches{}
	for _, resource := range []string{"pods", "fixedips", "ciliumnodes"} {
		w[resource] = func() bool { return synced[resource] }
	}
	for _, step := range []struct{ synced, want string }{
		{"", "not all objects have been seen yet: ciliumnodes, fixedips, pods"},
		{"fixedips", "not all objects have been seen yet: ciliumnodes, pods"},
		{"pods", "not all objects have been seen yet: ciliumnodes"},
		{"ciliumnodes", ""},
	} {
		synced[step.synced] = true
		message := ""
		if err := w.check(nil); err != nil {
			message = err.Error()
		}
		if message != step.want {
			t.Errorf("after %q: %q, want %q", step.synced, message, step.want)
		}
	}
}
