"""The command line behind `make up` and `make down`.

Invariant: failures are one sentence and an exit code, never a traceback.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from vkubelet.testing.cluster.__main__ import main, parser


def test_defaults_are_one_node_and_the_build_directory() -> None:
    options = parser().parse_args(["up"])
    assert (options.nodes, options.simulated, options.dir) == (1, 0, Path("build/dev"))
    assert parser().parse_args(["up", "--simulated", "3"]).simulated == 3


def test_taking_down_nothing_succeeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["down", "--dir", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out == "nothing runs\n"


def test_missing_programs_end_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    # Everything of a release is there; etcd and agnhost would have to be built.
    from vkubelet.testing.cluster import binaries

    for name in binaries.KUBERNETES:
        path = binaries.cache_directory() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o755)
    assert main(["binaries"]) == 1
    assert capsys.readouterr().err.startswith("error: missing: etcd, agnhost. Install Go")
