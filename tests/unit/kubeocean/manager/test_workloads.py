"""What runs one binding, as objects."""

from __future__ import annotations

from typing import Any

import pytest

from kubeocean.manager.workloads import MANAGER, desired_objects, unheeded_certificate
from kubeocean.model import keys
from kubeocean.model.crds import ClusterBinding
from kubeocean.settings import ManagerSettings
from tests.unit.kubeocean.builders import binding
from vkubelet import settings as runtime
from vkubelet.api.codec import decode_yaml
from vkubelet.api.objects import Json
from vkubelet.errors import SettingsError

DEMO = binding(uid="uid-b")


def chosen(**more: Any) -> ManagerSettings:
    return ManagerSettings(image="example/kubeocean:1", **more)


def made(kind: str, given: ClusterBinding = DEMO, **more: Any) -> Json:
    """The object of a kind, or {}."""
    return next((each.body for each in desired_objects(given, chosen(**more)) if each.body["kind"] == kind), {})


def template(given: ClusterBinding = DEMO, **more: Any) -> Json:
    found: Json = made("Deployment", given, **more)["spec"]["template"]
    return found


def container(given: ClusterBinding = DEMO, **more: Any) -> Json:
    found: Json = template(given, **more)["spec"]["containers"][0]
    return found


def file(given: ClusterBinding = DEMO, **more: Any) -> Json:
    found: Json = decode_yaml(made("ConfigMap", given, **more)["data"]["settings.yaml"])
    return found


def test_everything_is_owned_by_the_binding_and_labelled() -> None:
    wanted = desired_objects(DEMO, chosen())
    for each in wanted:
        metadata = each.body["metadata"]
        assert [(owner["name"], owner["uid"], owner["controller"]) for owner in metadata["ownerReferences"]] == [("demo", "uid-b", True)]
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == MANAGER
        assert metadata["labels"][keys.CLUSTER_BINDING] == "demo" and each.digest
    assert wanted[-1].body["kind"] == "Deployment", "what its pods need is there before it"
    assert len({(each.resource.plural, each.key) for each in wanted}) == len(wanted)
    assert "Namespace" not in [each.body["kind"] for each in wanted], "a namespace is shared"


def test_names_are_those_of_the_go_version() -> None:
    assert made("Deployment")["metadata"]["name"] == made("ServiceAccount")["metadata"]["name"] == "kubeocean-syncer-demo"
    assert made("Service")["metadata"]["name"] == "kubeocean-proxier-demo-svc"


def test_the_service_and_the_deployment_select_the_pods_of_this_binding_alone() -> None:
    labels, other = template()["metadata"]["labels"], template(binding({"clusterID": "other"}, name="other"))["metadata"]["labels"]
    for selector in (made("Service")["spec"]["selector"], made("Deployment")["spec"]["selector"]["matchLabels"]):
        assert selector.items() <= labels.items() and not selector.items() <= other.items()


def test_pods_keep_the_restricted_level() -> None:
    spec, main = template()["spec"], container()
    assert spec["securityContext"]["runAsNonRoot"] is True and spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert main["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not [each for each in spec["volumes"] if "hostPath" in each]


def test_pods_never_run_on_virtual_nodes_whatever_they_tolerate() -> None:
    spec = template(tolerations=[{"operator": "Exists"}])["spec"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    (expressions,) = [term["matchExpressions"] for term in terms]
    assert {"key": "type", "operator": "NotIn", "values": ["virtual-kubelet"]} in expressions
    assert {"key": "node.kubernetes.io/instance-type", "operator": "NotIn", "values": ["vnode"]} in expressions


VIRTUAL = [
    {"key": "type", "operator": "NotIn", "values": ["virtual-kubelet"]},
    {"key": "node.kubernetes.io/instance-type", "operator": "NotIn", "values": ["vnode"]},
]


def test_every_term_of_a_given_affinity_excludes_virtual_nodes() -> None:
    pool, preferred = {"key": "pool", "operator": "In", "values": ["infra"]}, [{"weight": 1, "preference": {"matchExpressions": []}}]
    field = {"key": "metadata.name", "operator": "In", "values": ["node-1"]}
    terms = [{"matchExpressions": [pool]}, {"matchFields": [field]}]
    nodes = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
        "preferredDuringSchedulingIgnoredDuringExecution": preferred,
    }
    found = template(affinity={"nodeAffinity": nodes})["spec"]["affinity"]
    assert found["nodeAffinity"] == {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [pool, *VIRTUAL]}, {"matchFields": [field], "matchExpressions": VIRTUAL}]
        },
        "preferredDuringSchedulingIgnoredDuringExecution": preferred,
    }
    assert found["podAntiAffinity"] == template()["spec"]["affinity"]["podAntiAffinity"]
    apart = template(affinity={"podAntiAffinity": {}, "podAffinity": {"x": []}})["spec"]["affinity"]
    assert apart["podAntiAffinity"] == {} and apart["podAffinity"] == {"x": []} and apart["nodeAffinity"] != nodes


def test_given_marks_reach_the_pods_and_do_not_replace_those_that_select_them() -> None:
    plain = template()["metadata"]
    marked = template(pod_labels={"team": "x", "k8s-app": "mine"}, pod_annotations={"scan": "no"})["metadata"]
    assert marked["labels"] == {**plain["labels"], "team": "x"}
    assert marked["annotations"] == {**plain["annotations"], "scan": "no"}
    account = made("ServiceAccount", service_account_annotations={"role": "arn"})
    assert account["metadata"]["annotations"]["role"] == "arn" and "role" not in made("ServiceAccount")["metadata"]["annotations"]


def test_a_given_security_context_replaces_the_default() -> None:
    given = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert template(pod_security_context=given)["spec"]["securityContext"] == given


def test_variables_and_volumes_come_in_addition_to_those_of_the_process() -> None:
    variable, volume = {"name": "HTTPS_PROXY", "value": "http://proxy:3128"}, {"name": "ca", "configMap": {"name": "ca"}}
    mount = {"name": "ca", "mountPath": "/etc/ssl/extra"}
    more: dict[str, Any] = {"extra_env": [variable], "extra_volumes": [volume], "extra_volume_mounts": [mount]}
    assert container(**more)["env"] == [*container()["env"], variable]
    assert container(**more)["volumeMounts"] == [*container()["volumeMounts"], mount]
    assert template(**more)["spec"]["volumes"] == [*template()["spec"]["volumes"], volume]
    with pytest.raises(SettingsError, match="manager.extra_env: POD_IP is set by the manager"):
        chosen(extra_env=[{"name": "POD_IP", "value": "10.0.0.1"}])


def test_the_process_is_told_its_binding_its_settings_and_its_address() -> None:
    main = container()
    command = " ".join(main["command"])
    assert command == "kubeocean run --binding demo --settings /etc/kubeocean/settings.yaml --node-address $(POD_IP)"
    assert {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}} in main["env"]
    own = {"server": {"node_address": "10.0.0.9"}}
    assert "--node-address" not in container(syncer_settings=own)["command"]


def test_probes_ask_the_health_port_wherever_it_is() -> None:
    assert {each["name"]: each["containerPort"] for each in container()["ports"]} == {"kubelet": 10250, "health": 8081, "metrics": 8080}
    assert container()["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}
    assert container()["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "health"}
    moved = container(syncer_settings={"health": {"health_address": "0.0.0.0:9999"}})
    assert {"name": "health", "containerPort": 9999, "protocol": "TCP"} in moved["ports"]
    assert "readinessProbe" not in container(syncer_settings={"health": {"health_address": ""}})


def test_the_settings_file_is_one_that_the_process_accepts() -> None:
    data = file(syncer_settings={"provider": {"time_zone": "Europe/Berlin"}, "server": {"port_first": 16000}})
    assert data["leader"] == {"enabled": True, "namespace": "kubeocean-system", "name": "kubeocean-syncer-demo"}
    assert data["provider"] == {"time_zone": "Europe/Berlin"}
    assert data["server"]["port_first"] == 16000 and data["server"]["approve_own_csr"] is True
    runtime.convert({name: value for name, value in data.items() if name != "provider"}, runtime.Settings)


def test_what_is_chosen_stands_in_the_pods() -> None:
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    spec = template(
        image_pull_secrets=["pull"],
        priority_class="high",
        tolerations=[{"key": "x", "operator": "Exists"}],
        node_selector={"disk": "fast"},
        topology_spread=[spread],
        resources={"limits": {"cpu": 1}},
        image_pull_policy="Always",
    )["spec"]
    assert spec["imagePullSecrets"] == [{"name": "pull"}] and spec["priorityClassName"] == "high"
    assert spec["tolerations"] == [{"key": "x", "operator": "Exists"}] and spec["nodeSelector"] == {"disk": "fast"}
    (constraint,) = spec["topologySpreadConstraints"]
    assert constraint.items() >= spread.items() and constraint["labelSelector"]["matchLabels"]["k8s-app"] == "kubeocean-syncer-demo"
    assert spec["containers"][0]["resources"] == {"limits": {"cpu": 1}} and spec["containers"][0]["imagePullPolicy"] == "Always"


OTHERS: list[Json] = [
    {"image_pull_policy": "Always"},
    {"replicas": 3},
    {"syncer_settings": {"provider": {"pod_workers": 1}}},
    {"priority_class": "x"},
    {"affinity": {"podAffinity": {}}},
    {"pod_annotations": {"a": "b"}},
]


@pytest.mark.parametrize("more", OTHERS)
def test_a_change_of_settings_changes_the_deployment_and_nothing_else_does(more: dict[str, Any]) -> None:
    before, again, after = (made("Deployment", **each) for each in ({}, {}, more))
    assert before == again and before["metadata"]["annotations"] != after["metadata"]["annotations"]


def test_a_change_of_the_log_level_starts_no_new_pods() -> None:
    loud = {"syncer_settings": {"log": {"level": "DEBUG"}}}
    assert template(**loud) == template() and file(**loud)["log"] == {"level": "DEBUG"}
    assert template(syncer_settings={"provider": {"pod_workers": 1}}) != template()


def test_a_budget_guards_more_than_one_replica_and_does_not_block_the_only_one() -> None:
    assert made("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert not made("PodDisruptionBudget", replicas=1)


def test_replicas_are_left_to_an_autoscaler() -> None:
    assert made("Deployment")["spec"]["replicas"] == 2
    assert "replicas" not in made("Deployment", autoscaled=True, replicas=1)["spec"]
    assert made("PodDisruptionBudget", autoscaled=True, replicas=1)["spec"]["maxUnavailable"] == 1


NOTES = {keys.LOGS_PROXY_ENABLED: "true", keys.LOGS_PROXY_SECRET_NAME: "tls"}


def test_a_certificate_named_by_annotation_is_mounted_and_served() -> None:
    annotated = binding(annotations=NOTES)
    assert {"name": "certificate", "secret": {"secretName": "tls"}} in template(annotated)["spec"]["volumes"]
    assert file(annotated)["server"]["certificate"] == "files" and not unheeded_certificate(annotated, chosen())


@pytest.mark.parametrize("notes", [{keys.LOGS_PROXY_SECRET_NAME: "tls"}, {**NOTES, keys.LOGS_PROXY_ENABLED: "false"}])
def test_a_certificate_counts_only_where_it_is_enabled(notes: dict[str, str]) -> None:
    assert template(binding(annotations=notes)) == template()


def test_a_certificate_of_another_namespace_can_not_be_mounted_and_that_is_said() -> None:
    elsewhere = binding(annotations={**NOTES, keys.LOGS_PROXY_SECRET_NAMESPACE: "default"})
    assert template(elsewhere) == template()
    assert "logs-proxy-secret-namespace" in unheeded_certificate(elsewhere, chosen())
    assert not unheeded_certificate(DEMO, chosen())
