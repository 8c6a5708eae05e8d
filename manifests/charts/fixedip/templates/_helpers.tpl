{{- /* Labels of an object. The component is the part of fixedip whose template makes the object. */}}
{{- define "fixedip.labels" -}}
{{ include "fixedip.podLabels" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* Labels of pods, without those of the chart: a chart with another version alone does not restart pods. */}}
{{- define "fixedip.podLabels" -}}
app.kubernetes.io/name: fixedip
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ base .Template.Name | trimSuffix ".yaml" | trimSuffix "-rbac" }}
app.kubernetes.io/part-of: fixedip
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- /* Image of a program. Argument: a list of the context and the name of the program. */}}
{{- define "fixedip.image" -}}
{{- $ := index . 0 -}}
{{- with $.Values.image.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ index . 1 }}:{{ $.Values.image.tag | default $.Chart.AppVersion }}
{{- end }}

{{- /* The settings of both programs. */}}
{{- define "fixedip.config" -}}
apiVersion: config.fixedip.io/v1alpha1
kind: FixedIPConfiguration
{{- $config := deepCopy .Values.config }}
{{- /* An empty list is the default of the chart, and forbidden if Kubernetes assigns the subnets. */}}
{{- if not $config.subnets.clusterPools }}{{ $_ := unset $config.subnets "clusterPools" }}{{ end }}
{{ toYaml $config }}
{{- end }}

{{- /* The ConfigMap of Cilium, as namespace/name; empty: the default of both programs. */}}
{{- define "fixedip.ciliumConfig" }}{{ with .Values.ciliumConfig }}{{ if ne . "kube-system/cilium-config" }}{{ . }}{{ end }}{{ end }}{{ end }}

{{- /* The configuration of the scheduler. */}}
{{- define "fixedip.schedulerConfig" -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  # Each placement takes one request. The default of Kubernetes, 50, would limit the scheduler to 50 pods per second.
  qps: {{ .Values.scheduler.qps }}
  burst: {{ int64 .Values.scheduler.burst }}
leaderElection:
  leaderElect: true
  resourceNamespace: {{ .Release.Namespace }}
  # With the lease of the default scheduler it would be its standby and never become active.
  resourceName: fixedip-scheduler
profiles:
{{- $scheduler := .Values.scheduler }}
{{- $cilium := include "fixedip.ciliumConfig" . }}
{{- range .Values.config.schedulerNames | default (list "fixedip-scheduler") }}
- schedulerName: {{ quote . }}
  plugins:
    # FixedIP has to come after DefaultPreemption, and so after the default plugins.
    multiPoint:
      enabled:
      - name: FixedIP
  pluginConfig:
  - name: FixedIP
    args:
      configuration: /etc/fixedip/config.yaml
      {{- with $cilium }}
      ciliumConfig: {{ . }}
      {{- end }}
      # Each first placement takes one more request, which has a limit of its own.
      claimQPS: {{ $scheduler.qps }}
      claimBurst: {{ int64 $scheduler.burst }}
{{- end }}
{{- end }}

{{- /* Rules to read workloads: those of config.workloads and of rbac.workloadResources. Argument: a dict with the context; always, the
resources of the group apps that the program reads in any case; elsewhere, those that another of its roles has; and the verbs. */}}
{{- define "fixedip.workloadRules" -}}
{{- $groups := dict "apps" .always -}}
{{- range .context.Values.config.workloads }}
{{- $_ := set $groups (.apiGroup | default "") (append (get $groups (.apiGroup | default "") | default list) (printf "%ss" (lower .kind))) -}}
{{- end }}
{{- range .context.Values.rbac.workloadResources }}
{{- $_ := set $groups (.apiGroup | default "") (append (get $groups (.apiGroup | default "") | default list) .resource) -}}
{{- end }}
{{- range $group, $resources := $groups }}
{{- if eq $group "apps" }}{{ range $.elsewhere }}{{ $resources = without $resources . }}{{ end }}{{ end }}
{{- with $resources | uniq }}
- apiGroups: {{ toJson (list $group) }}
  resources: {{ toJson . }}
  verbs: {{ toJson $.verbs }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The parts that all pods of the chart share. Argument: a list of the context and the name of the ServiceAccount. */}}
{{- define "fixedip.podSpec" -}}
{{- $ := index . 0 -}}
serviceAccountName: {{ index . 1 }}
automountServiceAccountToken: true
{{- if $.Values.hostNetwork }}
# No pod has an address before fixedip runs.
hostNetwork: true
{{- end }}
priorityClassName: system-cluster-critical
{{- with $.Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
nodeSelector:
  kubernetes.io/os: linux
  {{- with $.Values.nodeSelector }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
# Taints of nodes that are not ready yet, because no node becomes ready before the controller runs. Cilium recommends the
# effect NoExecute for its taint, and removes the taint when the agent runs. A cordon is not tolerated: a drained node would
# get the pod back.
tolerations:
- {key: node-role.kubernetes.io/control-plane, operator: Exists, effect: NoSchedule}
- {key: CriticalAddonsOnly, operator: Exists, effect: NoSchedule}
- {key: CriticalAddonsOnly, operator: Exists, effect: NoExecute}
- {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoSchedule}
- {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 300}
- {key: node.kubernetes.io/network-unavailable, operator: Exists, effect: NoSchedule}
- {key: node.cloudprovider.kubernetes.io/uninitialized, operator: Exists, effect: NoSchedule}
- {key: {{ $.Values.agentNotReadyTaintKey }}, operator: Exists, effect: NoSchedule}
- {key: {{ $.Values.agentNotReadyTaintKey }}, operator: Exists, effect: NoExecute}
{{- with $.Values.tolerations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Each replica of a program has a node of its own, and if possible a zone of its own. Argument: the name of the program. */}}
{{- define "fixedip.spread" -}}
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels: {app: {{ . }}}
topologySpreadConstraints:
- topologyKey: topology.kubernetes.io/zone
  maxSkew: 1
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {app: {{ . }}}
{{- end }}

{{- /* The resources of a program: those of its values, or else those of the size of the cluster. Argument: a list of the context, the
name of the program and its values. */}}
{{- define "fixedip.resources" -}}
{{- $ := index . 0 -}}
{{- $sizes := $.Files.Get "files/sizes.yaml" | fromYaml -}}
{{- $values := index . 2 -}}
{{ $values.resources | default (get (get $sizes $.Values.size) (index . 1 | trimPrefix "fixedip-")) | toYaml }}
{{- end }}

{{- /* The host of a probe: on the host network, the programs answer probes of their own node only. */}}
{{- define "fixedip.loopback" }}{{ if .Values.hostNetwork }}host: 127.0.0.1, {{ end }}{{ end }}

{{- define "fixedip.securityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}
