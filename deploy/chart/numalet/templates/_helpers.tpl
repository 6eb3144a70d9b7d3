{{- define "numalet.labels" -}}
app.kubernetes.io/name: numalet
{{- end }}

{{- define "numalet.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "numalet.bundles" -}}
{{- get (dict
  "containerd" "/run/containerd/io.containerd.runtime.v2.task"
  "k3s" "/run/k3s/containerd/io.containerd.runtime.v2.task"
  "cri-o" "/run/containers/storage/overlay-containers"
) .Values.runtime }}
{{- end }}

{{- define "numalet.config" -}}
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
{{ toYaml .Values.config.kubelet }}
---
apiVersion: numalet.io/v1alpha1
kind: AgentConfiguration
{{ toYaml .Values.config.agent }}
{{- end }}

{{- define "numalet.container" -}}
image: {{ include "numalet.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
resources: {{ toYaml .Values.resources | nindent 2 }}
securityContext:
  runAsUser: 0
  runAsGroup: 0
  privileged: false
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
  {{- if .Values.openshift }}
  seLinuxOptions: {type: spc_t}
  {{- end }}
{{- end }}
