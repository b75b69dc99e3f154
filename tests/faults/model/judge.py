"""Sends the same requests to the model and to a real API server, and compares answers and watches.

Invariant: what differs by nature (UIDs, times, resourceVersions, generated names) is replaced by what it stands for, and nothing else.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import aiohttp
from attrs import define, field, frozen

from tests.faults.model.refusals import Refusal
from tests.faults.model.request import Request
from tests.faults.model.server import ApiModel
from tests.faults.model.steps import Body, Ref, Step
from vkubelet.api.codec import decode_yaml

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_GENERATED: Final = re.compile(r"^(gen-|kube-api-access-)[bcdfghjklmnpqrstvwxz2456789]{5}$")


@frozen
class Answer:
    """A response: its code and decoded body."""

    code: int
    body: Body


class Server(Protocol):
    """One of the two servers."""

    async def send(self, step: Step) -> Answer: ...


@define
class Side:
    """One server, and what it has answered so far."""

    server: Server
    _seen: dict[str, list[Body]] = field(factory=dict)
    _uids: dict[str, str] = field(factory=dict)

    async def ask(self, step: Step) -> object:
        """Sends a request; returns the answer in a form that both servers must agree on."""
        body: Body | None = self._resolved(step.body) if step.body is not None else None
        if body is not None and "$last" in body:
            body = self._last(body)
        answer = await self.server.send(Step(step.method, step.path, step.params, body, step.content_type))
        if answer.body.get("kind") == "Status" and answer.code >= 400:
            return self._refusal(answer)
        if step.params.get("dryRun") or (step.body or {}).get("dryRun"):
            return answer.code, self.plain(answer.body)
        items = answer.body.get("items")
        if items is not None:
            meta = answer.body["metadata"]
            shown = sorted((self.plain(item) for item in items), key=lambda item: json.dumps(item, sort_keys=True))
            return answer.code, answer.body["kind"], bool(meta.get("continue")), meta.get("remainingItemCount"), shown
        moved = self._note(step.path, answer.body)
        return answer.code, moved, self.plain(answer.body)

    def _last(self, body: Body) -> Body:
        """Returns the last seen object with the metadata of the request laid over its own."""
        seen = self._seen.get(body["$last"])
        if not seen:
            return {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": body["$last"].rpartition("/")[2], **body["metadata"]},
                "spec": {},
            }
        last = seen[-1]
        metadata = {key: value for key, value in last["metadata"].items() if key != "managedFields"}
        return {**last, "metadata": {**metadata, **body["metadata"]}}

    def _resolved(self, value: Any) -> Any:
        if isinstance(value, Ref):
            seen = self._seen.get(value.path, [])
            return seen[-1 - value.back]["metadata"].get(value.field) if len(seen) > value.back else value.other
        if isinstance(value, dict):
            return {key: self._resolved(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._resolved(each) for each in value]
        return value

    def _refusal(self, answer: Answer) -> object:
        found = (answer.body.get("details") or {}).get("causes") or ()
        causes = sorted({(cause.get("field", ""), cause.get("reason", "")) for cause in found})
        return answer.code, answer.body.get("reason"), causes

    def _note(self, path: str, body: Body) -> str:
        """Remembers an object; returns how its resourceVersion relates to the last one."""
        metadata = body.get("metadata") or {}
        if "uid" not in metadata:
            return ""
        for end in ("/status", "/ephemeralcontainers", "/resize"):
            path = path.removesuffix(end)
        if path.rpartition("/")[2] != metadata["name"]:
            path = f"{path}/{metadata['name']}"
        seen = self._seen.setdefault(path, [])
        before = seen[-1]["metadata"] if seen else None
        self._uids.setdefault(metadata["uid"], f"{_GENERATED.sub('generated', path.rpartition('/')[2])} {len(self._uids)}")
        if before is None or before["resourceVersion"] != metadata["resourceVersion"]:
            seen.append(body)
        if before is None or before["uid"] != metadata["uid"]:
            return "new"
        step = int(metadata["resourceVersion"]) - int(before["resourceVersion"])
        return "later" if step > 0 else "same" if step == 0 else "earlier"

    def plain(self, value: Any) -> Any:
        """Replaces what differs by nature."""
        if isinstance(value, dict):
            return {key: self._plain_member(key, each) for key, each in value.items() if key != "managedFields"}
        if isinstance(value, list):
            return [self.plain(each) for each in value]
        if isinstance(value, str):
            return "TIME" if _TIME.fullmatch(value) else _GENERATED.sub(r"\1GENERATED", value)
        return value

    def _plain_member(self, key: str, value: Any) -> Any:
        if key == "resourceVersion":
            return "VERSION"
        if key == "uid" and isinstance(value, str):
            return "UID" if value not in ("u1",) else value
        return self.plain(value)


class Modelled:
    """The model as a server."""

    def __init__(self, model: ApiModel) -> None:
        self.model = model

    async def send(self, step: Step) -> Answer:
        body = json.dumps(step.body).encode() if step.body is not None else b""
        request = Request(
            method=step.method, path=step.path, user="test", params=dict(step.params), body=body, content_type=step.content_type
        )
        try:
            return Answer(200, json.loads(self.model.serve(request)))
        except Refusal as refusal:
            return Answer(refusal.code, json.loads(json.dumps(refusal.status())))


class Real:
    """An API server by its kubeconfig."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def send(self, step: Step) -> Answer:
        data = json.dumps(step.body).encode() if step.body is not None else None
        headers = {"Content-Type": step.content_type} if data is not None else {}
        async with self.session.request(step.method, self.url + step.path, params=step.params, data=data, headers=headers) as response:
            text = await response.text()
            code = response.status if response.status >= 300 else 200
            return Answer(code, json.loads(text) if text.startswith("{") else {"kind": "Status", "reason": "NotFound", "message": text})

    async def watch(self, path: str, params: Mapping[str, str], events: list[Body], opened: asyncio.Event) -> None:
        """Appends the events of a watch until cancelled."""
        query, rest = {**params, "watch": "true"}, b""
        while True:
            async with self.session.get(self.url + path, params=query, timeout=aiohttp.ClientTimeout(total=None)) as response:
                if response.status == 429:
                    # The watch cache of a new custom resource is not ready yet.
                    await asyncio.sleep(0.2)
                    continue
                opened.set()
                async for chunk in response.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    events += [json.loads(line) for line in lines if line.strip()]
                return


def tls_of(kubeconfig: Path) -> tuple[str, ssl.SSLContext]:
    """Returns the URL and the TLS context of a kubeconfig with a client certificate."""
    config = decode_yaml(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    context = ssl.create_default_context(
        cafile=cluster.get("certificate-authority"), cadata=_decoded(cluster, "certificate-authority-data")
    )
    with tempfile.TemporaryDirectory() as directory:
        files = []
        for name in ("client-certificate", "client-key"):
            file = Path(user.get(name) or Path(directory) / name)
            if name not in user:
                file.write_text(_decoded(user, f"{name}-data") or "")
            files.append(str(file))
        context.load_cert_chain(*files)
    return cluster["server"], context


def _decoded(section: Body, name: str) -> str | None:
    return base64.b64decode(section[name]).decode() if name in section else None
