"""The two custom resources: their paths in the API server, and their definitions.

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
"""Stored in the hub."""

POLICIES: Final = Resource(GROUP, VERSION, "resourceleasingpolicies", "ResourceLeasingPolicy", False, Unknown)
"""Stored in the worker cluster."""


def definition(resource: Resource[Unknown]) -> str:
    """Returns the YAML of its CustomResourceDefinition, ready to be applied."""
    return files("kubeocean").joinpath("manifests", f"{resource.plural}.yaml").read_text(encoding="utf-8")
