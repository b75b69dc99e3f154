"""Requests of the holder of a token, and what an API server answers him."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import field, frozen
from kubernetes import client as k8s

from tests.support.program import holds
from vkubelet.testing.cluster import ControlPlane

Body = Mapping[str, Any]


@frozen
class Holder:
    """Someone who has this token, and uses it at this cluster."""

    cluster: ControlPlane
    token: str
    _api: k8s.ApiClient = field(init=False)

    @_api.default
    def _client(self) -> k8s.ApiClient:
        configuration = k8s.Configuration()
        configuration.host, configuration.ssl_ca_cert = f"https://127.0.0.1:{self.cluster.port}", str(self.cluster.ca)
        return k8s.ApiClient(configuration)

    def asks(self, method: str, path: str, body: Body | None = None) -> tuple[int, str]:
        """The status and the text of an answer."""
        # An API server takes the options of a DELETE from its body, and then ignores those of the query: it would not be a dry run.
        assert not body or method != "DELETE" or "?" not in path, path
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Accept": "application/json", "Content-Type": kind, "Authorization": f"Bearer {self.token}"}
        url, sent = f"{self._api.configuration.host}{path}", json.dumps(body) if body else None
        answer = self._api.rest_client.pool_manager.request(method, url, headers=headers, body=sent)
        return answer.status, answer.data.decode(errors="replace")

    async def is_refused(self, what: str, method: str, path: str, body: Body | None, words: str) -> None:
        """Wait until an API server, which learns of each admission policy at a time of its own, refuses the request, that is a dry run."""

        def check() -> None:
            status, text = self.asks(method, f"{path}?dryRun=All", body)
            assert status == 403 and words in text, f"{what}: {status} {text}"

        await holds(check)
