"""Tests of fleet.agent.rights."""

from __future__ import annotations

from typing import Any

from fleet.agent.agent_settings import AgentSettings, TokenSettings
from fleet.agent.rights import agent_objects, agent_rules

TOKEN = TokenSettings(secret="hub-token")


def rules(**settings: Any) -> list[str]:
    return [
        f"{' '.join(rule.verbs)} {' '.join(rule.resources)} {' '.join(rule.names)} {rule.namespace}".strip()
        for rule in agent_rules(AgentSettings(cluster="w1", **settings))
    ]


def test_f_59_secrets_are_read_by_name_and_in_the_own_namespace_alone() -> None:
    for own in (AgentSettings(cluster="w1"), AgentSettings(cluster="w1", door="kubefleet", token=TOKEN)):
        for rule in agent_rules(own):
            assert "secrets" not in rule.resources or rule.namespace == "fleet-system"
            assert "secrets" not in rule.resources or rule.names or tuple(rule.verbs) == ("create",)


def test_f_59_every_rule_has_a_reason_and_none_lists_more_than_it_needs() -> None:
    assert all(rule.why.endswith(".") for rule in agent_rules(AgentSettings(cluster="w1")))
    assert "list watch nodes" in rules() and "list clusterclaims" in rules() and not any("*" in each for each in rules())


def test_f_59_the_second_door_stores_no_certificate() -> None:
    found = agent_rules(AgentSettings(cluster="w1", door="kubefleet", token=TOKEN))
    written = [rule for rule in found if "secrets" in rule.resources and set(rule.verbs) & {"create", "patch"}]
    assert not written and any("hub-token" in rule.names for rule in found)


def test_f_161_cluster_properties_are_read_where_the_setting_asks_for_them() -> None:
    assert "list clusterproperties" in rules(cluster_properties=True) and "list clusterproperties" not in rules()


def test_f_13_agents_in_two_namespaces_have_roles_of_their_own() -> None:
    def wide(namespace: str) -> set[str]:
        return {
            each["metadata"]["name"]
            for each in agent_objects(AgentSettings(cluster="w1", namespace=namespace))
            if each["kind"].startswith("ClusterRole")
        }

    assert wide("fleet-system") == {"fleet-agent"} and wide("edge") == {"fleet-agent-edge"}


def test_f_153_namespaces_are_written_where_the_setting_allows_it_and_never_deleted() -> None:
    assert "list create patch namespaces" in rules()
    assert not [each for each in rules(managed_namespaces=False) if "namespaces" in each and "kube-system" not in each]
