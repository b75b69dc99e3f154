"""Why a node is withdrawn (rule `unknown-is-not-gone`): by its terms, by itself, or not at all."""

from attrs import evolve

from kubeocean.model import keys
from kubeocean.nodes.withdrawal import Cause, Live, judge
from tests.unit.kubeocean.builders import binding, node, policy
from vkubelet.api.codec import encode_json
from vkubelet.api.objects import Node
from vkubelet.node.declared import HEALTHY
from vkubelet.node.render import Endpoint, new_node, wanted
from vkubelet.provider import NodeDescription

LABELS = {"pool": "leased"}
ELSEWHERE = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["other"]}]}]}


def virtual(labels: dict[str, str]) -> Node:
    """The virtual Node as it was written when the physical one had these labels."""
    description = NodeDescription("vnode-demo-node-1", {"cpu": "1"}, labels={**labels, keys.PHYSICAL_NODE_UID: "node-uid"})
    return Node.decode(encode_json(new_node(wanted(description, Endpoint("10.0.0.1", 15000), instance="demo", health=HEALTHY))))


def asked(live: Live, *, uid: str = "node-uid") -> Cause:
    return judge(live, virtual(LABELS), declared_uid=uid, process_zone="")


SOUND = Live(node(labels=LABELS), binding(), [policy()])


def test_a_node_that_is_offered_has_no_cause() -> None:
    assert asked(SOUND) is Cause.NONE


def test_a_node_that_is_gone_is_its_own_cause() -> None:
    assert asked(evolve(SOUND, node=None)) is Cause.NODE


def test_another_node_of_the_same_name_is_its_own_cause() -> None:
    assert asked(SOUND, uid="earlier-uid") is Cause.NODE


def test_a_deleted_policy_is_a_cause_that_needs_no_confirmation() -> None:
    assert asked(evolve(SOUND, policies=[])) is Cause.TERMS


def test_a_changed_selector_of_binding_or_policy_needs_no_confirmation() -> None:
    assert asked(evolve(SOUND, binding=binding({"nodeSelector": ELSEWHERE}))) is Cause.TERMS
    assert asked(evolve(SOUND, policies=[policy(spec={"nodeSelector": ELSEWHERE})])) is Cause.TERMS


def test_a_node_that_lost_the_label_it_was_selected_by_is_its_own_cause() -> None:
    selecting = binding({"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "Exists"}]}]}})
    assert asked(Live(node(labels={}), selecting, [policy()])) is Cause.NODE


def test_a_label_that_stays_in_the_worker_does_not_make_a_node_another() -> None:
    restricted = node(labels={**LABELS, "node-restriction.kubernetes.io/pci": "true"})
    assert asked(Live(restricted, binding(), [])) is Cause.TERMS


def test_a_window_that_is_closed_is_no_cause() -> None:
    closed = policy(spec={"timeWindows": [{"start": "00:00", "end": "00:00", "days": ["Monday"]}]})
    assert asked(evolve(SOUND, policies=[closed])) is Cause.NONE
