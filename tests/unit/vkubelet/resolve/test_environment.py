"""The environment of a container, rule by rule."""

from __future__ import annotations

from typing import Any

import pytest

from vkubelet.resolve.downward import Facts
from vkubelet.resolve.environment import environment
from vkubelet.resolve.references import Content, Kind, MissingReferenceError, Reference
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
