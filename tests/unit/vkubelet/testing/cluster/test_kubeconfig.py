"""Kubeconfigs need no other file and always verify the server.

Invariant: pure, but for the file that is written.
"""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import yaml

from vkubelet.testing.cluster import kubeconfig
from vkubelet.testing.cluster.pki import KeyPair


def test_kubeconfig_holds_everything_itself_and_is_private(tmp_path: Path) -> None:
    client = KeyPair(certificate=b"CERT", key=b"KEY")
    path = kubeconfig.write(tmp_path / "hub.kubeconfig", "hub", server="https://127.0.0.1:30001", ca=b"CA", client=client)
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert config["current-context"] == "hub"
    cluster = config["clusters"][0]["cluster"]
    assert cluster == {"server": "https://127.0.0.1:30001", "certificate-authority-data": base64.b64encode(b"CA").decode()}
    user = config["users"][0]["user"]
    assert base64.b64decode(user["client-certificate-data"]) == b"CERT"
    assert base64.b64decode(user["client-key-data"]) == b"KEY"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_client_may_be_a_token(tmp_path: Path) -> None:
    path = kubeconfig.write(tmp_path / "hub.kubeconfig", "hub", server="https://127.0.0.1:30001", ca=b"CA", client="abc")
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["users"][0]["user"] == {"token": "abc"}
