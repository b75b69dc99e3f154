"""Tests of fleet.agent.join: a hub in memory that signs what it approves, and a worker in memory that stores the Secret."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fleet.agent.agent_settings import AgentSettings
from fleet.agent.identity import Bootstrap, IssuedCertificate, flaw
from fleet.agent.join import CertificateExpired, Registration
from fleet.agent.situation import Situation
from tests.support.memory_api import Body, MergingApi
from tests.unit.fleet.agent.test_identity import bootstrap
from vkubelet.api.objects import Key
from vkubelet.client.rest import Client
from vkubelet.client.transport import Call
from vkubelet.control.certificates import Pair, PairSecret, end_of, pair_of
from vkubelet.control.recorder import Recorder
from vkubelet.errors import ApiError, Unauthorized, Unreachable
from vkubelet.testing.clock import ManualClock

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
RECORD = "/apis/cluster.open-cluster-management.io/v1/managedclusters/w1"
SECRET = "/api/v1/namespaces/fleet-system/secrets/hub-kubeconfig-secret"
LIFE = 3600.0


class SigningApi(MergingApi):
    """A hub: `approve` signs the requests that are pending; with `approves` each one as it is posted."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock, self.approves, self.refuses = clock, False, list[ApiError]()
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._numbers = itertools.count(1)

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if self.refuses:
            raise self.refuses[0]
        if call.method == "GET" and call.path == CSRS:
            return json.dumps({"metadata": {}, "items": [body for path, body in self.objects.items() if path.startswith(CSRS)]}).encode()
        if call.method == "POST" and call.path == CSRS:
            body = json.loads(call.body or b"{}")
            body["metadata"]["name"] = f"{body['metadata']['generateName']}{next(self._numbers)}"
            call.body = json.dumps(body).encode()
            answer = await super().fetch(call, timeout)
            if self.approves:
                self.approve()
            return answer
        return await super().fetch(call, timeout)

    @property
    def requests(self) -> list[Body]:
        return [body for path, body in self.objects.items() if path.startswith(CSRS)]

    def decide(self, type_: str, **status: str) -> None:
        for body in self.requests:
            if not body.get("status"):
                conditions = [{"type": type_, "status": "True", "message": "by the owner"}]
                self.put(f"{CSRS}/{body['metadata']['name']}", {**body, "status": {"conditions": conditions, **status}})

    def approve(self) -> None:
        for body in [each for each in self.requests if not each.get("status")]:
            signed = base64.b64encode(self._sign(body)).decode()
            status = {"conditions": [{"type": "Approved", "status": "True"}], "certificate": signed}
            self.put(f"{CSRS}/{body['metadata']['name']}", {**body, "status": status})

    def _sign(self, body: Body) -> bytes:
        request = x509.load_pem_x509_csr(base64.b64decode(body["spec"]["request"]))
        builder = x509.CertificateBuilder().subject_name(request.subject).issuer_name(request.subject)
        builder = builder.public_key(request.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(self.clock.now()).not_valid_after(self.clock.now() + timedelta(seconds=LIFE))
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


class StoringApi(MergingApi):
    """A worker; with `loses_answer` it stores the next certificate, and the answer does not arrive."""

    loses_answer = False

    async def fetch(self, call: Call, timeout: float) -> bytes:
        answer = await super().fetch(call, timeout)
        if self.loses_answer and call.method == "PATCH" and b"tls.crt" in (call.body or b""):
            self.loses_answer = False
            raise Unreachable(call.attempt, "connection reset by peer")
        return answer


class Lab:
    """A worker that joins."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.hub, self.worker = SigningApi(self.clock), StoringApi()
        self.bootstrap: Bootstrap = bootstrap()
        self.situation = Situation(Recorder(self.worker.client(), "fleet-agent", host="h", clock=self.clock))
        self.registration = self.new()

    def new(self) -> Registration:
        """The one of another process."""
        store = PairSecret(self.worker.client(), Key("fleet-system", "hub-kubeconfig-secret"))
        return Registration(AgentSettings(cluster="w1"), store, situation=self.situation, clock=self.clock)

    @asynccontextmanager
    async def joining(self, registration: Registration | None = None) -> AsyncIterator[asyncio.Future[Pair]]:
        """It asks, by a client whose calls reach the hub in memory."""
        asked = (registration or self.registration)._until_issued(self.hub.client(), self.bootstrap, first=True)
        task = asyncio.ensure_future(asked)
        await self.clock.settle()
        yield task
        task.cancel()

    @property
    def entries(self) -> dict[str, bytes]:
        return {name: base64.b64decode(value) for name, value in self.worker.objects.get(SECRET, {}).get("data", {}).items()}


@pytest.fixture
async def lab() -> Lab:
    return Lab()


async def test_f_102_a_worker_creates_its_record_and_requests_a_certificate(lab: Lab) -> None:
    async with lab.joining() as task:
        assert lab.hub.objects[RECORD]["metadata"]["name"] == "w1" and len(lab.hub.requests) == 1
        assert "on the hub run: fleet accept w1" in lab.situation.waiting_for
        lab.hub.approve()
        await lab.clock.advance(2)
        assert task.done() and pair_of(lab.entries) == task.result()
        assert lab.entries.keys() == {"tls.crt", "tls.key", "kubeconfig", "cluster-name", "agent-name"}
        assert flaw(lab.entries, lab.bootstrap, "w1", now=lab.clock.now()) == ""


async def test_f_102_the_key_never_leaves_the_worker(lab: Lab) -> None:
    async with lab.joining():
        lab.hub.approve()
        await lab.clock.advance(2)
    sent = json.dumps([[write.path, write.body] for write in lab.hub.writes])
    assert "PRIVATE" not in sent and base64.b64encode(lab.entries["tls.key"]).decode() not in sent


async def test_f_102_a_restart_continues_with_the_request_that_is_pending(lab: Lab) -> None:
    async with lab.joining():
        before = lab.entries["agent-name"]
    async with lab.joining(lab.new()) as task:
        assert len(lab.hub.requests) == 1
        lab.hub.approve()
        await lab.clock.advance(2)
        assert task.done() and lab.entries["agent-name"] == before


async def test_f_102_a_certificate_whose_storing_was_not_answered_is_not_requested_again(lab: Lab) -> None:
    lab.hub.approves = lab.worker.loses_answer = True
    async with lab.joining() as task:
        await lab.clock.advance(60)
        assert task.done() and len(lab.hub.requests) == 1 and pair_of(lab.entries) == task.result()
        assert not lab.worker.loses_answer


async def test_f_112_a_record_that_exists_is_left_as_it_is(lab: Lab) -> None:
    lab.hub.put(RECORD, {"metadata": {"name": "w1", "uid": "of-another"}, "spec": {"hubAcceptsClient": True}})
    before = lab.hub.objects[RECORD]
    async with lab.joining():
        assert lab.hub.objects[RECORD] == before and len(lab.hub.requests) == 1


async def test_f_106_a_denied_request_is_followed_by_another_after_a_growing_delay(lab: Lab) -> None:
    async with lab.joining():
        for number, delay in enumerate((30, 60, 120, 240, 480, 900, 900), 1):
            lab.hub.decide("Denied")
            await lab.clock.advance(2)
            assert f"certificate request w1-{number} was denied: by the owner" in lab.situation.waiting_for
            await lab.clock.advance(delay * 0.9 - 2.1)
            assert len(lab.hub.requests) == number
            await lab.clock.advance(delay * 0.1 + 2.1)
            assert len(lab.hub.requests) == number + 1
    keys = [x509.load_pem_x509_csr(base64.b64decode(each["spec"]["request"])).public_key() for each in lab.hub.requests]
    assert not any(first == second for first, second in itertools.combinations(keys, 2))


async def test_f_106_no_request_is_posted_while_ten_exist(lab: Lab) -> None:
    for number in range(10):
        name = f"other-{number}"
        lab.hub.put(f"{CSRS}/{name}", {"metadata": {"name": name}, "spec": {"request": "QQ=="}, "status": {"conditions": [{"type": "x"}]}})
    async with lab.joining() as task:
        await lab.clock.advance(120)
        assert len(lab.hub.requests) == 10 and "has 10 certificate requests of cluster w1" in lab.situation.waiting_for
        lab.hub.delete(f"{CSRS}/other-0")
        await lab.clock.advance(30)
        lab.hub.approve()
        await lab.clock.advance(2)
        assert task.done()


async def test_f_101_a_refused_token_is_reported_once_and_used_again_every_thirty_seconds(lab: Lab) -> None:
    lab.hub.refuses = [Unauthorized("get managedclusters w1", "Unauthorized", status=401)]
    async with lab.joining() as task:
        assert "refuses the token" in lab.situation.waiting_for and "fleet init" in lab.situation.waiting_for
        await lab.clock.advance(60)
        assert not lab.hub.requests
        lab.hub.refuses, lab.hub.approves = [], True
        await lab.clock.advance(29)
        assert not lab.hub.requests
        await lab.clock.advance(1)
        assert task.done()


async def test_f_101_a_hub_that_is_not_reached_is_named(lab: Lab) -> None:
    lab.hub.refuses = [Unreachable("get managedclusters w1", "no connection within the time limit", silent=True)]
    async with lab.joining():
        assert lab.situation.waiting_for.startswith("cannot join the hub https://127.0.0.1:1: get managedclusters w1: no connection")
        answered = lab.registration.answered_at
        await lab.clock.advance(100)
        assert lab.registration.answered_at == answered


async def test_f_111_a_hub_whose_owner_takes_an_hour_is_not_lost(lab: Lab) -> None:
    async with lab.joining() as task:
        for _ in range(60):
            await lab.clock.advance(60)
            assert lab.clock.monotonic() - lab.registration.answered_at < 5
        assert not task.done() and len(lab.hub.requests) == 1


# --- Renewal ------------------------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def joined(lab: Lab) -> AsyncIterator[tuple[IssuedCertificate, asyncio.Future[None]]]:
    """A worker whose certificate is valid for an hour from now; the hub approves no other by itself."""
    async with lab.joining() as first:
        lab.hub.approve()
        await lab.clock.advance(2)
        issued = IssuedCertificate(first.result())
    lab.situation.proceeds("Joined", "joined", joined=True)
    hub: Client = lab.hub.client()
    task = asyncio.ensure_future(lab.registration.renew(hub, issued, lab.bootstrap))
    await lab.clock.settle()
    yield issued, task
    task.cancel()


async def test_f_110_a_certificate_is_renewed_when_a_quarter_to_a_fifth_is_left(lab: Lab) -> None:
    async with joined(lab) as (issued, _):
        lab.hub.approves = True
        first = issued.pair
        await lab.clock.advance(LIFE * 0.75 - 5)
        assert issued.pair == first and len(lab.hub.requests) == 1
        await lab.clock.advance(LIFE * 0.05 + 5)
        assert issued.pair != first and pair_of(lab.entries) == issued.pair and len(lab.hub.requests) == 2
        for _ in range(40):
            await lab.clock.advance(60)
        assert end_of(issued.pair) > lab.clock.now()


async def test_f_110_a_renewal_that_nobody_approves_ends_with_the_certificate(lab: Lab) -> None:
    async with joined(lab) as (issued, task):
        await lab.clock.advance(LIFE * 0.85)
        assert not lab.situation._warned
        await lab.clock.advance(LIFE * 0.06)
        assert "expires at 2026-01-01 01:00Z; on the hub run: fleet accept w1" in lab.situation._warned["CertificateExpires"]
        assert not task.done() and lab.situation.waiting_for == ""
        await lab.clock.advance(LIFE * 0.1)
        with pytest.raises(CertificateExpired):
            task.result()


async def test_f_110_a_late_approval_is_used(lab: Lab) -> None:
    async with joined(lab) as (issued, task):
        first = issued.pair
        await lab.clock.advance(LIFE * 0.97)
        lab.hub.approve()
        await lab.clock.advance(2)
        assert issued.pair != first and not task.done()
        await lab.clock.advance(LIFE * 0.1)
        assert not task.done() and lab.registration.rotation_problem == ""


async def test_f_110_a_denied_renewal_is_reported_and_the_old_certificate_used(lab: Lab) -> None:
    async with joined(lab) as (issued, task):
        first = issued.pair
        await lab.clock.advance(LIFE * 0.81)
        lab.hub.decide("Denied")
        await lab.clock.advance(2)
        assert "was denied: by the owner" in lab.registration.rotation_problem
        assert issued.pair == first and not task.done() and pair_of(lab.entries) == first


async def test_f_102_the_real_end_of_a_certificate_counts(lab: Lab) -> None:
    settings = AgentSettings(cluster="w1", client_cert_expiration=86_400)
    assert settings.client_cert_expiration
    async with joined(lab) as (issued, _):
        assert end_of(issued.pair) - lab.clock.now() < timedelta(seconds=LIFE)
        lab.hub.approves = True
        await lab.clock.advance(LIFE * 0.81)
        assert len(lab.hub.requests) == 2
