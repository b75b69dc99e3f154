"""Names for the JSON bodies we read or write; they help the type checker and cost nothing at run time.

Invariant: a body is always the complete decoded JSON; keys unknown here survive a round trip.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
"""A decoded JSON object that its reader owns and may change."""

JsonView = Mapping[str, Any]
"""A decoded JSON object that another component owns."""
