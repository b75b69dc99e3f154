"""The project of a new provider: names, files, and what is not overwritten."""

from pathlib import Path

import pytest

from vkubelet.cli import main
from vkubelet.errors import SettingsError
from vkubelet.scaffold import Project


@pytest.mark.parametrize("name", ["", "Batch", "1st", "a_b", "a--b", "-a", "a-", "a.b", "../a", "a" * 41])
def test_name_that_is_no_label_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="^PROVIDER: .* must be at most 40 lower-case letters"):
        Project.of(name)


@pytest.mark.parametrize("name", ["class", "asyncio", "mock", "kubeocean", "vkubelet", "tests"])
def test_name_that_means_something_else_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="choose another one"):
        Project.of(name)


@pytest.mark.parametrize("containers", [False, True])
def test_every_file_is_rendered_for_the_name(containers: bool) -> None:
    files = Project.of("my-batch", containers=containers).files()
    assert {"pyproject.toml", "Dockerfile", "chart/values.yaml", ".github/workflows/test.yaml", "tests/test_conformance.py"} <= set(files)
    assert "class MyBatch:" in files["src/my_batch/provider.py"]
    for path, text in files.items():
        assert "PACKAGE" not in path and not path.endswith(".tmpl")
        if path.endswith(".py"):
            compile(text, path, "exec")
    # Two of the placeholders are meant for others: a shell, and the kubelet.
    assert {path for path, text in files.items() if "$" in text} == {"README.md", "chart/templates/deployment.yaml"}


def test_a_directory_with_content_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(SettingsError, match="nothing in it is overwritten"):
        Project.of("my-batch").write(tmp_path)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["mine"]


def test_command_writes_the_project_and_names_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for expected in (0, 2):
        with pytest.raises(SystemExit) as stopped:
            main(["init", "my-batch", "--containers"])
        assert stopped.value.code == expected
    printed = capsys.readouterr()
    written = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert written == {line for line in printed.out.splitlines() if line.startswith("my-batch/")}
    assert "list_containers" in (tmp_path / "my-batch/src/my_batch/provider.py").read_text()
    assert printed.err == "error: --directory: my-batch is not empty, and nothing in it is overwritten; name another directory\n"
