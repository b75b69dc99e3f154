"""Sources of PersistentVolumes that Kubeocean supports: those outside of any machine, and those on the disk of one. Pure.

Invariant: a source that is in neither table is not copied to a worker cluster, and no admission policy allows its creation in one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_CSI_SECRETS: Final = (
    "nodePublishSecretRef",
    "nodeStageSecretRef",
    "nodeExpandSecretRef",
    "controllerPublishSecretRef",
    "controllerExpandSecretRef",
)
SECRETS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "csi": _CSI_SECRETS,
    "iscsi": ("secretRef",),
    "cephfs": ("secretRef",),
    "rbd": ("secretRef",),
    "cinder": ("secretRef",),
    **dict.fromkeys(
        ("nfs", "fc", "awsElasticBlockStore", "gcePersistentDisk", "azureDisk", "vsphereVolume", "portworxVolume"),
        (),
    ),
}
"""Sources outside of any machine, each with its fields that refer to a Secret."""
MACHINES: Final = frozenset({"hostPath", "local"})
"""Sources on the disk of a machine: in the worker the path would be that of another machine, with data of another owner."""
