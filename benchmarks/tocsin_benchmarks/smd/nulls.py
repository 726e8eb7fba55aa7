"""Alarms that know nothing, beside those of a detector on the same machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tocsin.forecaster.evaluation.result import ReportTable
from tocsin.forecaster.features.examples import Mask
from tocsin_benchmarks.smd.data import Machine
from tocsin_benchmarks.smd.events import Sums, outcome, sums

DRAWS = 1_000
QUANTILE = 95.0
HEAD = ("alarm", "event recall, mean", "event recall, 95th percentile", "false alarms a day, mean", "draws")

Alarmed = Sequence[tuple[Machine, Mask]]


def _sums(alarmed: Alarmed) -> Sums:
    outcomes = [outcome(alarm, machine.label, machine.step_ms) for machine, alarm in alarmed]
    return sums(outcomes, [])


def _row(name: str, drawn: Sequence[Sums]) -> tuple[str, float, float, float, int]:
    recalls = [one.recall for one in drawn]
    false = float(np.mean([one.false_per_day for one in drawn]))
    return name, float(np.mean(recalls)), float(np.percentile(recalls, QUANTILE)), false, len(drawn)


def null_table(family: str, alarmed: Alarmed, seed: int, draws: int) -> tuple[ReportTable, float]:
    """Always on, a coin that is thrown at every row as often as the detector alarms, and circular shifts of the very
    same alarms, each machine by its own number of rows. Also the 95th percentile of the shifts' recall."""
    rng = np.random.default_rng(seed)

    def drawn(change: Callable[[Mask], Mask], times: int) -> list[Sums]:
        return [_sums([(machine, change(alarm)) for machine, alarm in alarmed]) for _ in range(times)]

    shifts = drawn(lambda alarm: np.roll(alarm, int(rng.integers(alarm.size))), draws)
    rows = [
        _row("the detector's", [_sums(alarmed)]),
        _row("always on", drawn(np.ones_like, 1)),
        _row("coin of equal alarm time", drawn(rng.permutation, draws)),
        _row("circular shifts", shifts),
    ]
    return ReportTable(f"{family}: alarms that know nothing", HEAD, rows), rows[-1][2]
