"""A pod with everything that its spec only refers to: what `Host.resolve` gives to a provider.

Invariant: nothing of what came out of a Secret is shown when a value is printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import field, frozen

from vkubelet.api.objects import Pod
from vkubelet.api.shapes import JsonView


@frozen(kw_only=True)
class Mount:
    """One entry of a container's `volumeMounts`.

    `source` is the file or directory that the runtime has written for it; None: the volume is the provider's own affair (hostPath, CSI, …),
    which finds it in the pod's spec by the name `volume`. `sub_path` is what is meant of the volume, expanded; `source` leads there, to
    what never changes: after an update it is another one.
    """

    volume: str
    path: str
    source: Path | None = None
    sub_path: str = ""
    read_only: bool = False


@frozen(kw_only=True)
class ResolvedContainer:
    """A container (of any kind: init, app, ephemeral) with its variables, command and arguments expanded; `spec` is its entry in the pod's.

    An empty `command` means the image's entry point, empty `args` the image's arguments, unless `command` is given.
    """

    name: str
    image: str
    command: Sequence[str] = field(default=(), repr=False)
    args: Sequence[str] = field(default=(), repr=False)
    env: Mapping[str, str] = field(factory=dict, repr=False)
    working_dir: str = ""
    mounts: Sequence[Mount] = ()
    spec: JsonView = field(factory=dict, repr=False)


@frozen(kw_only=True)
class PullSecret:
    """Registry credentials as the pod's `imagePullSecrets` hold them: a `.dockerconfigjson`, decoded."""

    name: str
    config: JsonView = field(repr=False)


@frozen(kw_only=True)
class ResolvedPod:
    """A pod with everything expanded that its spec only refers to, at one moment; `files` holds its volumes, when they were asked for."""

    pod: Pod
    containers: Mapping[str, ResolvedContainer]
    pull_secrets: Sequence[PullSecret] = ()
    hostname: str = ""
    """Empty on the host's network: the host's own."""
    hosts: str = ""
    """The text of `/etc/hosts`."""
    resolv_conf: str = ""
    files: Path | None = None
