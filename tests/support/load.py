"""Work for an API server over a fixed number of connections, by the `kubernetes` package.

Invariant: each connection sends its next request as soon as the one before is answered; an answer of 300 or more fails the test.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen
from kubernetes import client as k8s

from tests.support.witness import api_client

CONNECTIONS = 16


@frozen
class Request:
    """One call; `path` begins with a slash."""

    method: str
    path: str
    body: Mapping[str, Any]
    content_type: str = "application/json"


class Load:
    """In the name of the kubeconfig's user."""

    def __init__(self, kubeconfig: Path, *, connections: int = CONNECTIONS) -> None:
        configuration = api_client(kubeconfig).configuration
        configuration.connection_pool_maxsize = connections
        self._api = k8s.ApiClient(configuration)
        self._connections = connections

    async def send(self, requests: Iterable[Request]) -> Sequence[float]:
        """Send all; the monotonic seconds at which each was answered."""
        return await asyncio.to_thread(self._send, list(requests))

    async def get(self, path: str) -> Any:
        """What one GET answers, decoded."""
        answer = await asyncio.to_thread(self._request, Request("GET", path, {}))
        return json.loads(answer.data)

    def _request(self, request: Request) -> Any:
        headers = {"Accept": "application/json", "Content-Type": request.content_type}
        url = f"{self._api.configuration.host}{request.path}"
        answer = self._api.call_api(request.method, url, header_params=headers, body=request.body or None)
        answer.read()
        return answer

    def _send(self, requests: Sequence[Request]) -> Sequence[float]:
        answered = [0.0] * len(requests)
        problems: list[str] = []
        left, lock = iter(enumerate(requests)), threading.Lock()

        def work() -> None:
            while not problems:
                with lock:
                    number, request = next(left, (0, None))
                if request is None:
                    return
                answer = self._request(request)
                answered[number] = time.monotonic()
                if answer.status >= 300:
                    problems.append(f"{request.method} {request.path}: {answer.data.decode(errors='replace')}")

        threads = [threading.Thread(target=work, daemon=True) for _ in range(self._connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not problems, problems[0]
        return answered


async def remove_pods(kubeconfig: Path, namespace: str) -> None:
    """All of a namespace, without grace, by one call."""
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
    await Load(kubeconfig).send([Request("DELETE", f"/api/v1/namespaces/{namespace}/pods", options)])


def pod(name: str, namespace: str, node: str) -> Request:
    """The creation of a pod that is bound from the beginning and has little to say."""
    spec = {"nodeName": node, "terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "none"}]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}
    return Request("POST", f"/api/v1/namespaces/{namespace}/pods", body)
