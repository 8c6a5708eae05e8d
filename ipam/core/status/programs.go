// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"fixedip.io/fixedip/ipam/core/configuration"
)

// Program is the state of one program.
type Program struct {
	Name string `json:"name"`
	// Namespace is that of the Deployment; empty if there is no Deployment.
	Namespace string `json:"namespace,omitempty"`
	// Desired is the desired number of replicas. Updated is the number of replicas with the current template of the Deployment,
	// and Ready the number of ready replicas.
	Desired int32 `json:"desired"`
	Updated int32 `json:"updated"`
	Ready   int32 `json:"ready"`
	// Image is the image of the program, and Version the tag of the image or, if there is none, the version that the labels
	// state.
	Image   string `json:"image,omitempty"`
	Version string `json:"version,omitempty"`
	// Leader is spec.holderIdentity of the Lease; empty if there is no leader or it is not known.
	Leader string `json:"leader,omitempty"`
	// LeaderSince is the time at which the leader acquired the Lease; nil if it is unknown.
	LeaderSince *time.Time `json:"leaderSince,omitempty"`
}

// Configuration describes whether both programs have the same settings.
type Configuration struct {
	// State is Same, Differs or Unknown.
	State string `json:"state"`
	// Hash is the value of the label hash of the metric fixedip_config_info of a program with this configuration; empty unless
	// State is Same.
	Hash string `json:"hash,omitempty"`
	// Outdated are the pods that may run with another configuration than that of their Deployment, "namespace/name": those that
	// mount another ConfigMap, have another checksum of it, or started before its last change.
	Outdated []string `json:"outdated,omitempty"`
}

// The values of Configuration.State.
const (
	Same    = "Same"
	Differs = "Differs"
	Unknown = "Unknown"
)

// configFile is the key of the configuration in the ConfigMap of a program, and schedulerFile that of the
// KubeSchedulerConfiguration.
const (
	configFile    = "config.yaml"
	schedulerFile = "scheduler.yaml"
	// checksum is the annotation of pods with a hash of their ConfigMap.
	checksum = "checksum/config"
	// versionLabel is the label with the version of a program.
	versionLabel = "app.kubernetes.io/version"
)

// programs judges both programs.
func (j *judge) programs() {
	versions := map[string]string{}
	for _, name := range ProgramNames {
		p := Program{Name: name}
		i := slices.IndexFunc(j.in.Deployments, func(d appsv1.Deployment) bool { return programOf(d.Labels) == name })
		switch {
		case i >= 0:
			j.program(&p, &j.in.Deployments[i])
			if p.Version != "" { // unknown: an image without a tag, and no label
				versions[p.Version] = name
			}
		case j.reads(Deployments):
			j.problem("install fixedip, or name its namespace with --fixedip-namespace", "There is no Deployment of %s", name)
		}
		j.Programs = append(j.Programs, p)
	}
	if len(versions) > 1 {
		j.problem("update the older program", "%s has version %s, and %s has version %s", j.Programs[0].Name, j.Programs[0].Version, j.Programs[1].Name, j.Programs[1].Version)
	}
}

func (j *judge) program(p *Program, d *appsv1.Deployment) {
	p.Namespace, p.Desired = d.Namespace, ptr.Deref(d.Spec.Replicas, 1)
	p.Updated, p.Ready = d.Status.UpdatedReplicas, d.Status.ReadyReplicas
	if c := container(&d.Spec.Template.Spec, p.Name); c != nil {
		p.Image = c.Image
	}
	p.Version = versionOf(p.Image, d.Labels[versionLabel])
	logs := "kubectl -n " + d.Namespace + " get pods -l app=" + p.Name + " shows them"
	switch {
	case p.Desired == 0:
		j.problem("kubectl -n "+d.Namespace+" scale deployment "+d.Name+" --replicas=2", "Deployment %s/%s has no replicas", d.Namespace, d.Name)
		return
	case d.Status.ObservedGeneration < d.Generation:
		j.problem("wait; if the problem remains, check kube-controller-manager", "Kubernetes has not acted on the last change of Deployment %s/%s yet", d.Namespace, d.Name)
	case p.Updated < p.Desired:
		j.problem("wait, or look at the pods: "+logs, "The update of %s is not complete: %d of %d replicas have the current template", p.Name, p.Updated, p.Desired)
	case p.Ready < p.Desired:
		j.problem("look at the pods that are not ready: "+logs, "%d of %d replicas of %s are ready", p.Ready, p.Desired, p.Name)
	}
	namespace, name, elects := j.in.LeaseOf(d)
	if !elects || !j.reads(Leases) {
		return
	}
	lease := j.in.Leases[namespace+"/"+name]
	if lease == nil || ptr.Deref(lease.Spec.HolderIdentity, "") == "" {
		j.problem("look at the logs of "+p.Name, "No replica of %s holds Lease %s/%s, so none of them is active", p.Name, namespace, name)
		return
	}
	p.Leader = *lease.Spec.HolderIdentity
	if lease.Spec.AcquireTime != nil {
		p.LeaderSince = ptr.To(lease.Spec.AcquireTime.Time)
	}
	const otherwise = 15 // The default duration of a Lease in seconds.
	limit := time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, otherwise)) * time.Second
	if lease.Spec.RenewTime == nil || j.in.Now.Sub(lease.Spec.RenewTime.Time) > limit {
		j.problem("look at the logs of "+p.Name, "%s holds Lease %s/%s and has not renewed it in time, so no replica of %s is active", p.Leader, namespace, name, p.Name)
	}
}

// container returns the container with the name of a program; nil if there is none.
func container(spec *corev1.PodSpec, name string) *corev1.Container {
	for i := range spec.Containers {
		if spec.Containers[i].Name == name {
			return &spec.Containers[i]
		}
	}
	return nil
}

// versionOf returns the tag of an image, or the argument otherwise if the image has no tag.
func versionOf(image, otherwise string) string {
	image, _, _ = strings.Cut(image, "@")
	name := image[strings.LastIndex(image, "/")+1:]
	if _, tag, ok := strings.Cut(name, ":"); ok {
		return tag
	}
	return otherwise
}

// LeaseOf returns the Lease of a program's leader. elects is false if the program does not elect a leader.
func (in Inputs) LeaseOf(d *appsv1.Deployment) (namespace, name string, elects bool) {
	program := programOf(d.Labels)
	if program == Scheduler {
		var file struct {
			LeaderElection struct {
				LeaderElect                     *bool
				ResourceNamespace, ResourceName string
			}
		}
		if cm := in.ConfigMaps[d.Namespace+"/"+configMapOf(&d.Spec.Template.Spec)]; cm != nil {
			// A scheduler does not start if its file cannot be decoded. The defaults are used here then.
			_ = yaml.Unmarshal([]byte(cm.Data[schedulerFile]), &file)
		}
		e := file.LeaderElection
		return orElse(e.ResourceNamespace, d.Namespace), orElse(e.ResourceName, Scheduler), ptr.Deref(e.LeaderElect, true)
	}
	namespace, name, elects = d.Namespace, "cilium-ipam-leader", true
	c := container(&d.Spec.Template.Spec, program)
	if c == nil {
		return namespace, name, elects
	}
	for _, arg := range c.Args {
		switch flag, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "="); flag {
		case "leader-election-namespace":
			namespace = value
		case "leader-election-id":
			name = value
		case "enable-leader-election":
			elects = value != "false"
		}
	}
	return namespace, name, elects
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// configMapOf returns the name of the ConfigMap that a pod mounts as its volume config; empty if there is none.
func configMapOf(spec *corev1.PodSpec) string {
	for _, v := range spec.Volumes {
		if v.Name == "config" && v.ConfigMap != nil {
			return v.ConfigMap.Name
		}
	}
	return ""
}

// ConfigMapsOf returns the ConfigMaps that Deployments and pods mount, as "namespace/name", sorted.
func ConfigMapsOf(deployments []appsv1.Deployment, pods []corev1.Pod) (names []string) {
	add := func(namespace string, spec *corev1.PodSpec) {
		if name := configMapOf(spec); name != "" {
			names = append(names, namespace+"/"+name)
		}
	}
	for i := range deployments {
		add(deployments[i].Namespace, &deployments[i].Spec.Template.Spec)
	}
	for i := range pods {
		add(pods[i].Namespace, &pods[i].Spec)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// configuration compares the configurations of both programs with each other, and the configuration of each pod with that of
// its Deployment.
func (j *judge) configuration() {
	j.Configuration.State = Unknown
	// Without the settings of Cilium, the defaults of some fields are not known.
	if len(j.in.Deployments) == 0 || !j.reads(Configurations) || !j.reads(CiliumConfig) {
		return
	}
	// If the ConfigMap of Cilium does not exist, the programs use the defaults that result from the zero value.
	var cilium configuration.CiliumSettings
	if j.in.CiliumConfig != nil {
		cilium = configuration.CiliumSettingsOf(j.in.CiliumConfig.Data)
	}
	var hashes, outdated []string
	for i := range j.in.Deployments {
		d := &j.in.Deployments[i]
		name := configMapOf(&d.Spec.Template.Spec)
		if name == "" {
			return // The program has another source of its settings.
		}
		cm := j.in.ConfigMaps[d.Namespace+"/"+name]
		if cm == nil {
			j.problem("create the ConfigMap; the chart and the kustomization contain it", "ConfigMap %s/%s, which %s mounts, does not exist", d.Namespace, name, programOf(d.Labels))
			return
		}
		c, err := configuration.Parse([]byte(cm.Data[configFile]), &cilium)
		if err != nil {
			j.problem("correct the configuration and apply it; the reference of the configuration lists all fields", "%s of ConfigMap %s/%s is not valid: %v", configFile, d.Namespace, name, err)
			return
		}
		hash, err := c.Hash()
		if err != nil {
			return
		}
		hashes = append(hashes, hash)
		outdated = append(outdated, j.outdated(d, name)...)
	}
	j.Configuration.Outdated = outdated
	slices.Sort(hashes)
	switch hashes = slices.Compact(hashes); {
	case len(hashes) > 1:
		j.Configuration.State = Differs
		j.problem("let both Deployments mount one ConfigMap", "The programs have different configurations")
	case len(j.in.Deployments) == len(ProgramNames):
		j.Configuration.State, j.Configuration.Hash = Same, hashes[0]
	}
	if len(outdated) > 0 {
		j.problem("restart both Deployments with kubectl rollout restart, unless an update is in progress", "Pods may run with another configuration than that of their Deployment: %s", some(outdated))
	}
}

// outdated returns the pods of a Deployment whose configuration differs from that of its template: pods that mount another
// ConfigMap or have another checksum, and pods whose program started before the last change of the ConfigMap.
func (j *judge) outdated(d *appsv1.Deployment, configMap string) []string {
	var pods []string
	changed := lastChange(j.in.ConfigMaps[d.Namespace+"/"+configMap])
	for i := range j.in.Pods {
		p := &j.in.Pods[i]
		if p.Namespace != d.Namespace || programOf(p.Labels) != programOf(d.Labels) || p.DeletionTimestamp != nil {
			continue
		}
		started := startOf(p, programOf(d.Labels))
		earlier := !started.IsZero() && started.Before(changed)
		if configMapOf(&p.Spec) != configMap || p.Annotations[checksum] != d.Spec.Template.Annotations[checksum] || earlier {
			pods = append(pods, p.Namespace+"/"+p.Name)
		}
	}
	return pods
}

// startOf returns the time at which the container of a program started in a pod, or else the start time of the pod; zero:
// unknown.
func startOf(p *corev1.Pod, program string) time.Time {
	for _, s := range p.Status.ContainerStatuses {
		if s.Name == program && s.State.Running != nil {
			return s.State.Running.StartedAt.Time
		}
	}
	if p.Status.StartTime != nil {
		return p.Status.StartTime.Time
	}
	return time.Time{}
}

// lastChange returns the time of the last write of the data of a ConfigMap according to its managedFields; zero: unknown.
func lastChange(cm *corev1.ConfigMap) (last time.Time) {
	for _, m := range cm.ManagedFields {
		if m.Time != nil && m.FieldsV1 != nil && strings.Contains(string(m.FieldsV1.Raw), `"f:data"`) && m.Time.After(last) {
			last = m.Time.Time
		}
	}
	return last
}
