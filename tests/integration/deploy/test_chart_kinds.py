"""What helm makes of a list of extra kinds: the rights and the guard that the code names, and the setting of the processes."""

from __future__ import annotations

from kubeocean.model import keys
from kubeocean.rbac import kinds, permissions, tenants
from kubeocean.settings import KubeoceanSettings, read_manager_settings
from tests.integration.deploy.test_charts import granted
from tests.support.charts import HUB, WORKER, rendered
from vkubelet.api.codec import decode_yaml
from vkubelet.settings import convert


def test_extra_kinds_are_granted_as_the_code_grants_them(helm: str) -> None:
    entries = [
        {"api_version": "cls.cloud.tencent.com/v1", "resource": "logconfigs", "namespaced": False},
        {"api_version": "extra.example.com/v1beta1", "resource": "notes", "rewrites": [{"remove": ["spec.a"]}]},
    ]
    chosen = convert({"extra_kinds": entries}, KubeoceanSettings).extra_kinds
    hub = rendered(helm, HUB, {"syncer": {"settings": {"provider": {"extra_kinds": entries}}}})
    assert granted(hub) == granted(permissions.manager_objects(kinds=chosen))
    (config,) = [body for body in hub if body["kind"] == "ConfigMap"]
    read = read_manager_settings(decode_yaml(config["data"]["settings.yaml"])).manager
    assert list(read.extra_kinds) == list(chosen), "the processes are configured by the same value"

    for mount in (keys.WORKER_NAMESPACE, "other"):
        values = {"namespace": {"name": mount}, "extraKinds": entries, "tenants": {"enabled": True}}
        made = rendered(helm, WORKER, values)
        objects = [*permissions.worker_objects(mount), *kinds.worker_objects(mount, chosen), *tenants.wide_objects(mount, kinds=chosen)]
        assert granted(made) == granted(objects)
        name = f"{permissions.cluster_role_name(mount)}-kinds"
        guards = {body["kind"]: body["spec"] for body in made if body["metadata"]["name"] == name and "Admission" in body["kind"]}
        assert guards == {body["kind"]: body["spec"] for body in kinds.worker_guards(mount, chosen)}
    unlimited = rendered(helm, WORKER, {"extraKinds": entries, "admissionPolicy": {"enabled": False}})
    assert not [body for body in unlimited if "Admission" in body["kind"]]
