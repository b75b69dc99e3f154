"""`kubeocean dashboard` as a process: how its user and the browser get the address, and how it ends."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import stat
import sys
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.integration.dashboard.clusters import ADMIN, NOW, filled
from tests.support.program import PATIENCE, eventually
from tests.support.served_model import served
from vkubelet.testing.clock import ManualClock

SCRIPT = Path(sys.executable).with_name("kubeocean")
PIPE = asyncio.subprocess.PIPE


async def test_the_browser_gets_the_address_in_a_file_that_others_cannot_read(tmp_path: Path) -> None:
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\necho "$@" > {opened}.draft\nmv {opened}.draft {opened}\n')
    browser.chmod(0o755)
    hub, _ = filled(ManualClock(NOW), pods=0)
    async with served(hub) as api:
        kubeconfig = api.write_kubeconfig(tmp_path / "kubeconfig", ADMIN)
        environment = {**os.environ, "BROWSER": f"{browser} %s"}
        command = (str(SCRIPT), "dashboard", "--kubeconfig", str(kubeconfig))
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, env=environment)
        try:
            assert process.stdout is not None and process.stderr is not None
            line = (await asyncio.wait_for(process.stdout.readline(), PATIENCE)).decode()
            (address,) = re.findall(r"http://127\.0\.0\.1:\d+/([\w-]{43})/", line)
            await eventually(opened.exists, "the browser is started")
            shown = opened.read_text().strip()
            assert address not in shown
            page = Path(urlsplit(shown).path)
            assert address in page.read_text() and stat.S_IMODE(page.stat().st_mode) == 0o600
            assert stat.S_IMODE(page.parent.stat().st_mode) == 0o700
            async with aiohttp.ClientSession() as session, session.get(line.split()[-1] + "nodes") as answer:
                assert answer.status == 200 and "vnode-frankfurt-node-01" in await answer.text()
            process.send_signal(signal.SIGINT)
            assert await asyncio.wait_for(process.wait(), PATIENCE) == 0 and await process.stderr.read() == b""
            assert not page.exists()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def test_a_browser_of_the_terminal_loads_the_page_before_it_exits(tmp_path: Path) -> None:
    """Such a browser is waited for, as lynx or w3m without a display."""
    browser, loaded = tmp_path / "browser.py", tmp_path / "loaded"
    browser.write_text(
        "import pathlib, re, sys, urllib.parse, urllib.request\n"
        "page = pathlib.Path(urllib.parse.urlsplit(sys.argv[1]).path).read_text()\n"
        "address = re.findall(r'url=([^\"]+)', page)[0]\n"
        f"pathlib.Path({str(loaded)!r}).write_bytes(urllib.request.urlopen(address, timeout=20).read())\n"
    )
    hub, _ = filled(ManualClock(NOW), pods=0)
    async with served(hub) as api:
        kubeconfig = api.write_kubeconfig(tmp_path / "kubeconfig", ADMIN)
        environment = {**os.environ, "BROWSER": f"{sys.executable} {browser} %s"}
        command = (str(SCRIPT), "dashboard", "--kubeconfig", str(kubeconfig))
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, env=environment)
        try:
            await eventually(lambda: loaded.exists() and "Overview" in loaded.read_text(), "the browser has loaded the page")
        finally:
            process.kill()
            await process.wait()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--interval", "0"), 2, "interval"),
        (("--interval", "600"), 2, "interval"),
        (("--port", "99999"), 2, "port"),
        (("--binding", "x", "--kubeconfig", "/absent"), 2, "absent"),
    ],
)
async def test_a_wrong_flag_is_refused_by_its_name(arguments: tuple[str, ...], code: int, words: str) -> None:
    process = await asyncio.create_subprocess_exec(str(SCRIPT), "dashboard", "--no-open", *arguments, stdout=PIPE, stderr=PIPE)
    out, error = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert (process.returncode, out) == (code, b"") and words in error.decode(), error.decode()
