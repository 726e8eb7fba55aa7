"""The answers of several cells put together, and what is said of those that did not answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from tocsin.client.control import BreakerOut
from tocsin.client.models import FleetSummary, GpuSummary
from tocsin.client.models_cells import AnswerState, CellAnswer, WholeFleet
from tocsin.domain.decision import Mode

T = TypeVar("T")

_FURTHEST = (Mode.OBSERVE, Mode.PROPOSE, Mode.ACT)


def missing(whole: WholeFleet) -> list[CellAnswer]:
    """The cells of which nothing, or only something old, is shown."""
    return [one for one in whole.cells if one.state is not AnswerState.ANSWERED]


def said(whole: WholeFleet) -> list[str]:
    """How many cells answered, and a line for each that did not."""
    lacking = missing(whole)
    head = f"{len(whole.cells)} cells: {', '.join(one.cell for one in whole.cells)}"
    if not lacking:
        return [head]
    return [f"{head}; PARTIAL, {len(lacking)} did not answer", *(f"  {_why(one)}" for one in lacking)]


def _why(one: CellAnswer) -> str:
    shown = f", shown as of {one.age_s:.0f} s ago" if one.age_s is not None else ""
    gpus = f", {one.gpus} GPUs when it last told" if one.gpus is not None and one.age_s is None else ""
    return f"{one.cell} is {one.state}{shown}{gpus}: {one.detail}"


def flat(answers: Mapping[str, Iterable[T]]) -> list[T]:
    """What all cells have, cell by cell."""
    return [one for name in sorted(answers) for one in answers[name]]


def every_gpu(answers: Mapping[str, Sequence[GpuSummary]]) -> list[GpuSummary]:
    """Every GPU once, by host and index: of one that two cells know the newer reading."""
    newest: dict[str, GpuSummary] = {}
    for gpu in flat(answers):
        known = newest.get(gpu.uuid)
        if known is None or (gpu.last_reading or "") > (known.last_reading or ""):
            newest[gpu.uuid] = gpu
    return sorted(newest.values(), key=lambda gpu: (gpu.host, -1 if gpu.index is None else gpu.index, gpu.uuid))


def whole_summary(answers: Mapping[str, FleetSummary]) -> FleetSummary:
    """The summaries of all cells as one: counts added up, ratios by the GPUs of each, the furthest mode.

    It is paused, and the breaker tripped, where that is so in any cell; the reason names the cells. `answers` has at
    least one.
    """
    every = [answers[name] for name in sorted(answers)]
    paused = {name: one for name, one in sorted(answers.items()) if one.paused}
    tripped = {name: one for name, one in sorted(answers.items()) if one.breaker.tripped}
    causes = [one.breaker for one in tripped.values()]
    limit = min(one.breaker.limit for one in every)
    breaker = BreakerOut(tripped=False, limit=limit)
    if causes:
        reason = f"in cell {', '.join(tripped)}: {causes[0].reason}"
        most = max(one.root_causes for one in causes)
        breaker = BreakerOut(tripped=True, root_causes=most, limit=limit, since=causes[0].since, reason=reason)
    told = {
        "paused": bool(paused),
        "paused_by": ", ".join(sorted({one.paused_by for one in paused.values()})),
        "paused_reason": by_reason({name: one.paused_reason for name, one in paused.items()}),
        "journal_witness": by_reason({name: one.journal_witness for name, one in answers.items()}),
        "breaker": breaker,
        "breaker_reason_zh": next((one.breaker_reason_zh for one in tripped.values()), ""),
        "muted": [f"{name}: {line}" for name in sorted(answers) for line in answers[name].muted],
        "risk_model": by_reason({name: one.risk_model for name, one in answers.items()}),
    }
    return every[0].model_copy(update=told | _figures(every))


def _figures(every: Sequence[FleetSummary]) -> dict[str, object]:
    ages = [one.last_reading_age_s for one in every if one.last_reading_age_s is not None]
    return {
        "now": max(one.now for one in every),
        "simulated": any(one.simulated for one in every),
        "mode": furthest(one.mode for one in every),
        "executor": ", ".join(sorted({one.executor for one in every})),
        # A pool of one name is one pool, wherever its GPUs are; how many names there are no cell knows.
        "pools": max(one.pools for one in every),
        "last_reading": max((one.last_reading for one in every if one.last_reading), default=None),
        "last_reading_age_s": min(ages, default=None),
        "utilization_ratio": _mean([(one.utilization_ratio, one.gpus) for one in every]),
        "memory_used_ratio": _mean([(one.memory_used_ratio, one.gpus) for one in every]),
        "power_watts": _sum([one.power_watts for one in every]),
        **{name: sum(getattr(one, name) for one in every) for name in _ADDED},
        **{name: _tallied(every, name) for name in ("states", "findings", "levels")},
    }


_ADDED = (
    "gpus",
    "hosts",
    "readings",
    "incidents",
    "predictions",
    "decisions",
    "decisions_held",
    "decisions_approvable",
)


def furthest(modes: Iterable[Mode]) -> Mode:
    """Of `modes`, of which there is at least one, the one that lets rules go furthest."""
    return max(modes, key=_FURTHEST.index)


def by_reason(by_cell: Mapping[str, str]) -> str:
    """What is said of single cells, by name, the same of several once; nothing where nothing is."""
    cells: dict[str, list[str]] = {}
    for name in sorted(by_cell):
        cells.setdefault(by_cell[name], []).append(name)
    return "; ".join(f"in cell {', '.join(names)}: {text}" for text, names in cells.items() if text)


def _tallied(every: Sequence[FleetSummary], name: str) -> dict[object, int]:
    total = Counter[object]()
    for one in every:
        total.update(getattr(one, name))
    return dict(total)


def _mean(pairs: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(value, weight) for value, weight in pairs if value is not None and weight]
    weights = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / weights if weights else None


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
