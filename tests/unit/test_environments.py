"""The forty pods of tests/support/environments.py are sound, before a cluster sees them."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.dumps import Dump, parse, script
from tests.support.environments import CASES, OBJECTS, Case, body
from vkubelet.api.codec import encode_json
from vkubelet.api.objects import Unknown
from vkubelet.api.podspec import Kind, Reference
from vkubelet.resolve.references import Content
from vkubelet.testing.host import RecordingHost, make_pod

CONTENTS = {
    Reference(Kind(kind), made["metadata"]["name"]): Content.of(Kind(kind), Unknown.decode(encode_json(made)))
    for kind, made in OBJECTS
    if kind != "Service"
}


def test_there_are_forty_and_each_has_a_name_of_its_own() -> None:
    assert len(CASES) == len({case.name for case in CASES}) == 40


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_each_pod_can_be_resolved_and_its_script_survives(case: Case, tmp_path: Path) -> None:
    host = RecordingHost()
    host.objects = dict(CONTENTS)
    made = body(case, namespace="ours", node="node", image="busybox")
    resolved = await host.resolve(make_pod(case.name, metadata=case.metadata, spec=made["spec"]), files=tmp_path, pod_ips=["10.1.0.5"])
    main = resolved.containers["main"]
    assert main.command[2] == made["spec"]["containers"][0]["command"][2], "nothing in the script is expanded"
    assert all(mount.source is not None and mount.source.exists() for mount in main.mounts if mount.volume != "host")


def printed(directory: Path, *arguments: str, **env: str) -> Dump:
    shell = shutil.which("sh")
    assert shell is not None
    command = [shell, "-c", script([str(directory), str(directory / "nowhere")]), *arguments]
    return parse(subprocess.run(command, env={"PATH": "/usr/bin:/bin", **env}, capture_output=True, text=True, check=True).stdout)


def test_what_is_printed_can_be_read_back(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir(0o750)
    (tmp_path / "d" / "f").write_bytes(b"\xff\n")
    (tmp_path / "l").symlink_to("d/f")
    (tmp_path / "..hidden").mkdir()
    (tmp_path / "..hidden" / "g").write_text("")
    dump = printed(tmp_path, "x y", "10.1.0.5", A="one\ntwo", IP="10.1.0.5").told({"10.1.0.5": "<pod>", str(tmp_path): "<top>"})
    assert dump.env == {"A": "one\ntwo", "IP": "<pod>", "PATH": "/usr/bin:/bin"} and dump.arguments == ["x y", "<pod>"]
    owner = f"{os.getuid()}:{(tmp_path / 'd').stat().st_gid}"
    assert dump.files == {"<top>/d/f": (f"644,{owner}", b"\xff\n"), "<top>/l": (f"644,{owner}", b"\xff\n")}
    assert dump.directories == {"<top>": dump.directories["<top>"], "<top>/d": f"750,{owner}"}
    assert dump.links == {"<top>/l": "d/f"} and dump.writable == ["<top>"] and "/etc/hosts" in dump.names


def token(issued: int, **claims: object) -> bytes:
    whole = {"iat": issued, "exp": issued + 60, "jti": str(issued), "kubernetes.io": {"warnafter": issued + 50}, **claims}
    return b"eyJ." + base64.urlsafe_b64encode(json.dumps(whole).encode()).rstrip(b"=") + b".c2ln"


def test_every_difference_is_named_but_those_that_must_be(tmp_path: Path) -> None:
    notes = b'a="1"\nkubernetes.io/config.seen="2026"\nkubernetes.io/config.source="api"\nz="2"'
    one = Dump({"IP": "10.1.0.5"}, ["a"], {"/t": ("600,0:0", token(1000, sub="s")), "/n": ("644,0:0", notes)}, {"/d": "755,0:0"})
    other = Dump(
        {"IP": "10.1.0.50"}, ["a"], {"/t": ("600,0:0", token(2000, sub="s")), "/n": ("644,0:0", b'a="1"\nz="2"')}, {"/d": "755,0:0"}
    )
    assert not list(one.told({"10.1.0.5": "<ip>"}).differences(other.told({"10.1.0.50": "<ip>"})))
    assert [line.split(":")[0] for line in one.differences(other)] == ["env IP", "files /n", "files /t"]
    changed = Dump({"IP": "<ip>", "B": ""}, ["b"], {"/t": ("600,0:0", token(1, sub="x"))}, {"/d": "755,0:1"}, writable=["/d"], hostname="h")
    found = {line.split(":")[0] for line in one.told({"10.1.0.5": "<ip>"}).differences(changed.told({}))}
    assert found == {"env B", "arguments ", "files /n", "files /t", "directories /d", "writable ", "hostname "}


def test_a_text_that_was_cut_off_is_refused() -> None:
    with pytest.raises(ValueError, match="did not print everything"):
        parse("env " + base64.b64encode(b"A=1\0").decode())
