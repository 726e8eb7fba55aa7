"""Early warnings of a family of faults, beside two ways of warning that look at one signal and know nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.client.models_pager import EarlyWarnings, WarningPolicy
from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.grouping import grouped
from tocsin.queries.pager_score import Cause, Truth

Numbers = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

HALF = 0.5
"""Share of the possible lead that a warning must leave."""
REARM_MS = HOUR
"""A signal must be quiet this long before its next alarm is a new one."""
DRAWS = 1000
LEVELS = 25
RISE_MS = 10 * MINUTE


@dataclass(frozen=True, slots=True)
class Warned:
    """One warning about one GPU."""

    at_ms: int
    gpu: str


@dataclass(frozen=True, slots=True)
class SignalTable:
    """One signal of every GPU on an even grid: `values` [steps, gpus], NaN where it could not be read; `rise` is what
    counts as a rise over `RISE_MS`."""

    at_ms: npt.NDArray[np.int64]
    gpus: tuple[str, ...]
    values: Numbers
    rise: float


@dataclass(frozen=True, slots=True)
class _Judged:
    policy: WarningPolicy
    right: Mask
    warned: Mask


def score_early(
    family: str,
    warnings: Sequence[Warned],
    kinds: frozenset[str],
    truth: Truth,
    signal: SignalTable,
    seed: int,
    *,
    struck: Sequence[Cause] = (),
) -> EarlyWarnings:
    """The service's `warnings` of faults of `kinds`, beside the best fixed level of `signal` and every rise of it.

    What is said of a place from the onset of a fault in `struck` there to its end is no early warning of anybody's, and
    a fault whose time to be warned of lies within such spans, or before anybody looked, is none that could be foreseen.
    What is said while a sign of these kinds goes on that has led to nothing by the end, nor ended, is not judged yet,
    of anybody.
    """
    heard = _Heard(_outages(struck), _undecided(truth, kinds), truth.start_ms)
    faults = [one for one in truth.causes if _foreseeable(one, kinds, truth.end_ms)]
    case = _Case(heard, faults, np.array([heard.could_hear(fault) for fault in faults], np.bool_))
    mine = _judge("service", warnings, case)
    others = [_best_level(signal, case), _judge("warn at every rise", rises(signal), case)]
    rng = np.random.default_rng([seed % 2**64, mine.policy.faults])
    return EarlyWarnings(
        family=family,
        service=mine.policy,
        policies=[other.policy for other in others],
        better_precision={other.policy.name: _apart(mine.right, other.right, rng) for other in others},
        better_recall={other.policy.name: _paired(mine.warned, other.warned, rng) for other in others},
    )


def _foreseeable(cause: Cause, kinds: frozenset[str], end_ms: int) -> bool:
    return cause.kind in kinds and cause.precursor and not cause.benign and cause.onset_ms <= end_ms


def _latest_ms(fault: Cause) -> float:
    """The last instant at which a warning leaves enough of its lead."""
    return fault.onset_ms - HALF * (fault.onset_ms - fault.first_ms)


def _outages(struck: Sequence[Cause]) -> dict[str, list[tuple[int, float]]]:
    """From when to when each place has failed, by onset; without an end where it has not been repaired."""
    spans = grouped(
        (place, (cause.onset_ms, math.inf if cause.ended_ms is None else float(cause.ended_ms)))
        for cause in struck
        for place in cause.places
    )
    return {place: sorted(mine) for place, mine in spans.items()}


def _undecided(truth: Truth, kinds: frozenset[str]) -> dict[str, int]:
    """Since when each place has a sign of `kinds` that still goes on at the end: whether it comes to anything, benign
    or not, shows later."""
    since: dict[str, int] = {}
    for cause in truth.causes:
        if cause.kind in kinds and cause.precursor and cause.ended_ms is None and cause.onset_ms > truth.end_ms:
            since |= {place: min(since.get(place, cause.first_ms), cause.first_ms) for place in cause.places}
    return since


@dataclass(frozen=True, slots=True)
class _Heard:
    """From when to when each place has failed, since when it has a sign that nothing has come of yet, and since when
    anybody looks."""

    failed: Mapping[str, Sequence[tuple[int, float]]]
    undecided: Mapping[str, int]
    start_ms: int

    def of(self, warnings: Sequence[Warned]) -> list[Warned]:
        """Those that are early, and can be judged."""
        return [
            one
            for one in warnings
            if not any(onset_ms <= one.at_ms <= ended_ms for onset_ms, ended_ms in self.failed.get(one.gpu, ()))
            and one.at_ms < self.undecided.get(one.gpu, one.at_ms + 1)
        ]

    def could_hear(self, fault: Cause) -> bool:
        """Whether some place of `fault` worked at some time at which a warning would have left enough of its lead."""
        from_ms = max(fault.first_ms, self.start_ms)
        return any(self._worked(place, from_ms, _latest_ms(fault)) for place in fault.places)

    def _worked(self, place: str, from_ms: int, to_ms: float) -> bool:
        reached_ms: float = from_ms
        for onset_ms, ended_ms in self.failed.get(place, ()):
            if onset_ms > reached_ms:
                break
            reached_ms = max(reached_ms, ended_ms + 1)
        return reached_ms <= to_ms


@dataclass(frozen=True, slots=True)
class _Case:
    """What ways of warning are judged by: what can be, the faults, and which of them could be warned of in time."""

    heard: _Heard
    faults: Sequence[Cause]
    in_time: Mask


def _judge(name: str, told: Sequence[Warned], case: _Case) -> _Judged:
    """A warning is right between the first symptom and the onset of a fault of its GPU."""
    warnings, faults = case.heard.of(told), case.faults
    by_gpu: dict[str, list[int]] = {}
    for number, fault in enumerate(faults):
        for touched in fault.places:
            by_gpu.setdefault(touched, []).append(number)
    right, warned = np.zeros(len(warnings), np.bool_), np.zeros(len(faults), np.bool_)
    for place, warning in enumerate(warnings):
        for number in by_gpu.get(warning.gpu, ()):
            fault = faults[number]
            if fault.first_ms <= warning.at_ms <= fault.onset_ms:
                right[place] = True
                warned[number] |= warning.at_ms <= _latest_ms(fault)
    warned = warned[case.in_time]
    policy = WarningPolicy(
        name=name,
        warnings=len(warnings),
        right=int(right.sum()),
        precision=float(right.mean()) if right.size else None,
        faults=warned.size,
        warned=int(warned.sum()),
        recall=float(warned.mean()) if warned.size else None,
    )
    return _Judged(policy, right, warned)


def _alarms(signal: SignalTable, on: Mask) -> list[Warned]:
    """The beginnings of alarm of each GPU; one within `REARM_MS` of the end of the last belongs to it."""
    found = []
    for number, gpu in enumerate(signal.gpus):
        last = -REARM_MS - 1
        for at_ms in signal.at_ms[on[:, number]].tolist():
            if at_ms - last > REARM_MS:
                found.append(Warned(at_ms, gpu))
            last = at_ms
    return sorted(found, key=lambda one: (one.at_ms, one.gpu))


def rises(signal: SignalTable) -> list[Warned]:
    """An alarm at every rise."""
    if len(signal.at_ms) < 2:
        return []
    back = max(1, round(RISE_MS / float(signal.at_ms[1] - signal.at_ms[0])))
    on = np.zeros(signal.values.shape, np.bool_)
    on[back:] = signal.values[back:] - signal.values[:-back] >= signal.rise
    return _alarms(signal, on)


def _best_level(signal: SignalTable, case: _Case) -> _Judged:
    """The level with the best F1 on these very faults: better than anybody could choose beforehand."""
    known = signal.values[np.isfinite(signal.values)]
    levels = np.unique(np.quantile(known, 1.0 - np.geomspace(0.3, 1e-4, LEVELS))) if known.size else np.zeros(0)
    tried = [_judge(f"used > {level:.3g}", _alarms(signal, signal.values > level), case) for level in levels.tolist()]
    best = max(tried, key=_f1, default=_judge("used > nothing", [], case))
    return _Judged(best.policy.model_copy(update={"name": "best fixed level"}), best.right, best.warned)


def _f1(one: _Judged) -> float:
    precision, recall = one.policy.precision or 0.0, one.policy.recall or 0.0
    return 2.0 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0


def _interval(draw: Callable[[], float]) -> tuple[float, float]:
    low, high = np.quantile([draw() for _ in range(DRAWS)], [0.025, 0.975])
    return float(low), float(high)


def _apart(mine: Mask, other: Mask, rng: np.random.Generator) -> tuple[float, float] | None:
    if not mine.size or not other.size:
        return None
    return _interval(lambda: float(rng.choice(mine, mine.size).mean() - rng.choice(other, other.size).mean()))


def _paired(mine: Mask, other: Mask, rng: np.random.Generator) -> tuple[float, float] | None:
    if not mine.size:
        return None
    apart = mine.astype(np.float64) - other.astype(np.float64)
    return _interval(lambda: float(rng.choice(apart, apart.size).mean()))
