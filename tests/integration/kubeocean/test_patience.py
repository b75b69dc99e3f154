"""What must not wait, and what must not be begun, whatever the settings say of unused copies."""

from __future__ import annotations

import pytest

from tests.integration.kubeocean.conftest import MakeScene, Scene
from tests.integration.kubeocean.test_dependents import secret, volumes
from tests.support.program import eventually
from tests.support.stage import Stage, uid_of


@pytest.fixture
async def patient(scene: MakeScene) -> Scene:
    """Copies would be kept for five minutes."""
    return await scene(settings={"provider": {"unused_copy_after": 300.0}})


async def test_a_deleted_original_does_not_wait_for_its_unused_copy(patient: Scene) -> None:
    stage = await Stage.of(patient.bound, patient.nodes)
    await stage.home.create("secrets", secret(stage, "keys", one="1"))
    await stage.create("user", volumes=volumes(("secret", "keys")))
    await stage.running("user")
    await stage.home.delete("pods", "user", stage.namespace)
    await stage.absent("user")
    await stage.home.delete("secrets", "keys", stage.namespace)

    async def gone() -> bool:
        return await stage.home.get("secrets", "keys", stage.namespace) is None

    await eventually(gone, "the Secret is gone")
    assert await stage.physical("keys", "secrets") is None


async def test_pods_made_of_the_yaml_of_others_run(stage: Stage) -> None:
    await stage.create("original")
    original = await stage.running("original")
    copied = {**stage.body("copied-to")}
    copied["metadata"]["annotations"] = original["metadata"]["annotations"]
    await stage.home.create("pods", copied)
    await stage.running("copied-to")
    again = stage.body("original")
    again["metadata"]["annotations"] = original["metadata"]["annotations"]
    await stage.home.delete("pods", "original", stage.namespace)
    await stage.absent("original")
    made = await stage.home.create("pods", again)
    assert uid_of(await stage.running("original")) == uid_of(made) != uid_of(original)
