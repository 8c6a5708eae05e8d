package packed

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// pageSize is how many objects are listed at once: that many are there as the API server sends them.
const pageSize = 500

// List lists all objects as they are now, in pages, each of which becomes what is kept of it before the
// next one comes: a whole list as the API server sends it would be the most that a process ever holds.
// Pages of an older version are not to be had, so that what o says of versions does not count.
func List(ctx context.Context, page func(context.Context, metav1.ListOptions) (runtime.Object, error), o metav1.ListOptions, keep func(runtime.Object) (runtime.Object, error)) (runtime.Object, error) {
	o.ResourceVersion, o.ResourceVersionMatch, o.Limit, o.Continue = "", "", pageSize, ""
	all := &internalversion.List{}
	for {
		list, err := page(ctx, o)
		if err != nil {
			return nil, err
		}
		of, err := meta.ListAccessor(list)
		if err != nil {
			return nil, fmt.Errorf("read a %T: %w", list, err)
		}
		err = meta.EachListItem(list, func(obj runtime.Object) error {
			kept, err := keep(obj)
			all.Items = append(all.Items, kept)
			return err
		})
		if err != nil {
			return nil, err
		}
		all.ResourceVersion = of.GetResourceVersion()
		if o.Continue = of.GetContinue(); o.Continue == "" {
			return all, nil
		}
	}
}
