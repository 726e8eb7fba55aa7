"""How far the values alone go on the ticket clock: the unsupervised detector, learnt on other nodes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from tocsin.forecaster.anomaly.alarm_level import watch
from tocsin.forecaster.anomaly.detector import DetectorSettings
from tocsin.forecaster.evaluation.ticket_clock import Instants
from tocsin.forecaster.features.examples import Floats, Mask
from tocsin.forecaster.hazard.scorer import NotEnoughData
from tocsin_benchmarks.gwdg.ticket import Node

PER_DAY = 0.1
"""Alarm episodes a day on the other nodes: half of the starts that are allowed."""
SETTINGS = DetectorSettings(least=1.0)
"""A watt, a degree, a per cent, a MiB or a MHz: the least change that matters, in DCGM's units."""
GROWING = ("TOTAL_ENERGY", "REMAP", "REPLAY")
"""Counters, whose level says how old a GPU is."""


def compared(node: Node, metrics: Sequence[str]) -> Floats:
    """float64[n, 2 m]: of each of `metrics` the mean of the node's GPUs and how far they are apart; NaN while nothing
    reports it."""
    record = node.record
    out = np.full((record.at_ms.size, 2 * len(metrics)), np.nan)
    for place, name in enumerate(metrics):
        if name in record.metrics:
            values = record.values[:, :, record.metrics.index(name)]
            with warnings.catch_warnings():
                # All GPUs missing at an instant is what NaN is for.
                warnings.simplefilter("ignore", RuntimeWarning)
                out[:, 2 * place] = np.nanmean(values, axis=1)
                out[:, 2 * place + 1] = np.nanmax(values, axis=1) - np.nanmin(values, axis=1)
    return out


def level_metrics(nodes: Sequence[Node]) -> tuple[str, ...]:
    """The metrics of `nodes` that are no counters."""
    names = sorted({name for node in nodes for name in node.record.metrics})
    return tuple(name for name in names if not any(word in name for word in GROWING))


def anomaly_alerts(others: Sequence[Node], nodes: Sequence[Node]) -> dict[str, Instants]:
    """Alarm instants of each of `nodes` by a detector that learnt from the instants of `others` without any sign.

    Raises NotEnoughData where `others` have too few.
    """
    metrics = level_metrics(others)
    if sum(node.record.at_ms.size for node in others) < 2:
        raise NotEnoughData("other nodes have no telemetry to learn from")
    step_ms = int(np.median(np.concatenate([np.diff(node.record.at_ms) for node in others])))
    past = np.concatenate([compared(node, metrics)[~_signed(node)] for node in others])
    found = watch(past, step_ms, PER_DAY, SETTINGS)
    return {node.record.node: node.record.at_ms[found.alarm(compared(node, metrics))] for node in nodes}


def _signed(node: Node) -> Mask:
    return np.asarray(np.logical_or.reduce(list(node.signs.values())))
