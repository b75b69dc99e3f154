{{- define "kubeocean-worker.labels" -}}
app.kubernetes.io/part-of: kubeocean
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* ClusterRoles have no namespace: those of several mount namespaces must not overwrite one another's. */}}
{{- define "kubeocean-worker.clusterRole" -}}
kubeocean-syncer{{ if ne .Values.namespace.name "kubeocean-worker" }}-{{ .Values.namespace.name }}{{ end }}
{{- end }}
