"""Programs of a cluster: their versions, their source, and how the version is set in a build.

Invariant: pure; a new program is one row of `PROGRAMS`, and with its own dependencies also a folder below `gomod`.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

VERSION = "v1.34.4"
ETCD_SERIES = "3.6."


def kubernetes_flags(version: str) -> str:
    """Returns linker flags: without the version in it, a server calls itself v0.0.0, and clients draw wrong conclusions."""
    major, minor, _ = version.removeprefix("v").split(".")
    package = "k8s.io/component-base/version"
    return f"-X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"


def kwok_flags(version: str) -> str:
    return f"-X sigs.k8s.io/kwok/pkg/consts.Version={version}"


def metrics_server_flags(version: str) -> str:
    return f"-X k8s.io/client-go/pkg/version.gitVersion={version}"


def helm_flags(version: str) -> str:
    """Returns linker flags: without a cluster, charts are rendered for the version of ours."""
    _, minor, _ = VERSION.split(".")
    packages = [f"helm.sh/helm/v3/pkg/{part}" for part in ("chartutil", "lint/rules")]
    known = " ".join(f"-X {package}.k8sVersionMajor=1 -X {package}.k8sVersionMinor={minor}" for package in packages)
    return f"-X helm.sh/helm/v3/internal/version.version={version} {known}"


@frozen(kw_only=True)
class Program:
    """One program: the Go package it is built from, and the folder below `gomod` that names its modules ("" is `gomod` itself)."""

    package: str
    module: str = ""
    version: str = VERSION
    flags: Callable[[str], str] = kubernetes_flags


PROGRAMS = {
    "etcd": Program(package="go.etcd.io/etcd/server/v3"),
    "kube-apiserver": Program(package="k8s.io/kubernetes/cmd/kube-apiserver"),
    "kube-controller-manager": Program(package="k8s.io/kubernetes/cmd/kube-controller-manager"),
    "kube-scheduler": Program(package="k8s.io/kubernetes/cmd/kube-scheduler"),
    "kubectl": Program(package="k8s.io/kubernetes/cmd/kubectl"),
    "kubelet": Program(package="k8s.io/kubernetes/cmd/kubelet"),
    "agnhost": Program(package="k8s.io/kubernetes/test/images/agnhost"),
    # The following are only built on request.
    "kwok": Program(package="sigs.k8s.io/kwok/cmd/kwok", module="kwok", version="v0.7.0", flags=kwok_flags),
    "metrics-server": Program(
        package="sigs.k8s.io/metrics-server/cmd/metrics-server", module="metrics-server", version="v0.9.0", flags=metrics_server_flags
    ),
    "helm": Program(package="helm.sh/helm/v3/cmd/helm", module="helm", version="v3.19.5", flags=helm_flags),
}
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet")
"""Programs in an official release."""
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
NODE = ("kubelet", "agnhost")
ALL = ("etcd", *KUBERNETES, "agnhost")
"""Programs that `make demo` needs."""
ON_DEMAND = tuple(name for name in PROGRAMS if name not in ALL)
