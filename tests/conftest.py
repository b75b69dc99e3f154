"""Real clusters for every test that asks for one, and the fixtures for authors of providers.

Invariant: a run that asks for none starts none.
"""

import pytest
from hypothesis import settings

# How long one example takes depends on what else the machine does.
settings.register_profile("default", deadline=None)
settings.register_profile("quick", max_examples=25, deadline=None)

pytest_plugins = ["vkubelet.testing.fixtures", "vkubelet.testing.plugin"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `first` run before all others, those marked `last` after them; the sort is stable, so nothing else moves."""
    items.sort(key=lambda item: (item.get_closest_marker("last") is not None) - (item.get_closest_marker("first") is not None))
