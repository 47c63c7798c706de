{{/* The name of all objects: the name of the release. If it does not contain the name of the chart, that name is appended. */}}
{{- define "localnet.name" -}}
{{- $name := .Values.nameOverride | default "localnet" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride }}
{{- else if contains $name .Release.Name -}}
{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" (.Release.Name | trunc (int (sub 51 (len $name))) | trimSuffix "-") $name }}
{{- end -}}
{{- end }}

{{- define "localnet.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "localnet.name" .) }}
{{- end }}

{{/* Recommended labels of an object. */}}
{{- define "localnet.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: localnet
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: localnet
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* Labels by which a DaemonSet finds its pods. They never change. */}}
{{- define "localnet.selector" -}}
app.kubernetes.io/name: localnet
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/*
A released chart has the digests of its images in a file, not in values.yaml: `helm upgrade --reuse-values` would keep those of the former release.
They belong to the images of the chart's version, so another tag disables them.
*/}}
{{- define "localnet.image" -}}
{{- $name := printf "localnet-%s" .program -}}
{{- $image := .root.Values.image -}}
{{- $released := ternary dict (.root.Files.Get "files/digests.yaml" | fromYaml) (not (empty $image.tag)) -}}
{{ $image.registry }}/{{ $name }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- with get $image.digests $name | default (get $released $name) }}@{{ . }}{{ end }}
{{- end }}

{{/* The KubeProxyConfiguration with one of kube-proxy's modes. */}}
{{- define "localnet.config" -}}
{{- $said := dict "apiVersion" "kubeproxy.config.k8s.io/v1alpha2" "kind" "KubeProxyConfiguration" "mode" .mode -}}
{{ toYaml (merge $said (deepCopy .root.Values.config)) }}
{{- end }}

{{/* A probe of an address in the configuration: its port, and its host unless the host is a wildcard address. */}}
{{- define "localnet.httpGet" -}}
{{- $host := regexReplaceAll ":[0-9]+$" .address "" | trimPrefix "[" | trimSuffix "]" -}}
path: {{ .path }}
port: {{ regexFind "[0-9]+$" .address }}
{{- if not (has $host (list "0.0.0.0" "::")) }}
host: {{ $host | quote }}
{{- end }}
{{- end }}

{{/* Privileges of a backend's container, and of its cleanup. */}}
{{- define "localnet.securityContext" -}}
{{- if eq . "ipvs" -}}
# The backend sets net.ipv4.vs.*, which only a privileged container may write.
privileged: true
runAsUser: 0
readOnlyRootFilesystem: true
{{- else -}}
# Kubernetes grants capabilities only to root. The container has no other capabilities.
runAsUser: 0
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
seccompProfile: {type: RuntimeDefault}
capabilities:
  drop: [ALL]
  {{- /* With SYS_ADMIN, the eBPF backend enters the network namespaces of pods. */}}
  add: [{{ get (dict "iptables" "NET_ADMIN, NET_RAW" "ebpf" "NET_ADMIN, BPF, SYS_ADMIN") . | default "NET_ADMIN" }}]
{{- end }}
{{- end }}

{{/* What the pods of Linux and of Windows have in common. */}}
{{- define "localnet.podSpec" -}}
hostNetwork: true
serviceAccountName: {{ include "localnet.serviceAccount" . }}
# Only the brain has a token: see its volume.
automountServiceAccountToken: false
priorityClassName: {{ .Values.priorityClassName }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end }}

{{/* Environment, ports and probes of the brain. */}}
{{- define "localnet.brain" -}}
{{- $shadow := eq .Values.backend "shadow" }}
{{- if and $shadow (hasSuffix ":10249" .Values.config.metricsBindAddress) }}
{{- fail "config.metricsBindAddress: with backend shadow, kube-proxy uses port 10249: set another port, such as 127.0.0.1:10349" }}
{{- end }}
{{- $healthz := ternary "" .Values.config.healthzBindAddress $shadow }}
env:
  - name: NODE_NAME
    valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
  {{- with .Values.apiServer.host }}
  - name: KUBERNETES_SERVICE_HOST
    value: {{ . | quote }}
  - name: KUBERNETES_SERVICE_PORT
    value: {{ $.Values.apiServer.port | quote }}
  {{- end }}
  {{- with .Values.extraEnv.brain }}{{ toYaml . | nindent 2 }}{{ end }}
ports:
  {{- with $healthz }}
  - {name: healthz, containerPort: {{ regexFind "[0-9]+$" . }}, protocol: TCP}
  {{- end }}
  - {name: metrics, containerPort: {{ regexFind "[0-9]+$" .Values.config.metricsBindAddress }}, protocol: TCP}
# Whether the process answers.
livenessProbe:
  httpGet:
    {{- include "localnet.httpGet" (dict "address" .Values.config.metricsBindAddress "path" "/healthz") | nindent 4 }}
  periodSeconds: 10
  failureThreshold: 6
{{- with $healthz }}
# Whether the backend has applied the brain's state.
readinessProbe:
  httpGet:
    {{- include "localnet.httpGet" (dict "address" . "path" "/livez") | nindent 4 }}
  periodSeconds: 10
{{- end }}
resources: {{ toJson .Values.resources.brain }}
{{- end }}

{{/* Probe and resources of a backend. The brain answers the probe. */}}
{{- define "localnet.backend" -}}
{{- with ternary "" .Values.config.healthzBindAddress (eq .Values.backend "shadow") }}
# The brain answers 503 once the backend is a minute late. The kubelet restarts a backend that does not recover.
livenessProbe:
  httpGet:
    {{- include "localnet.httpGet" (dict "address" . "path" "/livez") | nindent 4 }}
  initialDelaySeconds: 60
  periodSeconds: 10
  failureThreshold: 12
{{- end }}
resources: {{ toJson .Values.resources.backend }}
{{- end }}

{{- define "localnet.token" -}}
- name: token
  projected:
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3607}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {apiVersion: v1, fieldPath: metadata.namespace}}]}
{{- end }}
