"""What a GPU differs in from its peers: the same model at equal load, on its node, in its rack, in its job.

The middle is the median and the spread the median absolute deviation, so that one sick peer moves neither.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tocsin.domain.model_limits import RANGED, highest_shown
from tocsin.domain.reading import Gpu
from tocsin.forecaster.features.arrays import Bools, Floats, Ints
from tocsin.rules.peer_values import group_medians, sound

LEAST = 2
"""Peers beside the GPU itself without which nothing is said, as in the rule of peers: a node of 4 GPUs has 3. With 2,
the median of the three is that of a healthy one while one is sick."""
POWER_STEP = 0.15
"""Width of a step of equal power, relative: 200 W and 225 W belong together."""
LOAD_STEP = 0.1
"""Width of a step of equal utilisation."""
TO_SIGMA = 1.4826
"""Standard deviation over median absolute deviation of a normal distribution."""
SERIAL_DIGITS = 7
"""Of a serial number that tell the batch (own choice: the last six are counted up within it)."""
NOBODY = -1


class GpuRoster:
    """Numbers for what GPUs share; int64[g] each, `NOBODY` where it is not known."""

    def __init__(self) -> None:
        self.gpus: list[Gpu] = []
        self.jobs: Mapping[str, str] = {}
        """The job of each UUID that has one, as `assign` was given them last."""
        self._surplus: Collection[str] = ()
        self.renew()

    def add(self, gpus: Sequence[Gpu]) -> None:
        """GPUs that are new, in the order of their numbers."""
        self.gpus.extend(gpus)
        self.renew()

    def assign(self, jobs: Mapping[str, str]) -> None:
        """Which job, by any stable name, runs on which UUID; the rest has none."""
        self.jobs = dict(jobs)
        self._number_jobs()

    def leave_out(self, surplus: Collection[str]) -> None:
        """Whom of the GPUs, by UUID, their hosts do not have: nobody's peers, nor anybody's neighbours."""
        self._surplus = surplus
        self._mark_surplus()

    def _mark_surplus(self) -> None:
        self.surplus: Bools = np.array([gpu.uuid in self._surplus for gpu in self.gpus], dtype=np.bool_)

    def _number_jobs(self) -> None:
        self.job = _numbers([self.jobs.get(gpu.uuid, "") for gpu in self.gpus])

    def renew(self) -> None:
        self.model = _numbers([gpu.model for gpu in self.gpus])
        self.host = _numbers([gpu.host for gpu in self.gpus])
        self.rack = _numbers([gpu.rack for gpu in self.gpus])
        self.slot = _numbers([f"{gpu.model} {gpu.index}" if gpu.index is not None else "" for gpu in self.gpus])
        self.batch = _numbers([batch_of(gpu) for gpu in self.gpus])
        models = {gpu.model for gpu in self.gpus}
        tops = {(model, metric): highest_shown(model, metric) for model in models for metric in RANGED}
        self.highest = {
            metric: np.array([tops[gpu.model, metric] for gpu in self.gpus], dtype=np.float64) for metric in RANGED
        }
        self._number_jobs()
        self._mark_surplus()


def place_of(gpu: Gpu) -> tuple[object, ...]:
    """What of a GPU decides who its peers are."""
    return gpu.host, gpu.index, gpu.model, gpu.rack, gpu.serial, gpu.labels.get("batch")


def batch_of(gpu: Gpu) -> str:
    """What was made or bought together: the label ``batch``, else the beginning of the serial number."""
    if label := gpu.labels.get("batch"):
        return label
    return f"{gpu.model} {gpu.serial[:SERIAL_DIGITS]}" if len(gpu.serial) > SERIAL_DIGITS else ""


def _numbers(names: Sequence[str]) -> Ints:
    known: dict[str, int] = {"": NOBODY}
    # Numbers follow the names, so that the order of GPUs changes nothing.
    known |= {name: number for number, name in enumerate(sorted(set(names) - {""}))}
    return np.array([known[name] for name in names], dtype=np.int64)


def power_step(power: Floats) -> Ints:
    """The step of equal power of each value; `NOBODY` for none."""
    known = power > 0
    step = np.floor(np.log(np.where(known, power, 1.0)) / np.log1p(POWER_STEP))
    return np.where(known, np.maximum(step, 0.0), NOBODY).astype(np.int64)


def load_step(load: Floats) -> Ints:
    """The step of equal utilisation of each value; `NOBODY` for none."""
    known = np.isfinite(load)
    return np.where(known, np.floor(np.where(known, load, 0.0) / LOAD_STEP), NOBODY).astype(np.int64)


def groups(*codes: Ints) -> Ints:
    """One number for each combination; `NOBODY` where one of them is."""
    known = np.all([code != NOBODY for code in codes], axis=0)
    found = np.full(codes[0].size, NOBODY, np.int64)
    if known.any():
        key = np.zeros(int(known.sum()), np.int64)
        for code in codes:
            key = key * (int(code.max()) + 1) + code[known]
        found[known] = np.unique(key, return_inverse=True)[1]
    return found


def counted(roster: GpuRoster, levels: Mapping[str, Floats]) -> Bools:
    """bool[g]: whose values count among the peers of others; `levels` are float64[g] by the name of their metric."""
    found = sound(((values, roster.highest[metric]) for metric, values in levels.items()), roster.host)
    return np.asarray(found & ~roster.surplus)


def middle(values: Floats, group: Ints, counts: Bools | None = None) -> Floats:
    """float64[g]: the median of each GPU's group, NaN without `LEAST` peers that have a value and one that `counts`."""
    known = (group != NOBODY) & np.isfinite(values)
    mine = np.ones(values.size, np.bool_)[known] if counts is None else counts[known]
    median, size = group_medians(values[known], group[known], mine)
    found = np.full(values.size, np.nan)
    found[known] = np.where(size - mine >= LEAST, median, np.nan)
    return found


def residual(values: Floats, group: Ints, counts: Bools | None = None) -> Floats:
    """How far each value lies above the median of its group."""
    return np.asarray(values - middle(values, group, counts))


def score(values: Floats, group: Ints, least: float, counts: Bools | None = None) -> Floats:
    """`residual` in standard deviations of the group, of at least `least`."""
    apart = residual(values, group, counts)
    return np.asarray(apart / np.maximum(TO_SIGMA * middle(np.abs(apart), group, counts), least))


def of_others(values: Floats, group: Ints, counts: Bools) -> Floats:
    """float64[g]: mean of `values` over the other members of each GPU's group that count, NaN without any."""
    known = group != NOBODY
    found = np.full(values.size, np.nan)
    if not known.any():
        return found
    mine = counts[known].astype(np.float64)
    sums = np.bincount(group[known], weights=values[known] * mine)
    sizes = np.bincount(group[known], weights=mine)
    with np.errstate(invalid="ignore", divide="ignore"):
        found[known] = (sums[group[known]] - values[known] * mine) / (sizes[group[known]] - mine)
    return np.where(np.isfinite(found), found, np.nan)
