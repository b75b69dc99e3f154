"""Certificates from files and made here are replaced when their time has come; what is broken replaces nothing."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.control import certificates
from vkubelet.control.certificates import Name, Pair
from vkubelet.errors import SettingsError
from vkubelet.server import ServerSettings
from vkubelet.server.certificates import Certificates, ClientCa, Subject
from vkubelet.server.tls import ServingTls
from vkubelet.testing.clock import ManualClock

ADDRESSES = ["192.0.2.7"]


class Stage:
    """Certificates whose installations are recorded; the API server is never called."""

    def __init__(self, settings: ServerSettings, *, share: Callable[[], float] = lambda: 0.8) -> None:
        self.clock = ManualClock()
        self.subject = Subject(name="edge")
        self.subject.want("", ADDRESSES)
        self.tls = ServingTls()
        self.installed: list[Pair] = []
        client = Client(Connection(url="https://192.0.2.1"), clock=self.clock)
        self.certificates = Certificates(settings=settings, client=client, clock=self.clock, install=self.install, share=share)
        self.client_ca = ClientCa(settings, client, self.clock, self.tls.trust)

    def install(self, pair: Pair) -> None:
        self.tls.install(pair)
        self.installed.append(pair)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.certificates.run(self.subject))
            await self.clock.advance(0)
            yield
            task.cancel()


async def test_self_signed_certificate_is_replaced_after_its_share_of_life() -> None:
    stage = Stage(ServerSettings(certificate="self-signed"))
    begin = stage.clock.now()
    async with stage.running():
        (first,) = stage.installed
        due = (certificates.rotation_due(first.certificate, 0.8) - begin).total_seconds()
        await stage.clock.advance(due - 10)
        assert stage.installed == [first]
        await stage.clock.advance(11)
        assert len(stage.installed) == 2
        assert certificates.serves(stage.installed[1], ADDRESSES, now=begin + timedelta(days=400))


async def test_a_new_address_is_in_the_next_certificate_at_once_and_a_crowd_of_them_in_one() -> None:
    stage = Stage(ServerSettings(certificate="self-signed"))
    async with stage.running():
        for number in range(20):
            stage.subject.want(f"node-{number}", [f"192.0.2.{100 + number}", f"node-{number}.example"])
            await stage.clock.advance(0.05)
        await stage.clock.advance(5)
        assert len(stage.installed) == 2
        assert certificates.covers(stage.installed[1], ["192.0.2.7", "192.0.2.100", "192.0.2.119", "node-19.example"])
        stage.subject.want("node-3", ["192.0.2.103"])
        stage.subject.drop("node-4")
        await stage.clock.advance(3600)
        assert len(stage.installed) == 2
        stage.subject.want("node-3", ["192.0.2.103", "fd00::3"])
        await stage.clock.advance(5)
        assert len(stage.installed) == 3
        assert certificates.covers(stage.installed[2], ["fd00::3"])
        assert not certificates.covers(stage.installed[2], ["192.0.2.104"])


def test_names_no_certificate_can_bear_are_not_asked_for() -> None:
    subject = Subject(name="edge")
    subject.want("", ["192.0.2.7"])
    subject.want("a", ["under_score", "ünder", "", "-a", "a" * 64, "fine.example", "fd00::1"])
    assert subject.all == ("192.0.2.7", "fine.example", "fd00::1")


def write(directory: Path, pair: Pair) -> ServerSettings:
    certificate, key = directory / "tls.crt", directory / "tls.key"
    certificate.write_bytes(pair.certificate)
    key.write_bytes(pair.key)
    return ServerSettings(certificate="files", certificate_file=str(certificate), key_file=str(key))


async def test_files_are_read_again_and_half_a_replacement_changes_nothing(tmp_path: Path) -> None:
    first, second = (certificates.self_signed(Name("edge"), ADDRESSES, now=ManualClock().now()) for _ in range(2))
    stage = Stage(write(tmp_path, first))
    stage.certificates.prepare()
    async with stage.running():
        await stage.clock.advance(30)
        assert stage.installed == [first]
        (tmp_path / "tls.crt").write_bytes(second.certificate)
        await stage.clock.advance(15)
        assert stage.installed == [first]
        (tmp_path / "tls.key").unlink()
        await stage.clock.advance(15)
        assert stage.installed == [first]
        (tmp_path / "tls.key").write_bytes(second.key)
        await stage.clock.advance(15)
        assert stage.installed == [first, second]


async def test_files_replaced_before_the_first_check_are_installed(tmp_path: Path) -> None:
    first, second = (certificates.self_signed(Name("edge"), ADDRESSES, now=ManualClock().now()) for _ in range(2))
    stage = Stage(write(tmp_path, first))
    stage.certificates.prepare()
    write(tmp_path, second)
    async with stage.running():
        await stage.clock.advance(15)
        assert stage.installed == [first, second]


async def test_files_missing_at_the_first_check_are_followed_all_the_same(tmp_path: Path) -> None:
    first, second = (certificates.self_signed(Name("edge"), ADDRESSES, now=ManualClock().now()) for _ in range(2))
    stage = Stage(write(tmp_path, first))
    stage.certificates.prepare()
    (tmp_path / "tls.key").unlink()
    async with stage.running():
        await stage.clock.advance(15)
        write(tmp_path, second)
        await stage.clock.advance(15)
        assert stage.installed == [first, second]


def test_certificate_directory_is_created_for_its_owner_alone(tmp_path: Path) -> None:
    directory = tmp_path / "var" / "certificates"
    stage = Stage(ServerSettings(certificate_directory=str(directory)))
    stage.certificates.prepare()
    stage.certificates.prepare()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert not list(directory.iterdir())


def test_certificate_directory_that_cannot_be_one_is_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"server\.certificate_directory: cannot write to .*file"):
        Stage(ServerSettings(certificate_directory=str(tmp_path / "file"))).certificates.prepare()


def test_files_that_do_not_exist_are_named_at_the_start(tmp_path: Path) -> None:
    stage = Stage(ServerSettings(certificate="files", certificate_file=str(tmp_path / "none"), key_file=str(tmp_path / "none")))
    with pytest.raises(SettingsError, match=r"server\.certificate_file: cannot read .*none"):
        stage.certificates.prepare()


def test_client_ca_file_that_is_none_is_named_at_the_start(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.crt"
    bundle.write_text("nonsense")
    with pytest.raises(SettingsError, match=r"server\.client_ca_file"):
        Stage(ServerSettings(client_ca_file=str(bundle))).client_ca.load_file()


async def test_rotation_share_is_drawn_between_70_and_90_percent() -> None:
    certificates = Certificates(
        settings=ServerSettings(),
        client=Client(Connection(url="https://192.0.2.1")),
        clock=ManualClock(),
        install=lambda pair: None,
    )
    shares = [certificates.share() for _ in range(1000)]
    assert min(shares) >= 0.7
    assert max(shares) <= 0.9
    assert max(shares) - min(shares) > 0.1
