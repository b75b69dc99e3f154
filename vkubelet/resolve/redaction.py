"""Removes the values of Secrets from texts that become events and statuses, also a value of which only the beginning is left."""

from collections.abc import Iterable
from os.path import commonprefix
from typing import Final

HIDDEN: Final = "[hidden]"
"""Replacement for a Secret's value."""
_ENOUGH: Final = 64
"""Characters by which the beginning of a value is recognized anywhere; fewer are common to many texts, such as those of certificates."""
_AT_THE_END: Final = 8
"""Characters by which it is recognized where the text ends, which is where texts are cut."""


def redacted(text: str, secrets: Iterable[str]) -> str:
    """Returns the text without these values, and without the beginning of a value that was cut off with the text."""
    for value in sorted(secrets, key=len, reverse=True):
        text = _cut(text.replace(value, HIDDEN), value)
    return text


def _cut(text: str, value: str) -> str:
    head = value[:_ENOUGH]
    at = text.find(head) if len(value) > _ENOUGH else -1
    while at >= 0:
        end = at + len(commonprefix((text[at:], value)))
        text = text[:at] + HIDDEN + text[end:]
        at = text.find(head, at + len(HIDDEN))
    most = min(len(text), len(value) - 1, _ENOUGH)
    for length in range(most, _AT_THE_END - 1, -1):
        if text.endswith(value[:length]):
            return text[:-length] + HIDDEN
    return text
