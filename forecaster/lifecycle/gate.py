"""The gate: a risk model is heard only where its record says that it has been better than what knows nothing.

A record judges scores of rows that the model did not learn from. Its average precision must be above that of each
rival by the lower bound of the paired bootstrap over node events: all GPUs of a node up to the same onset are one draw.
A record of a simulated past lets a model speak of simulated GPUs, and of no others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError

from tocsin.domain.atomic_file import write_atomically
from tocsin.domain.errors import InputError
from tocsin.forecaster.evaluation.figures import DRAWS, difference
from tocsin.forecaster.evaluation.trivial import ALWAYS_HEALTHY, RECENCY, always_healthy, recency
from tocsin.forecaster.features.examples import NEVER, Examples, Floats
from tocsin.forecaster.hazard.physics import falls
from tocsin.forecaster.hazard.scorer import Scorer

FIGURE = "auprc"
"""Average precision decides, as in a trial: rare events, and no threshold to choose."""
LEAST_EVENTS = 5
"""Node events without which nothing is told apart from luck (own choice)."""
COIN, SHIFTED = "coin", "its own scores, shifted in time"
LEARNING = "No risk model yet: learning your fleet; rules speak alone."
LEARNING_ZH = "尚无风险模型：正在学习您的集群；目前仅由规则发出提示。"
SIMULATED_ALONE = "The risk model was fitted on simulated data, and speaks of simulated GPUs alone."
SIMULATED_ALONE_ZH = "风险模型基于模拟数据训练，仅对模拟 GPU 发表意见。"


@dataclass(frozen=True, slots=True)
class Margin:
    """By how much the model's average precision exceeds that of `rival`, with the 95 % interval."""

    rival: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class GateRecord:
    """One judgement. `data` says in words on what, `simulated` whether that was made up; `node_events` counts what the
    bootstrap draws and had an onset, `because` says in sentences why it passed or not."""

    passed: bool
    simulated: bool
    data: str
    node_events: int
    margins: tuple[Margin, ...] = ()
    because: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelGate:
    """The records of a version; without any it is heard nowhere."""

    records: tuple[GateRecord, ...] = field(default=())

    def heard(self, *, simulated: bool) -> bool:
        """Whether the model may speak of GPUs that are `simulated`, or of real ones: the record over the most events
        decides, of equals the newest, so that one lucky small recording outvotes nothing."""
        mine = [one for one in reversed(self.records) if one.simulated == simulated]
        return bool(mine) and max(mine, key=lambda one: one.node_events).passed

    def because(self, *, simulated: bool) -> tuple[str, ...]:
        """Why it may, or may not."""
        told = tuple(line for one in self.records if one.simulated == simulated for line in one.because)
        return told or (f"it was never judged on a {'simulated' if simulated else 'real'} fleet",)

    def also(self, record: GateRecord) -> ModelGate:
        """With `record` in place of an earlier one on the same data."""
        kept = [one for one in self.records if (one.data, one.simulated) != (record.data, record.simulated)]
        return ModelGate((*kept, record))

    def save(self, path: Path) -> None:
        text = json.dumps({"records": _RECORDS.dump_python(self.records, mode="json")}, indent=1, ensure_ascii=False)
        write_atomically(path, text + "\n", 0o666)

    @classmethod
    def load(cls, path: Path) -> ModelGate:
        """The records of `path`; none where it is not there. Raises InputError for a damaged file."""
        if not path.exists():
            return cls()
        try:
            return cls(_RECORDS.validate_python(json.loads(path.read_text(encoding="utf-8"))["records"]))
        except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
            raise InputError("gate", str(path), f"unreadable: {error}", "judge the model again") from error


_RECORDS = TypeAdapter(tuple[GateRecord, ...])


def node_events(examples: Examples) -> npt.NDArray[np.int64]:
    """What the bootstrap draws as one, int64[n]: all GPUs of a node up to the same onset, or its rows without one."""
    event = np.where(examples.event_ms == NEVER, -1, examples.event_ms)
    _, code = np.unique(np.stack([examples.group.astype(np.int64), event]), axis=1, return_inverse=True)
    return np.asarray(code, np.int64).reshape(-1)


def judge(
    examples: Examples,
    scores: Floats,
    horizon_ms: int,
    *,
    data: str,
    simulated: bool,
    scorer: Scorer | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> GateRecord:
    """The record of `scores` float64[n] on `examples`, none of which the model learned from; rows without a score or a
    known label are left out. Too few node events are no pass, and say so. Nor is a `scorer`, the model itself, by which
    more of what can only do harm lowers the hazard (`tocsin.forecaster.hazard.physics`)."""
    label, known = examples.label(horizon_ms)
    seen = known & np.isfinite(scores)
    rows, mine, label = examples.take(seen), scores[seen], label[seen]
    cluster = node_events(rows)
    found = int(np.unique(cluster[label]).size)
    if found < LEAST_EVENTS or label.all():
        why = f"{found} node events in {data}: {LEAST_EVENTS} are needed to tell a model from luck"
        return GateRecord(False, simulated, data, found, (), (why,))
    unsound = () if scorer is None else falls(scorer, rows)
    margins = []
    for name, theirs in _rivals(rows, mine, seed).items():
        one = difference(mine, theirs, rows, horizon_ms, FIGURE, draws=draws, seed=seed, cluster=cluster)
        low, high = (one.value if end is None else end for end in (one.low, one.high))
        margins.append(Margin(name, float(one.value), float(low), float(high)))
    because = tuple(
        f"{'above' if one.low > 0 else 'not above'} {one.rival} on {data}: average precision {one.value:+.4f} "
        f"({one.low:+.4f} to {one.high:+.4f})"
        for one in margins
    )
    because += tuple(f"more {group} lowers its hazard" for group in unsound)
    passed = all(one.low > 0 for one in margins) and not unsound
    return GateRecord(passed, simulated, data, found, tuple(margins), because)


def _rivals(rows: Examples, mine: Floats, seed: int) -> dict[str, Floats]:
    rng = np.random.default_rng(seed)
    return {
        RECENCY: recency(rows),
        ALWAYS_HEALTHY: always_healthy(rows),
        COIN: rng.random(len(rows)),
        SHIFTED: _shifted(rows, mine, rng),
    }


def _shifted(rows: Examples, mine: Floats, rng: np.random.Generator) -> Floats:
    """The scores of each device moved on by a random number of its rows, from the last to the first."""
    made = np.empty_like(mine)
    order = np.lexsort((rows.at_ms, rows.device))
    starts = np.flatnonzero(np.diff(rows.device[order], prepend=-1))
    for part in np.split(order, starts[1:]):
        made[part] = np.roll(mine[part], int(rng.integers(part.size)))
    return made
