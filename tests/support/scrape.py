"""What a Prometheus endpoint says, read by the parser of the `prometheus_client` package.

Invariant: samples are told as exposed; nothing is filled in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.request import urlopen

from attrs import frozen
from prometheus_client.parser import text_string_to_metric_families


@frozen
class Scrape:
    """The samples of one moment."""

    samples: Sequence[tuple[str, Mapping[str, str], float]]

    @classmethod
    def of(cls, address: str) -> Scrape:
        """From `http://ADDRESS/metrics`."""
        with urlopen(f"http://{address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        families = text_string_to_metric_families(text)
        return cls([(each.name, each.labels, each.value) for family in families for each in family.samples])

    @property
    def names(self) -> set[str]:
        return {name for name, _, _ in self.samples}

    def labels(self, name: str) -> set[frozenset[str]]:
        """The sets of label names under which a series is told."""
        return {frozenset(labels) for own, labels, _ in self.samples if own == name}

    def values(self, name: str, **labels: str) -> list[float]:
        """Of all series of a name with these labels."""
        return [value for own, has, value in self.samples if own == name and labels.items() <= has.items()]

    def value(self, name: str, **labels: str) -> float | None:
        """Of the only one; None when there is none."""
        found = self.values(name, **labels)
        assert len(found) <= 1, found
        return found[0] if found else None
