"""What is wrong with a command line is said by the flag that is wrong, before anything is asked of a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kubeocean.cli import main
from vkubelet.api.codec import decode_yaml_documents

CONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "hub", "cluster": {"server": "https://hub.invalid"}}],
    "users": [],
    "contexts": [{"name": "hub", "context": {"cluster": "hub"}}],
    "current-context": "hub",
}


@pytest.fixture
def kubeconfig(tmp_path: Path) -> str:
    path = tmp_path / "hub.kubeconfig"
    path.write_text(yaml.safe_dump(CONFIG))
    return str(path)


CASES: list[tuple[list[str], tuple[str, ...]]] = [
    (["bind", "x"], ("--worker-context: ", "name the kubeconfig context")),
    (["bind", "x", "--worker-context", "nowhere"], ("--worker-kubeconfig, --worker-context: ", "has no context 'nowhere'")),
    (["bind", "x", "--worker-context", "hub", "--worker-server", "10.0.0.1"], ("--worker-server: ", "https://")),
    (["bind", "x", "--worker-context", "hub", "--context", "away"], ("--kubeconfig, --context: ", "has no context 'away'")),
    (["bind", "x", "--worker-context", "hub", "--timeout", "-1"], ("--timeout: ", "0 or more")),
    (["unbind", "x", "--remove-identity"], ("--worker-context: ",)),
    (["unbind", "x", "--force-after", "-1"], ("--force-after: ", "0 or more")),
    (["status", "--context", "away"], ("--kubeconfig, --context: ", "has no context 'away'")),
]


@pytest.mark.parametrize(("flags", "words"), CASES, ids=lambda case: " ".join(case))
def test_wrong_flag_is_named_with_its_remedy(
    flags: list[str], words: tuple[str, ...], kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*flags, "--kubeconfig", kubeconfig])
    told = capsys.readouterr()
    assert ended.value.code == 2 and told.out == ""
    assert told.err.startswith("error: ") and len(told.err.splitlines()) == 1 and all(word in told.err for word in words)


def test_print_needs_no_cluster_and_shows_no_kubeconfig(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bind", "demo", "--print", "--mount-namespace", "borrowed", "--metrics"])
    assert ended.value.code == 0
    bodies = list(decode_yaml_documents(capsys.readouterr().out))
    (secret,) = (body for body in bodies if body["kind"] == "Secret" and body["metadata"]["namespace"] == "kubeocean-system")
    assert secret["stringData"]["kubeconfig"].startswith("<")
    assert bodies[-1]["spec"]["mountNamespace"] == "borrowed" and bodies[-1]["spec"]["secretRef"]["name"] == secret["metadata"]["name"]
    assert any(rule["resources"] == ["nodes/proxy"] for body in bodies for rule in body.get("rules", ()))


@pytest.mark.parametrize(("cluster", "kinds"), [("worker", {"Role", "ServiceAccount"}), ("hub", {"ClusterBinding"})])
def test_print_for_one_cluster_has_nothing_of_the_other(cluster: str, kinds: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bind", "demo", "--print", cluster])
    text = capsys.readouterr().out
    found = {body["kind"] for body in decode_yaml_documents(text)}
    assert kinds <= found and ("ClusterBinding" in found) is (cluster == "hub")
    assert cluster == "worker" or ("Secret" not in found and "create secret generic demo-kubeconfig" in text)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--cluster-id", "Big"], ("--cluster-id: ", "lower case")),
        (["--mount-namespace", "a.b"], ("--mount-namespace: ", "not a namespace name")),
    ],
)
def test_what_can_never_work_is_not_even_printed(flags: list[str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bind", "demo", "--print", *flags])
    told = capsys.readouterr()
    assert ended.value.code == 2 and told.out == "" and all(word in told.err for word in words)
