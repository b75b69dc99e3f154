{{- define "kubeocean.image" -}}
{{- $none := "image.repository is required, because no image is published: build one (make image, or docker build), push it, and set its name" -}}
{{- $name := required $none .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{ $name }}@{{ .Values.image.digest }}
{{- else -}}
{{ $name }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* Names of Secrets, as a list in JSON. */}}
{{- define "kubeocean.pullSecrets" -}}
{{- $names := .Values.image.pullSecrets | default list -}}
{{- range .Values.imagePullSecrets }}{{ $names = append $names .name }}{{ end -}}
{{- toJson $names -}}
{{- end }}

{{/* Values of manager and syncer that had another name in 0.1.0, which is accepted until 0.3.0. The argument is the section. */}}
{{- define "kubeocean.priorityClassName" -}}
{{- if hasKey . "priorityClass" }}{{ .priorityClass }}{{ else }}{{ .priorityClassName }}{{ end -}}
{{- end }}

{{- define "kubeocean.topologySpreadConstraints" -}}
{{- toJson (concat (.topologySpread | default list) .topologySpreadConstraints | default list) -}}
{{- end }}

{{/* One line for each such name that is used. */}}
{{- define "kubeocean.formerNames" -}}
{{- if hasKey .Values.image "pullSecrets" }}
- image.pullSecrets: use imagePullSecrets, a list of {name: NAME}
{{- end }}
{{- range $section := list "manager" "syncer" }}
{{- range $former, $current := dict "priorityClass" "priorityClassName" "topologySpread" "topologySpreadConstraints" }}
{{- if hasKey (get $.Values $section) $former }}
- {{ $section }}.{{ $former }}: use {{ $section }}.{{ $current }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Whether pods of a class of the system are created. */}}
{{- define "kubeocean.critical" -}}
{{- range list .Values.manager .Values.syncer }}{{ if hasPrefix "system-" (include "kubeocean.priorityClassName" .) }}true{{ end }}{{ end -}}
{{- end }}

{{- define "kubeocean.labels" -}}
app.kubernetes.io/part-of: kubeocean
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "kubeocean.managerSelector" -}}
app.kubernetes.io/name: kubeocean-manager
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Excludes virtual nodes, which depend on this process: a node has to match one of the terms, so each of them does. */}}
{{- define "kubeocean.managerAffinity" -}}
{{- $expressions := list (dict "key" "type" "operator" "NotIn" "values" (list "virtual-kubelet")) -}}
{{- $expressions = append $expressions (dict "key" "node.kubernetes.io/instance-type" "operator" "NotIn" "values" (list "vnode")) -}}
{{- $required := "requiredDuringSchedulingIgnoredDuringExecution" -}}
{{- $affinity := deepCopy .Values.manager.affinity -}}
{{- $nodes := $affinity.nodeAffinity | default dict -}}
{{- $given := dig "nodeSelectorTerms" list (get $nodes $required | default dict) | default (list dict) -}}
{{- $terms := list -}}
{{- range $given -}}
{{- $terms = append $terms (set . "matchExpressions" (concat (.matchExpressions | default list) $expressions)) -}}
{{- end -}}
{{- $_ := set $affinity "nodeAffinity" (set $nodes $required (dict "nodeSelectorTerms" $terms)) -}}
{{- if not (hasKey $affinity "podAntiAffinity") -}}
{{- $selector := dict "matchLabels" (include "kubeocean.managerSelector" . | fromYaml) -}}
{{- $apart := dict "weight" 100 "podAffinityTerm" (dict "topologyKey" "kubernetes.io/hostname" "labelSelector" $selector) -}}
{{- $_ := set $affinity "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" (list $apart)) -}}
{{- end -}}
{{- toYaml $affinity -}}
{{- end }}

{{/* What the process of each binding is told. */}}
{{- define "kubeocean.syncerSettings" -}}
{{- $provider := dict "time_zone" .Values.timeZone "cluster_domain" .Values.clusterDomain -}}
{{- $base := dict "provider" $provider "log" (dict "level" .Values.logLevel) -}}
{{- toYaml (mergeOverwrite $base (deepCopy .Values.syncer.settings)) -}}
{{- end }}

{{/* The settings file of the manager. */}}
{{- define "kubeocean.settings" -}}
manager:
  image: {{ include "kubeocean.image" . | quote }}
  image_pull_policy: {{ .Values.image.pullPolicy }}
  image_pull_secrets: {{ include "kubeocean.pullSecrets" . }}
  namespace: {{ .Values.namespace.name }}
  replicas: {{ .Values.syncer.replicas }}
  autoscaled: {{ .Values.syncer.autoscaled }}
  resources: {{ toJson .Values.syncer.resources }}
  priority_class: {{ include "kubeocean.priorityClassName" .Values.syncer | quote }}
  tolerations: {{ toJson .Values.syncer.tolerations }}
  node_selector: {{ toJson .Values.syncer.nodeSelector }}
  topology_spread: {{ include "kubeocean.topologySpreadConstraints" .Values.syncer }}
  affinity: {{ toJson .Values.syncer.affinity }}
  pod_annotations: {{ toJson .Values.syncer.podAnnotations }}
  pod_labels: {{ toJson .Values.syncer.podLabels }}
  pod_security_context: {{ toJson .Values.syncer.podSecurityContext }}
  extra_env: {{ toJson .Values.syncer.extraEnv }}
  extra_volumes: {{ toJson .Values.syncer.extraVolumes }}
  extra_volume_mounts: {{ toJson .Values.syncer.extraVolumeMounts }}
  service_account_annotations: {{ toJson .Values.syncer.serviceAccount.annotations }}
  recheck_interval: {{ .Values.manager.recheckInterval }}
  syncer_settings:
    {{- include "kubeocean.syncerSettings" . | nindent 4 }}
{{- if .Values.dashboard.enabled }}
dashboard:
  enabled: true
  interval: {{ .Values.dashboard.interval }}
  server:
    port: {{ .Values.dashboard.port }}
    {{- if .Values.dashboard.certificateSecret }}
    certificate: files
    certificate_file: /etc/kubeocean-dashboard/tls.crt
    key_file: /etc/kubeocean-dashboard/tls.key
    {{- end }}
{{- end }}
leader:
  enabled: true
  namespace: {{ .Values.namespace.name }}
health:
  health_address: "0.0.0.0:8081"
  metrics_address: "0.0.0.0:8080"
log:
  level: {{ .Values.logLevel }}
{{- end }}

{{/* Of everything that is read once; the manager's own log level is read while it runs. */}}
{{- define "kubeocean.settingsChecksum" -}}
{{- omit (include "kubeocean.settings" . | fromYaml) "log" | toJson | sha256sum -}}
{{- end }}

{{/* The identity of a binding's process ends in its clusterID; so do the names of its virtual nodes begin.
     A clusterID that, with a dash, begins another's is refused, so the prefix is one binding's alone. */}}
{{- define "kubeocean.processOfABinding" -}}
{{- $identity := printf "system:serviceaccount:%s:kubeocean-syncer-" .Values.namespace.name -}}
matchConditions:
  - name: is-the-process-of-a-binding
    expression: request.userInfo.username.startsWith('{{ $identity }}')
variables:
  - name: cluster
    expression: request.userInfo.username.substring({{ len $identity }})
  - name: prefix
    expression: "'vnode-' + variables.cluster + '-'"
{{- end }}

{{/* API group of an entry of extra_kinds. */}}
{{- define "kubeocean.group" -}}
{{ regexReplaceAll "/[^/]*$" .api_version "" }}
{{- end }}
