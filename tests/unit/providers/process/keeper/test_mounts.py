"""Tests of what a container's mounts are taken from."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from vkubelet_providers.process.keeper.mounts import held


def test_what_is_held_is_what_lies_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    for path in (tmp_path / "file", tmp_path, Path("/")):
        descriptor = held(str(path))
        assert os.path.samestat(os.fstat(descriptor), path.stat())
        os.close(descriptor)


@pytest.mark.parametrize("link", ["a", "a/b"])
def test_a_link_that_came_between_is_not_followed(tmp_path: Path, link: str) -> None:
    (tmp_path / "elsewhere/b/c").mkdir(parents=True)
    (tmp_path / "a").mkdir()
    if link == "a":
        (tmp_path / "a").rmdir()
    (tmp_path / link).symlink_to(tmp_path / "elsewhere")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError) as refused:
        held(str(tmp_path / link / "b/c"))
    assert refused.value.errno in (errno.ELOOP, errno.ENOTDIR)
    with pytest.raises(OSError, match="symbolic links"):
        held(str(tmp_path / link))
    assert len(os.listdir("/proc/self/fd")) == before
