"""Removes secret values from objects and texts before they are written to a support bundle.

Invariant: every string passes `Redactor.text`, so a known secret value is removed wherever it is; structure and keys are preserved.
"""

import base64
import binascii
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Self

import yaml
from attrs import frozen

from kubeocean.model import keys
from vkubelet.api.objects import Json, JsonView

REMOVED: Final = "(removed)"
_SHORTEST: Final = 6
"""Length of the shortest value that is searched for: shorter ones are part of any text."""
_WORDS: Final = "token|passw|passphrase|secret|kubeconfig|private|credential|authorization|cookie|api-?key|key-data|access-?key"
_SENSITIVE: Final = rf"[\w.-]*(?:{_WORDS})[\w.-]*"
_KEY: Final = re.compile(rf"(?i){_SENSITIVE}|auth")
_REFERENCE: Final = re.compile(r"(?i)(?:name|namespace|ref|kind|type|reason)\W*$")
_ASSIGNED: Final = re.compile(rf"(?i)(\"?(?<![\w.-]){_SENSITIVE}\"?\s*(?:=|:)\s*)(\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^\s,;}}\]]+)")
_PATTERNS: Final = (
    re.compile(r"eyJ[\w-]{8,}\.[\w-]+\.[\w-]*"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"(?i)(?<=bearer )\S+"),
    re.compile(r"(?i)(?<=basic )[a-z0-9+/=]{8,}"),
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
    re.compile(r"(?i)(?:(?<=http://)|(?<=https://))[^/\s\"']+(?=@)"),
    re.compile(r"(?i)(?:(?<=authorization: )|(?<=cookie: ))[^\"'\n\\]+"),
)
"""What has the form of a secret. The last two remove the rest of a URL's user, and of a header, which may have several words."""


@frozen
class Redactor:
    """Removes the known values, and what has the form of a secret."""

    _known: Mapping[str, Sequence[str]] = {}
    """Known values by their first characters: a cluster has thousands of Secrets, and a text is searched once for all of them."""

    @classmethod
    def of(cls, secrets: Iterable[JsonView]) -> Self:
        """Returns the redactor that knows the values of Secrets."""
        known: dict[str, list[str]] = defaultdict(list)
        for form in {form for secret in secrets for value in values(secret) for form in _forms(value)}:
            known[form[:_SHORTEST]].append(form)
        return cls(dict(known))

    def text(self, text: str) -> str:
        """Returns the text without secret values."""
        text = "".join(self._unknown(text)) if self._known else text
        for pattern in _PATTERNS:
            text = pattern.sub(REMOVED, text)
        return _ASSIGNED.sub(lambda match: match[0] if _REFERENCE.search(match[1]) else f"{match[1]}{REMOVED}", text)

    def _unknown(self, text: str) -> Iterator[str]:
        """Yields the parts of a text between known values, which may overlap, with `REMOVED` for each value."""
        kept = end = 0
        for at in range(len(text) - _SHORTEST + 1):
            for value in self._known.get(text[at : at + _SHORTEST], ()):
                if text.startswith(value, at):
                    if at >= end:
                        yield text[kept:at]
                        yield REMOVED
                    kept = end = max(end, at + len(value))
        yield text[kept:]

    def strings(self, value: Any) -> Any:
        """Returns decoded JSON with every string as `text` returns it."""
        if isinstance(value, dict):
            return {key: self.strings(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.strings(inner) for inner in value]
        return self.text(value) if isinstance(value, str) else value

    def body(self, body: JsonView) -> Json:
        """Returns an object without secret values: of Secrets, ConfigMaps, environments, commands, and annotations of others."""
        out: Json = {}
        for name, value in body.items():
            if name in ("data", "stringData", "binaryData") and isinstance(value, Mapping):
                secret = body.get("kind") == "Secret" or name != "data"
                out[name] = {key: REMOVED if secret else self.document(str(inner)) for key, inner in value.items()}
            elif name == "annotations" and isinstance(value, Mapping):
                out[name] = {key: self._annotation(key, str(inner)) for key, inner in value.items()}
            elif name in ("command", "args") and isinstance(value, list):
                out[name] = [REMOVED] * len(value)
            elif name == "env" and isinstance(value, list):
                out[name] = [{**self.body(each), **({"value": REMOVED} if "value" in each else {})} for each in value]
            else:
                out[name] = self._value(name, value)
        return out

    def _value(self, name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self.body(value)
        if isinstance(value, list):
            return [self._value(name, each) for each in value]
        if not isinstance(value, str):
            return value
        return REMOVED if _KEY.fullmatch(name) and not _REFERENCE.search(name) else self.text(value)

    def _annotation(self, key: str, value: str) -> str:
        ours = key.startswith(keys.DOMAIN) and not value.lstrip().startswith(("{", "["))
        return self.text(value) if ours else REMOVED

    def document(self, text: str) -> str:
        """Returns the YAML or JSON of a file without secret values; a text that is neither is removed."""
        try:
            found = yaml.safe_load(text)
        except yaml.YAMLError:
            return REMOVED
        return yaml.safe_dump(self.body(found), sort_keys=False) if isinstance(found, dict) else REMOVED


# --- Known values -------------------------------------------------------------------------------------------------------------------------


def values(secret: JsonView) -> Iterator[str]:
    """Yields the values of a Secret, and the credentials inside of those that are YAML, as kubeconfigs are.

    Of a Secret of a ServiceAccount the token alone is secret: its other values are the name of a namespace and public certificates.
    """
    account = secret.get("type") == "kubernetes.io/service-account-token"
    for key, encoded in (secret.get("data") or {}).items():
        if account and key != "token":
            continue
        try:
            value = base64.b64decode(encoded or "", validate=True).decode(errors="replace")
        except (binascii.Error, ValueError):
            continue
        yield value
        yield from (line for line in value.splitlines() if len(line) >= 20 and ":" not in line)
        yield from _credentials(value)


def _credentials(text: str) -> Iterator[str]:
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        return
    yield from _leaves(found if isinstance(found, dict | list) else {})


def _leaves(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, name)
    elif isinstance(value, str) and (_KEY.fullmatch(name) or name == "client-certificate-data"):
        yield value


def _forms(value: str) -> Iterator[str]:
    """Yields the forms in which a value occurs: as it is, in JSON, in base64."""
    stripped = value.strip()
    if len(stripped) >= _SHORTEST:
        yield stripped
        yield json.dumps(stripped)[1:-1]
        yield base64.b64encode(value.encode()).decode()
