package fixedip

import (
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"

	"fixedip.io/fixedip/ipam/core/pool"
)

// silence judges what it means that the agent of a ready node does not list an address as used.
//
// An agent says what it has given out seconds later, and a pod may be gone from the API before it has: one
// that was deleted by force a moment after it was bound runs on, and nobody says so. Silence therefore
// proves something in two cases. The agent listed the address when the pod was gone, and does so no more. Or
// the pod has been gone for so long that every agent that the API server hears of has said what it has. The
// pod was gone when the next of its name was made, which is what both are measured by.
type silence struct {
	// patience is how long an agent may take.
	patience time.Duration

	mu sync.Mutex
	// listed are the addresses that agents listed while a pod waited for them. Key: the UID of the pod, and
	// an address. Value: the node. They go with the pod. A scheduler that starts anew has to wait instead.
	listed map[types.UID]map[netip.Addr]string
}

func newSilence(patience time.Duration) *silence {
	return &silence{patience: patience, listed: map[types.UID]map[netip.Addr]string{}}
}

// until is when the silence of a node's agent about addresses proves that the predecessor of a pod does not
// run any more; zero: it does now. What the agent lists it is not silent about: that is noted.
func (s *silence) until(uid types.UID, made time.Time, n pool.Node, addrs []netip.Addr, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	proven := true
	for _, a := range addrs {
		if n.InUse(a) {
			if s.listed[uid] == nil {
				s.listed[uid] = map[netip.Addr]string{}
			}
			s.listed[uid][a] = n.Name
		}
		proven = proven && s.listed[uid][a] == n.Name
	}
	if proven {
		return time.Time{}
	}
	return s.ends(made, now)
}

// ends is when the predecessor of a pod does not run any more if no agent has said so by then; zero: that was before.
func (s *silence) ends(made, now time.Time) time.Time {
	if at := made.Add(s.patience); now.Before(at) {
		return at
	}
	return time.Time{}
}

func (s *silence) forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.listed, uid)
}

// follow forgets pods that are bound or gone.
func (s *silence) follow(pods toolscache.SharedIndexInformer) error {
	_, err := pods.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, after any) {
			if pod := after.(*corev1.Pod); pod.Spec.NodeName != "" {
				s.forget(pod.UID)
			}
		},
		DeleteFunc: func(obj any) { s.forget(deleted[*corev1.Pod](obj).UID) },
	})
	return err
}
