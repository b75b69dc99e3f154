"""Programs are looked for in a fixed order, and those of another version are passed over.

Invariant: the programs here are tiny scripts, so the order is seen with real files and a real PATH.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import pytest

from vkubelet.clock import SystemClock
from vkubelet.testing.cluster import binaries
from vkubelet.testing.cluster.binaries import PROGRAMS, VERSION, Binaries, Program, cache_directory, find, kubernetes_flags
from vkubelet.testing.cluster.processes import ClusterError


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": str(tmp_path / "path"), "KUBEBUILDER_ASSETS": str(tmp_path / "assets")}


def put(path: Path, answer: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{answer}'\n", encoding="ascii")
    path.chmod(0o755)
    return path


def cached(environment: Mapping[str, str], name: str) -> Path:
    return put(cache_directory(environment) / name)


def test_given_programs_come_before_all_others(environment: dict[str, str], tmp_path: Path) -> None:
    given = put(tmp_path / "assets" / "kube-apiserver")
    put(tmp_path / "path" / "kube-apiserver", f"Kubernetes {VERSION}")
    cached(environment, "kube-apiserver")
    assert find("kube-apiserver", environment) == given


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("kubelet", f"Kubernetes {VERSION}"),
        ("kubectl", f"Client Version: {VERSION}"),
        ("etcd", "etcd Version: 3.6.7"),
        ("helm", PROGRAMS["helm"].version),
    ],
)
def test_programs_of_the_right_version_on_the_path_come_before_the_cache(
    environment: dict[str, str], tmp_path: Path, name: str, answer: str
) -> None:
    on_path = put(tmp_path / "path" / name, answer)
    cached(environment, name)
    assert find(name, environment) == on_path


@pytest.mark.parametrize(
    ("name", "answer"), [("kubelet", f"Kubernetes {VERSION}0"), ("etcd", "etcd Version: 3.5.21"), ("agnhost", VERSION)]
)
def test_programs_of_another_version_on_the_path_are_passed_over(
    environment: dict[str, str], tmp_path: Path, name: str, answer: str
) -> None:
    put(tmp_path / "path" / name, answer)
    assert find(name, environment) is None
    in_cache = cached(environment, name)
    assert find(name, environment) == in_cache


def test_a_file_that_can_not_be_executed_is_no_program(environment: dict[str, str]) -> None:
    cached(environment, "etcd").chmod(0o644)
    assert find("etcd", environment) is None


def test_cache_lies_in_the_home_directory_by_default() -> None:
    assert cache_directory({"HOME": "/home/jane"}) == Path("/home/jane/.cache/vkubelet", VERSION)


async def test_what_is_found_is_neither_downloaded_nor_built(environment: dict[str, str]) -> None:
    paths = {name: cached(environment, name) for name in binaries.ALL}
    said: list[str] = []
    found = await Binaries(say=said.append, clock=SystemClock(), environment=environment).ensure(binaries.ALL)
    assert found == paths
    assert said == []


async def test_without_go_the_error_says_what_to_install(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    # etcd and agnhost are in no Kubernetes release, so nothing is downloaded on the way to the build.
    monkeypatch.setenv("PATH", environment["PATH"])
    missing = Binaries(say=lambda line: None, clock=SystemClock(), environment=environment)
    with pytest.raises(ClusterError, match="missing: etcd, agnhost.*Install Go 1.24.4"):
        await missing.ensure(["etcd", "agnhost"])


def module(program: Program) -> str:
    return resources.files("vkubelet.testing.cluster").joinpath("gomod", program.module, "go.mod").read_text("utf-8")


def test_every_program_can_be_built() -> None:
    assert set(PROGRAMS) == {*binaries.ALL, *binaries.ON_DEMAND}
    for program in PROGRAMS.values():
        lines = {line.strip().removeprefix("tool ") for line in module(program).splitlines()}
        folder = program.package.removeprefix("vkubelet/testing/cluster/")
        ours = resources.files("vkubelet.testing.cluster").joinpath("gomod", folder, "main.go").is_file()
        assert ours or program.package in lines, program.package


@pytest.mark.parametrize("name", binaries.ON_DEMAND)
def test_what_is_made_on_demand_is_of_the_version_of_its_module(environment: dict[str, str], name: str) -> None:
    program = PROGRAMS[name]
    assert f" {program.version}" in module(program)
    made = put(cache_directory(environment, program.version) / name)
    assert find(name, environment) == made


def test_programs_of_a_module_set_no_variable_twice() -> None:
    for folder in {program.module for program in PROGRAMS.values()}:
        flags = {program.flags(program.version) for program in PROGRAMS.values() if program.module == folder}
        variables = [word.partition("=")[0] for flag in flags for word in flag.split() if "=" in word]
        assert len(variables) == len(set(variables)) > 0


def test_built_programs_know_their_version() -> None:
    flags = kubernetes_flags("v1.34.4").split()
    assert "k8s.io/component-base/version.gitVersion=v1.34.4" in flags
    assert "k8s.io/component-base/version.gitMajor=1" in flags
    assert "k8s.io/component-base/version.gitMinor=34" in flags
