{{/* What every name begins with: the release's name, with the chart's unless that is in it. */}}
{{- define "tocsin.fullname" -}}
{{- $own := ternary .Release.Name (printf "%s-tocsin" .Release.Name) (contains "tocsin" .Release.Name) -}}
{{- .Values.fullnameOverride | default $own | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* The label that selects the pods of a part. It carries the release, for a selector cannot change later. */}}
{{- define "tocsin.selector" -}}
app.kubernetes.io/name: {{ include "tocsin.fullname" .root }}-{{ .part }}
{{- end -}}

{{/* Labels of pods: nothing that another version would change, so that an upgrade restarts only what it changes. */}}
{{- define "tocsin.podLabels" -}}
{{ include "tocsin.selector" . }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/part-of: tocsin
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{/* Labels of every object. */}}
{{- define "tocsin.labels" -}}
{{ include "tocsin.podLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end -}}

{{/* Metadata of an object of a part; `suffix` names what is not the part itself, `everywhere` what has no namespace. */}}
{{- define "tocsin.metadata" -}}
name: {{ include "tocsin.fullname" .root }}-{{ .suffix | default .part }}
{{- if not .everywhere }}
namespace: {{ .root.Release.Namespace }}
{{- end }}
labels:
  {{- include "tocsin.labels" . | nindent 2 }}
{{- with .labels }}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Image of a part: a digest wins over the tag. */}}
{{- define "tocsin.image" -}}
{{- $image := .root.Values.image -}}
{{- $own := (index .root.Values .part).image -}}
{{- with $image.registry }}{{ . }}/{{ end }}{{ $own.repository }}
{{- if $own.digest }}@{{ $own.digest }}{{ else }}:{{ $image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end -}}

{{/* Who a pod of the base runs as. */}}
{{- define "tocsin.user" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
{{- end -}}

{{- define "tocsin.shut" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
{{- end -}}

{{/* What agents and dashboard reach the brain by. */}}
{{- define "tocsin.brainUrl" -}}
{{ ternary "https" "http" (ne .Values.tls.secret "") }}://{{ include "tocsin.fullname" . }}-brain:8470
{{- end -}}

{{/* What the API server calls the agents' service account. */}}
{{- define "tocsin.agentAccount" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "tocsin.fullname" . }}-agent
{{- end -}}

{{/* The cell that brain and agents of this release belong to; empty where the values name none. */}}
{{- define "tocsin.cell" -}}
{{- with (.Values.config | default dict).journal }}{{ .cell | default "" }}{{ end -}}
{{- end -}}

{{/* The CA's half of the TLS secret, for those who call the brain. */}}
{{- define "tocsin.caVolume" -}}
- name: tls
  secret:
    secretName: {{ .Values.tls.secret }}
    items: [{key: ca.crt, path: ca.crt}]
{{- end -}}

{{/* Settings of a part as YAML: what the pod dictates, under what `config` says. */}}
{{- define "tocsin.settings" -}}
{{- $made := include (printf "tocsin.settings.%s" .part) .root | fromYaml -}}
{{- $given := .root.Values.config | default dict -}}
{{- $own := list "agent" "node" "simulation" "dashboard" -}}
{{- $wanted := dict "agent" (list "agent" "node" "simulation" "log") "dashboard" (list "dashboard" "log") -}}
{{- $kept := dict -}}
{{- range $section, $keys := $given -}}
{{- $known := ternary (has $section (index $wanted $.part | default list)) (not (has $section $own)) (ne $.part "brain") -}}
{{- if and $known $keys -}}{{- $_ := set $kept $section $keys -}}{{- end -}}
{{- end -}}
{{- mergeOverwrite $made (deepCopy $kept) | toYaml -}}
{{- end -}}

{{- define "tocsin.settings.agent" -}}
{{- $agent := .Values.agent -}}
agent:
  listen: 0.0.0.0:9835
  push_url: {{ include "tocsin.brainUrl" . }}
  push_token_file: /run/secrets/tocsin/agent
  {{- if .Values.tls.secret }}
  push_ca: /run/tls/ca.crt
  {{- end }}
  spool: /var/lib/tocsin/spool.db
  kernel_log: {{ ternary "journald" "off" $agent.kernelLog | quote }}
  attribution: {{ $agent.attribution }}
  hook_socket: {{ ternary "/run/tocsin/hook.sock" "" $agent.hook | quote }}
  release_file: ""
  # The image's own packages and libraries are not the node's.
  host_root: /host
  {{- with $agent.dcgmUrl }}
  source: dcgm_exporter
  dcgm_url: {{ . | quote }}
  {{- end }}
node:
  marker_folder: /var/lib/tocsin/limits
  {{- if $agent.throttle }}
  allow: [throttle, clocks]
  {{- end }}
log:
  format: json
{{- end -}}

{{- define "tocsin.settings.brain" -}}
api:
  listen: 0.0.0.0:8470
  {{- if .Values.tls.secret }}
  tls_certificate: /run/tls/tls.crt
  tls_key: /run/tls/tls.key
  {{- end }}
  {{- if not .Values.tokens.shared }}
  node_service_accounts: [{{ include "tocsin.agentAccount" . | quote }}]
  {{- end }}
  tokens:
    {{- if .Values.tokens.shared }}
    - {name: agents, role: agent, secret_file: /run/secrets/tocsin/agent}
    {{- end }}
    - {name: dashboard, role: viewer, secret_file: /run/secrets/tocsin/dashboard}
    - {name: metrics, role: viewer, secret_file: /run/secrets/tocsin/metrics}
    - {name: admin, role: admin, secret_file: /run/secrets/tocsin/admin}
store:
  path: /var/lib/tocsin/store.db
journal:
  path: /var/lib/tocsin/journal.db
forecast:
  models: /var/lib/tocsin/models
actions:
  mode: {{ .Values.mode }}
kubernetes:
  lease: {{ .Release.Namespace }}/{{ printf "%s-brain" (include "tocsin.fullname" .) | trimPrefix "tocsin-" }}
log:
  format: json
{{- end -}}

{{- define "tocsin.settings.dashboard" -}}
dashboard:
  listen: 0.0.0.0:8501
  api_url: {{ include "tocsin.brainUrl" . }}
  api_token_file: /run/secrets/tocsin/dashboard
  {{- if .Values.tls.secret }}
  api_ca: /run/tls/ca.crt
  {{- end }}
{{- end -}}

{{/* The TOML of a part. */}}
{{- define "tocsin.toml" -}}
{{- include "tocsin.settings" . | fromYaml | toToml -}}
{{- end -}}

{{/* Pods start anew when their settings change. */}}
{{- define "tocsin.podMetadata" -}}
annotations:
  checksum/config: {{ include "tocsin.toml" . | sha256sum }}
labels:
  {{- include "tocsin.podLabels" . | nindent 2 }}
{{- end -}}

{{/* Where a pod may run, and from where its image comes. */}}
{{- define "tocsin.placement" -}}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .own.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .own.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
