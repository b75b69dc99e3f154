"""Rules of roles with a right taken away, as the owner of a cluster would do it.

Invariant: nothing else that the rules grant is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vkubelet.api.rbac import Check

Body = dict[str, Any]


def narrowed(rules: Sequence[Body], check: Check) -> list[Body]:
    """The rules without this right."""
    what = f"{check.resource}/{check.subresource}" if check.subresource else check.resource
    out: list[Body] = []
    for rule in rules:
        if what not in rule["resources"] or check.group not in rule["apiGroups"] or check.verb not in rule["verbs"]:
            out.append(rule)
            continue
        others = [each for each in rule["resources"] if each != what]
        verbs = [verb for verb in rule["verbs"] if verb != check.verb]
        out += [{**rule, "resources": others}] if others else []
        out += [{**rule, "resources": [what], "verbs": verbs}] if verbs else []
    return out
