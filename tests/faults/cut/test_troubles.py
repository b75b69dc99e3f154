"""The gate brings about what it says: each trouble as a plain HTTP client sees it, in front of a real API server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import urllib3
from attrs import frozen

from tests.support.audit import Audit
from tests.support.cable import Cable
from tests.support.gate import Gate
from tests.support.troubles import Asked, Edit, Trouble, bookmarks_only, delayed, dropped, expired, is_bookmark, repeated
from tests.support.witness import api_client
from vkubelet.testing.cluster import ControlPlane

USER = "met-by-troubles"


@frozen
class Plain:
    """A client without retries, and the same one past the gate."""

    pool: urllib3.PoolManager
    url: str
    path: str
    direct: urllib3.PoolManager
    direct_url: str

    def ask(self, method: str, rest: str = "", body: Any = None, *, past: bool = False) -> tuple[int, Any]:
        pool, url = (self.direct, self.direct_url) if past else (self.pool, self.url)
        data = None if body is None else json.dumps(body)
        answer = pool.request(method, url + self.path + rest, body=data, headers={"Content-Type": "application/json"}, retries=False)
        return answer.status, json.loads(answer.data)

    def write(self, name: str, *, past: bool = False) -> str:
        """Creates or changes a ConfigMap; its resourceVersion."""
        body = {"metadata": {"name": name}, "data": {"at": str(time.monotonic_ns())}}
        status, made = self.ask("POST", body=body, past=past)
        if status == 409:
            status, made = self.ask("PUT", f"/{name}", body, past=past)
        assert status < 300, made
        return str(made["metadata"]["resourceVersion"])

    def watch(self, version: str, *, seconds: int = 1, initial: bool = False) -> list[dict[str, Any]]:
        query = f"?watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={version}"
        query += "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan" if initial else ""
        answer = self.pool.request("GET", self.url + self.path + query, retries=False, preload_content=False)
        with closing(answer):
            return [json.loads(line) for line in b"".join(answer.stream()).splitlines()]


@pytest.fixture
async def plain(gate: Gate, hub: ControlPlane) -> Plain:
    space = await hub.namespace("troubles")
    direct = hub.client_config(USER, ["system:masters"])
    through, past = api_client(gate.lead(hub, direct)), api_client(direct)
    return Plain(
        through.rest_client.pool_manager,
        through.configuration.host,
        f"/api/v1/namespaces/{space}/configmaps",
        past.rest_client.pool_manager,
        past.configuration.host,
    )


@pytest.mark.parametrize("status", [409, 410, 429, 500, 503])
def test_answer_of_the_gate_is_a_status_and_spares_the_server(gate: Gate, plain: Plain, hub: ControlPlane, status: int) -> None:
    audit = Audit(hub, USER)
    with gate.trouble(Trouble(status=status, retry_after=3).once()) as met:
        answer = plain.pool.request("POST", plain.url + plain.path, body="{}", retries=False)
        assert plain.ask("GET")[0] == 200, "once"
    body = json.loads(answer.data)
    assert (answer.status, body["code"], answer.headers["Retry-After"]) == (status, status, "3")
    assert len(met.met) == 1 and not audit.writes()


def test_lost_answer_has_taken_effect_and_an_unsent_request_has_not(gate: Gate, plain: Plain) -> None:
    for trouble, status in ((Trouble(lost=True), 200), (Trouble(unsent=True), 404)):
        name = f"made-{status}"
        with gate.trouble(trouble), pytest.raises(urllib3.exceptions.HTTPError):
            plain.write(name)
        assert plain.ask("GET", f"/{name}")[0] == status


def test_body_is_torn_in_the_middle(gate: Gate, plain: Plain) -> None:
    with gate.trouble(Trouble(torn=True)), pytest.raises(urllib3.exceptions.HTTPError):
        plain.ask("GET")
    assert plain.ask("GET")[0] == 200


def test_slow_and_late_answers_are_whole(gate: Gate, plain: Plain) -> None:
    _, body = plain.ask("GET", "/kube-root-ca.crt") if plain.ask("GET", "/kube-root-ca.crt")[0] == 200 else plain.ask("GET")
    size = len(json.dumps(body))
    for trouble in (Trouble(rate=2 * size), Trouble(late=0.5)):
        began = time.monotonic()
        with gate.trouble(trouble):
            assert plain.ask("GET")[0] == 200
        assert time.monotonic() - began > 0.3


def test_later_page_of_a_list_is_expired_and_its_first_is_not(gate: Gate, plain: Plain) -> None:
    for number in range(3):
        plain.write(f"page-{number}")
    with gate.trouble(Trouble(when=lambda asked: asked.is_page, status=410)):
        status, first = plain.ask("GET", "?limit=2")
        assert (status, len(first["items"])) == (200, 2)
        assert plain.ask("GET", f"?limit=2&continue={first['metadata']['continue']}")[0] == 410


def test_pages_hold_fewer_objects_than_asked_for(gate: Gate, plain: Plain) -> None:
    for number in range(3):
        plain.write(f"short-{number}")
    with gate.trouble(Trouble(page=1)):
        status, first = plain.ask("GET", "?limit=500")
        assert (status, len(first["items"])) == (200, 1)
        _, second = plain.ask("GET", f"?limit=500&continue={first['metadata']['continue']}")
        assert len(second["items"]) == 1 and second["items"] != first["items"]
        assert len(plain.ask("GET")[1]["items"]) >= 3, "without a limit there are no pages"


def test_reads_are_as_of_an_earlier_version_and_writes_are_not(gate: Gate, plain: Plain) -> None:
    old = plain.write("kept")
    _, before = plain.ask("GET", "/kept")
    plain.write("kept")
    plain.write("new")
    with gate.trouble(Trouble(version=old)):
        assert plain.ask("GET", "/kept") == (200, before)
        assert plain.ask("GET", "/new")[0] == 404
        _, listed = plain.ask("GET")
        assert {item["metadata"]["name"] for item in listed["items"]} == {"kept", "kube-root-ca.crt"} - _missing(listed)
        assert plain.write("kept") != old
        assert plain.ask("GET", "/kept") == (200, before)


def _missing(listed: dict[str, Any]) -> set[str]:
    """The controller that publishes the CA may not have come to this namespace."""
    return {"kube-root-ca.crt"} - {item["metadata"]["name"] for item in listed["items"]}


def _named(event: dict[str, Any]) -> str:
    return str(event["object"]["metadata"].get("name", ""))


@pytest.mark.parametrize(
    ("edit", "wanted"),
    [
        (dropped(lambda event: _named(event) == "a"), ["b", "c"]),
        (repeated(2), ["a", "a", "b", "b", "c", "c"]),
        (delayed(0.05), ["a", "b", "c"]),
        (bookmarks_only, []),
    ],
    ids=["dropped", "repeated", "delayed", "bookmarks"],
)
def test_events_of_a_watch_are_edited_and_bookmarks_pass(gate: Gate, plain: Plain, edit: Edit, wanted: list[str]) -> None:
    version = plain.write("first")
    for name in "abc":
        plain.write(name)
    with gate.trouble(Trouble(when=lambda asked: asked.is_watch, events=edit)) as active:
        events = plain.watch(version, initial=False)
        assert active.changed == ["ADDED ConfigMap"] * (1 if wanted == ["b", "c"] else 3)
        first = plain.watch("", initial=True)
    shown = [_named(event) for event in events if not is_bookmark(event)]
    assert [name for name in shown if name in "abc"] == wanted
    assert any(map(is_bookmark, first)), "the bookmark that ends the first objects passes"


def test_stream_ends_with_410_in_place_of_an_event(gate: Gate, plain: Plain) -> None:
    version = plain.write("first")
    plain.write("second")
    with gate.trouble(Trouble(when=lambda asked: asked.is_watch, events=expired)):
        assert [(event["type"], event["object"]["code"]) for event in plain.watch(version)][0] == ("ERROR", 410)


def test_a_request_is_told_by_resource_and_subresource() -> None:
    asked = Asked("hub", "PATCH", "/apis/apps/v1/namespaces/a/deployments/web/status", {})
    assert (asked.resource, asked.subresource, asked.is_write) == ("deployments", "status", True)
    assert Asked("hub", "GET", "/api/v1/namespaces/a", {}).is_read_of_one
    assert Asked("hub", "GET", "/api/v1/nodes", {"continue": "x"}).is_page
    assert not Asked("hub", "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {}).is_write


@pytest.fixture
def line(hub: ControlPlane) -> Iterator[tuple[Cable, urllib3.PoolManager, str]]:
    with Cable(hub.port) as cable:
        pool = api_client(hub.client_config(USER, ["system:masters"])).rest_client.pool_manager
        yield cable, pool, f"https://127.0.0.1:{cable.port}/api/v1/namespaces"


def test_line_breaks_in_the_middle_of_an_answer_and_is_mended(line: tuple[Cable, urllib3.PoolManager, str]) -> None:
    cable, pool, url = line
    assert pool.request("GET", url, retries=False).status == 200
    cable.cut_after(100)
    with pytest.raises(urllib3.exceptions.HTTPError):
        pool.request("GET", url, retries=False)
    with pytest.raises(urllib3.exceptions.HTTPError):
        pool.request("GET", url, retries=False)
    cable.mend()
    assert pool.request("GET", url, retries=False).status == 200


def test_deaf_line_passes_requests_and_no_answer(line: tuple[Cable, urllib3.PoolManager, str], hub: ControlPlane) -> None:
    cable, pool, url = line
    assert pool.request("GET", url, retries=False).status == 200
    cable.deafen()
    with pytest.raises(urllib3.exceptions.HTTPError):
        pool.request("POST", url, body=json.dumps({"metadata": {"name": "deaf"}}), retries=False, timeout=2.0)
    cable.mend()
    assert pool.request("GET", f"{url}/deaf", retries=False).status == 200
    pool.request("DELETE", f"{url}/deaf", retries=False)


def test_slow_line_delays_every_part(line: tuple[Cable, urllib3.PoolManager, str]) -> None:
    cable, pool, url = line
    assert pool.request("GET", url, retries=False).status == 200
    cable.slow(delay=0.2)
    began = time.monotonic()
    assert pool.request("GET", url, retries=False).status == 200
    assert time.monotonic() - began >= 0.4, "there and back"


def test_certificate_of_the_gate_is_of_the_cluster(gate: Gate, hub: ControlPlane) -> None:
    path: Path = gate.way(hub, USER)
    assert "https://127.0.0.1:" in path.read_text() and f":{hub.port}" not in path.read_text()
