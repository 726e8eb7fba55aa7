"""What decides how hard a simulated fleet is to predict, read from one file.

A scenario holds rates, shares, the length, strength and shape of precursors, and the noise of the normal. Every table
of the file says in `source` where its numbers are from. `scenarios/default.toml` is the one that ships.
"""

from __future__ import annotations

import difflib
import tomllib
from functools import cache
from importlib import resources
from typing import Annotated, Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tocsin.domain.clock import HOUR
from tocsin.domain.errors import InputError

FORMAT = 1
COUNTERS = (
    "corrected",
    "remaps",
    "replays",
    "correctable",
    "retrainings",
    "recoveries",
    "crc_flit",
    "crc_data",
    "symbols",
)
"""Errors that healthy parts count too: corrected DRAM errors, rows remapped after corrected errors, PCIe replays,
correctable errors and retrainings, NVLink recoveries, CRC errors of flits and data, and symbol errors of each link."""
POOLS = ("training", "inference", "batch")
LEAST_CURVE_POINTS = 2

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
_Peak = Annotated[float, Field(gt=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Span = tuple[float, float]
"""Shortest and longest of a duration in milliseconds."""


class _ScenarioTable(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class _Sourced(_ScenarioTable):
    source: str = Field(min_length=3)


def _rising(name: str, hours: tuple[float, float]) -> None:
    if hours[1] < hours[0]:
        raise ValueError(f"{name} must rise")


class Study(_Sourced):
    """The observed fleet whose counts of interruptions the rates are made from."""

    gpus: Positive
    days: Positive

    @property
    def gpu_years(self) -> float:
        return self.gpus * self.days / 365.25


class Counter(_ScenarioTable):
    """Errors of a healthy GPU (`symbols`: link): `per_day` is the median over GPUs, `spread` the standard deviation of
    its logarithm between them."""

    per_day: NotNegative
    spread: NotNegative = 0.0


class CounterRates(_Sourced):
    """The normal errors, each counter on its own."""

    corrected: Counter
    remaps: Counter
    replays: Counter
    correctable: Counter
    retrainings: Counter
    recoveries: Counter
    crc_flit: Counter
    crc_data: Counter
    symbols: Counter


class NoiseEpisodes(_Sourced):
    """Bad episodes of one counter of one GPU that lead to nothing: its rate times a factor with median `growth` and
    `spread` of its logarithm, for a time that is exponential with mean `hours`."""

    per_day: NotNegative
    hours: Positive
    growth: Positive
    spread: NotNegative


class Sensors(_Sourced):
    """Standard deviations of what is read: degrees of the die, shares of power over a step, of power at an instant and
    of activity counters."""

    die_c: NotNegative
    power: NotNegative
    power_instant: NotNegative
    activity: NotNegative


class Load(_Sourced):
    """How work differs: by instant (`wobble`, standard deviation), and by job (level between `level_from` and
    `level_to`; `heat_spread` is the standard deviation of the logarithm of its power at equal utilisation)."""

    wobble: NotNegative
    level_from: Share
    level_to: Positive
    heat_spread: NotNegative


class InletHeat(_Sourced):
    """Inlet and thermal path of the healthy: shares between slot parities and GPUs, degrees between racks (`rack_c`,
    standard deviation, at most `rack_most_c`) and over the day; hot episodes of a rack's air."""

    slot_share: Share
    gpu_spread: NotNegative
    rack_c: NotNegative
    rack_most_c: NotNegative
    day_c: NotNegative
    spells_per_rack_day: NotNegative
    spell_hours: Positive
    spell_c: NotNegative


class MemoryNoise(_Sourced):
    """Memory of a sound job: `ripple` and `noise` as shares of the whole, and what it still gains after its start,
    `warm_up` as a share of its level with time constant `warm_up_minutes`. The same for the allocator's holes."""

    ripple: NotNegative
    noise: NotNegative
    warm_up: Share
    warm_up_minutes: Positive
    fragmentation_ripple: NotNegative
    fragmentation_noise: NotNegative


class PoolShares(_ScenarioTable):
    """A share of the jobs of each pool."""

    training: Share
    inference: Share
    batch: Share


class Plateaus(_Sourced):
    """Jobs whose memory fills and stays there, sound as it is: at a level between `level_from` and `level_to` of the
    memory. A `reserved` job takes it at its start, a `filled` one over `fill_hours` (shortest and longest), evenly,
    from `fill_from` of its level on. `noise` is a share of the whole."""

    reserved: PoolShares
    filled: PoolShares
    level_from: Share
    level_to: Share
    fill_from: Share
    fill_hours: tuple[Positive, Positive]
    noise: NotNegative

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _rising("fill_hours", self.fill_hours)
        _rising("level_from and level_to", (self.level_from, self.level_to))
        for pool in POOLS:
            if getattr(self.reserved, pool) + getattr(self.filled, pool) > 1.0:
                raise ValueError(f"reserved and filled jobs of {pool} must not be more than all")
        return self


class Throughput(_Sourced):
    """Share of the throughput that is left at a share of the default power limit, by pool; straight between points."""

    limit_share: tuple[float, ...]
    training: tuple[float, ...]
    inference: tuple[float, ...]
    batch: tuple[float, ...]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        points = len(self.limit_share)
        if points < LEAST_CURVE_POINTS or list(self.limit_share) != sorted(set(self.limit_share)):
            raise ValueError("limit_share must rise over two or more points")
        for pool in POOLS:
            curve = getattr(self, pool)
            if len(curve) != points or list(curve) != sorted(curve) or curve[-1] != 1.0:
                raise ValueError(f"{pool} needs {points} values that rise to 1")
        return self

    def at(self, pool: str, limit_share: float) -> float:
        """Throughput of `pool` at `limit_share` of the default limit."""
        return float(np.interp(limit_share, self.limit_share, getattr(self, pool)))


class PowerCurve(_Sourced):
    """Dynamic power goes with the clock to the power `clock_exponent`."""

    clock_exponent: Positive
    throughput: Throughput


class Normal(_ScenarioTable):
    """The fleet when nothing fails."""

    counters: CounterRates
    episodes: NoiseEpisodes
    sensors: Sensors
    load: Load
    heat: InletHeat
    memory: MemoryNoise
    plateaus: Plateaus | None = None


class Rise(_ScenarioTable):
    """How a counter or effect grows with a precursor that has come to strength s: by `growth` x its normal rate plus
    `per_hour`, times s to the power `shape`."""

    growth: NotNegative = 0.0
    per_hour: NotNegative = 0.0
    shape: Positive = 1.0


class PrecursorCourse(_Sourced):
    """A precursor: how long, what rises, and `marks`, strengths at which something happens once.

    `spread` is the standard deviation of the logarithm of a factor on all rises that each fault draws: some are
    louder than others.
    """

    lead_hours: tuple[NotNegative, NotNegative]
    spread: NotNegative = 0.0
    rises: dict[str, Rise] = Field(default_factory=dict)
    marks: dict[str, NotNegative] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _rising("lead_hours", self.lead_hours)
        return self

    @property
    def lead(self) -> Span:
        """Shortest and longest, in milliseconds."""
        return self.lead_hours[0] * HOUR, self.lead_hours[1] * HOUR


class FaultNumbers(_Sourced):
    """One kind: how often, how, for how long. Either `per_gpu_year`, or `interruptions` of the study times `share`.

    `benign_holds_share` of the benign ones keep what they took until they end, where the kind can; the others fade,
    from a strength drawn evenly from `benign_peak`.
    `precursor` is that of spontaneous faults, `rehearsal` that of injected ones; kinds that always strike without a
    warning have neither.
    """

    per_gpu_year: NotNegative | None = None
    interruptions: NotNegative | None = None
    share: Share = 1.0
    abrupt_share: Share = 1.0
    benign_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    benign_holds_share: Share = 0.0
    benign_peak: tuple[_Peak, _Peak] = (0.5, 0.5)
    repair_hours: tuple[NotNegative, NotNegative]
    rehearsal_repair_hours: Positive
    numbers: dict[str, NotNegative] = Field(default_factory=dict)
    precursor: PrecursorCourse | None = None
    rehearsal: PrecursorCourse | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        _rising("repair_hours", self.repair_hours)
        _rising("benign_peak", self.benign_peak)
        if (self.per_gpu_year is None) == (self.interruptions is None):
            raise ValueError("give either per_gpu_year or interruptions")
        warned = self.abrupt_share < 1.0
        if warned != (self.precursor is not None) or warned != (self.rehearsal is not None):
            raise ValueError("precursor and rehearsal are needed where abrupt_share is below 1, and only there")
        return self


class Scenario(_ScenarioTable):
    """All of it. `name` and `about` are for people."""

    format: Annotated[int, Field(ge=FORMAT, le=FORMAT)]
    name: str
    about: str
    study: Study
    normal: Normal
    power: PowerCurve
    fault: dict[str, FaultNumbers]

    def per_gpu_year(self, kind: str) -> float:
        numbers = self.fault[kind]
        if numbers.per_gpu_year is not None:
            return numbers.per_gpu_year
        assert numbers.interruptions is not None
        return numbers.interruptions * numbers.share / self.study.gpu_years


def read_scenario(text: str, where: str) -> Scenario:
    """The scenario that `text` describes, whichever faults it names; `where` names it in errors. Raises InputError."""
    try:
        return Scenario.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise InputError("scenario", where, f"is not TOML: {error}", "correct the line it names") from None
    except RecursionError:
        raise InputError("scenario", where, "is nested too deeply", "write tables with less depth") from None
    except ValidationError as error:
        raise _explain(error, where) from None


@cache
def default_scenario() -> Scenario:
    """The scenario that ships. That its faults are the kinds that there are is tested, not checked at every start."""
    file = resources.files("tocsin.sim").joinpath("scenarios/default.toml")
    return read_scenario(file.read_text(encoding="utf-8"), "default.toml")


def _explain(error: ValidationError, where: str) -> InputError:
    errors = error.errors(include_url=False)
    first = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
    path = ".".join(str(part) for part in first["loc"]) or "scenario"
    if first["type"] == "extra_forbidden":
        known = _keys(Scenario, first["loc"][:-1])
        near = difflib.get_close_matches(str(first["loc"][-1]), known, n=1, cutoff=0.0)
        return InputError(
            path, first["input"], f"unknown key in {where}", f"nearest is {near[0]}" if near else "remove it"
        )
    return InputError(path, first["input"], f"{first['msg']} (in {where})", "see scenarios/default.toml for the form")


def _keys(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """The keys of the table at `path`; names that people choose (kinds, rises) are passed over."""
    for part in path:
        field = model.model_fields.get(str(part))
        nested = [] if field is None else [kind for kind in _kinds(field.annotation) if issubclass(kind, BaseModel)]
        if nested:
            model = nested[0]
    return list(model.model_fields)


def _kinds(annotation: Any) -> list[type]:
    parts = getattr(annotation, "__args__", ())
    return (
        [annotation] if isinstance(annotation, type) and not parts else [one for part in parts for one in _kinds(part)]
    )
