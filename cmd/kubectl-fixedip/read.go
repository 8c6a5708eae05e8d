// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// notServed reports whether err means that the API server does not serve a kind. Depending on how the client discovers kinds,
// a request for a kind without a CRD fails with NoMatch or with NotFound.
func notServed(err error) bool { return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) }

// omissions names the objects that a command leaves out because they cannot be read, each with the reason, such as
// "CiliumNodes (forbidden)".
type omissions []string

// allow returns err, unless err means that the user has no right to read the objects. In that case it returns nil and
// adds the objects to o.
func (o *omissions) allow(objects string, err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	*o = append(*o, objects+" (forbidden)")
	return nil
}

// allowMissing is like allow, and also adds the objects to o and returns nil if they do not exist or if the API server
// does not serve their kind.
func (o *omissions) allowMissing(objects string, err error) error {
	switch {
	case meta.IsNoMatchError(err):
		*o = append(*o, objects+" (not installed)")
		return nil
	case apierrors.IsNotFound(err):
		*o = append(*o, objects+" (not found)")
		return nil
	}
	return o.allow(objects, err)
}

// list lists objects of all namespaces or, if the user has no right to do that, those of the namespace of the command. It
// adds the objects that it leaves out to o. objects is the name of the objects, in the plural.
func (c *cluster) list(ctx context.Context, o *omissions, objects string, list client.ObjectList, options ...client.ListOption) error {
	err := c.api.List(ctx, list, options...)
	if !apierrors.IsForbidden(err) || c.namespace == "" {
		if err := o.allow(objects, err); err != nil {
			return listError(objects, err)
		}
		return nil
	}
	if err = c.api.List(ctx, list, append(options, client.InNamespace(c.namespace))...); err == nil {
		*o = append(*o, objects+" of other namespaces (forbidden)")
		return nil
	}
	if err := o.allow(objects, err); err != nil {
		return listError(objects, err)
	}
	return nil
}

// listHere lists objects of the namespace of the command. If the user has no right to do that, it adds the objects to o.
func (c *cluster) listHere(ctx context.Context, o *omissions, objects string, list client.ObjectList, options ...client.ListOption) error {
	if err := o.allow(objects, c.api.List(ctx, list, append(options, client.InNamespace(c.namespace))...)); err != nil {
		return listError(objects, err)
	}
	return nil
}
