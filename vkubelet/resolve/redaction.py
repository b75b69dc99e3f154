"""Removes the values of Secrets from the texts of events and statuses, also a value that is truncated."""

from collections.abc import Iterable
from os.path import commonprefix
from typing import Final

HIDDEN: Final = "[hidden]"
"""Replacement for a Secret's value."""
_ENOUGH: Final = 64
"""Length of the prefix by which a truncated value is recognized anywhere; a shorter one is common to many texts, such as certificates."""
_AT_THE_END: Final = 8
"""Length of the prefix by which it is recognized as the last characters of the text."""


def redacted(text: str, secrets: Iterable[str]) -> str:
    """Returns the text without these values, and without the prefix of a value that was truncated with the text."""
    for value in sorted(secrets, key=len, reverse=True):
        text = _without_prefix(text.replace(value, HIDDEN), value)
    return text


def _without_prefix(text: str, value: str) -> str:
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
