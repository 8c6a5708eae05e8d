{{- /* The Deployment of a program and its PodDisruptionBudget. Argument: a dict with the context, the name of the program, its values, its
arguments (a list), and what else its container has (YAML). */}}
{{- define "fixedip.deployment" -}}
{{- $ := .context -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .name }}
  namespace: {{ $.Release.Namespace }}
  labels:
    {{- include "fixedip.labels" $ | nindent 4 }}
spec:
  # One replica is active, the other takes over.
  replicas: {{ .values.replicas }}
  # On two nodes there is no room for a third pod, so an update has to remove one first.
  strategy:
    rollingUpdate: {maxSurge: 0, maxUnavailable: 1}
  selector:
    matchLabels:
      app: {{ .name }}
  template:
    metadata:
      labels:
        app: {{ .name }}
        {{- include "fixedip.podLabels" $ | nindent 8 }}
        {{- with $.Values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        # A change of the configuration restarts the pods.
        checksum/config: {{ include (print $.Template.BasePath "/config.yaml") $ | sha256sum }}
        {{- with $.Values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      {{- include "fixedip.podSpec" (list $ .name) | nindent 6 }}
      {{- include "fixedip.spread" .name | nindent 6 }}
      containers:
      - name: {{ .name }}
        image: {{ include "fixedip.image" (list $ .name) }}
        imagePullPolicy: {{ $.Values.image.pullPolicy }}
        args:
        {{- toYaml .args | nindent 8 }}
        {{- if eq $.Values.logFormat "json" }}
        - --logging-format=json
        {{- end }}
        {{- with .values.args }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- .container | nindent 8 }}
        resources:
          {{- include "fixedip.resources" (list $ .name .values) | nindent 10 }}
        securityContext:
          {{- include "fixedip.securityContext" $ | nindent 10 }}
        # The last lines of the log are in the status of a container that failed.
        terminationMessagePolicy: FallbackToLogsOnError
        volumeMounts:
        - name: config
          mountPath: /etc/fixedip
          readOnly: true
      volumes:
      - name: config
        configMap:
          name: fixedip-config
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ $.Release.Namespace }}
  labels:
    {{- include "fixedip.labels" $ | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      app: {{ .name }}
{{- end }}
