"""Resource quantities ("500m", "4Gi", "1e3"), exact.

Invariant: every value is an integer number of billionths, so sums and differences never round; text is what Kubernetes itself would print.

Source: k8s.io/apimachinery/pkg/api/resource. Unlike that, nothing is capped at 2^63-1.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache, total_ordering
from typing import Final, Literal

from attrs import frozen

Unit = Literal["n", "u", "m", "1", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]

_NANO: Final = 10**9
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL_SUFFIX: Final = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY_SUFFIX: Final = {0: "", **{exponent: suffix for suffix, exponent in _BINARY.items()}}
_TEXT: Final = re.compile(r"([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)(?:([eE][+-]?[0-9]+)|([KMGTPE]i|[numkMGTPE]?))", re.ASCII)

# Far beyond every real amount; keeps a hostile "1e999999999" from filling the memory.
_LONGEST: Final = 100
_LARGEST_EXPONENT: Final = 60

_CACHED: Final = 4096
"""Texts whose quantity is stored: pods and nodes of a cluster repeat a few."""


class Format(enum.Enum):
    """Notation of a quantity; arithmetic keeps the format of its left side."""

    DECIMAL = "DecimalSI"
    BINARY = "BinarySI"
    EXPONENT = "DecimalExponent"


@total_ordering
@frozen(eq=False)
class Quantity:
    """Amount of a resource; equal amounts are equal in any notation."""

    nanos: int = 0
    format: Format = Format.DECIMAL

    @classmethod
    def parse(cls, value: str | int | float) -> Quantity:
        """Parses text, or a JSON number. Parts below a billionth are rounded away from zero. Raises ValueError."""
        if isinstance(value, bool):
            raise ValueError(f"not a quantity: {value!r}")
        return _parsed(value if isinstance(value, str) else repr(value))

    @classmethod
    def of(cls, units: int, format_: Format = Format.DECIMAL) -> Quantity:
        """Returns a quantity of this many units."""
        return cls(units * _NANO, format_)

    def percent(self, share: int) -> Quantity:
        """Returns `share` hundredths of it, cut to billionths towards minus infinity."""
        return Quantity(self.nanos * share // 100, self.format)

    def floor(self, unit: Unit = "1") -> Quantity:
        """Cuts it, towards minus infinity, to a multiple of `unit`."""
        size = _SIZES[unit]
        return Quantity(self.nanos // size * size, self.format)

    def scaled(self, unit: Unit) -> int:
        """Returns the number of `unit`s, rounded away from zero as Kubernetes does."""
        return _rounded_up(self.nanos, _SIZES[unit])

    def value(self) -> int:
        """Returns the number of units, rounded away from zero."""
        return self.scaled("1")

    def milli(self) -> int:
        """Returns thousandths, rounded away from zero."""
        return self.scaled("m")

    def __add__(self, other: Quantity) -> Quantity:
        return Quantity(self.nanos + other.nanos, self.format if self.nanos else other.format)

    def __sub__(self, other: Quantity) -> Quantity:
        return Quantity(self.nanos - other.nanos, self.format if self.nanos else other.format)

    def __neg__(self) -> Quantity:
        return Quantity(-self.nanos, self.format)

    def __eq__(self, other: object) -> bool:
        return self.nanos == other.nanos if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: Quantity) -> bool:
        return self.nanos < other.nanos

    def __hash__(self) -> int:
        return hash(self.nanos)

    def __bool__(self) -> bool:
        return self.nanos != 0

    def __str__(self) -> str:
        """Returns the canonical form: no fraction, the largest suffix that allows it."""
        if self.nanos == 0:
            return "0"
        whole, rest = divmod(self.nanos, _NANO)
        if self.format is Format.BINARY and rest == 0 and abs(whole) >= 1024:
            mantissa, exponent = _without_factor(whole, 1024, limit=6)
            return f"{mantissa}{_BINARY_SUFFIX[exponent]}"
        if self.format is Format.EXPONENT:
            mantissa, thousands = _without_factor(self.nanos, 1000, limit=_LARGEST_EXPONENT)
            exponent = thousands * 3 - 9
            return f"{mantissa}e{exponent}" if exponent else str(mantissa)
        mantissa, thousands = _without_factor(self.nanos, 1000, limit=9)
        return f"{mantissa}{_DECIMAL_SUFFIX[thousands * 3 - 9]}"


_SIZES: Final[Mapping[str, int]] = {
    "1": _NANO,
    **{suffix: 10 ** (9 + exponent) for suffix, exponent in _DECIMAL.items()},
    **{suffix: _NANO * 1024**exponent for suffix, exponent in _BINARY.items()},
}

ZERO: Final = Quantity()

Resources = Mapping[str, Quantity]
"""Amounts by resource name."""


def parse_resources(amounts: Mapping[str, str | int | float]) -> dict[str, Quantity]:
    """Parses a ResourceList. Raises ValueError naming the resource."""
    parsed = {}
    for name, amount in amounts.items():
        try:
            parsed[name] = Quantity.parse(amount)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return parsed


def format_resources(amounts: Resources) -> dict[str, str]:
    """Formats amounts canonically, the reverse of `parse_resources`."""
    return {name: str(amount) for name, amount in amounts.items()}


def shared_resources(amounts: Resources) -> Resources:
    """Returns equal amounts that others have too: most pods request one of a few."""
    return _shared(tuple([(name, amount.nanos, amount.format) for name, amount in amounts.items()]))


@lru_cache(_CACHED)
def _shared(amounts: tuple[tuple[str, int, Format], ...]) -> Resources:
    return {name: Quantity(nanos, format_) for name, nanos, format_ in amounts}


def add_resources(a: Resources, b: Resources) -> dict[str, Quantity]:
    """Returns the sum, by name; an amount on only one side is used unchanged."""
    return {**a, **{name: a.get(name, ZERO) + amount for name, amount in b.items()}}


def sum_resources(parts: Iterable[Resources]) -> Resources:
    """Returns the sum of all parts, by name, as `add_resources` would, but without an object for each step."""
    nanos: dict[str, int] = {}
    formats: dict[str, Format] = {}
    for part in parts:
        for name, amount in part.items():
            before = nanos.get(name, 0)
            if not before:
                formats[name] = amount.format
            nanos[name] = before + amount.nanos
    return {name: Quantity(amount, formats[name]) for name, amount in nanos.items()}


def subtract_resources(a: Resources, b: Resources) -> dict[str, Quantity]:
    """Returns `a` minus `b`, for the names of `a` only; may be negative."""
    return {name: amount - b.get(name, ZERO) for name, amount in a.items()}


def max_resources(a: Resources, b: Resources) -> dict[str, Quantity]:
    """Returns the larger amount, by name; an amount on only one side is used unchanged."""
    return {**a, **{name: max(a[name], amount) if name in a else amount for name, amount in b.items()}}


@lru_cache(_CACHED)
def _parsed(text: str) -> Quantity:
    match = _TEXT.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise ValueError(f"not a quantity: {text[:_LONGEST]!r}")
    sign, number, exponent, suffix = match.groups()
    whole, _, fraction = number.partition(".")
    digits, shift = int(whole + fraction), 9 - len(fraction)
    multiplier, format_ = 1, Format.DECIMAL
    if exponent:
        shift, format_ = shift + int(exponent[1:]), Format.EXPONENT
    elif suffix in _BINARY:
        multiplier, format_ = 1024 ** _BINARY[suffix], Format.BINARY
    else:
        shift += _DECIMAL[suffix]
    nanos = _shifted(digits * multiplier, shift, text)
    if format_ is Format.BINARY and 0 < nanos < _NANO:
        format_ = Format.DECIMAL
    return Quantity(-nanos if sign == "-" else nanos, format_)


def _shifted(digits: int, shift: int, text: str) -> int:
    if digits == 0:
        return 0
    if shift > _LARGEST_EXPONENT:
        raise ValueError(f"quantity too large: {text!r}")
    power: int = 10 ** min(abs(shift), 2 * _LONGEST)
    return digits * power if shift >= 0 else _rounded_up(digits, power)


def _rounded_up(amount: int, size: int) -> int:
    return -(-amount // size) if amount >= 0 else amount // size


def _without_factor(amount: int, factor: int, *, limit: int) -> tuple[int, int]:
    times = 0
    while times < limit and amount % factor == 0:
        amount //= factor
        times += 1
    return amount, times
