// Package scheme registers the plugin's arguments with the scheme that kube-scheduler decodes its
// configuration with. Import it for that effect; it offers nothing else.
package scheme

import (
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	schedscheme "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"

	"fixedip.io/fixedip/plugins/apis/config"
	configv1 "fixedip.io/fixedip/plugins/apis/config/v1"
)

func init() {
	utilruntime.Must(config.AddToScheme(schedscheme.Scheme))
	utilruntime.Must(configv1.AddToScheme(schedscheme.Scheme))
}
