// Package pool is the pool of one node as Cilium's CRD mode keeps it: its subnets, its entries,
// what each entry's owner means, and what the agent says is in use.
//
// It is pure: values and rules over them. It knows nothing of Kubernetes objects, clients, clocks
// or goroutines; reading a CiliumNode and writing one is the work of ipam/store/ciliumpool.
package pool

import (
	"slices"
	"strings"
	"time"
)

// Entry is one value of spec.ipam.pool. The zero Entry is a dynamic one: any pod may have it.
type Entry struct {
	// Owner decides who gets the address. The agent hands an entry to the pod whose
	// "namespace/name" equals it, and an entry without owner to anybody.
	Owner string
	// Resource says what the entry is for. The agent does not read it in this mode.
	Resource string
	// Since is when an address that anybody could have became its owner's, in Unix seconds; 0: it was for nobody
	// else. An agent that is behind does not know yet, and gives the address to another pod when the owner's has
	// gone.
	Since int64
}

// since comes before the time in the spelling of an entry that says since when it is its owner's.
const since = " since "

// Spelled is the entry with an owner and a resource as a pool has them. What the resource says of a time is in
// Since; Spelling is the inverse, to the letter.
func Spelled(owner, resource string) Entry {
	raw := Entry{Owner: owner, Resource: resource}
	if _, _, pod := raw.Pod(); !pod {
		return raw
	}
	i := strings.LastIndex(resource, since)
	if i < 0 {
		return raw
	}
	at, err := time.Parse(time.RFC3339, resource[i+len(since):])
	e := Entry{Owner: owner, Resource: resource[:i], Since: at.Unix()}
	if err != nil || e.Spelling() != resource {
		return raw
	}
	return e
}

// Spelling is the resource of the entry as a pool has it.
func (e Entry) Spelling() string {
	if e.Since == 0 {
		return e.Resource
	}
	return e.Resource + since + time.Unix(e.Since, 0).UTC().Format(time.RFC3339)
}

// NodeOwners are the names under which an agent takes addresses for the node itself.
var NodeOwners = [...]string{"router", "health", "ingress"}

// OrdinaryKind stands in the resource of an entry where that of a fixed one has the kind of the
// workload: the entry was made for one pod of a strict node, and goes with it.
const OrdinaryKind = "Pod"

// Owned is the entry that gives an address to a pod.
func Owned(namespace, podName, kind, ownerName string) Entry {
	return Entry{Owner: OwnerKey(namespace, podName), Resource: namespace + "/" + kind + "/" + ownerName}
}

// itself is the resource of an entry that was claimed for a pod without a workload. It names no workload,
// since there is none, and tells the entry from one that a person wrote beforehand, for whoever comes.
const itself = "itself"

// Alone is the entry that gives an address to a pod that is its own workload.
func Alone(namespace, podName string) Entry {
	return Entry{Owner: OwnerKey(namespace, podName), Resource: itself}
}

// Alone tells whether the entry was claimed for a pod that is its own workload.
func (e Entry) Alone() bool { return e.Resource == itself }

// Ordinary is the entry that gives an address to a pod that keeps none: a strict node gives to
// nobody what is not his.
func Ordinary(namespace, podName string) Entry {
	return Owned(namespace, podName, OrdinaryKind, podName)
}

// OwnerKey is the owner under which the CNI plugin asks for a pod's address.
func OwnerKey(namespace, podName string) string { return namespace + "/" + podName }

// SplitOwnerKey is the inverse of OwnerKey. It refuses owners that are not a pod's: none, the
// node's own, and our marks.
func SplitOwnerKey(owner string) (namespace, podName string, ok bool) {
	namespace, podName, ok = strings.Cut(owner, "/")
	if !ok || namespace == "" || podName == "" || strings.Contains(namespace, ".") || strings.Contains(podName, "/") {
		return "", "", false
	}
	return namespace, podName, true
}

// Told is an owner in words for whoever is told that he has an address: by name within the namespace that asks,
// and not to another. Else a tenant could learn who has which address by asking for each.
func Told(owner, asks string) string {
	namespace, _, pod := SplitOwnerKey(owner)
	own, _, asker := SplitOwnerKey(asks)
	if pod && asker && namespace != own {
		return "a pod of another namespace"
	}
	return owner
}

// Dynamic tells whether the agent may give the address to any pod.
func (e Entry) Dynamic() bool { return e.Owner == "" }

// Pod is the namespace and name of the pod that the entry belongs to, if it belongs to one.
func (e Entry) Pod() (namespace, podName string, ok bool) { return SplitOwnerKey(e.Owner) }

// Node tells whether the entry pins an address of the node itself.
func (e Entry) Node() bool { return slices.Contains(NodeOwners[:], e.Owner) }

// Ordinary tells whether the entry was made for one pod that keeps no address.
func (e Entry) Ordinary() bool {
	_, _, pod := e.Pod()
	kind, _, ok := e.Workload()
	return pod && ok && kind == OrdinaryKind
}

// Workload reads the resource of an owned entry: "namespace/Kind/name".
func (e Entry) Workload() (kind, name string, ok bool) {
	parts := strings.Split(e.Resource, "/")
	if len(parts) != 3 || parts[1] == "" || parts[2] == "" {
		return "", "", false
	}
	return parts[1], parts[2], true
}
