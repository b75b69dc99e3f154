"""How a check says that a rule is broken."""

from __future__ import annotations

from vkubelet.errors import VKubeletError


class Broken(VKubeletError):
    """A rule is broken; the text says what was seen."""


def expect(holds: object, seen: str) -> None:
    """Raises Broken with what was seen unless it holds."""
    if not holds:
        raise Broken(seen)
