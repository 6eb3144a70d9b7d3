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
  "docker" "/var/lib/docker/containers"
) .Values.runtime }}
{{- end }}

{{- define "numalet.shimSandboxes" -}}
{{ eq .Values.runtime "k3s" | ternary "/run/k3s" "/run" }}/containerd/io.containerd.sandbox.controller.v1.shim
{{- end }}

{{- define "numalet.config" -}}
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
{{ toYaml (omit .Values.config.kubelet "apiVersion" "kind") }}
---
apiVersion: numalet.io/v1alpha1
kind: AgentConfiguration
{{ toYaml .Values.config.agent }}
{{- end }}

{{- define "numalet.container" -}}
image: {{ include "numalet.image" . }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
resources: {{ toYaml .Values.resources | nindent 2 }}
securityContext:
  runAsUser: 0
  runAsGroup: 0
  privileged: false
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}
