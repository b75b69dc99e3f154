"""What an operator sets on pods and objects by values of the charts.

Invariant: charts are rendered by helm itself, and the Deployment of a binding is made by the manager from the settings that they contain.
"""

from __future__ import annotations

from tests.integration.deploy.test_charts import EVERYTHING, PLACED, POOL, deployment, our_pods
from tests.support.charts import HUB, WORKER, rendered


def test_pods_of_manager_and_syncers_take_what_an_operator_sets(helm: str) -> None:
    """On the manager the chart sets it, on the syncers the manager, from its settings."""
    given, plain = our_pods(helm, EVERYTHING[HUB]), our_pods(helm, {})
    for name, template in given.items():
        spec, (container,) = template["spec"], template["spec"]["containers"]
        nodes = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        before = plain[name]["spec"]["affinity"]
        (virtual,) = before["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert len(virtual["matchExpressions"]) == 2, name
        assert nodes["nodeSelectorTerms"] == [{"matchExpressions": [POOL, *virtual["matchExpressions"]]}], name
        assert spec["affinity"]["podAntiAffinity"] == before["podAntiAffinity"], name
        assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}, name
        assert plain[name]["spec"]["securityContext"]["runAsUser"] == 65532, name
        assert template["metadata"]["labels"]["team"] == "platform", name
        assert template["metadata"]["annotations"]["sidecar.istio.io/inject"] == "false", name
        for entry, where in (
            ("extraEnv", container["env"]),
            ("extraVolumes", spec["volumes"]),
            ("extraVolumeMounts", container["volumeMounts"]),
        ):
            assert PLACED[entry][0] in where, (name, entry)


def test_a_given_pod_anti_affinity_of_the_manager_replaces_the_default(helm: str) -> None:
    apart = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}]}
    values = {"manager": {"affinity": {"podAntiAffinity": apart}}}
    affinity = deployment(helm, values)["spec"]["template"]["spec"]["affinity"]
    assert affinity["podAntiAffinity"] == apart and affinity["nodeAffinity"]


def test_labels_and_annotations_reach_the_objects_of_the_charts(helm: str) -> None:
    for chart, zone in ((HUB, "infra"), (WORKER, "leased")):
        bodies = rendered(helm, chart, EVERYTHING[chart])
        without = [body for body in bodies if body["metadata"].get("labels", {}).get("cost-center") != "17"]
        assert {body["kind"] for body in without} == {"CustomResourceDefinition"}, chart
        (space,) = [body["metadata"] for body in bodies if body["kind"] == "Namespace" and "zone" in body["metadata"]["labels"]]
        assert space["labels"]["zone"] == zone
        assert space["annotations"] == {"helm.sh/resource-policy": "keep", "owner": "platform"}
        (account,) = [body["metadata"] for body in bodies if body["kind"] == "ServiceAccount"]
        assert account["annotations"]["example.com/role"] == ("kubeocean" if chart == HUB else "hub")
    made = {body["metadata"]["name"]: body for body in rendered(helm, HUB, EVERYTHING[HUB]) if body["kind"] == "Service"}
    assert made["kubeocean-dashboard"]["metadata"]["annotations"] == {"protocol": "HTTPS"}
