"""A resolved pod, as a provider under test gets it from RecordingHost."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from vkubelet.api.podspec import Kind, Reference
from vkubelet.errors import Unavailable
from vkubelet.provider import NodeDescription, ResolvedPod
from vkubelet.resolve.files import IN_MEMORY, make_root, write_volume
from vkubelet.resolve.references import Content
from vkubelet.testing.host import RecordingHost, make_pod

CFG = Reference(Kind.CONFIGMAP, "cfg")


def host() -> RecordingHost:
    made = RecordingHost()
    made.set_node(NodeDescription("node", {"cpu": "4"}))
    made.objects[CFG] = Content(text={"key": "value"})
    made.services = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    return made


def mounting(name: str, **mount: Any) -> dict[str, Any]:
    return {"name": "main", "image": "i", "volumeMounts": [{"name": name, "mountPath": "/m", **mount}]}


async def resolve(spec: dict[str, Any], files: Path | None = None, **more: Any) -> ResolvedPod:
    return await host().resolve(make_pod(spec=spec), files=files, **more)


async def test_command_arguments_and_directory_are_the_containers_with_variables_expanded() -> None:
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["$(KUBERNETES_SERVICE_HOST)", "$(CPU)"],
        "args": ["$(KEY)", "$$(KEY)", "$(NO)"],
        "workingDir": "/$(KEY)",
        "env": [
            {"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "cfg", "key": "key"}}},
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        ],
    }
    made = (await resolve({"containers": [container]})).containers["main"]
    assert (made.command, made.args, made.working_dir) == (("10.0.0.1", "4"), ("value", "$(KEY)", "$(NO)"), "/$(KEY)")
    assert "10.0.0.1" not in repr(made), "what may come from a Secret is not shown"


async def test_mounts_lead_to_what_was_written(tmp_path: Path) -> None:
    volumes = [{"name": "c", "configMap": {"name": "cfg"}}, {"name": "e", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/x"}}]
    mounts = [{"name": "c", "mountPath": "c"}, {"name": "e", "mountPath": "/e"}, {"name": "h", "mountPath": "/h", "readOnly": True}]
    spec = {"containers": [{"name": "main", "image": "i", "volumeMounts": mounts}], "volumes": volumes}
    made = {mount.volume: mount for mount in (await resolve(spec, tmp_path)).containers["main"].mounts}
    assert made["c"].source is not None and (made["c"].source / "key").read_text() == "value"
    assert (made["c"].path, made["c"].read_only) == ("/c", True)
    assert made["e"].source is not None and made["e"].source.stat().st_mode & 0o7777 == 0o777 and not made["e"].read_only
    assert (made["h"].source, made["h"].read_only) == (None, True)
    assert [mount.source for mount in (await resolve(spec)).containers["main"].mounts] == [None] * 3


async def test_what_belongs_in_memory_lies_below_one_directory_with_its_copies(tmp_path: Path) -> None:
    items = {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}
    volumes = [{"name": "d", "downwardAPI": items}, {"name": "c", "configMap": {"name": "cfg"}}]
    mounts = [{"name": "d", "mountPath": "/d"}, {"name": "d", "mountPath": "/s", "subPath": "name"}, {"name": "c", "mountPath": "/c"}]
    spec = {"containers": [{"name": "main", "image": "i", "volumeMounts": mounts}], "volumes": volumes}
    whole, part, config = [mount.source for mount in (await resolve(spec, tmp_path)).containers["main"].mounts]
    assert whole == tmp_path / "memory/volumes/d" and config == tmp_path / "volumes/c"
    assert part is not None and part.is_relative_to(tmp_path / "memory/subpaths/d")


async def test_a_volume_stays_where_an_earlier_version_has_written_it(tmp_path: Path) -> None:
    """Running containers have it mounted, and would get no new token."""
    items = {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}
    make_root(tmp_path / "volumes/d", IN_MEMORY)
    write_volume(tmp_path / "volumes/d", {})
    spec = {"containers": [mounting("d")], "volumes": [{"name": "d", "downwardAPI": items}]}
    (mount,) = (await resolve(spec, tmp_path)).containers["main"].mounts
    assert mount.source == tmp_path / "volumes/d" and (tmp_path / "volumes/d/name").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
async def test_all_volumes_are_of_the_group_that_the_pod_names(tmp_path: Path) -> None:
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in "ce"]
    volumes = [{"name": "c", "configMap": {"name": "cfg"}}, {"name": "e", "emptyDir": {}}]
    container = {"name": "main", "image": "i", "volumeMounts": mounts}
    made = await resolve({"containers": [container], "volumes": volumes, "securityContext": {"fsGroup": 2000}}, tmp_path)
    assert [mount.source.stat().st_gid for mount in made.containers["main"].mounts if mount.source is not None] == [2000, 2000]


async def test_sub_paths_are_expanded_and_lead_to_one_file(tmp_path: Path) -> None:
    container = {**mounting("c", subPathExpr="$(WHICH)"), "env": [{"name": "WHICH", "value": "key"}]}
    (mount,) = (
        (await resolve({"containers": [container], "volumes": [{"name": "c", "configMap": {"name": "cfg"}}]}, tmp_path))
        .containers["main"]
        .mounts
    )
    assert mount.sub_path == "key" and mount.source is not None and mount.source.read_text() == "value"


async def test_sub_path_with_a_missing_variable_is_a_config_error() -> None:
    with pytest.raises(Unavailable, match="missing value for WHICH") as caught:
        await resolve({"containers": [mounting("h", subPathExpr="$(WHICH)")], "volumes": [{"name": "h", "hostPath": {"path": "/x"}}]})
    assert caught.value.waiting == "CreateContainerConfigError"


async def test_missing_object_of_a_volume_waits_as_the_kubelet_says(tmp_path: Path) -> None:
    spec: dict[str, Any] = {"containers": [mounting("c")], "volumes": [{"name": "c", "configMap": {"name": "none"}}]}
    with pytest.raises(Unavailable) as caught:
        await resolve(spec, tmp_path)
    assert str(caught.value) == 'MountVolume.SetUp failed for volume "c" : configmap "none" not found'
    assert (caught.value.event, caught.value.waiting) == ("FailedMount", "ContainerCreating")
    with pytest.raises(Unavailable) as caught:
        await resolve({**spec, "initContainers": [{"name": "first", "image": "i"}]}, tmp_path)
    assert caught.value.waiting == "PodInitializing"


async def test_only_the_containers_that_are_asked_for_need_their_objects() -> None:
    needy = {"name": "needy", "image": "i", "envFrom": [{"secretRef": {"name": "none"}}]}
    spec = {"containers": [{"name": "main", "image": "i"}, needy]}
    assert list((await resolve(spec, containers=["main"])).containers) == ["main"]
    with pytest.raises(Unavailable, match='secret "none" not found') as caught:
        await resolve(spec)
    assert (caught.value.event, caught.value.waiting) == ("Failed", "CreateContainerConfigError")


async def test_pull_secrets_of_both_formats_are_decoded_and_others_left_out() -> None:
    made = host()
    auths = b'{"registry.example": {"auth": "aGk="}}'
    made.objects[Reference(Kind.SECRET, "new")] = Content(binary={".dockerconfigjson": b'{"auths": ' + auths + b"}"}, secret=True)
    made.objects[Reference(Kind.SECRET, "old")] = Content(binary={".dockercfg": auths}, secret=True)
    made.objects[Reference(Kind.SECRET, "bad")] = Content(binary={".dockerconfigjson": b"["}, secret=True)
    names = [{"name": name} for name in ("new", "old", "bad", "none")]
    resolved = await made.resolve(make_pod(spec={"imagePullSecrets": names}))
    assert [secret.name for secret in resolved.pull_secrets] == ["new", "old"]
    assert all(secret.config == {"auths": {"registry.example": {"auth": "aGk="}}} for secret in resolved.pull_secrets)
    assert "aGk=" not in repr(resolved)


async def test_a_name_that_the_kernel_does_not_take_fails_the_sandbox() -> None:
    with pytest.raises(Unavailable) as caught:
        await resolve({"subdomain": "s" * 60, "setHostnameAsFQDN": True})
    assert (caught.value.event, caught.value.waiting) == ("FailedCreatePodSandBox", "ContainerCreating")
