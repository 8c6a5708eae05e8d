package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// write brings the pool up to date.
//
// A bind writes nothing where the entry stands already, so that a pod may come under the name of one
// that is gone, between the look at the API server and the write, and count on the entry. It gets it
// back: nobody else can have had the address in between.
func (r *nodeReconciler) write(ctx context.Context, n pool.Node, d *duty, untrack bool) error {
	// freed are the ordinary entries as they were.
	var freed []pool.Edit
	err := r.writer.Write(ctx, ciliumpool.Request{
		Node: n.Name,
		Decide: func(n pool.Node) ([]pool.Edit, error) {
			edits := d.edits(n)
			if !d.live {
				edits = slices.DeleteFunc(edits, takesAway)
			}
			for _, e := range edits {
				if e.From != nil && e.From.Ordinary() {
					freed = append(freed, e)
				}
			}
			return edits, nil
		},
		Marks:   d.marks,
		Untrack: untrack,
		// Nobody may have claimed an address for a pod meanwhile that is given one here, or waits for
		// a dynamic one.
		Whole: d.strict || len(d.waiting) > 0,
	})
	if err != nil || len(freed) == 0 {
		return err
	}
	here, err := r.livePods(ctx, n.Name)
	if err != nil {
		return err
	}
	needed := func(e pool.Edit) bool {
		return slices.ContainsFunc(here, func(pod corev1.Pod) bool {
			return pool.OwnerKey(pod.Namespace, pod.Name) == e.From.Owner && !podutil.IsTerminal(&pod)
		})
	}
	if !slices.ContainsFunc(freed, needed) {
		return nil
	}
	err = r.writer.Write(ctx, ciliumpool.Request{Node: n.Name, Live: true, Urgent: true, Decide: func(n pool.Node) ([]pool.Edit, error) {
		var undo []pool.Edit
		for _, e := range freed {
			if now, ok := n.Entries[e.Addr]; ok && now == *e.To && needed(e) {
				undo = append(undo, n.Set(e.Addr, *e.From))
			}
		}
		return undo, nil
	}})
	if errors.Is(err, ciliumpool.ErrGone) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("give pods that came to node %s their entries back: %w", n.Name, err)
	}
	return nil
}

// takesAway tells of an edit that would be wrong if a pod had the address without our knowing: a
// dynamic entry that goes, or that becomes a pod's.
func takesAway(e pool.Edit) bool {
	if e.From == nil || !e.From.Dynamic() {
		return false
	}
	return e.To == nil || !e.To.Node()
}
