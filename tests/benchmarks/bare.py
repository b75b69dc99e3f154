"""The least of a client, for programs that others are compared with: requests and watches of one API server.

Invariant: nothing is repeated, checked or kept, and nothing of the code that is compared with it is used.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from vkubelet.api.codec import decode_yaml

IN_FLIGHT = 32
"""Pods that a program works on at a time."""

Body = dict[str, Any]


class Api:
    """One API server, by a kubeconfig with a token."""

    def __init__(self, kubeconfig: Path) -> None:
        config = decode_yaml(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        with tempfile.NamedTemporaryFile() as ca:
            ca.write(base64.b64decode(cluster["certificate-authority-data"]))
            ca.flush()
            context = ssl.create_default_context(cafile=ca.name)
        self._url = cluster["server"]
        self._headers = {"Authorization": f"Bearer {user['token']}", "Accept": "application/json"}
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=context))

    async def write(self, method: str, path: str, body: Body | None = None, *, kind: str = "application/json") -> Body:
        headers = {**self._headers, "Content-Type": kind}
        async with self._session.request(method, self._url + path, data=json.dumps(body) if body else None, headers=headers) as answer:
            text = await answer.read()
            assert answer.status < 300, text
            found: Body = json.loads(text)
            return found

    async def watch(self, path: str, query: str = "", *, opened: asyncio.Event | None = None) -> AsyncIterator[tuple[str, Body]]:
        """The type and object of each event; `opened` is set once no further one can be missed.

        An API server ends the watch of a client that is late, which continues where it was.
        """
        version = ""
        while True:
            url = f"{self._url}{path}?watch=true&timeoutSeconds=3600&resourceVersion={version}{query}"
            async with self._session.get(url, headers=self._headers, timeout=aiohttp.ClientTimeout()) as answer:
                if opened is not None:
                    opened.set()
                async for event in _events(answer.content):
                    assert event["type"] != "ERROR", event
                    version = event["object"]["metadata"]["resourceVersion"]
                    yield event["type"], event["object"]


@asynccontextmanager
async def beside(module: str, *arguments: str) -> AsyncIterator[int]:
    """Runs such a program, which prints a line once it is ready; its process id."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, *arguments, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None and await process.stdout.readline()
        yield process.pid
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        else:
            # Its own words are on our standard error; what the caller met is the context of this.
            raise AssertionError(f"{module} ended by itself, with exit code {process.returncode}")


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[Body]:
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield json.loads(line)
