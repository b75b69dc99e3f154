"""Translates one NetworkPolicy of the hub for the worker namespace of its tenant. Pure.

Selectors of the hub select leased pods of the same binding by their labels; hub namespaces are replaced by the worker namespaces of their
pods. The worker's DNS takes the place of the hub's.

Invariant: what cannot be translated allows nothing in the worker and is named as a problem. A peer that is left out never leaves an empty
list, which would allow every peer, and a pod that a policy may select is isolated.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from attrs import define, field, frozen

from kubeocean.copies.bodies import mirror_metadata
from kubeocean.model import keys
from kubeocean.model.identity import is_propagated
from kubeocean.worker.cluster import Mount
from vkubelet.api.names import NAMESPACE_NAME, SYSTEM_NAMESPACE
from vkubelet.api.objects import NETWORKPOLICIES, Json, JsonView, Key, Unknown
from vkubelet.api.selectors import match_label_selector

INGRESS: Final = "Ingress"
EGRESS: Final = "Egress"
SIDES: Final = {INGRESS: "from", EGRESS: "to"}
_SPEC: Final = frozenset({"podSelector", "policyTypes", "ingress", "egress"})
_PEER: Final = frozenset({"podSelector", "namespaceSelector", "ipBlock"})
_BLOCK: Final = frozenset({"cidr", "except"})
_PORT: Final = frozenset({"protocol", "port", "endPort"})
_SELECTOR: Final = frozenset({"matchLabels", "matchExpressions"})
_DNS: Final = {"k8s-app": "kube-dns"}
"""Labels of the pods of a cluster's DNS in namespace kube-system, whatever server it is."""
MOST_PEERS: Final = 100
"""Peers by spec.namespaceSelector in one hub namespace, each of which is compared with all namespaces."""
_TERMS_PER_PEER: Final = 10
"""Labels, expressions and values of a selector that count as a further peer."""


@frozen(kw_only=True)
class Spaces:
    """What selectors refer to: the labels of every hub namespace, and which of them have a namespace in the worker."""

    mount: Mount
    labels: Mapping[str, Mapping[str, str]]
    prepared: Collection[str]
    patched: Collection[str] = ()
    """Labels that a patch of the binding sets or removes on pods in the worker, or did when one of them was created."""
    _chosen: dict[str, list[str]] = field(factory=dict, init=False, repr=False, eq=False)

    def chosen_by(self, selector: JsonView) -> Sequence[str]:
        """Returns the hub namespaces that a selector chooses; compares each selector with them once."""
        key = repr(selector)
        if key not in self._chosen:
            self._chosen[key] = [name for name, labels in self.labels.items() if match_label_selector(selector, labels)]
        return self._chosen[key]


def cost_of(selector: JsonView) -> int:
    """Returns as how many peers a namespaceSelector counts."""
    expressions = selector.get("matchExpressions") or ()
    terms = len(selector.get("matchLabels") or ()) + sum(1 + len(each.get("values") or ()) for each in expressions)
    return 1 + terms // _TERMS_PER_PEER


@define
class Budget:
    """Bounds the peers by namespaceSelector in the policies of one hub namespace, so that no tenant blocks the others."""

    left: int = MOST_PEERS
    left_out: set[str] = field(factory=set)
    """Policies with peers that are too many."""

    def covers(self, selector: JsonView, policy: Key) -> bool:
        """Checks that a peer may be compared with all namespaces, and counts it."""
        cost = cost_of(selector)
        if cost > self.left:
            self.left_out.add(str(policy))
            return False
        self.left -= cost
        return True


@frozen(kw_only=True)
class Translation:
    """The body for the worker, `selector` as translated and without our mark, and what could not be carried over."""

    body: Json
    selector: JsonView
    types: Sequence[str]
    problems: Sequence[str]


def types_of(spec: JsonView) -> Sequence[str]:
    """Returns the directions that a NetworkPolicy limits, by the rule of the API server where the field is missing."""
    return tuple(spec.get("policyTypes") or ((INGRESS, EGRESS) if spec.get("egress") else (INGRESS,)))


def translated(policy: Unknown, spaces: Spaces, *, types: Sequence[str], budget: Budget) -> Translation:
    """Returns the translation for these of its directions."""
    return _Reader(policy.key, spaces, budget).translation(policy.body.get("spec") or {}, types)


@frozen
class _Reader:
    """Translates one policy, and collects the problems."""

    key: Key
    spaces: Spaces
    budget: Budget
    problems: list[str] = field(factory=list)

    def translation(self, spec: JsonView, types: Sequence[str]) -> Translation:
        known = self._is_known(spec, _SPEC, "spec")
        selector, is_exact = self._selector(spec.get("podSelector") or {}, "spec.podSelector")
        out: Json = {"podSelector": self._of_binding(selector), "policyTypes": list(types)}
        for kind in types:
            # With fewer requirements the policy selects further pods: it isolates them, and must not open them.
            rules = self._rules(spec, kind) if known and is_exact else []
            if rules:
                out[kind.lower()] = rules
        body = {
            "apiVersion": NETWORKPOLICIES.api_version,
            "kind": NETWORKPOLICIES.kind,
            "metadata": mirror_metadata(self.key, self.spaces.mount.copy_key(self.key), self.spaces.mount),
            "spec": out,
        }
        return Translation(body=body, selector=selector, types=types, problems=tuple(self.problems))

    def _rules(self, spec: JsonView, kind: str) -> list[Json]:
        name = kind.lower()
        found = (self._rule(rule, SIDES[kind], f"spec.{name}[{at}]") for at, rule in enumerate(spec.get(name) or ()))
        return [rule for rule in found if rule is not None]

    def _rule(self, rule: JsonView, side: str, path: str) -> Json | None:
        ports = [dict(port) for port in rule.get("ports") or ()]
        if not (
            self._is_known(rule, {"ports", side}, path)
            and all(self._is_known(port, _PORT, f"{path}.ports[{at}]") for at, port in enumerate(ports))
        ):
            return None
        out: Json = {"ports": ports} if ports else {}
        if not rule.get(side):
            return out
        peers = [each for at, peer in enumerate(rule[side]) for each in self._peers(peer, side, f"{path}.{side}[{at}]")]
        return {**out, side: peers} if peers else None

    def _peers(self, peer: JsonView, side: str, path: str) -> list[Json]:
        if not self._is_known(peer, _PEER, path):
            return []
        if block := peer.get("ipBlock"):
            return [{"ipBlock": dict(block)}] if self._is_known(block, _BLOCK, f"{path}.ipBlock") else []
        selector, is_exact = self._selector(peer.get("podSelector") or {}, f"{path}.podSelector")
        if not is_exact:
            return []
        if peer.get("namespaceSelector") is None:
            return [{"podSelector": self._of_binding(selector)}]
        chosen = peer["namespaceSelector"]
        return self._of_namespaces(chosen, selector, side) if self._is_known(chosen, _SELECTOR, f"{path}.namespaceSelector") else []

    def _of_namespaces(self, chosen: JsonView, selector: JsonView, side: str) -> list[Json]:
        """Returns the peers in the worker for pods in the namespaces of the hub that a selector chooses now."""
        spaces, out = self.spaces, []
        if not self.budget.covers(chosen, self.key):
            return []
        found = spaces.chosen_by(chosen)
        tenants: Json = {"matchLabels": {keys.TENANT_OF: spaces.mount.namespace}}
        names = sorted(spaces.mount.namespace_of(name) for name in found if name in spaces.prepared)
        if not is_empty(chosen):
            tenants["matchExpressions"] = [{"key": NAMESPACE_NAME, "operator": "In", "values": names}]
        if names or is_empty(chosen):
            out.append({"namespaceSelector": tenants, "podSelector": self._of_binding(selector)})
        if side == SIDES[EGRESS] and SYSTEM_NAMESPACE in found and match_label_selector(selector, _DNS):
            system = {"matchLabels": {NAMESPACE_NAME: SYSTEM_NAMESPACE}}
            out.append({"namespaceSelector": system, "podSelector": {"matchLabels": dict(_DNS)}})
        return out

    def _selector(self, selector: JsonView, path: str) -> tuple[Json, bool]:
        """Returns the requirements that hold in the worker as in the hub, and whether these are all."""
        is_exact = self._is_known(selector, _SELECTOR, path)
        labels, expressions = selector.get("matchLabels") or {}, selector.get("matchExpressions") or ()
        others = {key for key in (*labels, *(each["key"] for each in expressions)) if self._differs(key)}
        if others:
            text = f"{path} of NetworkPolicy {self.key} names the label {min(others)}, which pods do not have in the worker as in the hub"
            self.problems.append(f"{text}; select by another label: until then nothing is allowed by it")
        kept = {key: value for key, value in labels.items() if key not in others}
        rest = [dict(each) for each in expressions if each["key"] not in others]
        out: Json = {**({"matchLabels": kept} if kept else {}), **({"matchExpressions": rest} if rest else {})}
        return out, is_exact and not others

    def _differs(self, key: str) -> bool:
        return not is_propagated(key) or key in self.spaces.patched

    def _of_binding(self, selector: JsonView) -> Json:
        """Returns a selector of pods of this binding alone."""
        return {**selector, "matchLabels": {**(selector.get("matchLabels") or {}), keys.OWNER: self.spaces.mount.owner.mark}}

    def _is_known(self, value: JsonView, fields: Collection[str], path: str) -> bool:
        unknown = sorted(set(value) - set(fields))
        if unknown:
            text = f"{path}.{unknown[0]} of NetworkPolicy {self.key} is unknown to this version"
            self.problems.append(f"{text}; upgrade Kubeocean, or remove the field: until then nothing is allowed by it")
        return not unknown


def is_empty(selector: JsonView) -> bool:
    """Checks that a selector has no requirement and so selects everything."""
    return not (selector.get("matchLabels") or selector.get("matchExpressions"))
