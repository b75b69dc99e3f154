"""The environment of a container, rule by rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkubelet.api.podspec import Kind, Reference
from vkubelet.resolve.downward import Facts
from vkubelet.resolve.environment import environment, expand, expand_all, expand_path, expand_probe, service_variables
from vkubelet.resolve.references import Content, MissingReferenceError
from vkubelet.testing.host import make_pod

FACTS = Facts.of(make_pod("web"), pod_ips=["10.1.0.5"], host_ips=["192.0.2.1"], allocatable={"cpu": "4"})
SERVICES = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "WEB_PORT": "tcp://10.0.0.9:80"}
OBJECTS = {
    Reference(Kind.CONFIGMAP, "one"): Content(text={"A": "a1", "B": "b1", "with.dot": "d"}, binary={"BIN": b"\xff"}),
    Reference(Kind.CONFIGMAP, "two"): Content(text={"B": "b2", "C": "$(A)"}),
    Reference(Kind.SECRET, "hidden"): Content(binary={"B": b"secret", "RAW": b"\xff"}, secret=True),
    Reference(Kind.SECRET, "gone"): None,
}


def config_map(name: str, **more: Any) -> dict[str, Any]:
    return {"configMapRef": {"name": name}, **more}


def key_of(kind: str, name: str, key: str, **more: Any) -> dict[str, Any]:
    return {"valueFrom": {f"{kind}KeyRef": {"name": name, "key": key, **more}}}


def variables(*env: dict[str, Any], imported: list[dict[str, Any]] | None = None) -> dict[str, str]:
    container = {"name": "main", "env": list(env), "envFrom": imported or []}
    found = environment(container, FACTS, objects=OBJECTS, services=SERVICES).variables
    return {name: value for name, value in found.items() if name not in SERVICES or value != SERVICES[name]}


@pytest.mark.parametrize(
    ("imported", "env", "expected"),
    [
        pytest.param([config_map("one")], [], {"A": "a1", "B": "b1", "with.dot": "d"}, id="text of a ConfigMap, any key"),
        pytest.param(
            [config_map("one"), config_map("two")], [], {"A": "a1", "B": "b2", "with.dot": "d", "C": "$(A)"}, id="later source wins"
        ),
        pytest.param(
            [config_map("two"), config_map("one")], [], {"A": "a1", "B": "b1", "with.dot": "d", "C": "$(A)"}, id="order is that of the spec"
        ),
        pytest.param([config_map("two", prefix="P_")], [], {"P_B": "b2", "P_C": "$(A)"}, id="prefix"),
        pytest.param([{"secretRef": {"name": "hidden"}}], [], {"B": "secret", "RAW": "\udcff"}, id="Secret as text"),
        pytest.param([config_map("two")], [{"name": "B", "value": "own"}], {"B": "own", "C": "$(A)"}, id="env over envFrom"),
        pytest.param([], [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)2"}], {"A": "1", "B": "12"}, id="earlier variable"),
        pytest.param([], [{"name": "B", "value": "$(A)"}, {"name": "A", "value": "1"}], {"A": "1", "B": "$(A)"}, id="no forward reference"),
        pytest.param([], [{"name": "A", "value": "1"}, {"name": "A", "value": "$(A)+"}], {"A": "1+"}, id="a name given twice"),
        pytest.param([], [{"name": "A", "value": "$$(A)"}, {"name": "B", "value": "$(A)"}], {"A": "$(A)", "B": "$(A)"}, id="no recursion"),
        pytest.param([config_map("two")], [{"name": "X", "value": "$(B)"}], {"B": "b2", "C": "$(A)", "X": "b2"}, id="reference to envFrom"),
        pytest.param([], [{"name": "X", "value": "$(WEB_PORT)"}], {"X": "tcp://10.0.0.9:80"}, id="reference to a Service"),
        pytest.param([], [{"name": "WEB_PORT", "value": "mine"}], {"WEB_PORT": "mine"}, id="variable over Service"),
        pytest.param(
            [],
            [{"name": "WEB_PORT", "value": "mine"}, {"name": "X", "value": "$(WEB_PORT)"}],
            {"WEB_PORT": "mine", "X": "mine"},
            id="reference to a variable named as a Service's",
        ),
        pytest.param([], [{"name": "X", "value": ""}], {"X": ""}, id="an empty value stays"),
        pytest.param([], [{"name": "X"}], {"X": ""}, id="no value is an empty one"),
        pytest.param([], [{"name": "X", **key_of("configMap", "two", "C")}], {"X": "$(A)"}, id="values of objects are not expanded"),
        pytest.param([], [{"name": "X", **key_of("secret", "hidden", "B")}], {"X": "secret"}, id="key of a Secret"),
        pytest.param([], [{"name": "X", **key_of("configMap", "two", "no", optional=True)}], {}, id="missing optional key: no variable"),
        pytest.param([], [{"name": "X", **key_of("configMap", "one", "BIN", optional=True)}], {}, id="binary data is no variable"),
        pytest.param([], [{"name": "X", **key_of("secret", "gone", "k", optional=True)}], {}, id="missing optional object: no variable"),
        pytest.param([{"secretRef": {"name": "gone", "optional": True}}], [], {}, id="missing optional source"),
        pytest.param(
            [config_map("two")],
            [{"name": "B", **key_of("secret", "gone", "k", optional=True)}],
            {"B": "b2", "C": "$(A)"},
            id="left out, not emptied",
        ),
        pytest.param([], [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}], {"X": "10.1.0.5"}, id="field"),
        pytest.param([], [{"name": "X", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}], {"X": "4"}, id="resource"),
    ],
)
def test_each_rule_of_variables(imported: list[dict[str, Any]], env: list[dict[str, Any]], expected: dict[str, str]) -> None:
    assert variables(*env, imported=imported) == expected


def test_services_fill_what_is_left() -> None:
    found = environment({"name": "main", "env": [{"name": "WEB_PORT", "value": "mine"}]}, FACTS, objects={}, services=SERVICES).variables
    assert found == {"WEB_PORT": "mine", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}


@pytest.mark.parametrize(
    ("container", "reason", "sentence"),
    [
        ({"envFrom": [{"secretRef": {"name": "gone"}}]}, "MandatorySecretNotFound", 'secret "gone" not found'),
        ({"envFrom": [config_map("none")]}, "MandatoryConfigMapNotFound", 'configmap "none" not found'),
        ({"env": [{"name": "X", **key_of("secret", "gone", "k")}]}, "MandatorySecretNotFound", 'secret "gone" not found'),
        (
            {"env": [{"name": "X", **key_of("secret", "hidden", "no")}]},
            "MandatorySecretKeyNotFound",
            "couldn't find key no in Secret default/hidden",
        ),
        (
            {"env": [{"name": "X", **key_of("configMap", "one", "BIN")}]},
            "MandatoryConfigMapKeyNotFound",
            "couldn't find key BIN in ConfigMap default/one",
        ),
    ],
)
def test_what_is_mandatory_and_missing_is_named(container: dict[str, Any], reason: str, sentence: str) -> None:
    with pytest.raises(MissingReferenceError) as caught:
        environment({"name": "main", **container}, FACTS, objects=OBJECTS, services={})
    assert (caught.value.absence.reason, str(caught.value)) == (reason, sentence)


def test_what_is_optional_and_missing_is_told() -> None:
    container = {
        "name": "main",
        "envFrom": [{"configMapRef": {"name": "none", "optional": True}}],
        "env": [{"name": "X", **key_of("secret", "hidden", "no", optional=True)}],
    }
    absent = environment(container, FACTS, objects=OBJECTS, services={}).absent
    assert [absence.reason for absence in absent] == ["OptionalConfigMapNotFound", "OptionalSecretKeyNotFound"]


def test_a_source_that_is_not_known_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="env X: fileKeyRef"):
        variables({"name": "X", "valueFrom": {"fileKeyRef": {"key": "k"}}})


VARIABLES = {"A": "one", "B": "$(A)", "EMPTY": "", "with-dash": "x"}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)", "one"),
        ("<$(A)$(A)>", "<oneone>"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$one"),
        ("$$$$(A)", "$$(A)"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$(", "$("),
        ("$(A", "$(A"),
        ("x$(A y) $(A)", "x$(A y) one"),
        ("$(A$(A)", "$(A$(A)"),
        ("$()", "$()"),
        ("$", "$"),
        ("$A ${A} $x", "$A ${A} $x"),
        ("$(B)", "$(A)"),
        ("$(EMPTY)|", "|"),
        ("$(with-dash)", "x"),
        ("100%$", "100%$"),
    ],
)
def test_references_are_put_in_once_and_everything_else_stays(text: str, expanded: str) -> None:
    assert expand(text, VARIABLES) == expanded


def test_the_first_scope_that_knows_a_name_counts() -> None:
    assert expand("$(A) $(S)", {"A": "own"}, {"A": "service", "S": "service"}) == "own service"


def by_letters(text: str, variables: Mapping[str, str]) -> str:
    """The same rules, read from left to right."""
    out, at = "", 0
    while at < len(text):
        if text.startswith("$$", at):
            out, at = out + "$", at + 2
        elif text.startswith("$(", at) and ")" in text[at:]:
            end = text.index(")", at)
            name = text[at + 2 : end]
            out, at = out + variables.get(name, f"$({name})"), end + 1
        else:
            out, at = out + text[at], at + 1
    return out


@given(st.text(alphabet="$()AB x\n", max_size=30))
def test_every_text_is_expanded_as_the_rules_read(text: str) -> None:
    assert expand(text, VARIABLES) == by_letters(text, VARIABLES)


@given(st.text(max_size=30))
def test_a_text_with_doubled_dollars_comes_back_as_it_was(text: str) -> None:
    assert expand(text.replace("$", "$$"), VARIABLES) == text


def test_commands_are_expanded_word_by_word() -> None:
    assert expand_all(["sh", "-c", "echo $(A) $HOME"], VARIABLES) == ("sh", "-c", "echo one $HOME")


def test_paths_need_every_variable() -> None:
    assert expand_path("logs/$(A)/$$(A)", VARIABLES) == "logs/one/$(A)"
    with pytest.raises(ValueError, match="missing value for EMPTY, NOWHERE"):
        expand_path("$(NOWHERE)/$(EMPTY)/$(A)", VARIABLES)


def test_probes_know_literal_values_only() -> None:
    env = [{"name": "A", "value": "$(B)"}, {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    assert expand_probe(["x", "$(A)", "<$(S)>", "$(B)"], env) == ("x", "$(B)", "<>", "$(B)")


def service(name: str, namespace: str, ip: str, *ports: dict[str, Any]) -> dict[str, Any]:
    spec = {"clusterIP": ip, "ports": list(ports) or [{"port": 80, "protocol": "TCP"}]}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}


KUBERNETES = service("kubernetes", "default", "10.0.0.1", {"name": "https", "port": 443, "protocol": "TCP"})
WEB = service(
    "my-web", "ours", "10.0.0.9", {"name": "main-port", "port": 80, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}
)


def test_every_port_of_a_service_has_its_seven_kinds_of_names() -> None:
    assert service_variables([WEB], namespace="ours", links=True) == {
        "MY_WEB_SERVICE_HOST": "10.0.0.9",
        "MY_WEB_SERVICE_PORT": "80",
        "MY_WEB_SERVICE_PORT_MAIN_PORT": "80",
        "MY_WEB_SERVICE_PORT_DNS": "53",
        "MY_WEB_PORT": "tcp://10.0.0.9:80",
        "MY_WEB_PORT_80_TCP": "tcp://10.0.0.9:80",
        "MY_WEB_PORT_80_TCP_PROTO": "tcp",
        "MY_WEB_PORT_80_TCP_PORT": "80",
        "MY_WEB_PORT_80_TCP_ADDR": "10.0.0.9",
        "MY_WEB_PORT_53_UDP": "udp://10.0.0.9:53",
        "MY_WEB_PORT_53_UDP_PROTO": "udp",
        "MY_WEB_PORT_53_UDP_PORT": "53",
        "MY_WEB_PORT_53_UDP_ADDR": "10.0.0.9",
    }


def test_addresses_of_version_six_are_bracketed_in_urls_only() -> None:
    found = service_variables([service("six", "ours", "fd00::1")], namespace="ours", links=True)
    assert (found["SIX_PORT"], found["SIX_SERVICE_HOST"], found["SIX_PORT_80_TCP_ADDR"]) == ("tcp://[fd00::1]:80", "fd00::1", "fd00::1")


@pytest.mark.parametrize("ip", ["", "None"])
def test_headless_and_external_services_are_not_told_of(ip: str) -> None:
    assert service_variables([service("web", "ours", ip)], namespace="ours", links=True) == {}


def test_without_links_only_the_api_server_is_told_of() -> None:
    found = service_variables([KUBERNETES, WEB], namespace="ours", links=False)
    assert {name.split("_")[0] for name in found} == {"KUBERNETES"}
    assert found["KUBERNETES_SERVICE_PORT_HTTPS"] == "443"


def test_services_of_other_namespaces_are_not_told_of() -> None:
    found = service_variables([KUBERNETES, service("web", "default", "10.0.0.2")], namespace="ours", links=True)
    assert {name.split("_")[0] for name in found} == {"KUBERNETES"}


@pytest.mark.parametrize("turned", [False, True])
def test_a_service_of_the_namespace_named_kubernetes_goes_before(turned: bool) -> None:
    services = [KUBERNETES, service("kubernetes", "ours", "10.0.0.7")]
    found = service_variables(reversed(services) if turned else services, namespace="ours", links=True)
    assert found["KUBERNETES_SERVICE_HOST"] == "10.0.0.7"
    assert "KUBERNETES_SERVICE_PORT_HTTPS" not in found


def test_a_service_without_ports_has_an_address() -> None:
    body = {"metadata": {"name": "bare", "namespace": "ours"}, "spec": {"clusterIP": "10.0.0.3"}}
    assert service_variables([body], namespace="ours", links=True) == {"BARE_SERVICE_HOST": "10.0.0.3"}
