"""The command refuses what it can not do before it starts a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from vkubelet.testing.conformance import RULES
from vkubelet.testing.conformance.__main__ import main


def test_rules_are_listed_with_their_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rules"]) == 0
    out = capsys.readouterr().out
    assert all(rule.name in out and rule.sentence in out for rule in RULES)
    assert "exec-left (SupportsExec)" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--provider: "),
        (["--provider", "nonesuch"], "--provider: "),
        (["--provider", "minimal", "--only", "nonesuch"], "--only: unknown rule 'nonesuch'"),
        (["--provider", "minimal", "--patience", "0"], "--patience: "),
        (["--provider", "minimal", "--config", "none.yaml"], "none.yaml: "),
        (["--provider", "minimal", "--pod", "none.yaml"], "none.yaml: "),
    ],
)
def test_wrong_argument_ends_with_2_and_one_sentence(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"error: {says}") and not told.out


def test_wrong_setting_of_provider_or_runtime_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, path in (("provider: {color: red}", "provider.color"), ("node: {taint: x}", "node.taint")):
        (tmp_path / "c.yaml").write_text(text)
        assert main(["--provider", "minimal", "--config", str(tmp_path / "c.yaml")]) == 2
        assert capsys.readouterr().err.startswith(f"error: {path}: ")
