"""ConfigMaps and Secrets that a pod references, and their content. Pure.

Invariant: only names are known here; whether an object exists, and may be missing, is decided where it is used.
"""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Self

from attrs import field, frozen

from vkubelet.api.objects import JsonView, Unknown
from vkubelet.api.podspec import Kind, Reference, containers, environment_references, file_references, pull_secrets

_SHORTEST_SECRET: Final = 4


@frozen
class Content:
    """Content of a ConfigMap (text and binary) or a Secret (binary)."""

    text: Mapping[str, str] = field(factory=dict, repr=False)
    binary: Mapping[str, bytes] = field(factory=dict, repr=False)
    secret: bool = False

    @classmethod
    def of(cls, kind: Kind, obj: Unknown) -> Self:
        """Decodes the object. Raises ValueError when a value is not base64."""
        body, secret = obj.body, kind is Kind.SECRET
        encoded = body.get("data" if secret else "binaryData") or {}
        binary = {key: base64.b64decode(value) for key, value in encoded.items()}
        return cls({} if secret else body.get("data") or {}, binary, secret)

    def variables(self) -> dict[str, str]:
        """Returns environment variables, without binary data of a ConfigMap; bytes that are not UTF-8 survive a round trip through
        `os.fsencode`."""
        if not self.secret:
            return dict(self.text)
        return {key: value.decode(errors="surrogateescape") for key, value in self.binary.items()}

    def secrets(self) -> Iterable[str]:
        """Returns the values of a Secret, plain and quoted, that a text must not contain; values of a few characters occur in texts by
        chance."""
        values = {text for value in self.variables().values() for text in (value, value.strip())} if self.secret else ()
        spellings = (text for value in values for text in (value, repr(value)[1:-1], json.dumps(value)[1:-1]))
        return {text for text in spellings if len(text) >= _SHORTEST_SECRET}

    def file(self, key: str) -> bytes | None:
        """Returns the content of a file; None when there is no such key."""
        return self.text[key].encode() if key in self.text else self.binary.get(key)

    @property
    def file_names(self) -> Sequence[str]:
        """All keys."""
        return [*{**self.text, **self.binary}]


Objects = Mapping[Reference, Content | None]
"""Objects that were read; None: there is no such object."""


@frozen
class Absence:
    """A missing object, or a missing key of it; `reason` is virtual-kubelet's for its event, `str` the kubelet's message."""

    reference: Reference
    namespace: str
    key: str = ""
    optional: bool = False

    @property
    def reason(self) -> str:
        return f"{'Optional' if self.optional else 'Mandatory'}{self.reference.kind.value}{'Key' if self.key else ''}NotFound"

    @property
    def of_a_file(self) -> str:
        """The kubelet's message where the key was to become a file."""
        if not self.key:
            return str(self)
        return f"{_NO_SUCH_FILE[self.reference.kind]}: {self.key}"

    def __str__(self) -> str:
        kind, name = self.reference.kind.value, self.reference.name
        if self.key:
            return f"couldn't find key {self.key} in {kind} {self.namespace}/{name}"
        return f'{kind.lower()} "{name}" not found'


_NO_SUCH_FILE: Final = {
    Kind.CONFIGMAP: "configmap references non-existent config key",
    Kind.SECRET: "references non-existent secret key",
}


class MissingReferenceError(Exception):
    """A mandatory object or key is missing."""

    def __init__(self, absence: Absence) -> None:
        super().__init__(str(absence))
        self.absence = absence


def used_volumes(spec: JsonView) -> list[JsonView]:
    """Returns the volumes that a container mounts; others are no reason to wait for anything."""
    mounted = {mount["name"] for container in containers(spec) for mount in container.get("volumeMounts") or ()}
    return [volume for volume in spec.get("volumes") or () if volume["name"] in mounted]


def all_references(spec: JsonView, *, volumes: bool) -> set[Reference]:
    """Returns everything a pod references; its volumes only if they are written."""
    found = {reference for container in containers(spec) for reference in environment_references(container)}
    found |= {Reference(Kind.SECRET, name) for name in pull_secrets(spec)}
    if volumes:
        found |= {reference for volume in used_volumes(spec) for reference in file_references(volume)}
    return found
