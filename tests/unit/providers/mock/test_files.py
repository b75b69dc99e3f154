"""Files of a container, and tar as the standard library and kubectl speak it."""

from __future__ import annotations

import errno
import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vkubelet_providers.mock.files import Files, absolute

NAMES = st.text(alphabet="abcdefgh.-_é ", min_size=1, max_size=120).filter(lambda name: name not in (".", ".."))


def archive(contents: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as made:
        for name, data in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            made.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def test_files_are_in_directories() -> None:
    files = Files("web")
    assert files.read("/etc/hostname") == b"web\n" and files.is_directory("/tmp") and not files.is_directory("/etc/hostname")
    for path, number in (("/none/x", errno.ENOENT), ("/etc", errno.EISDIR)):
        with pytest.raises(OSError) as error:
            files.read(path)
        assert error.value.errno == number
    files.unpack(archive({"a/b/c": b"123"}), "/")
    assert files.size == 7 and files.is_directory("/a/b")


def test_paths_cannot_leave_the_root() -> None:
    assert absolute("../../x", "/tmp") == "/x" and absolute("a/./b", "/tmp") == "/tmp/a/b" and absolute("//etc") == "/etc"


@settings(max_examples=25)
@given(st.dictionaries(st.tuples(NAMES, NAMES), st.binary(max_size=2000), max_size=5))
def test_what_is_packed_is_unpacked_again_by_others_too(tree: dict[tuple[str, str], bytes]) -> None:
    contents = {f"{outer}/{inner}": data for (outer, inner), data in tree.items()}
    source, target = Files("web"), Files("web")
    source.unpack(archive(contents), "/data")
    packed = source.pack("/data" if contents else "/tmp", mtime=0)
    with tarfile.open(fileobj=io.BytesIO(packed)) as theirs:
        for name, data in contents.items():
            member = theirs.extractfile(f"data/{name}")
            assert member is not None and member.read() == data
    target.unpack(packed, "/copy")
    for name, data in contents.items():
        assert target.read(f"/copy/data/{name}") == data


def test_archives_made_elsewhere_are_unpacked_and_others_refused() -> None:
    files = Files("web")
    files.unpack(archive({"../../deep/" + "n" * 150: b"abc"}), "/tmp")
    assert files.read("/deep/" + "n" * 150) == b"abc"
    with pytest.raises(tarfile.TarError):
        files.unpack(b"no archive at all" * 100, "/tmp")
    with pytest.raises(FileNotFoundError):
        files.pack("/none", mtime=0)
