"""Certificates and credentials expire, are revoked and replaced on either side: the process reports it, lives on, and recovers by itself.

Single rights that are taken away: test_rights.py. A kubeconfig that is replaced while it is valid:
tests/integration/kubeocean/test_binding_changes.py.
"""

import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from attrs import frozen
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from tests.integration.kubeocean.conftest import MakeScene, Scene
from tests.integration.kubeocean.outages import SHORT, all_nodes, is_released, now, renewed_after
from tests.support.bound import SYSTEM, apply, get, roles_for
from tests.support.gate import Gate
from tests.support.program import eventually
from tests.support.stage import Stage, uid_of
from tests.support.witness import watching
from vkubelet.api.codec import decode_yaml
from vkubelet.clock import SystemClock
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.cluster import ControlPlane
from vkubelet.testing.cluster.pki import LIFETIME, Authority, KeyFiles, write_kubeconfig

SHORT_LIVED = 45.0
"""Seconds."""
TOKEN_LIVES = 20.0
REPORTED_WITHIN = 60.0
OUTLASTS_START = 150.0
"""Seconds that a client certificate lives with which a process starts."""
EXPIRED_WITHIN = TOKEN_LIVES + 70.0 + 2 * REPORTED_WITHIN
"""Seconds: the token is read within a minute, and the API server is more generous than its expiry."""
RECOVERED_WITHIN = 90.0
"""Seconds: files are read again after a minute."""
ACCOUNT = "trusted"


def authority(plane: ControlPlane, *, left: float) -> Authority:
    """The CA of a cluster, whose certificates expire in so many seconds."""
    clock = ManualClock(datetime.now(UTC) + timedelta(seconds=left) - LIFETIME)
    return Authority.load(KeyFiles(plane.ca, plane.ca.with_suffix(".key")), clock)


def serving(issuer: Authority, directory: Path, name: str) -> KeyFiles:
    return issuer.server("gate", ["127.0.0.1"]).write(directory, name)


@frozen
class Trust:
    """A scene whose process reaches one cluster by a gate, which a test gives certificates; `stays` is a pod that nothing happens to."""

    scene: Scene
    stage: Stage
    gate: Gate
    plane: ControlPlane
    directory: Path
    valid: KeyFiles

    @classmethod
    async def of(cls, scene: Scene, gate: Gate, plane: ControlPlane, directory: Path) -> "Trust":
        stage = await Stage.of(scene.bound, scene.nodes)
        await stage.create("stays")
        await stage.running("stays")
        return cls(scene, stage, gate, plane, directory, serving(authority(plane, left=3600), directory, "valid"))

    def expire(self) -> None:
        self.gate.present(self.plane, serving(authority(self.plane, left=-60), self.directory, "expired"))

    def replace_authority(self) -> bytes:
        """From now on the cluster's certificate is by another CA; that CA."""
        other = Authority.create("rotated", SystemClock())
        self.gate.present(self.plane, serving(other, self.directory, "rotated"))
        return other.pair.certificate

    def restore(self) -> None:
        self.gate.present(self.plane, self.valid)

    async def reported(self, case: str, *words: str, seconds: float = REPORTED_WITHIN) -> None:
        """A condition of the binding has these words."""

        async def check() -> str:
            body = await get(self.scene.bound.hub, "clusterbinding", self.scene.bound.name)
            messages = [f"{each['type']}={each['status']}: {each['message']}" for each in body["status"]["conditions"]]
            return next((each for each in messages if all(word in each for word in words) and "=True" not in each), "")

        print(f"{case}: {await self._wait(check, f'{case} is reported: {words}', seconds)}")

    async def logged(self, case: str, since: int, *words: str, seconds: float = REPORTED_WITHIN) -> None:
        """The log has these words since a line: where the hub is not reached, no condition can be written."""

        def check() -> str:
            lines = (json.dumps(line) for line in self.scene.program.messages()[since:])
            return next((line for line in lines if all(word in line for word in words)), "")

        print(f"{case}: {await self._wait(check, f'{case} is logged: {words}', seconds)}")

    async def recovered(self, case: str) -> None:
        """The nodes are open, and a new pod runs."""
        began, name = time.monotonic(), f"after-{case.replace(' ', '-').lower()}"
        moment = now()
        await self._wait(lambda: self._renewed(moment), f"{case}: nodes are open", RECOVERED_WITHIN)
        await self.stage.create(name)
        await self.stage.running(name)
        print(f"{case}: recovered after {time.monotonic() - began:.1f} s")

    async def _renewed(self, moment: datetime) -> bool:
        await all_nodes(self.scene, is_released, what="open", seconds=RECOVERED_WITHIN)
        await renewed_after(self.scene, moment, seconds=RECOVERED_WITHIN)
        return True

    async def _wait(self, check: Callable[[], object], what: str, seconds: float) -> object:
        try:
            return await eventually(check, what, seconds=seconds, every=0.3)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.scene.program.tail()}") from None

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """No pod is deleted or restarted on either side, no Node is deleted, and the process lives on."""
        bound, pid = self.scene.bound, self.scene.program.process.pid
        with (
            watching(bound.hub.kubeconfig, namespace=self.stage.namespace) as above,
            watching(bound.worker.kubeconfig, namespace=bound.mount) as below,
            watching(bound.hub.kubeconfig, "nodes", labels=f"kubeocean.io/cluster-binding={bound.name}") as nodes,
        ):
            yield
        assert self.scene.program.alive and self.scene.program.process.pid == pid, self.scene.program.tail()
        for record in (above, below):
            assert not record.where(lambda event: event.kind == "DELETED" or event.deleting or event.restarts > 0)
        assert not nodes.where(lambda event: event.kind == "DELETED")


async def _account(plane: ControlPlane) -> tuple[str, str]:
    """A new ServiceAccount of this name: its user, and a token."""
    await plane.kubectl("delete", "serviceaccount", ACCOUNT, "-n", SYSTEM, "--ignore-not-found")
    await apply(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    await plane.kubectl("create", "serviceaccount", ACCOUNT, "-n", SYSTEM)
    token = await plane.kubectl("create", "token", ACCOUNT, "-n", SYSTEM)
    return f"system:serviceaccount:{SYSTEM}:{ACCOUNT}", token.strip()


def _expiring(plane: ControlPlane, token: str, *, seconds: float) -> str:
    """The same token with an earlier expiry, which TokenRequest does not give: signed with the key of the cluster.

    An API server accepts a token for a minute longer (go-jose, DefaultLeeway), and caches that for ten seconds.
    """
    header, body = token.split(".")[:2]
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    claims |= {"exp": int(time.time() + seconds)}
    signed = f"{header}.{_segment(json.dumps(claims).encode())}"
    key = serialization.load_pem_private_key(plane.ca.with_name("service-account.key").read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    r, s = decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{signed}.{_segment(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _segment(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "trust"
    made.mkdir()
    return made


async def test_trust_between_process_and_worker_is_lost_and_restored(
    gate: Gate, scene: MakeScene, worker: ControlPlane, directory: Path
) -> None:
    def way(plane: ControlPlane, user: str) -> Path:
        return gate.way(plane, user) if plane is worker else plane.client_config(user)

    made = await scene(way=way, settings=SHORT)
    trust = await Trust.of(made, gate, worker, directory)
    usual = made.bound.kubeconfig_secret()["stringData"]["kubeconfig"]
    with trust.untouched():
        trust.expire()
        await trust.reported("expired certificate of the worker", "certificate")
        trust.restore()
        await trust.recovered("expired certificate of the worker")

        bundle = base64.b64encode(trust.replace_authority()).decode()
        await trust.reported("rotated CA of the worker", "certificate")
        config = decode_yaml(usual)
        config["clusters"][0]["cluster"]["certificate-authority-data"] = bundle
        await apply(made.bound.hub, made.bound.kubeconfig_secret(yaml.safe_dump(config)))
        await trust.recovered("rotated CA of the worker")
        trust.restore()
        await apply(made.bound.hub, made.bound.kubeconfig_secret(usual))
        await trust.recovered("CA rotated back")

        await _short_lived(trust)
        await trust.reported("expired client certificate", "put a valid kubeconfig into the Secret")
        await apply(made.bound.hub, made.bound.kubeconfig_secret(usual))
        await trust.recovered("expired client certificate")

        user, token = await _account(worker)
        await apply(worker, *roles_for(user, "worker-rbac.yaml", name=f"{made.bound.name}-account", namespaces=_mount(made)))
        await _use_token(trust, _expiring(worker, token, seconds=TOKEN_LIVES))
        await trust.recovered("kubeconfig with a token that expires soon")
        await trust.reported("expired token", "put a valid kubeconfig into the Secret", seconds=EXPIRED_WITHIN)
        await _use_token(trust, token)
        await trust.recovered("renewed token")
        await worker.kubectl("delete", "serviceaccount", ACCOUNT, "-n", SYSTEM)
        await trust.reported("revoked token", "put a valid kubeconfig into the Secret")
        await apply(made.bound.hub, made.bound.kubeconfig_secret(usual))
        await trust.recovered("revoked token")
        assert uid_of(await trust.stage.running("stays"))


async def _use_token(trust: Trust, token: str) -> None:
    """The Secret gets a kubeconfig with this token."""
    worker, bound = trust.plane, trust.scene.bound
    file = write_kubeconfig(trust.directory / "token", worker.name, server=worker.url, ca=worker.ca.read_bytes(), client=token)
    await apply(bound.hub, bound.kubeconfig_secret(file.read_text()))


def _mount(scene: Scene) -> dict[str, str]:
    return {"kubeocean-worker": scene.bound.mount}


async def _short_lived(trust: Trust) -> None:
    """The Secret gets a kubeconfig whose certificate expires soon, past the gate, whose own connections have another."""
    worker, bound = trust.plane, trust.scene.bound
    client = authority(worker, left=SHORT_LIVED).client(bound.user)
    file = write_kubeconfig(trust.directory / "short", worker.name, server=worker.url, ca=worker.ca.read_bytes(), client=client)
    await apply(bound.hub, bound.kubeconfig_secret(file.read_text()))
    await trust.recovered("kubeconfig with a short-lived certificate")


async def test_trust_between_process_and_hub_is_lost_and_restored(gate: Gate, scene: MakeScene, hub: ControlPlane, directory: Path) -> None:
    user, token = await _account(hub)
    bundle, secret = directory / "ca.crt", directory / "token"

    def way(plane: ControlPlane, name: str) -> Path:
        """As a ServiceAccount whose token and CA are mounted."""
        if plane is not hub:
            return plane.client_config(name)
        direct = write_kubeconfig(directory / "hub", hub.name, server=hub.url, ca=hub.ca.read_bytes(), client=token)
        path = gate.lead(hub, direct)
        config = decode_yaml(path.read_text())
        bundle.write_bytes(hub.ca.read_bytes())
        secret.write_text(token)
        config["clusters"][0]["cluster"].pop("certificate-authority-data")
        config["clusters"][0]["cluster"]["certificate-authority"] = str(bundle)
        config["users"][0]["user"] = {"tokenFile": str(secret)}
        path.write_text(yaml.safe_dump(config))
        return path

    made = await scene(start=False, way=way, settings=SHORT)
    await apply(hub, *roles_for(user, "hub-rbac.yaml", name=f"{made.bound.name}-account", namespaces={}))
    with made.program:
        await made.ready()
        trust = await Trust.of(made, gate, hub, directory)
        with trust.untouched():
            since = len(made.program.messages())
            trust.expire()
            await trust.logged("expired certificate of the hub", since, "certificate")
            trust.restore()
            await trust.recovered("expired certificate of the hub")

            since = len(made.program.messages())
            rotated = trust.replace_authority()
            await trust.logged("rotated CA of the hub", since, "certificate")
            bundle.write_bytes(rotated)
            await trust.recovered("rotated CA of the hub")

            since = len(made.program.messages())
            secret.write_text(_expiring(hub, token, seconds=TOKEN_LIVES))
            await trust.logged("expired token of the hub", since, "nauthorized", seconds=EXPIRED_WITHIN)
            secret.write_text(token)
            await trust.recovered("expired token of the hub")

            since = len(made.program.messages())
            await hub.kubectl("delete", "serviceaccount", ACCOUNT, "-n", SYSTEM)
            await trust.logged("revoked token of the hub", since, "nauthorized")
            _, renewed = await _account(hub)
            secret.write_text(renewed)
            await trust.recovered("revoked token of the hub")


async def test_expired_client_certificate_towards_the_hub_is_renewed_in_its_files(
    gate: Gate, scene: MakeScene, hub: ControlPlane, directory: Path
) -> None:
    def issue(user: str, *, left: float) -> KeyFiles:
        return authority(hub, left=left).client(user).write(directory, "client")

    def way(plane: ControlPlane, name: str) -> Path:
        """With a certificate in files; straight to the hub, as the gate's own connections have another."""
        path = plane.client_config(name)
        if plane is hub:
            files, config = issue(name, left=OUTLASTS_START), decode_yaml(path.read_text())
            config["users"][0]["user"] = {"client-certificate": str(files.certificate), "client-key": str(files.key)}
            path.write_text(yaml.safe_dump(config))
        return path

    made = await scene(way=way, settings=SHORT)
    trust = await Trust.of(made, gate, hub, directory)
    with trust.untouched():
        since = len(made.program.messages())
        await trust.logged("expired client certificate of the hub", since, "nauthorized", seconds=OUTLASTS_START + REPORTED_WITHIN)
        issue(made.bound.user, left=3600)
        await trust.recovered("expired client certificate of the hub")
