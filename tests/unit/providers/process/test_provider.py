"""What the provider asks the file system of the host about, a disk of which may not respond."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vkubelet import Unavailable
from vkubelet.testing.host import make_pod
from vkubelet_providers.process.provider import Process


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The thread that asked last about each path."""
    found: dict[str, int] = {}

    def noting(ask: Callable[..., Any]) -> Callable[..., Any]:
        def noted(path: Any, *args: Any, **kwargs: Any) -> Any:
            found[os.fspath(path) if not isinstance(path, int) else str(path)] = threading.get_ident()
            return ask(path, *args, **kwargs)

        return noted

    for name in ("lstat", "stat", "access", "readlink"):
        monkeypatch.setattr(os, name, noting(getattr(os, name)))
    return found


async def test_host_paths_are_followed_in_a_thread(tmp_path: Path, asked: dict[str, int]) -> None:
    (tmp_path / "nfs" / "data").mkdir(parents=True)
    there = str(tmp_path / "nfs" / "data")
    provider = Process(Process.Settings(node="edge", directory=str(tmp_path / "state"), host_paths=[str(tmp_path / "nfs")]))
    pod = make_pod(spec={"volumes": [{"name": "v", "hostPath": {"path": there}}]})
    with pytest.raises(Unavailable, match="not running"):
        await provider.prepare_pod(pod)
    assert asked[there] != threading.get_ident()
