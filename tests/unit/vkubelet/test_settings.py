"""Settings are refused by their path, never ignored."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
from attrs import frozen

from vkubelet.api.objects import Json
from vkubelet.errors import SettingsError
from vkubelet.logformat import change_level
from vkubelet.provider import Taint
from vkubelet.settings import (
    CHECK_EVERY,
    FollowedSettings,
    LogSettings,
    Settings,
    convert,
    default_taints,
    differences,
    effective,
    merged,
    read_yaml,
)
from vkubelet.testing.clock import ManualClock


def test_nested_values_reach_their_place() -> None:
    settings = convert({"instance": "edge", "lease": {"renew_every": 5}, "leader": {"enabled": True}}, Settings)
    assert (settings.instance, settings.lease.renew_every, settings.leader.enabled) == ("edge", 5.0, True)
    assert settings.ping.every == 10.0


def test_unknown_key_is_named_by_its_path_with_the_known_ones() -> None:
    with pytest.raises(SettingsError) as caught:
        convert({"lease": {"renew": 5}}, Settings)
    assert caught.value.path == "lease.renew"
    assert "renew_every" in str(caught.value)


def test_wrong_type_is_named_by_its_path() -> None:
    with pytest.raises(SettingsError) as caught:
        convert({"leader": {"enabled": "maybe"}}, Settings)
    assert caught.value.path == "leader.enabled"
    assert "bool" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"server": {"certificate": "selfsigned"}}, "server.certificate: Invalid enum value 'selfsigned'; valid here: "),
        ({"shutdown": {"nodes": "drian"}}, "shutdown.nodes: Invalid enum value 'drian'; valid here: "),
    ],
)
def test_value_that_is_none_of_a_few_is_refused_with_those(data: Json, text: str) -> None:
    with pytest.raises(SettingsError) as raised:
        convert(data, Settings)
    assert str(raised.value).startswith(text)
    assert str(raised.value).removeprefix(text).split(", ")[1:]


def test_path_prefix_of_a_section_is_kept() -> None:
    with pytest.raises(SettingsError) as caught:
        convert({"every": "soon"}, type(Settings().ping), path="provider")
    assert caught.value.path == "provider.every"


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"lease": {"renew_every": 0}}, "lease.renew_every"),
        ({"lease": {"renew_every": 40}}, "lease.renew_every"),
        ({"ping": {"every": 0}}, "ping.every"),
        ({"ping": {"timeout": -1}}, "ping.timeout"),
        ({"pods": {"list_interval": 0}}, "pods.list_interval"),
    ],
)
def test_period_that_would_stop_or_never_rest_is_refused(data: Json, path: str) -> None:
    with pytest.raises(SettingsError) as caught:
        convert(data, Settings)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("text", "taint"),
    [
        ("a.io/b:NoSchedule", Taint("a.io/b", "NoSchedule")),
        ("a.io/b=c:NoExecute", Taint("a.io/b", "NoExecute", "c")),
        ("b=:PreferNoSchedule", Taint("b", "PreferNoSchedule")),
    ],
)
def test_taint_of_the_settings_is_read_as_kubectl_writes_it(text: str, taint: Taint) -> None:
    assert default_taints(text) == (taint,)


def test_no_taint_is_an_empty_text() -> None:
    assert default_taints("") == ()


@pytest.mark.parametrize("text", ["a.io/b", ":NoSchedule", "=c:NoSchedule", "a:Sometimes", "a:"])
def test_taint_that_can_not_be_read_is_refused_by_its_path(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        default_taints(text)
    assert caught.value.path == "node.taint"


@pytest.mark.parametrize("address", ["8081", "localhost:", "localhost:http", "127.0.0.1:70000", "127.0.0.1:\u0661"])
@pytest.mark.parametrize("name", ["health_address", "metrics_address"])
def test_address_that_can_not_be_listened_on_is_refused_when_it_is_read(name: str, address: str) -> None:
    with pytest.raises(SettingsError) as caught:
        convert({"health": {name: address}}, Settings)
    assert caught.value.path == f"health.{name}"


@pytest.mark.parametrize("address", ["", ":8081", "[::1]:0", "localhost:65535"])
def test_address_may_be_empty_or_name_any_host(address: str) -> None:
    assert convert({"health": {"health_address": address}}, Settings).health.health_address == address


def test_missing_file_and_broken_yaml_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--config"):
        read_yaml(tmp_path / "none.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1,\nb: 2")
    with pytest.raises(SettingsError, match="line 2"):
        read_yaml(broken)
    broken.write_bytes(b"a: \xff")
    with pytest.raises(SettingsError, match="not valid YAML"):
        read_yaml(broken)
    broken.write_text("- a")
    with pytest.raises(SettingsError, match="mapping"):
        read_yaml(broken)
    broken.write_text("")
    assert read_yaml(broken) == {}


def test_merging_keeps_neighbours_and_replaces_leaves() -> None:
    assert merged({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}) == {"a": {"b": 3, "c": 2}}


def test_effective_tree_converts_back_to_itself() -> None:
    settings = convert({"instance": "x"}, Settings)
    assert convert(effective(settings), Settings) == settings


def test_differences_name_each_setting_by_its_path() -> None:
    before = {"a": 1, "b": {"c": 2, "d": {"e": [1]}}, "gone": 0}
    after = {"a": 1, "b": {"c": 3, "d": {"e": [1, 2]}}, "new": 0}
    assert differences(before, after) == {"b.c", "b.d.e", "gone", "new"}
    assert differences(before, before) == set()


@frozen
class Own:
    """Settings of a provider, of which `quick` needs no restart."""

    quick: int = 0
    slow: int = 0


async def test_changed_settings_are_applied_or_reported_to_need_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    file: list[Own | None] = [Own()]
    offered: list[object] = []

    def read() -> tuple[Settings, object | None]:
        if file[0] is None:
            raise SettingsError("broken", "is no setting")
        return Settings(), file[0]

    def take(own: object | None) -> list[str]:
        offered.append(own)
        return ["quick"]

    async with asyncio.TaskGroup() as group:
        followed = FollowedSettings(*read(), read=read, take=take)
        following = group.create_task(followed.follow(clock))
        for content in (Own(), Own(1), None, None, Own(2, 1)):
            file[0] = content
            await clock.advance(CHECK_EVERY)
        following.cancel()
    assert offered == [Own(1), Own(2, 1)]
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert lines == [
        "the changed settings file is invalid, the settings stay unchanged: broken: is no setting",
        "changed settings take effect only after a restart",
    ]


@pytest.mark.parametrize("where", ["read", "take"])
async def test_an_error_of_reading_or_applying_settings_ends_nothing(where: str, caplog: pytest.LogCaptureFixture) -> None:
    clock, now, taken = ManualClock(), [0], list[object]()

    def fail(place: str) -> None:
        if place == where and now[0] in (1, 2):
            raise AttributeError("odd")

    def read() -> tuple[Settings, object | None]:
        fail("read")
        return Settings(), Own(now[0])

    def take(own: object | None) -> list[str]:
        fail("take")
        taken.append(own)
        return ["quick"]

    async with asyncio.TaskGroup() as group:
        following = group.create_task(FollowedSettings(*read(), read=read, take=take).follow(clock))
        await clock.advance(1.0)
        for now[0] in (1, 2, 3):
            await clock.advance(CHECK_EVERY)
        following.cancel()
    assert taken == [Own(3)]
    assert len([record for record in caplog.records if record.exc_info]) == 1


def test_applied_values_are_those_that_were_compared() -> None:
    levels = iter(["WARNING", "ERROR"])

    def read() -> tuple[Settings, None]:
        return Settings(log=LogSettings(level=next(levels))), None  # type: ignore[arg-type]

    followed = FollowedSettings(Settings(), read=read)
    followed.poll()
    assert logging.getLogger("vkubelet").level == logging.WARNING
    followed.poll()
    assert logging.getLogger("vkubelet").level == logging.ERROR
    change_level("INFO")


def test_a_change_between_the_start_and_the_first_poll_is_applied() -> None:
    followed = FollowedSettings(Settings(), read=lambda: (Settings(log=LogSettings(level="WARNING")), None))
    followed.poll()
    assert logging.getLogger("vkubelet").level == logging.WARNING
    change_level("INFO")


def test_an_unknown_key_in_a_list_is_refused_with_its_place() -> None:
    @frozen
    class Part:
        name: str = ""

    @frozen
    class Whole:
        parts: Sequence[Part] = ()

    assert convert({"parts": [{"name": "a"}]}, Whole).parts[0].name == "a"
    with pytest.raises(SettingsError) as error:
        convert({"parts": [{"name": "a"}, {"nam": "b"}]}, Whole, path="provider")
    assert str(error.value) == "provider.parts[1].nam: is not a setting; remove it or use one of: name"
