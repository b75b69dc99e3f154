"""Downloads programs from the official Kubernetes release, where it can be reached.

Invariant: a file is renamed into the cache only after its SHA-512 equals the published one; without a network this gives up in seconds.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp

from vkubelet.clock import Clock
from vkubelet.testing.cluster.processes import ClusterError
from vkubelet.testing.cluster.progress import told

RELEASES = "https://dl.k8s.io/release"
REACH_SECONDS = 4.0
STALL_SECONDS = 20.0
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


async def fetch(names: Sequence[str], version: str, *, cache: Path, say: Callable[[str], None], clock: Clock) -> None:
    """Fetches these programs into `cache`; those not available are left to the build, with a message."""
    architecture = ARCHITECTURES.get(platform.machine())
    if architecture is None:
        return
    base = f"{RELEASES}/{version}/bin/linux/{architecture}"
    async with aiohttp.ClientSession(trust_env=True) as session:
        for position, name in enumerate(names, start=1):
            try:
                checksum = await _checksum(session, f"{base}/{name}.sha512")
                text = f"downloading {name} ({position} of {len(names)})"
                await told(_fetch_one(session, f"{base}/{name}", checksum, cache / name), text, say=say, clock=clock)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                say(f"the release server can not be used ({type(error).__name__})")
                return


async def _checksum(session: aiohttp.ClientSession, url: str) -> str:
    timeout = aiohttp.ClientTimeout(total=REACH_SECONDS)
    async with session.get(url, timeout=timeout, raise_for_status=True) as response:
        return (await response.text()).split()[0]


async def _fetch_one(session: aiohttp.ClientSession, url: str, checksum: str, target: Path) -> None:
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    digest = hashlib.sha512()
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=REACH_SECONDS, sock_read=STALL_SECONDS)
    try:
        async with session.get(url, timeout=timeout, raise_for_status=True) as response:
            with draft.open("wb") as stream:
                async for chunk in response.content.iter_chunked(1 << 20):
                    digest.update(chunk)
                    stream.write(chunk)
        if digest.hexdigest() != checksum:
            raise ClusterError(f"{url} does not have the published SHA-512")
        draft.chmod(0o755)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
