"""What helm makes of the charts of a fleet: exactly the rights and policies that the code names; wrong values are refused by their path.

Invariant: charts are rendered by helm itself; nothing stays in the cluster but two namespaces.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs
import pytest
import yaml

from fleet.agent.agent_settings import AgentSettings, read_agent_settings
from fleet.agent.rights import agent_objects
from fleet.api.resources import CLUSTERCLAIMS, DEFINED, admission_policies, definition
from fleet.core import rights
from fleet.hub_settings import read_hub_settings
from fleet.ocm import acceptance
from tests.integration.deploy.test_charts import PLACED, dry, granted
from tests.support.charts import CHARTS, FLEET_AGENT, FLEET_HUB, IMAGE, REQUIRED, Body, ran, rendered
from vkubelet.api.codec import decode_yaml, decode_yaml_documents
from vkubelet.testing.cluster import CommandFailed, ControlPlane

_POD = {**PLACED, "priorityClassName": "important", "replicas": 3}
EVERYTHING: dict[str, Body] = {
    FLEET_HUB: {
        **_POD,
        "image": {"repository": "example.invalid/team/kubeocean", "digest": f"sha256:{'a' * 64}"},
        "imagePullSecrets": [{"name": "registry"}],
        "commonLabels": {"cost-center": "17"},
        "namespace": {"labels": {"zone": "infra"}, "annotations": {"owner": "platform"}},
        "logLevel": "DEBUG",
        "autoApproveUsers": ["trusted"],
        "profileNamespace": "inventory",
        "heartbeatThreshold": 30,
        "forceLeaveAfter": 60,
        "admissionPolicy": {"labelPrefixes": ["agent.open-cluster-management.io", "example.com/site-"]},
        "guardRails": {"administrators": ["system:masters", "oidc:jane@example.com"]},
        "networkPolicy": {"metricsFrom": [{"namespaceSelector": {}}]},
    },
    FLEET_AGENT: {
        **_POD,
        "image": {"repository": "example.invalid/team/kubeocean", "tag": "next"},
        "cluster": "laptop",
        "hub": {"server": "https://hub.example.com:6443", "ca": "PEM\n", "token": "t0k3n"},
        "modules": ["kubefleet"],
        "lostHubAfter": 120,
        "labels": {"site": "berlin"},
        "annotations": {"agent.open-cluster-management.io/a": "b"},
        "clientConfigs": [{"url": "https://laptop.example.com:6443"}],
        "clientCertExpiration": 7200,
        "managedClustersGroup": True,
        "clusterProperties": True,
        "managedNamespaces": False,
    },
}


def settings_of(helm: str, chart: str, values: Mapping[str, Any]) -> Any:
    """The settings file of the process, decoded."""
    (config,) = [body for body in rendered(helm, chart, values) if body["kind"] == "ConfigMap"]
    return decode_yaml(config["data"]["settings.yaml"])


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
@pytest.mark.parametrize("chart", [FLEET_HUB, FLEET_AGENT])
def test_lint_finds_nothing(helm: str, chart: str, values: dict[str, Body]) -> None:
    done = ran(helm, "lint", "--strict", str(CHARTS / chart), values={**REQUIRED[chart], **values.get(chart, {})})
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("modules", [(), ("inventory",), ("kubefleet",), ("inventory", "kubefleet")], ids=",".join)
def test_f_59_roles_on_the_hub_are_those_the_code_names_for_the_modules(helm: str, modules: tuple[str, ...]) -> None:
    wanted = [*rights.hub_objects(modules=modules), *acceptance.hub_objects()]
    assert granted(rendered(helm, FLEET_HUB, {"modules": ["registration", *modules]})) == granted(wanted)


def test_f_59_roles_are_in_the_namespace_of_the_values(helm: str) -> None:
    elsewhere = {"namespace": {"name": "elsewhere"}}
    wanted = [*rights.hub_objects(namespace="elsewhere"), *acceptance.hub_objects("elsewhere")]
    assert granted(rendered(helm, FLEET_HUB, elsewhere)) == granted(wanted)
    agent = agent_objects(AgentSettings(cluster="laptop", namespace="elsewhere"))
    assert granted(rendered(helm, FLEET_AGENT, elsewhere)) == granted(agent)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"clusterProperties": True, "bootstrapSecrets": ["first", "second"]},
        {"door": "kubefleet"},
        {"door": "kubefleet", "tokenSecret": "given"},
        EVERYTHING[FLEET_AGENT],
    ],
    ids=["defaults", "two hubs", "kubefleet", "kubefleet with a Secret", "everything"],
)
def test_f_59_roles_in_the_worker_are_those_the_code_names_for_the_settings(helm: str, values: Body) -> None:
    own = read_agent_settings(settings_of(helm, FLEET_AGENT, values)).agent
    assert granted(rendered(helm, FLEET_AGENT, values)) == granted(agent_objects(own))


def policies(bodies: list[Body]) -> dict[tuple[str, str], Body]:
    return {(each["kind"], each["metadata"]["name"]): each["spec"] for each in bodies if each["kind"].startswith("Validating")}


def test_f_64_admission_policies_are_those_of_the_code_and_guard_rails_a_setting(helm: str) -> None:
    wanted = [each for each in decode_yaml_documents(admission_policies()) if each]
    assert policies(rendered(helm, FLEET_HUB)) == policies(wanted) and len(policies(wanted)) == len(wanted)
    assert policies(rendered(helm, FLEET_HUB, {"admissionPolicy": {"enabled": False}})) == {}
    values = EVERYTHING[FLEET_HUB]
    text = admission_policies(values["admissionPolicy"]["labelPrefixes"])
    assert policies(rendered(helm, FLEET_HUB, values)) == policies(decode_yaml_documents(text))
    assert [*read_hub_settings(settings_of(helm, FLEET_HUB, values)).hub.administrators] == values["guardRails"]["administrators"]


def test_definitions_are_those_of_the_package_and_remain(helm: str) -> None:
    for chart, kinds in ((FLEET_HUB, [each for each in DEFINED if each != CLUSTERCLAIMS]), (FLEET_AGENT, [CLUSTERCLAIMS])):
        found = {each["metadata"]["name"]: each for each in rendered(helm, chart) if each["kind"] == "CustomResourceDefinition"}
        wanted = {body["metadata"]["name"]: body for body in (decode_yaml(definition(each)) for each in kinds)}
        assert {name: each["spec"] for name, each in found.items()} == {name: each["spec"] for name, each in wanted.items()}
        assert all(each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for each in found.values())
        assert not [each for each in rendered(helm, chart, {"crds": {"install": False}}) if each["kind"] == "CustomResourceDefinition"]


def plain(settings: Any) -> Any:
    """Settings as JSON: lists are lists, whatever they were made of."""
    return json.loads(json.dumps(attrs.asdict(settings)))


def test_the_processes_read_the_settings_that_the_values_mean(helm: str) -> None:
    hub = read_hub_settings(settings_of(helm, FLEET_HUB, EVERYTHING[FLEET_HUB]))
    own = hub.hub
    assert (own.namespace, own.profile_namespace, [*own.auto_approve_users]) == ("fleet-system", "inventory", ["trusted"])
    assert (own.heartbeat_threshold, own.force_leave_after, hub.log.level) == (30, 60, "DEBUG")
    assert plain(read_hub_settings(settings_of(helm, FLEET_HUB, {}))) == plain(read_hub_settings({}))
    agent = read_agent_settings(settings_of(helm, FLEET_AGENT, EVERYTHING[FLEET_AGENT])).agent
    assert (agent.cluster, agent.labels, agent.client_cert_expiration) == ("laptop", {"site": "berlin"}, 7200)
    assert agent.client_configs[0].url == "https://laptop.example.com:6443" and agent.managed_clusters_group
    assert plain(read_agent_settings(settings_of(helm, FLEET_AGENT, {}))) == plain(read_agent_settings({"agent": {"cluster": "laptop"}}))


def secrets(helm: str, values: Body) -> dict[str, Body]:
    return {each["metadata"]["name"]: each["stringData"] for each in rendered(helm, FLEET_AGENT, values) if each["kind"] == "Secret"}


def test_the_first_identity_is_in_the_secret_that_the_agent_reads(helm: str) -> None:
    assert secrets(helm, {}) == {}
    hub = EVERYTHING[FLEET_AGENT]["hub"]
    (text,) = [each["kubeconfig"] for each in secrets(helm, {"hub": hub, "bootstrapSecrets": ["first"]}).values()]
    kubeconfig = yaml.safe_load(text)
    assert kubeconfig["clusters"][0]["cluster"] == {"server": hub["server"], "certificate-authority-data": "UEVNCg=="}
    assert kubeconfig["users"][0]["user"] == {"token": "t0k3n"}
    member = secrets(helm, {"hub": hub, "door": "kubefleet"})
    assert member["hub-token"] == {"token": "t0k3n"} and "t0k3n" not in member["bootstrap-hub-kubeconfig"]["kubeconfig"]


WRONG = [
    (FLEET_HUB, {"modules": ["inventory"]}, "/modules"),
    (FLEET_HUB, {"modules": ["registration", "works"]}, "/modules/1"),
    (FLEET_HUB, {"forceLeaveAfter": 5}, "/forceLeaveAfter"),
    (FLEET_HUB, {"heartbeatThreshold": 0}, "/heartbeatThreshold"),
    (FLEET_HUB, {"admissionPolicy": {"labelPrefixes": ["a']"]}}, "/admissionPolicy/labelPrefixes/0"),
    (FLEET_HUB, {"guardRails": {"administrators": ["x'"]}}, "/guardRails/administrators/0"),
    (FLEET_HUB, {"replicas": 0}, "/replicas"),
    (FLEET_HUB, {"hub": {}}, "hub"),
    (FLEET_AGENT, {"cluster": "kube-system"}, "/cluster"),
    (FLEET_AGENT, {"cluster": "W1"}, "/cluster"),
    (FLEET_AGENT, {"cluster": ""}, "cluster is required"),
    (FLEET_AGENT, {"hub": {"server": "http://hub"}}, "/hub/server"),
    (FLEET_AGENT, {"door": "window"}, "/door"),
    (FLEET_AGENT, {"bootstrapSecrets": []}, "/bootstrapSecrets"),
    (FLEET_AGENT, {"clientCertExpiration": 60}, "/clientCertExpiration"),
    (FLEET_AGENT, {"annotations": {"x": "y"}}, "/annotations"),
    (FLEET_AGENT, {"clientConfigs": [{"url": "http://x"}]}, "/clientConfigs/0/url"),
    (FLEET_AGENT, {"logLevel": "info"}, "/logLevel"),
]


@pytest.mark.parametrize(("chart", "values", "named"), WRONG, ids=[f"{chart} {named}" for chart, _, named in WRONG])
def test_a_wrong_value_is_refused_by_its_path(helm: str, chart: str, values: Body, named: str) -> None:
    done = ran(helm, "template", chart, str(CHARTS / chart), values={**REQUIRED[chart], **values})
    assert done.returncode != 0 and named in done.stderr, done.stderr


@pytest.mark.parametrize("chart", [FLEET_HUB, FLEET_AGENT])
def test_without_an_image_the_charts_say_how_to_get_one(helm: str, chart: str) -> None:
    done = ran(
        helm, "template", chart, str(CHARTS / chart), values={key: each for key, each in REQUIRED[chart].items() if key not in IMAGE}
    )
    assert done.returncode != 0 and "image.repository is required, because no image is published" in done.stderr


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
async def test_an_api_server_accepts_both_charts(bare_hub: ControlPlane, helm: str, values: dict[str, Body]) -> None:
    spaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in ("fleet-system", "open-cluster-management")]
    await bare_hub.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": spaces}))
    for chart in (FLEET_HUB, FLEET_AGENT):
        bodies = rendered(helm, chart, values.get(chart, {}))
        output = await dry(bare_hub, bodies)
        assert "Warning" not in output.replace("Warning: resource namespaces", "") and len(output.splitlines()) >= len(bodies), output


async def test_the_pods_meet_restricted_pod_security(bare_hub: ControlPlane, helm: str) -> None:
    space = await bare_hub.namespace("restricted")
    await bare_hub.kubectl("label", "namespace", space, "pod-security.kubernetes.io/enforce=restricted")
    for chart in (FLEET_HUB, FLEET_AGENT):
        (made,) = [body for body in rendered(helm, chart, {"namespace": {"name": space}}) if body["kind"] == "Deployment"]
        spec = {**made["spec"]["template"]["spec"], "serviceAccountName": "default"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": chart, "namespace": space}, "spec": spec}
        await dry(bare_hub, [pod])
        with pytest.raises(CommandFailed, match="violates PodSecurity"):
            await dry(bare_hub, [{**pod, "spec": {**spec, "securityContext": {}}}])
