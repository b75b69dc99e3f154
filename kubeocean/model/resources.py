"""The two custom resources: where an API server keeps them, and their definitions.

Invariant: the YAML in `kubeocean/manifests` is the only copy of the definitions; charts and manifests are made from it.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from vkubelet.api.objects import Unknown
from vkubelet.client.resources import Resource

GROUP: Final = "cloud.tencent.com"
VERSION: Final = "v1beta1"

CLUSTERBINDINGS: Final = Resource(GROUP, VERSION, "clusterbindings", "ClusterBinding", False, Unknown)
"""In the computing cluster."""

POLICIES: Final = Resource(GROUP, VERSION, "resourceleasingpolicies", "ResourceLeasingPolicy", False, Unknown)
"""In the worker cluster."""


def definition(resource: Resource[Unknown]) -> str:
    """The YAML of its CustomResourceDefinition, ready to be applied."""
    return files("kubeocean").joinpath("manifests", f"{resource.plural}.yaml").read_text(encoding="utf-8")
