{{- define "kubeocean-worker.labels" -}}
app.kubernetes.io/part-of: kubeocean
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* spec.hard of the quota. */}}
{{- define "kubeocean-worker.quota" -}}
{{- $presets := .Files.Get "files/quotas.yaml" | fromYaml -}}
{{- $hard := mergeOverwrite (dict) (get $presets .Values.quota.preset | default dict) .Values.quota.hard -}}
{{- if not $hard }}{{ fail "quota.enabled: an empty quota limits nothing; set quota.preset or quota.hard" }}{{ end -}}
{{- toYaml $hard -}}
{{- end }}

{{/* One peer of a NetworkPolicy: a range without the parts of `private` and `blockedCIDRs` that are in the same address family. */}}
{{- define "kubeocean-worker.range" -}}
{{- $except := .private -}}
{{- range .blocked }}{{ if eq (contains ":" .) (contains ":" $.cidr) }}{{ $except = append $except . }}{{ end }}{{ end -}}
{{- toYaml (list (dict "ipBlock" (dict "cidr" .cidr "except" (uniq $except)))) -}}
{{- end }}

{{/* Egress rules of the preset. */}}
{{- define "kubeocean-worker.egress" -}}
{{- $four := list "169.254.169.254/32" -}}
{{- $six := list "fd00:ec2::254/128" -}}
{{- with .Values.networkPolicy -}}
{{- if ne .preset "open" -}}
{{- $four = list "10.0.0.0/8" "100.64.0.0/10" "168.63.129.16/32" "169.254.0.0/16" "172.16.0.0/12" "192.168.0.0/16" -}}
{{- $six = list "fc00::/7" "fe80::/10" -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
- to: [{podSelector: {}}]
{{ end -}}
{{- if ne .preset "namespace" -}}
- to:
    {{- include "kubeocean-worker.range" (dict "cidr" "0.0.0.0/0" "private" $four "blocked" .blockedCIDRs) | nindent 4 }}
    {{- include "kubeocean-worker.range" (dict "cidr" "::/0" "private" $six "blocked" .blockedCIDRs) | nindent 4 }}
{{ end -}}
{{- with .allowedCIDRs -}}
- to:
    {{- range . }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
{{ end -}}
{{- end -}}
{{- end }}

{{/* ClusterRoles have no namespace: those of several mount namespaces must not overwrite one another's. */}}
{{- define "kubeocean-worker.clusterRole" -}}
kubeocean-syncer{{ if ne .Values.namespace.name "kubeocean-worker" }}-{{ .Values.namespace.name }}{{ end }}
{{- end }}

{{/* API group of an entry of extra_kinds. */}}
{{- define "kubeocean-worker.group" -}}
{{ regexReplaceAll "/[^/]*$" .api_version "" }}
{{- end }}
