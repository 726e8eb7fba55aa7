"""What GPUs were used for, in GPU-hours and kWh, and what that costs at given prices.

Nothing is estimated: time without readings is counted as missing, energy that nobody measured as unmetered, and
GPU-hours of a model without a price as unpriced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields


@dataclass(frozen=True, slots=True)
class Usage:
    """GPU-hours by what the GPUs did, which add up to all of them, and energy.

    `held_idle` were held by a process that did next to nothing, `stranded` free but too few on their node for a job of
    a whole node, `free` free otherwise, `unknown` read without telling a utilisation, `dark` lost: read without any
    value; of `missing` there is no reading. `kwh` is what the boards took, `idle_kwh` the part of those that were
    held idle, stranded or free; `unmetered` are the GPU-hours whose energy is not known, those without readings too.
    """

    busy: float = 0.0
    held_idle: float = 0.0
    stranded: float = 0.0
    free: float = 0.0
    unknown: float = 0.0
    dark: float = 0.0
    missing: float = 0.0
    kwh: float = 0.0
    idle_kwh: float = 0.0
    unmetered: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, name) + getattr(other, name) for name in _NAMES))

    @property
    def gpu_hours(self) -> float:
        return self.busy + self.held_idle + self.stranded + self.free + self.unknown + self.dark + self.missing

    @property
    def idle(self) -> float:
        return self.held_idle + self.stranded + self.free


_NAMES = tuple(one.name for one in fields(Usage))

Group = tuple[str, str]
"""Pool and model."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What is paid, in `currency`; None where nobody said.

    `gpu_hour` is by a part of the model's name: the longest that the name contains, in any case, counts, else
    `gpu_hour_default`. `pue` is the facility's energy for each kWh of the boards.
    """

    currency: str = ""
    gpu_hour: Mapping[str, float] = field(default_factory=dict)
    gpu_hour_default: float | None = None
    kwh: float | None = None
    pue: float = 1.0

    def of_model(self, model: str) -> float | None:
        fitting = [name for name in self.gpu_hour if name.lower() in model.lower()]
        return self.gpu_hour[max(fitting, key=len)] if fitting else self.gpu_hour_default


@dataclass(frozen=True, slots=True)
class Money:
    """What usage costs; None where no price says. `unpriced` are the GPU-hours that the figures leave out.

    Energy stands beside the rest and is in none of it: a price for a GPU-hour may contain it already.
    """

    busy: float | None = None
    held_idle: float | None = None
    stranded: float | None = None
    free: float | None = None
    energy: float | None = None
    idle_energy: float | None = None
    unpriced: float = 0.0


def total(parts: Iterable[Usage]) -> Usage:
    """The sum."""
    return sum(parts, Usage())


def money(groups: Mapping[Group, Usage], prices: Prices) -> Money:
    """What `groups` cost: the sum over those whose model has a price."""
    priced = [(one, price) for (_, model), one in groups.items() if (price := prices.of_model(model)) is not None]
    unpriced = sum(one.gpu_hours for (_, model), one in groups.items() if prices.of_model(model) is None)
    whole = total(groups.values())

    def cost(name: str) -> float | None:
        return sum(float(getattr(one, name)) * price for one, price in priced) if priced else None

    def energy(kwh: float) -> float | None:
        return None if prices.kwh is None else kwh * prices.pue * prices.kwh

    return Money(
        cost("busy"),
        cost("held_idle"),
        cost("stranded"),
        cost("free"),
        energy(whole.kwh),
        energy(whole.idle_kwh),
        unpriced,
    )
