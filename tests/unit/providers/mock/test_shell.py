"""What users type into a mock container does what it does elsewhere."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from vkubelet.testing.clock import ManualClock
from vkubelet.testing.streams import MemoryIO
from vkubelet_providers.mock import reading, shell
from vkubelet_providers.mock.files import Files
from vkubelet_providers.mock.machine import Machine
from vkubelet_providers.mock.shell import run_with


def machine(files: Files | None = None) -> Machine:
    return Machine("web", files or Files({"/etc/hostname": b"web\n"}), ManualClock(), {"HOME": "/"})


async def run(*argv: str, stdin: bytes | None = None, box: Machine | None = None) -> tuple[int, bytes, bytes]:
    io = MemoryIO(stdin)
    code = await run_with(io, box or machine(), argv)
    return code, io.stdout, io.stderr


async def sh(text: str, stdin: bytes | None = None) -> tuple[int, str, str]:
    code, out, err = await run("sh", "-c", text, stdin=stdin)
    return code, out.decode(), err.decode()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("exit 7", 7),
        ("exit 137", 137),
        ("exit 256", 0),
        ("true", 0),
        ("false", 1),
        ("false; true", 0),
        ("true && false", 1),
        ("false || exit 3; exit 4", 3),
        ("false; exit $?", 1),
        ("sh -c 'exit 5'; exit $?", 5),
        ("exit 3 | true", 0),
        ("true | exit 3", 3),
        ("kill -9 $$", 137),
        ("kill -TERM $$; echo never", 143),
        ("nothing-like-this", 127),
        ("echo 'open", 2),
        ("[ -d /tmp ]", 0),
        ("[ a = b ]", 1),
        ("cd /nowhere", 1),
        ("> /nowhere/x echo", 1),
    ],
)
async def test_codes_are_those_of_a_shell(text: str, code: int) -> None:
    assert (await sh(text))[0] == code


@pytest.mark.parametrize(
    ("text", "out", "err"),
    [
        ("echo a   b; echo -n c", "a b\nc", ""),
        ("printf '%s-%d\\n' x 1", "x-1\n", ""),
        ("echo out; echo err >&2", "out\n", "err\n"),
        ("none 2>/dev/null; none 2>&1 | wc -l", "1\n", ""),
        ("hostname; cat /etc/hostname; pwd; cd /etc; pwd; ls", "web\nweb\n/\n/etc\nhostname\n", ""),
        ("echo one > /tmp/f; echo two >> /tmp/f; cat < /tmp/f; wc -c /tmp/f", "one\ntwo\n8 /tmp/f\n", ""),
        ("echo x > /tmp/f; cat /tmp/f > /tmp/g; rm /tmp/f; ls /tmp; cat /tmp/f", "g\n", "cat: /tmp/f: No such file or directory\n"),
        ("yes | head -n 3 | wc", "3 6\n", ""),
        ("yes no | head -c 7", "no\nno\nn", ""),
        ("seq 3 | tail -n 1; seq 2 4 | tail -c +3", "3\n3\n4\n", ""),
        ("head -c 3M /dev/zero | wc -c", "3145728\n", ""),
        ("(", "", "sh: (: not found\n"),
        ("tty", "not a tty\n", ""),
        ("stty size", "", "stty: standard input: Inappropriate ioctl for device\n"),
        ("mkdir -p /tmp/a/b; test -d /tmp/a/b && echo yes; rm /tmp/a; rm -rf /tmp/a /tmp/a; test -e /tmp/a || echo no", "yes\nno\n",
         "rm: can't remove '/tmp/a': Is a directory\n"),
        ("tail -x", "", "tail: unrecognized option: x\n"),
        ("head -c many", "", "head: invalid number 'many'\n"),
    ],
)  # fmt: skip
async def test_output_is_that_of_a_shell(text: str, out: str, err: str) -> None:
    assert (await sh(text))[1:] == (out, err)


async def test_standard_input_goes_through() -> None:
    data = bytes(range(256)) * 1000
    assert await run("cat", stdin=data) == (0, data, b"")
    assert (await run("sha256sum", stdin=data))[1] == f"{hashlib.sha256(data).hexdigest()}  -\n".encode()
    assert (await sh("cat | cat | wc -c", stdin=data))[1] == "256000\n"
    assert await run("cat") == (0, b"", b"")


async def test_lines_of_standard_input_are_commands_which_share_the_rest() -> None:
    assert await run("sh", stdin=b"echo one\ncat\nthis is data\n") == (0, b"one\nthis is data\n", b"")
    assert await run("sh", stdin=b"echo one\nexit 4\necho never\n") == (4, b"one\n", b"")
    assert await run("sh", stdin=b"echo no newline") == (0, b"no newline\n", b"")


async def test_archives_pass_as_kubectl_sends_them() -> None:
    source, target = machine(Files({"/tmp/dir/a": b"A" * 70000, "/tmp/dir/b": b""})), machine()
    code, archive, _ = await run("tar", "cf", "-", "/tmp/dir", box=source)
    assert code == 0 and len(archive) % 512 == 0
    _, rest, _ = await run("sh", "-c", "tar cf - /tmp/dir | tail -c+1025", box=source)
    assert rest == archive[1024:]
    assert (await run("tar", "-xmf", "-", "-C", "/tmp", stdin=archive, box=target))[0] == 0
    assert target.files.read("/tmp/tmp/dir/a") == b"A" * 70000
    assert (await run("tar", "tf", "-", stdin=archive))[1] == b"tmp/dir\ntmp/dir/a\ntmp/dir/b\n"
    assert await run("tar", "cf", "-", "/none", box=source) == (1, b"", b"tar: No such file or directory\n")
    assert (await run("tar", "xf", "-", stdin=b"rubbish" * 100))[0] == 1
    assert (await run("tar", "xf", "/tmp/a.tar"))[2] == b"tar: only the archive `-` is there\n"


async def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (reading, shell):
        monkeypatch.setattr(module, "LIMIT", 100_000)
    for text in ("yes > /tmp/f", "yes | tail -c 1"):
        code, _, err = await sh(text)
        assert (code, "No space left on device" in err) == (1, True)


async def test_sleep_takes_its_time() -> None:
    box = machine()
    assert isinstance(box.clock, ManualClock)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(run("sh", "-c", "sleep 2.5; echo done", box=box))
        await box.clock.advance(2.4)
        assert not task.done()
        await box.clock.advance(0.2)
    assert task.result() == (0, b"done\n", b"")


async def test_a_client_that_takes_nothing_holds_everything_up_and_leaving_ends_it() -> None:
    io, box = MemoryIO(room=1 << 20), machine()
    assert isinstance(box.clock, ManualClock)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(run_with(io, box, ["sh", "-c", "yes | cat | cat"]))
        await box.clock.settle()
        assert 1 << 20 <= len(io.stdout) < 2 << 20 and not task.done()
        task.cancel()
    assert task.cancelled()
