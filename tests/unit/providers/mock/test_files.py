"""Files of a container, and tar as the standard library and kubectl speak it."""

from __future__ import annotations

import errno
import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkubelet_providers.mock import files as module
from vkubelet_providers.mock.files import Files, pack, unpack

NAMES = st.text(alphabet="abcdefgh.-_é ", min_size=1, max_size=120).filter(lambda name: name not in (".", ".."))


def test_files_lie_in_directories() -> None:
    files = Files({"/etc/hostname": b"web\n"})
    assert files.names("/") == ["etc", "tmp"] and files.names("/etc") == ["hostname"]
    for path, number in (("/none/x", errno.ENOENT), ("/etc", errno.EISDIR)):
        with pytest.raises(OSError) as error:
            files.write(path, b"")
        assert error.value.errno == number
    files.make_directory("/a/b")
    files.write("/a/b/c", b"123")
    assert files.size == 7
    with pytest.raises(IsADirectoryError):
        files.remove("/a")
    files.remove("/a", recursive=True)
    assert files.size == 4 and not files.is_directory("/a/b")
    with pytest.raises(NotADirectoryError):
        files.make_directory("/etc/hostname/x")


def test_together_they_stay_below_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT", 10)
    files = Files({"/tmp/a": b"12345678"})
    with pytest.raises(OSError, match="No space left"):
        files.write("/tmp/b", b"123")
    files.write("/tmp/a", b"1234567890")


def test_paths_can_not_leave_the_root() -> None:
    assert Files.path("/tmp", "../../x") == "/x" and Files.path("/tmp", "a/./b") == "/tmp/a/b" and Files.path("/", "//etc") == "/etc"


@given(st.dictionaries(st.tuples(NAMES, NAMES), st.binary(max_size=2000), max_size=5))
def test_what_is_packed_is_unpacked_again_by_others_too(tree: dict[tuple[str, str], bytes]) -> None:
    source = Files({f"/tmp/{outer}/{inner}": data for (outer, inner), data in tree.items()})
    archive = b"".join(pack(source, ["/tmp"], mtime=0))
    with tarfile.open(fileobj=io.BytesIO(archive)) as theirs:
        for path in source.below("/tmp"):
            member = theirs.extractfile(path.lstrip("/"))
            assert (member.read() if member else None) == (source.read(path) if source.is_file(path) else None)
    target = Files()
    unpack(target, archive, directory="/copy")
    copied = {path.removeprefix("/copy"): path for path in target.below("/copy") if target.is_file(path)}
    assert {path: target.read(where) for path, where in copied.items()} == {
        path: source.read(path) for path in source.below("/tmp") if source.is_file(path)
    }


def test_archives_made_elsewhere_are_unpacked_and_rubbish_is_refused() -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as theirs:
        member = tarfile.TarInfo("../../deep/" + "n" * 150)
        member.size = 3
        theirs.addfile(member, io.BytesIO(b"abc"))
    files = Files()
    unpack(files, packed.getvalue(), directory="/tmp")
    assert files.read("/deep/" + "n" * 150) == b"abc"
    with pytest.raises(tarfile.TarError):
        unpack(files, b"no archive at all" * 100, directory="/tmp")
