"""What the debug handlers decide without a server."""

from __future__ import annotations

from vkubelet.server.debug import flat


def test_settings_are_flattened_to_their_paths() -> None:
    assert flat({"a": 1, "b": {"c": {"d": "x"}, "e": []}}) == {"a": 1, "b.c.d": "x", "b.e": []}
