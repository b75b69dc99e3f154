"""The pods of the suite, and the settings it runs a provider with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from vkubelet.api.objects import Json
from vkubelet.testing.conformance import Kubectl, Options, examination_settings
from vkubelet.testing.conformance.stand import SCRIPT, Stand

KUBECTL = Kubectl(program=Path("kubectl"), kubeconfig=Path("config"), cache=Path("cache"))


def body(options: Options, **more: object) -> Json:
    return Stand.body(SimpleNamespace(options=options, node="node-1"), "web", **more)  # type: ignore[arg-type]


def test_pod_is_bound_tolerates_everything_and_writes_a_line() -> None:
    made = body(Options(image="some/image"), grace=7)
    spec = made["spec"]
    assert (spec["nodeName"], spec["terminationGracePeriodSeconds"], spec["tolerations"]) == ("node-1", 7, [{"operator": "Exists"}])
    assert [(c["name"], c["image"], c["command"]) for c in spec["containers"]] == [("main", "some/image", ["sh", "-c", SCRIPT])]


def test_pod_of_the_author_lies_over_ours_and_what_a_rule_needs_over_both() -> None:
    theirs: Json = {
        "metadata": {"name": "template", "annotations": {"a": "b"}},
        "spec": {"runtimeClassName": "fast", "containers": [{"name": "job", "image": "theirs", "command": ["run"]}]},
    }
    made = body(Options(pod=theirs))
    assert made["metadata"]["name"] == "web" and made["metadata"]["annotations"] == {"a": "b"}
    assert made["spec"]["runtimeClassName"] == "fast" and made["spec"]["nodeName"] == "node-1"
    (container,) = made["spec"]["containers"]
    assert (container["name"], container["image"], container["command"]) == ("main", "theirs", ["run"])
    (container,) = body(Options(pod=theirs), container={"command": ["cat"]})["spec"]["containers"]
    assert (container["image"], container["command"]) == ("theirs", ["cat"])
    assert "containers" in theirs["spec"], "what the author gave is left as it was"


def test_settings_of_the_author_lie_over_those_of_the_suite() -> None:
    made = examination_settings({"server": {"port_first": 20000}, "instance": "mine"}, address="192.0.2.7")
    assert (made.instance, made.server.port_first, made.server.certificate) == ("mine", 20000, "self-signed")
    assert made.server.node_address == "192.0.2.7" and made.health.health_address == ""
    assert examination_settings({}, address="").instance != examination_settings({}, address="").instance
