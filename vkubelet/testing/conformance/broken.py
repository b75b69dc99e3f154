"""Errors of a check: a rule is broken, or does not apply."""

from __future__ import annotations

from vkubelet.errors import VKubeletError


class Broken(VKubeletError):
    """A rule is broken; the text describes what was observed."""


class Inapplicable(VKubeletError):
    """The provider refuses the operation of the rule; the text is its own."""


def expect(holds: object, seen: str) -> None:
    """Raises Broken with what was observed unless the condition is true."""
    if not holds:
        raise Broken(seen)
