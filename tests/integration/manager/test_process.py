"""The process: what it tells of itself, and what it says when it is told nonsense."""

from __future__ import annotations

from pathlib import Path

import yaml
from kubernetes import client as k8s

from tests.integration.manager.conftest import RECHECK, Computing, MakeBinding
from tests.support.bound import Body
from tests.support.program import Program, eventually, holds

SYNCER_FINALIZER = "kubeocean.io/clusterbinding-syncer"


async def test_series_of_the_manager_have_their_names_labels_and_values(computing: Computing, bind: MakeBinding) -> None:
    """Lines 32 and 188 of kubeocean-behaviour.md."""
    pending, failed, leaving = bind(), bind(secret=False), bind()
    await pending.deployed()
    await leaving.deployed()
    leaving.patch({"metadata": {"finalizers": ["kubeocean.io/clusterbinding-manager", SYNCER_FINALIZER]}})
    leaving.delete()
    await eventually(lambda: failed.phase() == "Failed", f"{failed.body()}")

    def counted() -> dict[str, float]:
        series = computing.scrape()
        return {state: series.get(f'kubeocean_clusterbindings_total{{status="{state}"}}', -1.0) for state in states}

    states = ("Deleting", "Pending", "Ready", "Failed")

    def is_true() -> None:
        """Asked of both at one moment: what a test before has left goes meanwhile."""
        there = computing.custom.list_cluster_custom_object("cloud.tencent.com", "v1beta1", "clusterbindings")["items"]
        alive = [body for body in there if "deletionTimestamp" not in body["metadata"]]
        phases = [(body.get("status") or {}).get("phase") for body in alive]
        wanted = {state: float(phases.count(state)) for state in states} | {"Deleting": float(len(there) - len(alive))}
        assert wanted["Deleting"] >= 1 and wanted["Failed"] >= 1 and wanted["Pending"] >= 1
        assert counted() == wanted

    await holds(is_true)
    # Each of its objects that is made brings another look.
    looks = f'kubeocean_manager_sync_total{{clusterbinding="{pending.name}"}}'
    await eventually(lambda: computing.scrape().get(looks, 0) >= 3, "it was looked at more than twice")
    series = computing.scrape()
    assert series[f'kubeocean_manager_sync_errors_total{{clusterbinding="{pending.name}"}}'] >= 0
    assert series["kubeocean_manager_sync_duration_seconds_count"] > 0
    pending.delete()
    await pending.gone()
    await eventually(lambda: not [name for name in computing.scrape() if f'"{pending.name}"' in name], "its series are gone")


async def test_nothing_happens_while_nothing_changes(computing: Computing, bind: MakeBinding) -> None:
    """No line at INFO, no write but the Lease; the worker is asked again all the while."""
    binding = bind()
    await binding.deployed()
    await binding.available()
    looks: list[tuple[str, str]] = []

    def settled() -> bool:
        """For longer than it takes to ask the worker again."""
        looks.append((version(binding.body()), version(binding.deployment())))
        return len(looks) > 4 and len(set(looks[-4:])) == 1

    await eventually(settled, "the binding rests", every=RECHECK / 2)
    since = len(computing.program.messages())
    mount = f"/api/v1/namespaces/{binding.spec['mountNamespace']}"
    of_mount = k8s.CoreV1Api(computing.worker_api).read_namespace(binding.spec["mountNamespace"]).metadata.resource_version

    def asked_again() -> int:
        lines = computing.program.messages()[since:]
        return sum("selfsubjectaccessreviews" in str(line.get("path")) and line.get("binding") == binding.name for line in lines)

    await eventually(lambda: asked_again() > 100, "asked twice more")
    lines = [line for line in computing.program.messages()[since:] if line.get("binding") == binding.name]
    assert not [line for line in lines if line["level"] != "DEBUG"]
    # The mount namespace is patched as a dry run, to see whether that is refused.
    assert not [line for line in lines if line.get("method") in ("PATCH", "PUT", "DELETE") and line.get("path") != mount]
    assert k8s.CoreV1Api(computing.worker_api).read_namespace(binding.spec["mountNamespace"]).metadata.resource_version == of_mount
    assert (version(binding.body()), version(binding.deployment())) == looks[-1]


def version(body: Body | None) -> str:
    return str((body or {})["metadata"]["resourceVersion"])


async def test_without_an_image_the_process_ends_with_a_sentence(computing: Computing, tmp_path: Path) -> None:
    """Line 21 of kubeocean-behaviour.md: there are no template files; what can be missing is the image."""
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump({"manager": {"replicas": 2}}))
    arguments = ("manager", "--settings", str(file), "--kubeconfig", str(computing.hub.kubeconfig))
    with Program("kubeocean", *arguments, log=tmp_path / "log") as program:
        assert program.process.wait(90) == 2
        assert program.text().startswith("error: manager.image: "), program.text()
