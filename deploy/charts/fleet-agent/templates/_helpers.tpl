{{- define "fleet-agent.image" -}}
{{- $none := "image.repository is required, because no image is published: build one (make image, or docker build), push it, and set its name" -}}
{{- $name := required $none .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{ $name }}@{{ .Values.image.digest }}
{{- else -}}
{{ $name }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "fleet-agent.labels" -}}
app.kubernetes.io/part-of: fleet
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "fleet-agent.selector" -}}
app.kubernetes.io/name: fleet-agent
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "fleet-agent.affinity" -}}
{{- $affinity := deepCopy .Values.affinity -}}
{{- if not (hasKey $affinity "podAntiAffinity") -}}
{{- $selector := dict "matchLabels" (include "fleet-agent.selector" . | fromYaml) -}}
{{- $apart := dict "weight" 100 "podAffinityTerm" (dict "topologyKey" "kubernetes.io/hostname" "labelSelector" $selector) -}}
{{- $_ := set $affinity "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" (list $apart)) -}}
{{- end -}}
{{- toYaml $affinity -}}
{{- end }}

{{/* Of everything that is read once; the log level is read while the process runs. */}}
{{- define "fleet-agent.settingsChecksum" -}}
{{- omit (include "fleet-agent.settings" . | fromYaml) "log" | toJson | sha256sum -}}
{{- end }}

{{/* Name of the cluster-wide role: two agents in namespaces of their own have two. */}}
{{- define "fleet-agent.clusterRole" -}}
fleet-agent{{ if ne .Values.namespace.name "fleet-system" }}-{{ .Values.namespace.name }}{{ end }}
{{- end }}

{{/* Secret with the token for the door kubefleet. */}}
{{- define "fleet-agent.tokenSecret" -}}
{{ .Values.tokenSecret | default "hub-token" }}
{{- end }}

{{/* Secrets that the agent reads, as a list in JSON. */}}
{{- define "fleet-agent.secrets" -}}
{{- $names := .Values.bootstrapSecrets -}}
{{- if eq .Values.door "kubefleet" }}{{ $names = append $names (include "fleet-agent.tokenSecret" .) }}{{ end -}}
{{- toJson $names -}}
{{- end }}

{{/* The settings file of `fleet agent`. */}}
{{- define "fleet-agent.settings" -}}
agent:
  cluster: {{ required "cluster is required: the name of this cluster on the hub" .Values.cluster }}
  namespace: {{ .Values.namespace.name }}
  door: {{ .Values.door }}
  modules: {{ toJson .Values.modules }}
  bootstrap_secrets: {{ toJson .Values.bootstrapSecrets }}
  lost_hub_after: {{ .Values.lostHubAfter }}
  labels: {{ toJson .Values.labels }}
  annotations: {{ toJson .Values.annotations }}
  client_configs: {{ toJson .Values.clientConfigs }}
  client_cert_expiration: {{ toJson .Values.clientCertExpiration }}
  managed_clusters_group: {{ .Values.managedClustersGroup }}
  cluster_properties: {{ .Values.clusterProperties }}
  managed_namespaces: {{ .Values.managedNamespaces }}
  {{- if eq .Values.door "kubefleet" }}
  token: {secret: {{ include "fleet-agent.tokenSecret" . }}}
  {{- end }}
log:
  level: {{ .Values.logLevel }}
{{- end }}
