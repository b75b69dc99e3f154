"""What the provider asks the file system of the host about, a disk of which may not respond."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from vkubelet import Unavailable
from vkubelet.testing.host import make_pod
from vkubelet_providers.process.provider import Process


async def test_host_paths_are_followed_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, lstat = dict[str, int](), os.lstat

    def noted(path: str, **more: Any) -> os.stat_result:
        asked[path] = threading.get_ident()
        return lstat(path, **more)

    (tmp_path / "nfs" / "data").mkdir(parents=True)
    there = str(tmp_path / "nfs" / "data")
    provider = Process(Process.Settings(node="edge", directory=str(tmp_path / "state"), host_paths=[str(tmp_path / "nfs")]))
    pod = make_pod(spec={"volumes": [{"name": "v", "hostPath": {"path": there}}]})
    monkeypatch.setattr(os, "lstat", noted)
    with pytest.raises(Unavailable, match="not running"):
        await provider.prepare_pod(pod)
    assert asked[there] != threading.get_ident()
