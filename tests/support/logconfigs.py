"""The definition of LogConfig, written from its description in the specification; nothing of the product knows it.

Invariant: its schema is structural, so an API server prunes what the mirrors should not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

Body = dict[str, Any]
SHIPPED = Path(__file__).parents[2] / "deploy" / "samples" / "logconfigs.yaml"
"""The setting that mirrors LogConfigs."""


def typed(properties: Mapping[str, Any], **more: Any) -> Body:
    return {"type": "object", "properties": dict(properties), **more}


TEXT: Body = {"type": "string"}
TEXTS: Body = {"type": "object", "additionalProperties": TEXT}
OPEN: Body = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
SELECTS = {
    "container": TEXT,
    "containerOperator": TEXT,
    "namespace": TEXT,
    "excludeNamespace": TEXT,
    "nsLabelSelector": TEXT,
    "includeLabels": TEXTS,
    "excludeLabels": TEXTS,
    "customLabels": TEXTS,
    "metadataLabels": {"type": "array", "items": TEXT},
    "metadataContainer": {"type": "array", "items": TEXT},
}
WORKLOAD_KIND = {"type": "string", "enum": ["deployment", "daemonset", "statefulset", "job", "cronjob"]}


def definition(group: str, plural: str, kind: str, *, scope: str, spec: Body, short: str) -> Body:
    schema = typed({"apiVersion": TEXT, "kind": TEXT, "metadata": {"type": "object"}, "spec": spec, "status": OPEN})
    version = {"name": "v1", "served": True, "storage": True, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": plural, "singular": kind.lower(), "kind": kind, "shortNames": [short]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": scope, "names": names, "versions": [version]},
    }


def logconfig_definition() -> Body:
    workload = typed({"namespace": TEXT, "kind": WORKLOAD_KIND, "name": TEXT, "container": TEXT, "containerOperator": TEXT})
    files = {"logPath": TEXT, "filePattern": TEXT}
    paths = {"type": "array", "items": typed({"path": TEXT, "file": TEXT})}
    detail = typed(
        {
            "type": {"type": "string", "enum": ["container_stdout", "container_file", "host_file"]},
            "containerStdout": typed({**SELECTS, "allContainers": {"type": "boolean"}, "workloads": {"type": "array", "items": workload}}),
            "containerFile": typed({**SELECTS, **files, "workload": typed({"kind": WORKLOAD_KIND, "name": TEXT}), "filePaths": paths}),
            "hostFile": typed({**files, "filePaths": paths, "customLabels": TEXTS}),
        }
    )
    spec = typed({"clsDetail": OPEN, "kafkaDetail": OPEN, "inputDetail": detail})
    return definition("cls.cloud.tencent.com", "logconfigs", "LogConfig", scope="Cluster", spec=spec, short="lc")


def spec_of(kind: str, **detail: Any) -> Body:
    part = {"container_stdout": "containerStdout", "container_file": "containerFile", "host_file": "hostFile"}[kind]
    return {"clsDetail": {"topicId": "t", "region": "r", "indexs": [{"indexName": "a"}]}, "inputDetail": {"type": kind, part: detail}}
