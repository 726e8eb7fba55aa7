"""What AMD and Ascend answer for each metric of the table, and the way from their unit to ours: one row, one reading.

Rows are in ``vendor_metrics.csv``: vendor, canonical name, value of its label, what is asked, where the answer has the
value, the vendor's unit, how often it is asked, where the row is from. Several rows of one name are tried in their
order. Calls and keys were checked against the Python package amdsmi 7.0.2; no row has met a card.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources

from tocsin.domain.metrics import METRICS, variant
from tocsin.domain.reading import Missing

AMD, ASCEND = "amd", "ascend"
VENDOR = "vendor"
"""Label of a GPU that is not NVIDIA's: `AMD` or `ASCEND`."""
NOT_THERE = frozenset({"", "-", "n/a", "na", "none", "null"})
"""What AMD and Ascend print for a value that they do not have."""
_WIDEST = frozenset({0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF})
"""Greatest numbers of the types that counts come in: blank."""
_MILLI_FROM = 1_000.0
"""Degrees from which on a temperature is one in millidegrees: no part is that hot, and none colder than 1 degree."""
_TRANSFER_RATES = {2.5: 1.0, 5.0: 2.0, 8.0: 3.0, 16.0: 4.0, 32.0: 5.0, 64.0: 6.0}
"""PCIe: GT/s of a lane to generation."""
_MEGA_FROM = 100.0
"""From here on a transfer rate is in MT/s: no generation has so many GT/s."""


@dataclass(frozen=True, slots=True)
class VendorMetric:
    """One row; `slow` rows need not be asked with every reading."""

    vendor: str
    metric: str
    label_value: str
    call: str
    key: str
    unit: str
    slow: bool
    provenance: str

    def value(self, raw: object) -> float | Missing:
        """`raw` in our unit; blank where it is outside the bounds of its metric."""
        value, spec = in_our_unit(self.unit, raw), METRICS[self.metric]
        return value if isinstance(value, Missing) or spec.minimum <= value <= spec.maximum else Missing.BLANK

    def name(self, label: str, value: str = "") -> str:
        """Canonical name, or the variant of `label` for `value` or the row's own."""
        chosen = value or self.label_value
        return variant(self.metric, label, chosen) if chosen else self.metric


def _degrees(number: float) -> float:
    return number / 1_000 if abs(number) >= _MILLI_FROM else number


def _generation(number: float) -> float | Missing:
    rate = number / 1_000 if number >= _MEGA_FROM else number
    return _TRANSFER_RATES.get(rate, Missing.BLANK)


UNITS: dict[str, Callable[[float], float | Missing]] = {
    "C": lambda number: number,
    "C or mC": _degrees,
    "W": lambda number: number,
    "uW": lambda number: number / 1e6,
    "uJ": lambda number: number / 1e6,
    "MHz": lambda number: number * 1e6,
    "B": lambda number: number,
    "MiB": lambda number: number * (1 << 20),
    "%": lambda number: number / 100 if number <= 100 else Missing.BLANK,
    "count": lambda number: number,
    "any": lambda number: float(number > 0),
    "bool": lambda number: float(number != 0),
    "MT/s or GT/s": _generation,
    "U or D": lambda number: number,
    "absent": lambda number: float(number == 0),
}
"""The vendors' units, to ours. ``any`` is whether it is more than none, ``absent`` whether it is none."""
_SIXTEEN_BITS = frozenset({"C", "C or mC", "W", "MHz", "%", "MT/s or GT/s"})
"""Units in which 65535 is the blank of a narrow type."""
_LINK_STATES = {"U": 1.0, "D": 0.0}


def in_our_unit(unit: str, raw: object) -> float | Missing:
    """`raw`, a number or its text as the vendor has it, in our unit; a blank of any of the vendors' forms is blank."""
    if unit == "U or D":
        return _LINK_STATES.get(raw, Missing.BLANK) if isinstance(raw, str) else Missing.BLANK
    if isinstance(raw, str):
        text = raw.strip()
        if text.lower() in NOT_THERE:
            return Missing.BLANK
        try:
            number = float(text)
        except ValueError:
            return Missing.BLANK
    elif isinstance(raw, int | float):
        try:
            number = float(raw)
        except OverflowError:
            return Missing.BLANK
        if isinstance(raw, int) and raw in _WIDEST:
            return Missing.BLANK
    else:
        return Missing.BLANK
    if not math.isfinite(number) or (unit in _SIXTEEN_BITS and number == 0xFFFF):
        return Missing.BLANK
    ours = UNITS[unit](number)
    return ours if math.isfinite(ours) else Missing.BLANK


def _row(row: dict[str, str]) -> VendorMetric:
    return VendorMetric(
        row["vendor"],
        row["metric"],
        row["label_value"],
        row["call"],
        row["key"],
        row["unit"],
        row["cadence"] == "slow",
        row["provenance"],
    )


@cache
def vendor_metrics(vendor: str) -> tuple[VendorMetric, ...]:
    """The rows of `vendor`, in the order of the table."""
    return read_vendor_metrics(
        resources.files("tocsin.domain").joinpath("vendor_metrics.csv").read_text(encoding="utf-8").splitlines(), vendor
    )


def read_vendor_metrics(lines: Iterable[str], vendor: str) -> tuple[VendorMetric, ...]:
    """The rows of `vendor` in a table of this form, in its order."""
    return tuple(_row(row) for row in csv.DictReader(lines) if row["vendor"] == vendor)
