"""What of a pod differs in the worker, without the values that nobody but its user may see."""

from __future__ import annotations

from kubeocean.explain.translation import Difference, summary, translation
from kubeocean.model.identity import Target
from kubeocean.model.keys import physical_name
from tests.unit.kubeocean.builders import OWNER, binding, pod
from vkubelet.api.objects import Json

SPEC: Json = {
    "nodeSelector": {"pool": "a"},
    "priorityClassName": "high",
    "serviceAccountName": "robot",
    "volumes": [{"name": "settings", "configMap": {"name": "settings"}}, {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    "containers": [
        {
            "name": "main",
            "image": "docker.io/app:1",
            "env": [
                {"name": "PASSWORD", "value": "canary-of-the-value"},
                {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "api", "key": "token"}}},
            ],
        }
    ],
}


def found(**metadata: object) -> list[Difference]:
    rewrites = {"imageRewrites": [{"match": "docker.io/", "replace": "mirror.example/"}]}
    target = Target.of(binding(rewrites), owner=OWNER, node="node-1", workload=Target(owner=OWNER, node="", namespace="").workload)
    return translation(pod(SPEC, **metadata), target)


def test_dropped_fields_of_spec_and_metadata_are_listed() -> None:
    made = summary(found(labels={"app": "web", "kubeocean.io/owner": "me"}, annotations={"kubernetes.io/config.source": "api"}))
    assert {"spec.nodeSelector", "spec.serviceAccountName", "spec.nodeName"} <= set(made["dropped"])
    assert {"metadata.labels[kubeocean.io/owner]", "metadata.annotations[kubernetes.io/config.source]"} <= set(made["dropped"])
    assert not any("app" in path for path in made["dropped"])


def test_renamed_references_and_images_are_shown_with_both_names() -> None:
    by_path = {each.path: (each.virtual, each.physical) for each in found()}
    copy = physical_name("default", "settings")
    assert by_path["spec.volumes[settings].configMap.name"] == ("settings", copy)
    assert by_path["spec.volumes[data].persistentVolumeClaim.claimName"] == ("data", physical_name("default", "data"))
    assert by_path["spec.containers[main].env[TOKEN].valueFrom.secretKeyRef.name"] == ("api", physical_name("default", "api"))
    assert by_path["spec.containers[main].image"] == ("docker.io/app:1", "mirror.example/app:1")
    assert by_path["spec.priorityClassName"] == ("high", "kubeocean-default")


def test_added_variables_are_listed_by_name_and_no_value_is_shown() -> None:
    made = found()
    assert "spec.containers[main].env[HOSTNAME]" in summary(made)["added"]
    assert "canary" not in repr(made) and "mirror.example/app:1" in repr(made)
