"""What helm makes of the charts: complete, with exactly the rights the code names, taken by an API server; wrong values refused by name.

Invariant: charts are rendered by helm itself; nothing stays in the cluster but the namespace of the placeholder pods.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from kubeocean.manager.workloads import desired_objects
from kubeocean.model import keys
from kubeocean.model.crds import ClusterBinding
from kubeocean.rbac import permissions
from kubeocean.settings import read_manager_settings
from tests.support import operator
from tests.support.bound import established
from tests.support.charts import CHARTS, DEPLOY, HUB, WORKER, Body, ran, rendered
from tests.support.program import eventually
from tests.support.prometheus import GRAFANA, rules
from vkubelet.api.codec import decode_object, decode_yaml, decode_yaml_documents, encode_json
from vkubelet.api.objects import Unknown
from vkubelet.server.settings import ServerSettings
from vkubelet.testing.cluster import CommandFailed, ControlPlane
from vkubelet.testing.fixtures import run_apart

POOL = {"key": "pool", "operator": "In", "values": ["infra"]}
PLACED = {
    "priorityClassName": "important",
    "tolerations": [{"key": "infra", "operator": "Exists"}],
    "nodeSelector": {"pool": "infra"},
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}],
    "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}},
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [POOL]}]}}},
    "podAnnotations": {"sidecar.istio.io/inject": "false"},
    "podLabels": {"team": "platform"},
    # OpenShift chooses the user.
    "podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ssl/extra", "readOnly": True}],
    "serviceAccount": {"annotations": {"example.com/role": "kubeocean"}},
}
EVERYTHING: dict[str, Body] = {
    HUB: {
        "image": {"repository": "example.invalid/team/kubeocean", "digest": f"sha256:{'a' * 64}"},
        "imagePullSecrets": [{"name": "registry"}],
        "commonLabels": {"cost-center": "17"},
        "namespace": {"labels": {"zone": "infra"}, "annotations": {"owner": "platform"}},
        "timeZone": "Europe/Berlin",
        "logLevel": "DEBUG",
        "manager": {**PLACED, "replicas": 3},
        "syncer": {
            **PLACED,
            "replicas": 1,
            "settings": {"provider": {"probe_interval": 5}, "server": {"main_port": 10260, "port_last": 16999}},
        },
        "dashboard": {
            "enabled": True,
            "port": 9443,
            "certificateSecret": "dashboard-tls",
            "service": {"annotations": {"protocol": "HTTPS"}},
        },
        "networkPolicy": {
            "metricsFrom": [{"namespaceSelector": {}}],
            "kubeletFrom": [{"ipBlock": {"cidr": "192.0.2.0/24"}}],
            "dashboardFrom": [{"podSelector": {}}],
        },
        "metrics": {
            "serviceMonitor": {"enabled": True, "labels": {"team": "x"}},
            "prometheusRule": {
                "enabled": True,
                "severities": {"KubeoceanPodsPending": "info"},
                "runbookUrl": "https://docs.example.com/r",
                "alertLabels": {"team": "platform"},
            },
        },
    },
    WORKER: {
        "commonLabels": {"cost-center": "17"},
        "namespace": {"labels": {"zone": "leased"}, "annotations": {"owner": "platform"}},
        "serviceAccount": {"annotations": {"example.com/role": "hub"}},
        "usage": {"enabled": True, "nodes": ["node-1", "node-2"]},
        "policyLabel": {"enabled": True},
        "quota": {"enabled": True, "preset": "small", "hard": {"requests.cpu": "100", "pods": 500}},
        "networkPolicy": {"allowedCIDRs": ["10.20.0.0/16"], "blockedCIDRs": ["203.0.113.10/32", "2001:db8::/32"]},
        "limitRange": {"enabled": True, "limits": [{"type": "Container", "defaultRequest": {"cpu": "100m"}}]},
    },
}


def granted(bodies: Iterable[Body]) -> Counter[str]:
    """Roles with their rules and bindings with their subjects, in any order."""
    kinds = ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")
    return Counter(
        json.dumps(
            [body["kind"], body["metadata"].get("namespace", ""), body["metadata"]["name"]]
            + [sorted(json.dumps(rule, sort_keys=True) for rule in body.get("rules", ())), body.get("roleRef"), body.get("subjects")],
            sort_keys=True,
        )
        for body in bodies
        if body["kind"] in kinds
    )


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
@pytest.mark.parametrize("chart", [HUB, WORKER])
def test_lint_finds_nothing(helm: str, chart: str, values: dict[str, Body]) -> None:
    done = ran(helm, "lint", "--strict", str(CHARTS / chart), values=values.get(chart))
    assert done.returncode == 0, done.stdout + done.stderr


def test_charts_render_with_default_values(helm: str) -> None:
    """Line 191 of kubeocean-behaviour.md; the process of a binding is made by the manager itself, so there are no template ConfigMaps."""
    hub = Counter(body["kind"] for body in rendered(helm, HUB))
    worker = Counter(body["kind"] for body in rendered(helm, WORKER))
    assert hub["CustomResourceDefinition"] == worker["CustomResourceDefinition"] == 1
    for kind in ("Deployment", "ServiceAccount", "ClusterRole", "ConfigMap", "PodDisruptionBudget", "Service"):
        assert hub[kind] == 1, kind
    assert hub["NetworkPolicy"] == 2 and hub["ValidatingAdmissionPolicy"] == hub["ValidatingAdmissionPolicyBinding"] == 5
    assert not hub["ServiceMonitor"] and not hub["PrometheusRule"]
    assert (
        worker["PriorityClass"]
        == worker["Namespace"]
        == worker["ServiceAccount"]
        == worker["Secret"]
        == worker["Role"]
        == worker["NetworkPolicy"]
        == 1
    )


def test_roles_of_the_manager_are_those_the_code_names(helm: str) -> None:
    assert granted(rendered(helm, HUB)) == granted(permissions.manager_objects())
    elsewhere = rendered(helm, HUB, {"namespace": {"name": "elsewhere"}})
    assert granted(elsewhere) == granted(permissions.manager_objects(namespace="elsewhere"))
    shown = rendered(helm, HUB, {"dashboard": {"enabled": True}})
    assert granted(shown) == granted(permissions.manager_objects(dashboard=True))


def test_roles_in_the_worker_are_those_the_code_names(helm: str) -> None:
    assert granted(rendered(helm, WORKER)) == granted(permissions.worker_objects())
    every = granted(permissions.worker_objects(policy_label=True)) + granted(permissions.metrics_objects(nodes=["node-1", "node-2"]))
    assert granted(rendered(helm, WORKER, EVERYTHING[WORKER])) == every
    other = rendered(helm, WORKER, {"namespace": {"name": "other"}, "usage": {"enabled": True}})
    assert granted(other) == granted(permissions.worker_objects("other", metrics=True))


@pytest.mark.parametrize("chart", [HUB, WORKER])
def test_plain_manifests_are_what_the_charts_make(helm: str, chart: str) -> None:
    written = (DEPLOY / "manifests" / f"{chart}.yaml").read_text()
    assert [body for body in decode_yaml_documents(written) if body] == rendered(helm, chart), "run: make manifests"


def test_the_manager_understands_its_settings(helm: str) -> None:
    for values in ({}, EVERYTHING[HUB]):
        (config,) = [body for body in rendered(helm, HUB, values) if body["kind"] == "ConfigMap"]
        read = read_manager_settings(decode_yaml(config["data"]["settings.yaml"]))
        assert read.leader.enabled and read.leader.namespace == "kubeocean-system"
    assert read.manager.image == f"example.invalid/team/kubeocean@sha256:{'a' * 64}" and list(read.manager.image_pull_secrets) == [
        "registry"
    ]
    assert read.manager.syncer_settings["provider"] == {
        "time_zone": "Europe/Berlin",
        "cluster_domain": "cluster.local",
        "probe_interval": 5,
    }
    assert read.manager.node_selector == {"pool": "infra"} and read.log.level == "DEBUG"
    assert read.dashboard.enabled and (read.dashboard.server.port, read.dashboard.server.certificate) == (9443, "files")


def test_the_dashboard_is_off_by_default_and_has_a_service_for_its_port(helm: str) -> None:
    off = rendered(helm, HUB)
    (config,) = [body for body in off if body["kind"] == "ConfigMap"]
    assert not read_manager_settings(decode_yaml(config["data"]["settings.yaml"])).dashboard.enabled
    assert not [body for body in off if body["metadata"]["name"] == "kubeocean-dashboard"]
    bodies = rendered(helm, HUB, EVERYTHING[HUB])
    (service,) = [body for body in bodies if body["kind"] == "Service" and body["metadata"]["name"] == "kubeocean-dashboard"]
    made = deployment(helm, EVERYTHING[HUB])
    labels, (container,) = made["spec"]["template"]["metadata"]["labels"], made["spec"]["template"]["spec"]["containers"]
    (port,) = service["spec"]["ports"]
    assert selects({"matchLabels": service["spec"]["selector"]}, labels) and port["port"] == 9443
    assert {"name": port["targetPort"], "containerPort": 9443} in container["ports"]
    (volume,) = [each for each in made["spec"]["template"]["spec"]["volumes"] if each["name"] == "dashboard-certificate"]
    assert volume["secret"]["secretName"] == "dashboard-tls"


def deployment(helm: str, values: Mapping[str, Any]) -> Body:
    (found,) = [body for body in rendered(helm, HUB, values) if body["kind"] == "Deployment"]
    return found


def test_values_reach_the_manager_and_a_changed_setting_restarts_it(helm: str) -> None:
    made = deployment(helm, EVERYTHING[HUB])
    spec = made["spec"]["template"]["spec"]
    assert made["spec"]["replicas"] == 3 and spec["priorityClassName"] == "important" and spec["nodeSelector"] == {"pool": "infra"}
    assert spec["tolerations"] == PLACED["tolerations"] and spec["imagePullSecrets"] == [{"name": "registry"}]
    (spread,) = spec["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == made["spec"]["selector"]["matchLabels"] and spread["maxSkew"] == 1
    (container,) = spec["containers"]
    assert container["resources"] == PLACED["resources"] and {"name": "TZ", "value": "Europe/Berlin"} in container["env"]
    templates = [json.dumps(deployment(helm, values)["spec"]["template"]) for values in ({}, {"syncer": {"replicas": 3}})]
    assert templates[0] != templates[1]


WRONG = [
    ({"manager": {"affinity": {"nodeAfinity": {}}}}, "nodeAfinity"),
    ({"manager": {"podLabels": {"app.kubernetes.io/name": "x"}}}, "app.kubernetes.io/name"),
    ({"syncer": {"extraEnv": [{"name": "POD_IP", "value": "10.0.0.1"}]}}, "/syncer/extraEnv/0/name"),
    ({"syncer": {"extraVolumes": [{"name": "tmp", "emptyDir": {}}]}}, "/syncer/extraVolumes/0/name"),
    ({"commonLabels": {"helm.sh/chart": "x"}}, "helm.sh/chart"),
    ({"metrics": {"prometheusRule": {"alertLabels": {"severity": "low"}}}}, "severity"),
    ({"manager": {"replicas": 0}}, "/manager/replicas"),
    ({"manager": {"replica": 2}}, "replica"),
    ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
    ({"image": {"digest": "abc"}}, "/image/digest"),
    ({"namespace": {"podSecurity": "strict"}}, "/namespace/podSecurity"),
    ({"logLevel": "info"}, "/logLevel"),
    ({"syncer": {"tolerations": {"key": "x"}}}, "/syncer/tolerations"),
    ({"networkpolicy": {}}, "networkpolicy"),
]


@pytest.mark.parametrize(("values", "named"), WRONG, ids=[named for _, named in WRONG])
def test_a_wrong_value_is_refused_by_its_name(helm: str, values: Body, named: str) -> None:
    done = ran(helm, "template", HUB, str(CHARTS / HUB), values=values)
    assert done.returncode != 0 and named in done.stderr


# --- on a real API server ---


async def placed(plane: ControlPlane, helm: str, chart: str, values: Mapping[str, Any]) -> list[Body]:
    """The chart for a namespace that is there."""
    space = await plane.namespace(chart)
    return rendered(helm, chart, {**values, "namespace": {"name": space, "create": False}})


async def dry(plane: ControlPlane, bodies: Iterable[Body]) -> str:
    """Unknown fields are errors."""
    stdin = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(bodies)})
    return await plane.kubectl("apply", "--dry-run=server", "--validate=strict", "--filename", "-", stdin=stdin)


@pytest.fixture(scope="session")
def monitored(bare_hub: ControlPlane) -> ControlPlane:
    """It knows the objects of the Prometheus operator."""

    async def install() -> None:
        for path in operator.definitions("servicemonitors", "prometheusrules"):
            await bare_hub.kubectl("apply", "--server-side", "--filename", str(path))
            await eventually(lambda path=path: established(bare_hub, "-f", str(path)), f"{path.name} is established")

    run_apart(install())
    return bare_hub


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
async def test_an_api_server_accepts_both_charts(monitored: ControlPlane, helm: str, values: dict[str, Body]) -> None:
    """With the operator's own definitions of a ServiceMonitor and a PrometheusRule."""
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": keys.FAKE_NAMESPACE}}
    await monitored.kubectl("apply", "--filename", "-", stdin=json.dumps(space))
    for chart in (HUB, WORKER):
        bodies = await placed(monitored, helm, chart, values.get(chart, {}))
        said = await dry(monitored, bodies)
        assert "Warning" not in said and len(said.splitlines()) == len(bodies)
        if values and chart == HUB:
            assert "servicemonitor" in said and "prometheusrule" in said


async def test_a_monitor_with_a_field_that_does_not_exist_is_refused(monitored: ControlPlane, helm: str) -> None:
    """Which shows that the definitions judge."""
    bodies = await placed(monitored, helm, HUB, EVERYTHING[HUB])
    (monitor,) = [body for body in bodies if body["kind"] == "ServiceMonitor"]
    (endpoint,) = monitor["spec"]["endpoints"]
    with pytest.raises(CommandFailed, match='unknown field "every"'):
        await dry(monitored, [{**monitor, "spec": {**monitor["spec"], "endpoints": [{**endpoint, "every": "30s"}]}}])
    (rule,) = [body for body in bodies if body["kind"] == "PrometheusRule"]
    with pytest.raises(CommandFailed, match="spec.groups.*rules.*for"):
        wrong = {"name": "x", "rules": [{"alert": "A", "expr": "up", "for": "soon"}]}
        await dry(monitored, [{**rule, "spec": {"groups": [wrong]}}])


async def test_the_manager_meets_restricted_pod_security(bare_hub: ControlPlane, helm: str) -> None:
    space = await bare_hub.namespace("restricted")
    await bare_hub.kubectl("label", "namespace", space, "pod-security.kubernetes.io/enforce=restricted")
    template = deployment(helm, {"namespace": {"name": space}})["spec"]["template"]
    spec = {**template["spec"], "serviceAccountName": "default"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "manager", "namespace": space}, "spec": spec}
    await dry(bare_hub, [pod])
    assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    with pytest.raises(CommandFailed, match="violates PodSecurity"):
        await dry(bare_hub, [{**pod, "spec": {**spec, "securityContext": {}}}])


# --- who may reach whom ---


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert not selector.get("matchExpressions"), "this test can not judge expressions"
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


BINDING = decode_object(Unknown, encode_json({"metadata": {"name": "b", "uid": "u"}, "spec": {"clusterID": "c1", "mountNamespace": "m"}}))


def our_pods(helm: str, values: Mapping[str, Any]) -> dict[str, Body]:
    """The pod templates of the manager, as the chart makes it, and of the process of a binding, as the manager makes that."""
    bodies = rendered(helm, HUB, values)
    (config,) = [body for body in bodies if body["kind"] == "ConfigMap"]
    settings = read_manager_settings(decode_yaml(config["data"]["settings.yaml"])).manager
    (syncer,) = [each.body for each in desired_objects(ClusterBinding.parse(BINDING), settings) if each.body["kind"] == "Deployment"]
    (manager,) = [body for body in bodies if body["kind"] == "Deployment"]
    assert {each["metadata"]["namespace"] for each in (manager, syncer)} == {settings.namespace}
    return {"manager": manager["spec"]["template"], "syncer": syncer["spec"]["template"]}


def ports_of(template: Body) -> dict[str, int]:
    (container,) = template["spec"]["containers"]
    return {each["name"]: each["containerPort"] for each in container["ports"]}


@pytest.mark.parametrize("values", [{}, EVERYTHING[HUB], {"namespace": {"name": "elsewhere"}}], ids=["defaults", "everything", "elsewhere"])
def test_network_policies_open_what_is_listened_on_to_the_pods_that_listen(helm: str, values: Body) -> None:
    pods = our_pods(helm, values)
    space = values.get("namespace", {}).get("name", keys.NAMESPACE)
    policies = {body["metadata"]["name"]: body for body in rendered(helm, HUB, values) if body["kind"] == "NetworkPolicy"}
    assert {body["metadata"]["namespace"] for body in policies.values()} == {space}

    def opened(name: str) -> list[Body]:
        """The ports that the policies open on a pod; every one of its ingress rules is about ports."""
        found = [body["spec"] for body in policies.values() if selects(body["spec"]["podSelector"], pods[name]["metadata"]["labels"])]
        assert all(spec["policyTypes"] == ["Ingress"] and spec["ingress"] for spec in found)
        return [port for spec in found for rule in spec["ingress"] for port in rule["ports"]]

    def is_open(name: str, port: int) -> bool:
        return any(each["port"] <= port <= each.get("endPort", each["port"]) and each["protocol"] == "TCP" for each in opened(name))

    manager, syncer = ports_of(pods["manager"]), ports_of(pods["syncer"])
    assert {each["port"] for each in opened("manager")} == {manager["metrics"], manager.get("dashboard", manager["metrics"])}
    assert is_open("syncer", syncer["metrics"]) and is_open("syncer", syncer["kubelet"])
    # Probes of a kubelet come from the pod's own node, which no policy can shut out.
    assert not is_open("manager", manager["health"]) and not is_open("syncer", syncer["health"])
    listened = ServerSettings(**values.get("syncer", {}).get("settings", {}).get("server", {}))
    assert all(is_open("syncer", port) for port in (listened.main_port, listened.port_first, listened.port_last))
    assert not any(is_open("syncer", port) for port in (listened.main_port + 1, listened.port_first - 1, listened.port_last + 1))


def test_a_monitor_finds_the_metrics_of_every_pod_of_ours(helm: str) -> None:
    bodies = rendered(helm, HUB, EVERYTHING[HUB])
    (service,) = [body for body in bodies if body["kind"] == "Service" and body["metadata"]["name"] == "kubeocean-metrics"]
    (monitor,) = [body for body in bodies if body["kind"] == "ServiceMonitor"]
    assert selects(monitor["spec"]["selector"], service["metadata"]["labels"])
    assert monitor["spec"]["namespaceSelector"]["matchNames"] == [service["metadata"]["namespace"]] == [keys.NAMESPACE]
    (port,) = service["spec"]["ports"]
    assert [each["port"] for each in monitor["spec"]["endpoints"]] == [port["name"]]
    for name, template in our_pods(helm, EVERYTHING[HUB]).items():
        assert selects({"matchLabels": service["spec"]["selector"]}, template["metadata"]["labels"]), name
        assert ports_of(template)["metrics"] == port["targetPort"], name


def test_alerts_have_the_severities_and_the_runbook_of_the_values(helm: str) -> None:
    (rule,) = [body for body in rendered(helm, HUB, EVERYTHING[HUB]) if body["kind"] == "PrometheusRule"]
    made = {each["alert"]: each for group in rule["spec"]["groups"] for each in group["rules"]}
    assert made["KubeoceanPodsPending"]["labels"] == {"severity": "info", "team": "platform"}
    assert made["KubeoceanPodsPending"]["annotations"]["runbook_url"] == "https://docs.example.com/r#kubeoceanpodspending"
    (plain,) = [
        body for body in rendered(helm, HUB, {"metrics": {"prometheusRule": {"enabled": True}}}) if body["kind"] == "PrometheusRule"
    ]
    assert [each for group in plain["spec"]["groups"] for each in group["rules"]] == rules()
    refused = ran(
        helm,
        "template",
        HUB,
        str(CHARTS / HUB),
        values={"image": {"repository": "x"}, "metrics": {"prometheusRule": {"enabled": True, "severities": {"X": "y"}}}},
    )
    assert refused.returncode != 0 and "there is no alert X" in refused.stderr


def test_grafana_gets_the_dashboard_as_it_is(helm: str) -> None:
    values = {"metrics": {"grafanaDashboard": {"enabled": True, "labels": {"grafana_dashboard": "yes"}}}}
    (found,) = [body for body in rendered(helm, HUB, values) if body["metadata"]["name"] == "kubeocean-grafana-dashboard"]
    assert found["metadata"]["labels"]["grafana_dashboard"] == "yes"
    assert json.loads(found["data"]["kubeocean.json"]) == json.loads(GRAFANA.read_text())


def test_without_an_image_the_chart_says_how_to_get_one(helm: str) -> None:
    done = ran(helm, "template", HUB, str(CHARTS / HUB))
    assert done.returncode != 0 and "image.repository is required, because no image is published" in done.stderr


def test_critical_pods_are_covered_by_a_quota_where_the_class_is_one_of_the_system(helm: str) -> None:
    names = {body["kind"]: body for body in rendered(helm, HUB)}
    assert names["Deployment"]["spec"]["template"]["spec"]["priorityClassName"] == "system-cluster-critical"
    assert names["ResourceQuota"]["spec"]["scopeSelector"]["matchExpressions"][0]["scopeName"] == "PriorityClass"
    none = {
        body["kind"]: body for body in rendered(helm, HUB, {"manager": {"priorityClassName": ""}, "syncer": {"priorityClassName": "own"}})
    }
    assert "priorityClassName" not in none["Deployment"]["spec"]["template"]["spec"] and "ResourceQuota" not in none


def test_values_of_the_last_release_are_accepted_by_their_former_names(helm: str) -> None:
    spread, settings = PLACED["topologySpreadConstraints"], []
    placed = {"priorityClass": "important", "topologySpread": spread}
    current = {"priorityClassName": "important", "topologySpreadConstraints": spread}
    for image, section in (({"pullSecrets": ["registry"]}, placed), ({}, current)):
        pull = {} if image else {"imagePullSecrets": [{"name": "registry"}]}
        values = {"image": {"repository": "x", **image}, **pull, "manager": section, "syncer": section}
        settings.append([body for body in rendered(helm, HUB, values) if body["kind"] in ("ConfigMap", "Deployment")])
    assert settings[0] == settings[1]
    nothing = {"image": {"repository": "x"}, "manager": {"priorityClass": ""}}
    assert "priorityClassName" not in deployment(helm, nothing)["spec"]["template"]["spec"], "an empty class was the former default"


@pytest.mark.parametrize(("chart", "kept"), [(HUB, {keys.NAMESPACE}), (WORKER, {keys.WORKER_NAMESPACE})])
def test_namespaces_with_what_is_not_of_the_chart_remain(helm: str, chart: str, kept: set[str]) -> None:
    spaces = [body["metadata"] for body in rendered(helm, chart) if body["kind"] == "Namespace"]
    assert {meta["name"] for meta in spaces if meta.get("annotations") == {"helm.sh/resource-policy": "keep"}} == kept


def test_the_class_of_borrowed_pods_is_the_one_that_would_be_made_for_them(helm: str) -> None:
    (found,) = [body for body in rendered(helm, WORKER) if body["kind"] == "PriorityClass"]
    assert found["metadata"]["name"] == keys.DEFAULT_PRIORITY_CLASS and found["value"] == keys.DEFAULT_PRIORITY
    assert found["metadata"]["labels"][keys.MANAGED_BY] == keys.MANAGED and not found["globalDefault"]
