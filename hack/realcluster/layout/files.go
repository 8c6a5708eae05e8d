// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"text/template"
)

// Folders and files in the mount namespace of a node. Each node has its own /var/lib and /var/log, which survive a reboot,
// and its own /run, which does not.
const (
	ContainerdSocket = "/run/containerd/containerd.sock"
	cniConfigs       = "/var/lib/cni/net.d"
	ciliumRun        = "/run/cilium"
)

// Images that every node has.
const (
	PauseImage = "fixedip.test/pause:1"
	// WebImage serves its hostname, addresses and MAC address over HTTP on port 8080. Pods that use it must not have
	// imagePullPolicy: Always, because no registry has the image.
	WebImage = "fixedip.test/web:1"
)

// Paths are the folders and files of the machine that the configuration of a node refers to.
type Paths struct {
	// CNI is the folder of the CNI plugins cilium-cni and loopback.
	CNI string
	// BPF is the folder that contains the bpf folder of Cilium.
	BPF string
	// Kubeconfig is the kubeconfig of the agent. ClientCA is the certificate authority that the kubelet trusts for client
	// certificates.
	Kubeconfig, ClientCA string
}

var containerdConfig = template.Must(template.New("").Parse(`version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "{{.Socket}}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{{.Pause}}"
  # The machine may be a container that is not allowed to lower OOM scores.
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{{.Paths.CNI}}"
    conf_dir = "{{.Configs}}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
`))

// ContainerdConfig returns the configuration of a node's containerd.
func ContainerdConfig(p Paths) ([]byte, error) {
	return execute("containerd", containerdConfig, map[string]any{
		"Socket": ContainerdSocket, "Pause": PauseImage, "Paths": p, "Configs": cniConfigs,
	})
}

// kubeletConfig configures a kubelet that does not manage the machine: it creates no cgroups for pods, sets no common limit
// for all pods, and evicts no pods because of a full disk.
var kubeletConfig = template.Must(template.New("").Parse(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://{{.Socket}}
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: {{.Paths.ClientCA}}}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
{{- if .NoResize}}
# Without cgroups of pods the kubelet panics when it resizes a pod. In 1.35 this gate cannot be turned off.
featureGates: {InPlacePodVerticalScaling: false}
{{- end}}
failSwapOn: false
failCgroupV1: false
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
enableControllerAttachDetach: false
resolvConf: ""
clusterDomain: cluster.local
# No DNS server runs at this address. Without an address, each pod gets an event about a missing DNS server.
clusterDNS: [{{.DNS}}]
evictionHard: {memory.available: 1Mi, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%}
imageGCHighThresholdPercent: 100
serializeImagePulls: false
# Short intervals, so that changes of ConfigMaps and of the node's readiness are seen soon.
syncFrequency: 10s
nodeStatusUpdateFrequency: 5s
`))

// KubeletConfig returns the configuration of a node's kubelet.
func (o Options) KubeletConfig(p Paths) ([]byte, error) {
	return execute("the kubelet", kubeletConfig, map[string]any{"Socket": ContainerdSocket, "Paths": p, "DNS": o.dnsAddress(), "NoResize": o.Kubernetes == "1.34"})
}

// KubeletArgs returns the kubelet's flags for the name and the addresses of a node. It returns an error if the options have no
// such node.
func (o Options) KubeletArgs(node string) ([]string, error) {
	addresses, err := o.NodeAddresses(node)
	if err != nil {
		return nil, err
	}
	var ips []string
	for _, a := range addresses {
		ips = append(ips, a.Addr().String())
	}
	return []string{"--hostname-override=" + node, "--node-ip=" + strings.Join(ips, ",")}, nil
}

func execute(of string, t *template.Template, values any) ([]byte, error) {
	var b bytes.Buffer
	if err := t.Execute(&b, values); err != nil {
		return nil, fmt.Errorf("generate the configuration of %s: %w", of, err)
	}
	return b.Bytes(), nil
}

// AgentConfig returns the settings of a node's cilium-agent, which are files of its configuration folder. Key: the name of
// the setting. Agents ignore settings that their version does not know.
func (o Options) AgentConfig(p Paths) map[string]string {
	settings := o.CiliumConfig()
	settings["k8s-kubeconfig-path"] = p.Kubeconfig
	settings["lib-dir"] = p.BPF
	return settings
}

// CiliumConfig returns the settings that all agents have, which are the data of the ConfigMap kube-system/cilium-config.
// Key: the name of the setting.
func (o Options) CiliumConfig() map[string]string {
	native := o.Routing == Native
	settings := map[string]string{
		"ipam":                         "crd",
		"ipam-cilium-node-update-rate": o.UpdateRate.String(),
		"enable-ipv4":                  strconv.FormatBool(o.Has(IPv4)),
		"enable-ipv6":                  strconv.FormatBool(o.Has(IPv6)),
		"routing-mode":                 string(o.Routing),
		"tunnel-protocol":              "vxlan",
		"auto-direct-node-routes":      strconv.FormatBool(native),
		"devices":                      NodeInterface,
		// In this IPAM mode the agent creates no route to the subnets of its node, so the node needs a route to each of
		// its pods.
		"enable-endpoint-routes": "true",
		// In this IPAM mode the agent refuses to masquerade if no interface is configured.
		"enable-ipv4-masquerade":       strconv.FormatBool(o.Has(IPv4)),
		"enable-ipv6-masquerade":       strconv.FormatBool(o.Has(IPv6)),
		"egress-masquerade-interfaces": NodeInterface,
		"identity-allocation-mode":     "crd",
		"kube-proxy-replacement":       "false",
		"bpf-lb-sock":                  "false",
		"enable-l7-proxy":              "false",
		"enable-hubble":                "false",
		// The health endpoint would take an address of the pool, and no test needs it.
		"enable-health-checking":          "false",
		"enable-endpoint-health-checking": "false",
		"write-cni-conf-when-ready":       cniConfigs + "/05-cilium.conflist",
		"cni-exclusive":                   "true",
		"cni-log-file":                    "/var/log/cilium-cni.log",
		"state-dir":                       ciliumRun,
		"bpf-root":                        "/sys/fs/bpf",
		// The default limit is adjusted automatically: if pods start slowly on a busy machine, the agent admits fewer and
		// fewer pods and refuses a pod that has waited for a minute.
		"api-rate-limit": `{"endpoint-create":"auto-adjust:false,rate-limit:5/s,rate-burst:8,max-wait-duration:2m"}`,
		// Many nodes share the memory of one machine.
		"bpf-ct-global-tcp-max": "65536",
		"bpf-ct-global-any-max": "32768",
		"bpf-nat-global-max":    "65536",
	}
	if !o.Has(IPv4) {
		settings["underlay-protocol"] = "ipv6"
	}
	if native && o.Has(IPv4) {
		settings["ipv4-native-routing-cidr"] = PodCIDR(IPv4)
	}
	if native && o.Has(IPv6) {
		settings["ipv6-native-routing-cidr"] = PodCIDR(IPv6)
	}
	return settings
}

// KubeletHealth is the default URL of the health endpoint of a kubelet.
const KubeletHealth = "http://127.0.0.1:10248/healthz"

// AgentHealth returns the default URL of the health endpoint of an agent.
func (o Options) AgentHealth() string {
	if o.Has(IPv4) {
		return "http://127.0.0.1:9879/healthz"
	}
	return "http://[::1]:9879/healthz"
}

// NodeInterface is the interface of a node in the network of nodes.
const NodeInterface = "eth0"
