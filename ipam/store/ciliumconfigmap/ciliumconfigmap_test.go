// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumconfigmap

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"fixedip.io/fixedip/ipam/core/configuration"
)

// TestRead checks that both kinds of clients read the same settings, and which errors mean that nothing is known.
func TestRead(t *testing.T) {
	cilium := types.NamespacedName{Namespace: "kube-system", Name: "cilium-config"}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: cilium.Namespace, Name: cilium.Name}, Data: map[string]string{"ipam": "crd", "routing-mode": "native"}}
	read := configuration.CiliumSettings{IPAMMode: "crd", RoutingMode: "native"}
	resource := corev1.Resource("configmaps")
	failing := func(err error) Getter {
		return func(context.Context, types.NamespacedName) (*corev1.ConfigMap, error) { return nil, err }
	}
	for name, c := range map[string]struct {
		get     Getter
		want    configuration.CiliumSettings
		wantErr bool
	}{
		"client":             {get: FromClient(fake.NewClientBuilder().WithObjects(cm).Build()), want: read},
		"clientset":          {get: FromClientset(clientset.NewClientset(cm)), want: read},
		"client, missing":    {get: FromClient(fake.NewClientBuilder().Build())},
		"clientset, missing": {get: FromClientset(clientset.NewClientset())},
		"forbidden":          {get: failing(apierrors.NewForbidden(resource, cilium.Name, errors.New("no right")))},
		"unavailable":        {get: failing(apierrors.NewServiceUnavailable("restarting")), wantErr: true},
	} {
		got, err := Read(t.Context(), c.get, cilium)
		if got != c.want || (err != nil) != c.wantErr {
			t.Errorf("%s: got settings %+v and error %v, want %+v and an error: %t", name, got, err, c.want, c.wantErr)
		}
	}
}

func TestParseName(t *testing.T) {
	for text, want := range map[string]types.NamespacedName{
		Default: {Namespace: "kube-system", Name: "cilium-config"}, "cilium/config.v1": {Namespace: "cilium", Name: "config.v1"},
		"cilium-config": {}, "": {}, "/a": {}, "a/": {}, "a/b/c": {}, "A/b": {},
	} {
		if got, err := ParseName(text); got != want || (err != nil) != (want.Name == "") {
			t.Errorf("%q: got %v and error %v, want %v", text, got, err, want)
		}
	}
}
