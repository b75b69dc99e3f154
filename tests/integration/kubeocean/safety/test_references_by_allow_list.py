"""Rule `references-by-allow-list`: a pod reads only copies of objects of its own namespace, and has no identity of the worker."""

from __future__ import annotations

import base64

from tests.support.audit import Audit
from tests.support.stage import Stage, physical_name, uid_of
from tests.support.witness import watching


async def test_pod_with_an_unsupported_volume_source_fails_and_never_reaches_the_worker(stage: Stage) -> None:
    audit = Audit(stage.bound.worker, stage.bound.user)
    volume = {"name": "v", "storageos": {"volumeName": "v", "secretRef": {"name": "of-another-tenant"}}}
    await stage.create("refused", volumes=[volume])
    failed = await stage.until("refused", lambda p: p["status"]["phase"] == "Failed", "Failed")
    assert failed["status"]["reason"] == "UnsupportedReference"
    assert "spec.volumes" in failed["status"]["message"] and "storageos" in failed["status"]["message"]
    await stage.event("refused", "UnsupportedReference")
    # A pod that came later runs: the first one had its turn.
    await stage.create("later")
    await stage.running("later")
    assert not [call for call in audit.calls() if call.name == stage.physical_name("refused") and call.is_write]
    assert await stage.physical("refused") is None


async def test_physical_pod_has_no_identity_of_the_worker(stage: Stage) -> None:
    await stage.create("nobody", serviceAccountName="default", automountServiceAccountToken=True)
    await stage.running("nobody")
    below = await stage.until_physical("nobody", bool, "there")
    assert below["spec"]["automountServiceAccountToken"] is False
    assert below["spec"]["enableServiceLinks"] is False
    assert below["spec"].get("serviceAccountName", "default") == "default"
    sources = [source for volume in below["spec"]["volumes"] for source in volume.get("projected", {}).get("sources", ())]
    assert not [source for source in sources if "serviceAccountToken" in source]
    names = [source["secret"]["name"] for source in sources if "secret" in source]
    assert len(names) == 1 and names[0].startswith("nobody-")
    token = await stage.there.get("secrets", names[0], stage.bound.mount)
    assert token is not None and token["type"] == "Opaque" and token["data"]


async def test_secret_of_type_service_account_token_arrives_as_opaque_and_stays(stage: Stage) -> None:
    secret = {
        "metadata": {
            "name": "legacy",
            "namespace": stage.namespace,
            "annotations": {"kubernetes.io/service-account.name": "default", "example.com/kept": "no"},
        },
        "type": "kubernetes.io/service-account-token",
    }
    bootstrap = {
        "metadata": {"name": "bootstrap-token-abcdef", "namespace": stage.namespace},
        "type": "Opaque",
        "stringData": {"token-id": "abcdef"},
    }
    await stage.home.create("secrets", secret)
    await stage.home.create("secrets", bootstrap)
    volumes = [{"name": name, "secret": {"secretName": name}} for name in ("legacy", "bootstrap-token-abcdef")]
    await stage.create("reader", volumes=volumes)
    await stage.running("reader")
    copy = await stage.until_physical("legacy", lambda s: s.get("data", {}).get("token"), "has its token", kind="secrets")
    assert copy["type"] == "Opaque"
    assert not [key for key in copy["metadata"]["annotations"] if "kubernetes.io/service-account" in key or key.startswith("example.com")]
    original = await stage.home.get("secrets", "legacy", stage.namespace)
    assert original is not None and copy["data"] == original["data"]
    # Worker controllers that would act on it had a later change to see: it reached the same copy.
    extra = {"data": {"extra": base64.b64encode(b"1").decode()}}
    await stage.home.patch("secrets", "legacy", extra, namespace=stage.namespace)
    changed = await stage.until_physical("legacy", lambda s: s["data"].get("extra"), "has the change", kind="secrets")
    assert uid_of(changed) == uid_of(copy)


async def test_references_lead_to_copies_whatever_the_worker_has_under_the_same_name(stage: Stage) -> None:
    there = {"metadata": {"name": "shared", "namespace": stage.bound.mount}, "data": {"whose": "the worker's"}}
    home = {"metadata": {"name": "shared", "namespace": stage.namespace}, "data": {"whose": "ours"}}
    await stage.there.create("configmaps", there)
    await stage.home.create("configmaps", home)
    with watching(stage.bound.worker.kubeconfig, namespace=stage.bound.mount) as seen:
        await stage.create("named", volumes=[{"name": "v", "configMap": {"name": "shared"}}])
        await stage.running("named")
    spec = next(event for event in seen.events if event.object["metadata"]["name"] == stage.physical_name("named")).object["spec"]
    named = [volume["configMap"]["name"] for volume in spec["volumes"] if "configMap" in volume]
    assert named == [physical_name(stage.namespace, "shared")]
    copy = await stage.there.get("configmaps", named[0], stage.bound.mount)
    assert copy is not None and copy["data"] == {"whose": "ours"}
    untouched = await stage.there.get("configmaps", "shared", stage.bound.mount)
    assert untouched is not None and untouched["data"] == {"whose": "the worker's"}
    await stage.there.delete("configmaps", "shared", stage.bound.mount)
