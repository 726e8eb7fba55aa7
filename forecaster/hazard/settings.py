"""Settings of scorers: plain data, so that an artefact can build the same scorer again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any, TypeVar

from tocsin.domain.errors import InputError
from tocsin.forecaster.features.examples import HORIZONS_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What every family has.

    `features` are shell patterns of the features that may be looked at; one with a leading ``!`` leaves out what it
    matches. `min_onsets` different onsets must fall within the longest horizon of some row, or the fit is refused.
    Whatever is chosen inside a fit is chosen on `folds` folds that are disjoint by device.
    """

    horizons_ms: tuple[int, ...] = HORIZONS_MS
    min_history_ms: int = 0
    min_onsets: int = 3
    features: tuple[str, ...] = ("*",)
    folds: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        horizons = self.horizons_ms
        if not horizons or horizons[0] <= 0 or any(b <= a for a, b in pairwise(horizons)):
            raise InputError("horizons_ms", horizons, "not a rising list of spans", "give for example [3600000]")
        if self.folds < 2:
            raise InputError("folds", self.folds, "fewer than 2", "give 2 or more")


SettingsT = TypeVar("SettingsT", bound=Common)


def _plain(value: object) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_plain(one) for one in value)
    return value


def make(kind: type[SettingsT], family: str, given: Mapping[str, object]) -> SettingsT:
    """Settings of a family from plain data; lists become tuples. Raises InputError for a name it does not have."""
    known = {one.name for one in fields(kind)}
    for name, value in given.items():
        if name not in known:
            raise InputError(f"{family}.{name}", value, "no such setting", f"there are {', '.join(sorted(known))}")
    return kind(**{name: _plain(value) for name, value in given.items()})


def as_json(settings: Common) -> dict[str, object]:
    """The same as plain data, for `make`."""
    return asdict(settings)
