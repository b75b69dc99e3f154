"""What runs a binding follows the manager's settings, comes back when it is deleted, and takes over from Kubeocean (Go)."""

from __future__ import annotations

from typing import Any

from tests.integration.manager.conftest import SYSTEM, Binding, Computing, MakeBinding
from tests.integration.manager.test_life import identity_paths
from tests.support.program import eventually, holds

PROXIER_LABELS = {"app.kubernetes.io/name": "kubeocean-proxier"}


def image(binding: Binding) -> str:
    return str(container(binding).get("image", ""))


def container(binding: Binding) -> dict[str, Any]:
    found = binding.deployment()
    return dict(found["spec"]["template"]["spec"]["containers"][0]) if found is not None else {}


async def test_changed_settings_roll_out_and_what_others_added_stays(computing: Computing, bind: MakeBinding) -> None:
    """Line 26 of kubeocean-behaviour.md, first half."""
    binding = bind()
    made = await binding.deployed()
    computing.apps.patch_namespaced_deployment(binding.deployment_name, SYSTEM, {"metadata": {"annotations": {"mine": "kept"}}})
    with computing.with_settings(image="localhost/kubeocean:next", replicas=2, syncer_settings={"provider": {"pod_workers": 8}}):
        await eventually(lambda: image(binding) == "localhost/kubeocean:next", "the new image")
        changed = binding.deployment() or {}
        assert changed["metadata"]["uid"] == made["metadata"]["uid"] and changed["spec"]["replicas"] == 2
        assert changed["metadata"]["annotations"]["mine"] == "kept"
        budget = f"/apis/policy/v1/namespaces/{SYSTEM}/poddisruptionbudgets/{binding.deployment_name}"
        await eventually(lambda: computing.raw(budget), "a PodDisruptionBudget")
    await eventually(lambda: image(binding) != "localhost/kubeocean:next", "the old image again")
    await eventually(lambda: computing.raw(budget) is None, "no PodDisruptionBudget for one replica")
    again = binding.deployment() or {}
    assert again["spec"]["template"] == made["spec"]["template"] and again["metadata"]["annotations"]["mine"] == "kept"


async def test_what_somebody_deletes_or_changes_comes_back(computing: Computing, bind: MakeBinding) -> None:
    """Line 26 of kubeocean-behaviour.md, second half."""
    binding = bind()
    await binding.deployed()
    service = f"/api/v1/namespaces/{SYSTEM}/services/kubeocean-proxier-{binding.name}-svc"
    deployment = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/{binding.deployment_name}"
    paths = [*identity_paths(binding), service, deployment]
    await eventually(lambda: all(computing.raw(path) for path in paths), f"all of {paths}")
    before = {path: (computing.raw(path) or {})["metadata"]["uid"] for path in paths}
    for path in paths:
        computing.send("DELETE", path, {"propagationPolicy": "Background"})

    def back() -> bool:
        found = {path: ((computing.raw(path) or {}).get("metadata") or {}).get("uid") for path in paths}
        return all(found[path] not in (None, before[path]) for path in paths)

    await eventually(back, "everything is there again, under new uids")
    change = {"spec": {"template": {"spec": {"containers": [{"name": "syncer", "image": "somebody/elses:image"}]}}}}
    computing.apps.patch_namespaced_deployment(binding.deployment_name, SYSTEM, change)
    await eventually(lambda: image(binding) == computing.settings()["manager"]["image"], "our image again")


async def test_annotation_names_the_certificate_of_the_kubelet_port(computing: Computing, bind: MakeBinding) -> None:
    """Line 27 of kubeocean-behaviour.md. There is no proxier of its own: the process of the binding serves with that certificate."""
    notes = {"kubeocean.io/logs-proxy-enabled": "true", "kubeocean.io/logs-proxy-secret-name": "port-tls"}
    here, elsewhere = bind(create=False), bind(create=False)
    here.create(annotations={**notes, "kubeocean.io/logs-proxy-secret-namespace": SYSTEM})
    elsewhere.create(annotations={**notes, "kubeocean.io/logs-proxy-secret-namespace": "default"})
    await here.deployed()
    assert {"name": "certificate", "mountPath": "/etc/kubeocean-tls", "readOnly": True} in container(here)["volumeMounts"]
    settings = computing.raw(f"/api/v1/namespaces/{SYSTEM}/configmaps/{here.deployment_name}")
    assert settings is not None and "certificate_file: /etc/kubeocean-tls/tls.crt" in settings["data"]["settings.yaml"]
    await elsewhere.deployed()
    assert "certificate" not in str(container(elsewhere)["volumeMounts"])
    await eventually(lambda: "CertificateUnheeded" in computing.events(elsewhere.name), "event")
    elsewhere.patch({"metadata": {"annotations": {"kubeocean.io/logs-proxy-secret-namespace": SYSTEM}}})
    await eventually(lambda: "certificate" in str(container(elsewhere)["volumeMounts"]), "the annotation is followed")


def as_go_writes_it(binding: Binding, name: str, component: str) -> dict[str, Any]:
    """A Deployment of Kubeocean (Go), whose selector and fields differ from ours."""
    uid = (binding.body() or {})["metadata"]["uid"]
    owner = {"apiVersion": "cloud.tencent.com/v1beta1", "kind": "ClusterBinding", "name": binding.name, "uid": uid, "controller": True}
    labels = {"app.kubernetes.io/name": f"kubeocean-{component}", "app.kubernetes.io/instance": binding.name, "k8s-app": name}
    clock = {"name": "localtime", "mountPath": "/etc/localtime"}
    template = {
        "metadata": {"labels": labels},
        "spec": {
            "serviceAccountName": "kubeocean-syncer",
            "containers": [
                {"name": component, "image": "go:v0.1.1", "args": [f"--cluster-binding-name={binding.name}"], "volumeMounts": [clock]}
            ],
            "volumes": [{"name": "localtime", "hostPath": {"path": "/etc/localtime"}}],
        },
    }
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": name, "ownerReferences": [owner], "labels": labels}, "spec": spec}


async def test_installation_of_the_go_version_is_taken_over(computing: Computing, bind: MakeBinding) -> None:
    """Its Deployment gives way to ours, its proxier goes when ours serves; accounts of its chart stay."""
    core = computing.core
    core.create_namespaced_service_account(SYSTEM, {"metadata": {"name": "kubeocean-syncer"}})
    with computing.without_manager():
        binding = bind(create=False)
        binding.create(finalizers=["kubeocean.io/clusterbinding-manager"])
        proxier = f"kubeocean-proxier-{binding.name}"
        for name, component in ((binding.deployment_name, "syncer"), (proxier, "proxier")):
            computing.apps.create_namespaced_deployment(SYSTEM, as_go_writes_it(binding, name, component))
        ports = [{"name": "https", "port": 10250, "targetPort": 10250}]
        owner = as_go_writes_it(binding, proxier, "proxier")["metadata"]["ownerReferences"]
        old = {"metadata": {"name": f"{proxier}-svc", "ownerReferences": owner}, "spec": {"selector": PROXIER_LABELS, "ports": ports}}
        core.create_namespaced_service(SYSTEM, old)
        service = core.read_namespaced_service(f"{proxier}-svc", SYSTEM)
    await eventually(lambda: image(binding) == computing.settings()["manager"]["image"], f"{binding.deployment()}")
    template = (binding.deployment() or {})["spec"]["template"]["spec"]
    assert "hostPath" not in str(template) and len(template["containers"]) == 1

    def service_is_taken() -> None:
        taken = core.read_namespaced_service(f"{proxier}-svc", SYSTEM)
        assert taken.metadata.uid == service.metadata.uid and taken.spec.cluster_ip == service.spec.cluster_ip
        assert taken.spec.selector["app.kubernetes.io/name"] == "kubeocean-syncer" and len(taken.spec.ports) == 1

    await holds(service_is_taken)
    assert computing.deployment(proxier) is not None
    await binding.available()
    await eventually(lambda: computing.deployment(proxier) is None, "the old proxier is gone")
    await eventually(lambda: "ProxierRetired" in computing.events(binding.name), "an event says that the old proxier is gone")
    binding.delete()
    await binding.gone()
    assert core.read_namespaced_service_account("kubeocean-syncer", SYSTEM)
    core.delete_namespaced_service_account("kubeocean-syncer", SYSTEM)
