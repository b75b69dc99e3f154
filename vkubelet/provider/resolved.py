"""A resolved pod: the pod with everything that its spec references, as `Host.resolve` returns it to a provider.

Invariant: no value of a Secret is shown when an object is printed.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import field, frozen

from vkubelet.api.objects import JsonView, Pod


@frozen(kw_only=True)
class Mount:
    """One entry of a container's `volumeMounts`.

    `source` is the file or directory that the runtime has written for it; None: the volume is provided by the provider (hostPath, CSI, …),
    which finds it in the pod's spec by the name `volume`. `sub_path` is the selected part of the volume, expanded; `source` leads to it,
    and its content never changes: after an update it is another path.
    """

    volume: str
    path: str
    source: Path | None = None
    sub_path: str = ""
    read_only: bool = False


@frozen(kw_only=True)
class ResolvedContainer:
    """A container (of any type: init, app, ephemeral) with its variables, command and arguments expanded; `spec` is its entry in the pod's.

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
    """Registry credentials from the pod's `imagePullSecrets`: a `.dockerconfigjson`, decoded."""

    name: str
    config: JsonView = field(repr=False)


@frozen(kw_only=True)
class ResolvedPod:
    """A pod with everything expanded that its spec references, at one moment; `files` contains its volumes, when they were requested."""

    pod: Pod
    containers: Mapping[str, ResolvedContainer]
    pull_secrets: Sequence[PullSecret] = ()
    hostname: str = ""
    """Host name; empty on the host's network, where it is the host's."""
    hosts: str = ""
    """The text of `/etc/hosts`."""
    resolv_conf: str = ""
    files: Path | None = None
