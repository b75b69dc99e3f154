"""How the command line finds providers and settings."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from vkubelet import settings
from vkubelet.cli import find_provider, guarded, main, make_provider, read_settings
from vkubelet.errors import SettingsError, Unavailable
from vkubelet.testing.clock import ManualClock

PROVIDER = """
from attrs import frozen

class {name}:
    async def run(self, host): ...
    async def sync_pod(self, pod): ...
    async def delete_pod(self, pod, grace): ...
    async def list_pods(self, node): return []
"""

WITH_SETTINGS = (
    PROVIDER.format(name="Mine")
    + """
    @frozen
    class Settings:
        node: str = "mine"

    def __init__(self, settings):
        self.settings = settings
"""
)


def write(tmp_path: Path, text: str) -> str:
    file = tmp_path / "mine.py"
    file.write_text(text)
    return str(file)


def test_provider_of_a_file_is_its_only_provider_class(tmp_path: Path) -> None:
    assert find_provider(write(tmp_path, PROVIDER.format(name="Mine"))).__name__ == "Mine"


def test_two_providers_in_a_file_need_a_name(tmp_path: Path) -> None:
    file = write(tmp_path, PROVIDER.format(name="One") + PROVIDER.format(name="Two"))
    with pytest.raises(SettingsError, match="name one as"):
        find_provider(file)
    assert find_provider(f"{file}:Two").__name__ == "Two"


def test_class_without_the_four_methods_is_refused_by_their_names(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="list_pods"):
        find_provider(write(tmp_path, "class Mine: ..."))


def test_provider_may_know_containers_instead_of_pods(tmp_path: Path) -> None:
    calls = ("run", "prepare_pod", "start_container", "stop_container", "remove_pod", "list_containers")
    lines = [f"    async def {call}(self, *arguments, **more): ..." for call in calls]
    assert find_provider(write(tmp_path, "\n".join(["class Mine:", *lines]))).__name__ == "Mine"


@pytest.mark.parametrize(
    ("methods", "missing"),
    [
        (("run", "prepare_pod", "start_container", "remove_pod", "list_containers"), "stop_container"),
        (("prepare_pod", "start_container", "stop_container", "remove_pod"), "run, list_containers"),
        (("run", "sync_pod", "list_pods"), "delete_pod"),
    ],
)
@pytest.mark.parametrize("name", ["", ":Mine"])
def test_provider_class_that_is_incomplete_is_refused_by_the_methods_it_lacks(
    methods: Sequence[str], missing: str, name: str, tmp_path: Path
) -> None:
    lines = [f"    async def {method}(self, *arguments, **more): ..." for method in methods]
    file = write(tmp_path, "\n".join(["class Settings: ...", "class Mine:", *lines]))
    with pytest.raises(SettingsError, match=f"Mine has no {missing}$"):
        find_provider(f"{file}{name}")


def test_unknown_provider_names_the_installed_ones() -> None:
    with pytest.raises(SettingsError, match="minimal"):
        find_provider("nonesuch")


def test_missing_file_and_missing_module_are_settings_errors() -> None:
    for name in ("./nowhere.py", "no.such.module:Class"):
        with pytest.raises(SettingsError):
            find_provider(name)


def test_provider_section_is_checked_by_the_provider_settings(tmp_path: Path) -> None:
    kind = find_provider(write(tmp_path, WITH_SETTINGS))
    chosen, own = read_settings({"instance": "edge", "provider": {"node": "n9"}}, kind)
    assert (chosen.instance, getattr(own, "node", None)) == ("edge", "n9")
    assert getattr(make_provider(kind, own), "settings", None) is own
    with pytest.raises(SettingsError) as caught:
        read_settings({"provider": {"noed": "n9"}}, kind)
    assert caught.value.path == "provider.noed"


def test_section_for_a_provider_without_settings_is_refused(tmp_path: Path) -> None:
    kind = find_provider(write(tmp_path, PROVIDER.format(name="Mine")))
    with pytest.raises(SettingsError, match="no settings"):
        read_settings({"provider": {"node": "n9"}}, kind)


@pytest.mark.parametrize(("text", "path"), [("provider: mine", "provider"), ("provider: [a]", "provider"), ("lease:", "lease")])
def test_section_that_is_no_mapping_ends_with_2(text: str, path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(text)
    with pytest.raises(SystemExit) as ended:
        main(["check", "--provider", write(tmp_path, WITH_SETTINGS), "--config", str(config)])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {path}: ")


def test_empty_provider_section_is_that_of_the_defaults(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("provider:")
    with pytest.raises(SystemExit) as ended:
        main(["check", "--provider", write(tmp_path, WITH_SETTINGS), "--config", str(config)])
    assert ended.value.code == 0


def test_provider_file_may_have_the_name_of_a_module(tmp_path: Path) -> None:
    file = tmp_path / "json.py"
    file.write_text(PROVIDER.format(name="Mine"))
    assert find_provider(str(file)).__name__ == "Mine"
    assert hasattr(sys.modules["json"], "dumps")


def test_wrong_setting_ends_with_2_and_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("lease: {renew: 1}")
    with pytest.raises(SystemExit) as ended:
        main(["check", "--provider", write(tmp_path, PROVIDER.format(name="Mine")), "--config", str(config)])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: lease.renew: ")


def test_check_prints_capabilities_and_the_effective_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["check", "--provider", write(tmp_path, WITH_SETTINGS), "--instance", "edge"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "SupportsLogs: no" in out
    assert '"instance": "edge"' in out
    assert '"node": "mine"' in out


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("node: {taint: a/b}", "node.taint"),
        ("node: {taint: 'a/b:Sometimes'}", "node.taint"),
        ("health: {health_address: '8081'}", "health.health_address"),
        ("health: {metrics_address: 'localhost:http'}", "health.metrics_address"),
    ],
)
def test_check_refuses_what_run_refuses(text: str, path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(text)
    with pytest.raises(SystemExit) as ended:
        main(["check", "--provider", write(tmp_path, PROVIDER.format(name="Mine")), "--config", str(config)])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {path}: ")


@pytest.mark.parametrize(
    "wrong",
    [
        *("provider: edge-1", "provider: [a]", "provider: {1: x}", "provider: {taints: [{key: 1}]}", "1: x", "? [1]\n: x", "- a"),
        *("ping: {every: -1}", "log: {level: LOUD}", "node: {taint: 5}", "lease: {renew_every: .nan}", "server: {bind_address: x}"),
    ],
)
async def test_a_live_edit_to_a_wrong_setting_is_reported_and_changes_nothing(
    wrong: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, clock, kind = tmp_path / "node.yaml", ManualClock(), find_provider(write(tmp_path, WITH_SETTINGS))
    file.write_text("provider: {}\n")

    def read() -> tuple[settings.Settings, object | None]:
        return read_settings(settings.read_yaml(file), kind)

    async with asyncio.TaskGroup() as group:
        following = group.create_task(settings.FollowedSettings(*read(), read=read).follow(clock))
        await clock.advance(settings.CHECK_EVERY)
        file.write_text(wrong)
        await clock.advance(2 * settings.CHECK_EVERY)
        file.write_text("provider: {node: other}")
        await clock.advance(settings.CHECK_EVERY)
        assert not following.done()
        following.cancel()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert said[0].startswith("the changed settings file is invalid, the settings stay unchanged: ")
    assert said[1] == "changed settings take effect only after a restart"


def test_an_error_of_a_cluster_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def failing() -> None:
        raise Unavailable("the worker answers: \x1b[2Jgone")

    assert guarded(failing) == 1
    assert capsys.readouterr().err == "error: the worker answers: \\x1b[2Jgone\n"
