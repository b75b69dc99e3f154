"""Tests of fleet.commands.deployment and of the flags of `fleet join`."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from fleet.agent.agent_settings import AgentSettings, read_agent_settings
from fleet.agent.rights import agent_objects
from fleet.commands.deployment import agent_deployment, bootstrap_kubeconfig, secret_body, settings_body
from fleet.commands.join import JoinFlags
from vkubelet.client.connection import connection_from_kubeconfig
from vkubelet.errors import SettingsError

FLAGS: dict[str, Any] = {"hub": "https://hub.example:6443", "name": "w1", "token": "t0k3n"}


def test_f_13_the_pod_of_the_agent_has_no_privileges() -> None:
    pod = agent_deployment("image:1", "fleet-system")["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert pod["securityContext"]["runAsNonRoot"] and container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] and not container["securityContext"]["allowPrivilegeEscalation"]
    assert pod["serviceAccountName"] == "fleet-agent" and container["image"] == "image:1"


def test_f_6_the_agent_is_one_deployment_that_its_owner_may_delete() -> None:
    made = agent_deployment("image:1", "edge")
    assert (made["kind"], made["metadata"]["name"], made["metadata"]["namespace"]) == ("Deployment", "fleet-agent", "edge")
    assert not made["metadata"].get("finalizers") and "ownerReferences" not in made["metadata"]
    accounts = [
        each["metadata"] for each in agent_objects(AgentSettings(cluster="w1", namespace="edge")) if each["kind"] == "ServiceAccount"
    ]
    assert accounts == [{"name": made["spec"]["template"]["spec"]["serviceAccountName"], "namespace": "edge"}]


def test_f_13_the_settings_that_are_written_are_those_that_the_agent_reads() -> None:
    for door in ("ocm", "kubefleet"):
        flags = JoinFlags(**FLAGS, door=door, namespace="edge", labels={"env": "lab"})
        text = settings_body(flags.settings, "edge")["data"]["settings.yaml"]
        own = read_agent_settings(yaml.safe_load(text)).agent
        assert (own.cluster, own.namespace, own.door, own.labels) == ("w1", "edge", door, {"env": "lab"}) and "t0k3n" not in text


def test_f_13_the_token_is_in_the_secret_alone() -> None:
    kubeconfig = bootstrap_kubeconfig(server="https://hub.example:6443", authority=b"", token="t0k3n")
    assert connection_from_kubeconfig(kubeconfig.encode()).url == "https://hub.example:6443" and "t0k3n" in kubeconfig
    assert "t0k3n" not in json.dumps(secret_body("s", "n", {"kubeconfig": kubeconfig})) and "t0k3n" not in repr(JoinFlags(**FLAGS))


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"hub": "http://hub.example"}, "--hub"),
        ({"name": "kube-system"}, "--name"),
        ({"name": "W1"}, "--name"),
        ({"token": ""}, "--token"),
        ({"token": "", "door": "kubefleet"}, "--token-file"),
    ],
)
def test_f_13_a_flag_that_cannot_work_is_refused_by_its_name(change: dict[str, str], path: str) -> None:
    with pytest.raises(SettingsError) as refused:
        JoinFlags(**{**FLAGS, **change})
    assert refused.value.path == path
