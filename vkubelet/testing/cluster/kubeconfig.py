"""Writes self-contained kubeconfig files.

Invariant: a kubeconfig contains the cluster's CA and a client certificate or token; verification is never switched off.
"""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from vkubelet.testing.cluster.pki import KeyPair, write_private


def write(path: Path, cluster: str, *, server: str, ca: bytes, client: KeyPair | str) -> Path:
    """Writes a kubeconfig whose only context is named like the cluster; `ca` is PEM, `server` a URL, a `client` that is text a token."""
    user = f"{cluster}-user"
    text = yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": cluster,
            "clusters": [{"name": cluster, "cluster": {"server": server, "certificate-authority-data": _base64(ca)}}],
            "users": [{"name": user, "user": _credentials(client)}],
            "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user}}],
        },
        sort_keys=False,
    )
    write_private(path, text.encode())
    return path


def _credentials(client: KeyPair | str) -> dict[str, str]:
    if isinstance(client, str):
        return {"token": client}
    return {"client-certificate-data": _base64(client.certificate), "client-key-data": _base64(client.key)}


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
