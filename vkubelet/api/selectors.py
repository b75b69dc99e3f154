"""Selectors of nodes and labels: matches them against labels and the name of a node.

Invariant: a selector that is not valid matches nothing, so a typing error never selects too much.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from attrs import frozen

from vkubelet.api.names import is_dns_subdomain, is_label_value
from vkubelet.api.objects import JsonView

_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


@frozen
class Requirement:
    """One condition on one label; `operator` is In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str
    operator: str
    values: Sequence[str] = ()

    @property
    def valid(self) -> bool:
        """Whether it is valid by the rules of k8s.io/apimachinery/pkg/labels."""
        if not _is_qualified_name(self.key):
            return False
        if self.operator in ("In", "NotIn"):
            return bool(self.values) and all(map(is_label_value, self.values))
        if self.operator in ("Exists", "DoesNotExist"):
            return not self.values
        if self.operator in ("Gt", "Lt"):
            return len(self.values) == 1 and _INTEGER.fullmatch(self.values[0]) is not None
        return False

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Checks the labels; NotIn and DoesNotExist match when the label is absent; Gt and Lt compare integers."""
        present = self.key in labels
        if self.operator == "Exists":
            return present
        if self.operator == "DoesNotExist":
            return not present
        if self.operator == "In":
            return present and labels[self.key] in self.values
        if self.operator == "NotIn":
            return not present or labels[self.key] not in self.values
        if not present or not _INTEGER.fullmatch(labels[self.key]):
            return False
        ours, limit = int(labels[self.key]), int(self.values[0])
        return ours > limit if self.operator == "Gt" else ours < limit


@frozen
class LabelSelector:
    """Requirements that must all match; without any, everything matches."""

    requirements: Sequence[Requirement] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.valid and requirement.matches(labels) for requirement in self.requirements)


def match_node_selector(selector: JsonView | None, node_labels: Mapping[str, str], node_name: str) -> bool:
    """Matches a `NodeSelector` object: one of its terms must match; None, or no terms, matches every node.

    A term without expressions and fields matches nothing, and neither does one with an invalid requirement; `matchFields` supports only
    metadata.name with In and one value.
    """
    terms: Sequence[JsonView] = (selector or {}).get("nodeSelectorTerms") or ()
    return not terms or any(_term_matches(term, node_labels, node_name) for term in terms)


def match_label_selector(selector: JsonView | None, labels: Mapping[str, str]) -> bool:
    """Matches a `metav1.LabelSelector`: all of its labels and expressions must match; None matches nothing, an empty one everything."""
    if selector is None:
        return False
    wanted: Mapping[str, str] = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and _all_match(selector.get("matchExpressions") or (), labels)


def _term_matches(term: JsonView, labels: Mapping[str, str], name: str) -> bool:
    expressions: Sequence[JsonView] = term.get("matchExpressions") or ()
    fields: Sequence[JsonView] = term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    return _all_match(expressions, labels) and all(_field_matches(entry, name) for entry in fields)


def _field_matches(entry: JsonView, name: str) -> bool:
    values: Sequence[str] = entry.get("values") or ()
    return entry.get("key") == "metadata.name" and entry.get("operator") == "In" and len(values) == 1 and values[0] == name


def _all_match(expressions: Sequence[JsonView], labels: Mapping[str, str]) -> bool:
    requirements = [Requirement(e.get("key", ""), e.get("operator", ""), tuple(e.get("values") or ())) for e in expressions]
    return LabelSelector(requirements).matches(labels)


def _is_qualified_name(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    return _NAME.fullmatch(name) is not None and (not slash or is_dns_subdomain(prefix))
