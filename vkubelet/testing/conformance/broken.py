"""How a check reports that a rule is broken, or does not apply."""

from __future__ import annotations

from vkubelet.errors import VKubeletError


class Broken(VKubeletError):
    """A rule is broken; the text says what was seen."""


class Inapplicable(VKubeletError):
    """The provider refuses what the rule is about; the text is its own."""


def expect(holds: object, seen: str) -> None:
    """Raises Broken with what was seen unless it holds."""
    if not holds:
        raise Broken(seen)
