{{/* Metadata of a role or binding of the whole cluster. */}}
{{- define "tocsin.role" -}}
{{- include "tocsin.metadata" (dict "root" .root "part" "brain" "suffix" .suffix "everywhere" true) -}}
{{- end -}}

{{/* The role of a feature, and the brain's account as the one that has it. */}}
{{- define "tocsin.bound" }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ include "tocsin.fullname" .root }}-{{ .feature }}
subjects:
  - kind: ServiceAccount
    name: {{ include "tocsin.fullname" .root }}-brain
    namespace: {{ .root.Release.Namespace }}
{{- end -}}

{{/* The features that a brain's settings turn on: `cluster` lists them, `namespaces` has a list for each namespace. */}}
{{- define "tocsin.features" -}}
{{- $kube := .kubernetes -}}
{{- $executors := .actions.executors | default list -}}
{{- range (.actions.pool_executors | default dict) }}{{ $executors = concat $executors . }}{{ end -}}
{{- $cluster := list -}}
{{- $spaces := dict -}}
{{- if has "kubernetes" $executors -}}
{{- $cluster = append $cluster "nodes" -}}
{{- $wait := 300.0 -}}
{{- if hasKey $kube "checkpoint_seconds" }}{{ $wait = $kube.checkpoint_seconds }}{{ end -}}
{{- if gt (float64 $wait) 0.0 }}{{ $cluster = append $cluster "checkpoints" }}{{ end -}}
{{- if $kube.device_rules }}{{ $cluster = append $cluster "devices" }}{{ end -}}
{{- if $kube.delete_blocked_pods }}{{ $cluster = append $cluster "delete" }}{{ end -}}
{{- $scaled := ternary (list "scale" "autoscalers") (list "scale") (eq ($kube.autoscaled | default "leave") "raise_minimum") -}}
{{- range ($kube.workloads | default dict) -}}
{{- $target := . -}}
{{- if kindIs "map" . }}{{ $target = .target }}{{ end -}}
{{- $_ := set $spaces (splitList "/" $target | first) $scaled -}}
{{- end -}}
{{- end -}}
{{- if $kube.read_conditions }}{{ $cluster = append $cluster "conditions" }}{{ end -}}
{{- if $kube.show_faults }}{{ $cluster = append $cluster "signs" }}{{ end -}}
{{- if .api.node_service_accounts }}{{ $cluster = append $cluster "tokenreviews" }}{{ end -}}
{{- with $kube.pod -}}
{{- $space := splitList "/" . | first -}}
{{- $_ := set $spaces $space (append (get $spaces $space | default list) "pod") -}}
{{- end -}}
{{- with $kube.lease -}}
{{- $space := splitList "/" . | first -}}
{{- $_ := set $spaces $space (append (get $spaces $space | default list) "lease") -}}
{{- end -}}
{{- dict "cluster" $cluster "namespaces" $spaces | toYaml -}}
{{- end -}}
