// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package rights checks at the start whether a program has the rights that its configuration needs. The chart derives these
// rights from the configuration. Without the chart, an administrator writes the rights into a role by hand. A program whose
// role lacks a right exits with one clear error, instead of retrying requests that the API server refuses.
package rights

import (
	"context"
	"fmt"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/klog/v2"
)

// Need is the right to use some verbs on all objects of a kind.
type Need struct {
	Kind  schema.GroupKind
	Verbs []string
	// Setting is the setting of the configuration that needs the right.
	Setting string
}

// settle is the time for which a right may be missing: an installation applies the roles and the programs at the same time,
// and the API server does not see a new role at once.
const settle = 5 * time.Second

// Check returns an error if the program lacks rights. The error names each missing right, the setting that needs the right,
// and role, the ClusterRole to which an administrator has to add the rights. Check skips kinds whose API is not installed,
// which may be installed later. If the API server does not respond, Check logs that and returns nil, because the API server
// may be restarting; but if the API server has denied rights before it stopped responding, Check returns the error. If ctx
// ends, Check returns the cause.
func Check(ctx context.Context, api authorizationclient.SelfSubjectAccessReviewInterface, mapper meta.RESTMapper, role string, needs ...Need) error {
	var missing []string
	err := wait.PollUntilContextTimeout(ctx, time.Second, settle, true, func(ctx context.Context) (done bool, err error) {
		found, err := lacking(ctx, api, mapper, needs)
		if err != nil && len(missing) > 0 {
			// The last complete answer counts: a request that the time limit ends is not an answer.
			return false, nil
		}
		missing = found
		return len(missing) == 0, err
	})
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case len(missing) > 0:
		return fmt.Errorf("this program lacks rights that its configuration needs: %s; add these rights to ClusterRole %s, as the chart does, or remove the settings that need them", strings.Join(missing, "; "), role)
	case err != nil:
		klog.FromContext(ctx).Error(err, "Could not ask the API server for the rights of this program; they are not checked")
	}
	return nil
}

// lacking returns the needs that the API server does not grant, as text.
func lacking(ctx context.Context, api authorizationclient.SelfSubjectAccessReviewInterface, mapper meta.RESTMapper, needs []Need) (missing []string, err error) {
	for _, need := range needs {
		mapping, err := mapper.RESTMapping(need.Kind)
		switch {
		case meta.IsNoMatchError(err):
			klog.FromContext(ctx).V(2).Info("The rights for a kind are not checked, because its API is not available", "kind", need.Kind, "err", err)
			continue
		case err != nil:
			return nil, fmt.Errorf("find the resource of %s: %w", need.Kind, err)
		}
		var lacks []string
		for _, verb := range need.Verbs {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{Group: mapping.Resource.Group, Resource: mapping.Resource.Resource, Verb: verb},
			}}
			answer, err := api.Create(ctx, review, metav1.CreateOptions{})
			if err != nil {
				return nil, err
			}
			if !answer.Status.Allowed {
				lacks = append(lacks, verb)
			}
		}
		if len(lacks) > 0 {
			missing = append(missing, fmt.Sprintf("%s %s (for %s)", strings.Join(lacks, ", "), mapping.Resource.GroupResource(), need.Setting))
		}
	}
	return missing, nil
}
