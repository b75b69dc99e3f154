"""Core objects of a cluster as plain mappings, by the `kubernetes` package: quicker than kubectl where a test asks often.

Invariant: what the API server says is handed on as it is; only "not found" becomes None.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from kubernetes import client as k8s

from tests.support.witness import api_client
from vkubelet.testing.cluster import ControlPlane

Body = dict[str, Any]

_MERGE = "application/merge-patch+json"


class Core:
    """`kind` is always the plural, such as `pods`; a namespace of "" is for what has none."""

    def __init__(self, cluster: ControlPlane) -> None:
        self._api = api_client(cluster.kubeconfig)

    async def get(self, kind: str, name: str, namespace: str = "") -> Body | None:
        try:
            found: Body = await self._call("GET", _path(kind, namespace, name))
            return found
        except k8s.ApiException as error:
            if error.status == 404:
                return None
            raise

    async def list(self, kind: str, namespace: str = "", *, fields: str = "") -> list[Body]:
        query = f"?{urlencode({'fieldSelector': fields})}" if fields else ""
        found = await self._call("GET", _path(kind, namespace) + query)
        return list(found["items"])

    async def create(self, kind: str, body: Mapping[str, Any], *, dry_run: bool = False) -> Body:
        query = "?dryRun=All" if dry_run else ""
        made: Body = await self._call("POST", _path(kind, body["metadata"].get("namespace", "")) + query, body)
        return made

    async def document(self) -> Body:
        """The OpenAPI document of the core group."""
        found: Body = await self._call("GET", "/openapi/v3/api/v1")
        return found

    async def patch(self, kind: str, name: str, change: Mapping[str, Any], *, namespace: str = "", subresource: str = "") -> Body:
        """A merge patch."""
        path = _path(kind, namespace, name) + (f"/{subresource}" if subresource else "")
        changed: Body = await self._call("PATCH", path, change)
        return changed

    async def delete(self, kind: str, name: str, namespace: str = "", *, grace: int | None = None) -> None:
        """Does not wait for the end; what is gone already is no error."""
        try:
            await self._call("DELETE", _path(kind, namespace, name), {} if grace is None else {"gracePeriodSeconds": grace})
        except k8s.ApiException as error:
            if error.status != 404:
                raise

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return await asyncio.to_thread(self._request, method, path, body)

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        headers = {"Accept": "application/json", "Content-Type": _MERGE if method == "PATCH" else "application/json"}
        answer: Any = self._api.call_api(method, f"{self._api.configuration.host}{path}", header_params=headers, body=body)
        text = answer.read().decode(errors="replace")
        if answer.status >= 300:
            raise k8s.ApiException(status=answer.status, reason=f"{method} {path}: {text}")
        return json.loads(text)


def _path(kind: str, namespace: str, name: str = "") -> str:
    parts = ["/api/v1", *(["namespaces", namespace] if namespace else []), kind, *([name] if name else [])]
    return "/".join(parts)
