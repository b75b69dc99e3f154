"""Requests of random sequences, and the random choices that they have in common.

Invariant: UIDs and resourceVersions, which differ between servers, are written as references to earlier answers.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

from attrs import field, frozen

Body = dict[str, Any]

MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"


@frozen
class Ref:
    """What an earlier answer about `path` contained: its `field`, `back` answers ago, else `other`."""

    path: str
    field: str
    back: int = 0
    other: str = ""


@frozen
class Step:
    """One request; its body may contain `Ref`s."""

    method: str
    path: str
    params: Mapping[str, str] = field(factory=dict)
    body: Body | None = None
    content_type: str = "application/json"


class Choices:
    """Random choices; everything namespaced is in the namespace `name`."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.rng = random.Random(seed)
        self.space = f"/api/v1/namespaces/{name}"

    def one(self, *options: Any) -> Any:
        return self.rng.choice(options)

    def chance(self, percent: int) -> bool:
        return self.rng.random() * 100 < percent

    def word(self) -> str:
        return str(self.one("x", "y", "z", ""))

    def guards(self, path: str) -> Body:
        """Returns uid and resourceVersion for a patch: usually right, sometimes old or foreign."""
        made: Body = {}
        if self.chance(40):
            made["uid"] = Ref(path, "uid", other="") if self.chance(85) else "00000000-0000-0000-0000-000000000000"
        if self.chance(30):
            made["resourceVersion"] = Ref(path, "resourceVersion", self.one(0, 0, 0, 1, 2), other="1")
        return made

    def marks(self) -> Body:
        """Returns labels, annotations and finalizers of a patch."""
        made: Body = {}
        if self.chance(50):
            made["labels"] = {self.one("app", "tier", "kubeocean.io/x"): self.one("web", "db", None)}
        if self.chance(40):
            made["annotations"] = {self.one("n", "kubeocean.io/note"): self.one("1", "2", "", None)}
        if self.chance(25):
            made["finalizers"] = self.one([], ["kubeocean.io/a"], ["kubeocean.io/a", "kubeocean.io/b"], None)
        if self.chance(6):
            made["ownerReferences"] = self.one(None, [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u1", "controller": True}])
        return made

    def delete(self, path: str) -> Step:
        options: Body = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if self.chance(50):
            options["gracePeriodSeconds"] = self.one(0, 0, 1, 40, 60)
        if self.chance(20):
            options["propagationPolicy"] = self.one("Background", "Foreground", "Orphan")
        wanted: Body = {}
        if self.chance(50):
            wanted["uid"] = Ref(path, "uid", other="u") if self.chance(85) else "00000000-0000-0000-0000-000000000000"
        if self.chance(20):
            wanted["resourceVersion"] = Ref(path, "resourceVersion", self.one(0, 0, 1), other="1")
        if wanted:
            options["preconditions"] = wanted
        if self.chance(5):
            options["dryRun"] = ["All"]
        return Step("DELETE", path, body=options)

    def created_marks(self) -> Body:
        made = {key: value for key, value in self.marks().items() if value is not None}
        for key in ("labels", "annotations"):
            made[key] = {name: value for name, value in made.get(key, {}).items() if value is not None}
        return made

    def query(self) -> Mapping[str, str]:
        return self.one({}, {}, {}, {}, {}, {}, {}, {"dryRun": "All"})

    def condition(self, kind: str) -> Body:
        made: Body = {"type": kind, "status": self.one("True", "False")}
        if self.chance(50):
            made["reason"] = self.one("Because", None, "")
        if self.chance(50):
            made["lastTransitionTime"] = "2026-01-02T03:04:05Z"
        if self.chance(30):
            made["observedGeneration"] = self.one(1, 2)
        return made
