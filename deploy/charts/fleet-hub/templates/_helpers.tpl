{{- define "fleet-hub.image" -}}
{{- $none := "image.repository is required, because no image is published: build one (make image, or docker build), push it, and set its name" -}}
{{- $name := required $none .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{ $name }}@{{ .Values.image.digest }}
{{- else -}}
{{ $name }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "fleet-hub.labels" -}}
app.kubernetes.io/part-of: fleet
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "fleet-hub.selector" -}}
app.kubernetes.io/name: fleet-hub
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "fleet-hub.affinity" -}}
{{- $affinity := deepCopy .Values.affinity -}}
{{- if not (hasKey $affinity "podAntiAffinity") -}}
{{- $selector := dict "matchLabels" (include "fleet-hub.selector" . | fromYaml) -}}
{{- $apart := dict "weight" 100 "podAffinityTerm" (dict "topologyKey" "kubernetes.io/hostname" "labelSelector" $selector) -}}
{{- $_ := set $affinity "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" (list $apart)) -}}
{{- end -}}
{{- toYaml $affinity -}}
{{- end }}

{{/* Of everything that is read once; the log level is read while the process runs. */}}
{{- define "fleet-hub.settingsChecksum" -}}
{{- omit (include "fleet-hub.settings" . | fromYaml) "log" | toJson | sha256sum -}}
{{- end }}

{{/* The settings file of `fleet hub`. */}}
{{- define "fleet-hub.settings" -}}
modules: {{ toJson .Values.modules }}
hub:
  namespace: {{ .Values.namespace.name }}
  auto_approve_users: {{ toJson .Values.autoApproveUsers }}
  profile_namespace: {{ .Values.profileNamespace | default .Values.namespace.name }}
  heartbeat_threshold: {{ .Values.heartbeatThreshold }}
  force_leave_after: {{ .Values.forceLeaveAfter }}
  administrators: {{ toJson .Values.guardRails.administrators }}
log:
  level: {{ .Values.logLevel }}
{{- end }}

{{/* Admission policies with the labels of the chart. The arguments are the root, a file, a text in it, and what replaces that. */}}
{{- define "fleet-hub.policies" -}}
{{- $root := index . 0 }}
{{- range splitList "\n---\n" ($root.Files.Get (index . 1) | replace (index . 2) (index . 3)) }}
{{- $policy := fromYaml . }}
{{- $_ := set $policy.metadata "labels" (include "fleet-hub.labels" $root | fromYaml) }}
---
{{ toYaml $policy }}
{{- end }}
{{- end }}
