#!/usr/bin/env bash
# Prints what `make demo` will install and change; it changes nothing itself.
set -euo pipefail
if [ "$(id -u)" = 0 ]; then
    packages='install with apt-get, if missing: python3-venv containerd runc containernetworking-plugins busybox-static iproute2'
    node='start two control planes and one real node (kubelet and containerd in separate namespaces) below build/dev,
    joined by a bridge vkb<n> with addresses 10.77.<n>.0/24 and 10.<128+n>.0.0/16'
else
    packages='install nothing on this machine, because you are not root'
    node='start two control planes below build/dev, and a simulated node: without root rights no container runs'
fi
cat <<TEXT
make demo will
  - $packages
  - make .venv in this directory, with the Python packages named in pyproject.toml
  - find Kubernetes 1.34 and etcd 3.6, or download or build them into ${XDG_CACHE_HOME:-$HOME/.cache}/vkubelet
  - $node
  - bind the worker cluster to the computing cluster, start \`kubeocean run --binding demo\`, deploy a workload,
    and serve the dashboard on 127.0.0.1
\`make down\` stops and removes everything except the packages, .venv and the cache.

TEXT
