"""Command blocks of pages, run in a shell as a reader runs them.

Invariant: the text of a command comes from its page; what is replaced in it is named by the caller, and output that pages show is not run.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import yaml
from attrs import frozen

from tests.support.keyboard import at_terminal
from tests.support.program import LONG, eventually
from vkubelet.testing.cluster import ControlPlane

ROOT = Path(__file__).parents[2]
FOLDERS = ("start", "lease", "fleet", "use", "operate", "build")
_BLOCK = re.compile(r"^```(console|sh|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TYPED = re.compile(r"^\$ ((?:.*\\\n)*.*\n)", re.MULTILINE)


@frozen
class Block:
    """One block: `text` is what is typed, without the output that the page shows."""

    page: str
    number: int
    text: str

    @property
    def title(self) -> str:
        return f"{self.page} {self.number}: {self.text.splitlines()[0]}"

    def lines(self, *numbers: int) -> str:
        """Returns some of the lines, for a block that is run in parts."""
        found = self.text.splitlines(keepends=True)
        return "".join(found[number] for number in numbers)


def pages() -> Sequence[str]:
    """Returns the pages whose commands a reader runs, as `README.md` or `lease/bind.md`."""
    docs = ROOT / "docs"
    return ["README.md", *(page.relative_to(docs).as_posix() for name in FOLDERS for page in sorted((docs / name).glob("*.md")))]


def blocks(page: str) -> Sequence[Block]:
    """Returns the command blocks of a page, in their order."""
    path = ROOT / page if page == "README.md" else ROOT / "docs" / page
    found = _BLOCK.findall(path.read_text())
    typed = ("".join(_TYPED.findall(text)) if language == "console" else text for language, text in found)
    return [Block(page, number, text) for number, text in enumerate(typed)]


def block(page: str, number: int) -> Block:
    return blocks(page)[number]


@frozen
class _Running:
    process: asyncio.subprocess.Process
    path: Path

    @property
    def output(self) -> str:
        """What it has printed so far, to either output."""
        return self.path.read_text(errors="replace")


_numbers = count(1)


@frozen
class Shell:
    """A shell in a directory that looks like the checkout; `env` has the programs and the kubeconfig."""

    directory: Path
    env: Mapping[str, str]

    @classmethod
    async def of(cls, directory: Path, contexts: Mapping[str, ControlPlane], **more: str) -> Shell:
        """Makes a shell whose kubeconfig has these contexts, the first one current."""
        planes = list(contexts.values())
        binaries = await planes[0].site.binaries.ensure(["kubectl", "helm"])
        (directory / "programs").mkdir(parents=True, exist_ok=True)
        for name, path in binaries.items():
            (directory / "programs" / name).symlink_to(path)
        for name in ("deploy", "docs", "fleet", "kubeocean", "providers", "pyproject.toml"):
            (directory / name).symlink_to(ROOT / name)
        (directory / ".venv").mkdir(exist_ok=True)
        (directory / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
        config = directory / "kubeconfig"
        config.touch(mode=0o600)
        config.write_text(yaml.safe_dump(kubeconfig(contexts)))
        path = os.pathsep.join((str(directory / "programs"), str(Path(sys.executable).parent), os.environ["PATH"]))
        homes = {f"HELM_{name}_HOME": str(directory / "helm" / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        env = {**os.environ, **homes, "PATH": path, "KUBECONFIG": str(config), "PYTHONUNBUFFERED": "1", "COLUMNS": "200", **more}
        return cls(directory, env)

    async def run(
        self,
        what: Block | str,
        replaced: Mapping[str, str] = {},
        *,
        typed: str | None = None,
        codes: Collection[int] = (0,),
        within: float = 3 * LONG,
    ) -> str:
        """Runs a block to its end, at a terminal where something is `typed`; returns its output. Raises AssertionError for other codes."""
        script = self._script(what, replaced)
        if typed is not None:
            ran = await asyncio.wait_for(at_terminal(typed, "bash", "-c", f"cd {self.directory}; {script}", env=self.env), within)
            code, out = ran.code, ran.stdout.decode(errors="replace") + ran.stderr
        else:
            async with self._started(script) as running:
                code = await asyncio.wait_for(running.process.wait(), within)
            out = running.output
        print(f"$ {script}\n{out}")
        assert code in codes, f"exit code {code} of:\n{script}\n{out}"
        return out

    @asynccontextmanager
    async def running(
        self, what: Block | str, shows: str, replaced: Mapping[str, str] = {}, *, within: float = 3 * LONG
    ) -> AsyncIterator[str]:
        """Runs a block that does not end by itself: the inside of the `async with` starts once its output matches."""
        async with self._started(self._script(what, replaced)) as running:

            async def shown() -> bool:
                found = re.search(shows, running.output) is not None
                assert found or running.process.returncode is None, f"it ended without {shows!r}:\n{running.output}"
                return found

            try:
                await eventually(shown, f"the output has {shows!r}", seconds=within)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{running.output}") from None
            try:
                yield running.output
            finally:
                print(f"$ {self._script(what, replaced)}\n{running.output}")

    @asynccontextmanager
    async def _started(self, script: str) -> AsyncIterator[_Running]:
        """A script in a process group of its own, which ends with the block; what it leaves in the background does not keep it open."""
        path = self.directory / f"output-{next(_numbers)}"
        with path.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                "bash",
                "-c",
                script,
                cwd=self.directory,
                env=self.env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield _Running(process, path)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            await process.wait()

    def _script(self, what: Block | str, replaced: Mapping[str, str]) -> str:
        """Returns the commands, of which a failing one ends the script; whole words are replaced."""
        text = what.text if isinstance(what, Block) else what
        for old, new in replaced.items():
            text, count = re.subn(rf"(?<![\w-]){re.escape(old)}(?![\w-])", new, text)
            assert count, f"{old} is not in:\n{text}"
        return f"set -euo pipefail\n{text}"


def kubeconfig(contexts: Mapping[str, ControlPlane]) -> dict[str, Any]:
    """Returns a kubeconfig of the administrators of clusters, by an address that pods reach too."""
    merged: dict[str, Any] = {"apiVersion": "v1", "kind": "Config", "current-context": next(iter(contexts))}
    merged |= {"clusters": [], "users": [], "contexts": []}
    for name, plane in contexts.items():
        own = yaml.safe_load(plane.kubeconfig.read_text())
        cluster = {**own["clusters"][0]["cluster"], "server": f"https://{plane.host_address}:{plane.port}"}
        merged["clusters"].append({"name": name, "cluster": cluster})
        merged["users"].append({"name": name, "user": own["users"][0]["user"]})
        merged["contexts"].append({"name": name, "context": {"cluster": name, "user": name}})
    return merged
