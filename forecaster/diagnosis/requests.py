"""Abuse of shared inference GPUs: floods of requests, and long jobs that pose as requests.

Both are told from the server's own past: a flood is many more arrivals than usual while a queue builds up; a long
asynchronous job holds its slots while hardly any request ends. Counts are those of ``vllm_*`` or of any server that
gives the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import MINUTE, SECOND
from tocsin.domain.diagnosis import Verdict

Instants = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

METRICS = (
    "vllm_requests_running",
    "vllm_requests_waiting",
    "vllm_requests_finished_total",
    "vllm_prompt_tokens_total",
    "vllm_generation_tokens_total",
    "vllm_request_latency_seconds_total",
)

NOW_MS = 5 * MINUTE
"""The present: what is judged."""
MIN_PAST = 4
"""Least number of earlier windows of `NOW_MS` to compare with."""
FLOOD = 3.0
"""Arrivals of the present as a multiple of the usual ones (own choice)."""
QUEUE = 1.0
"""A flood also has at least this many requests waiting for each that runs."""
LONG = 4.0
"""Requests that end, now as a part of the usual; or time per request as a multiple of it (own choice)."""
LONG_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Pattern:
    """What the present looks like against the past; rates are per second."""

    verdict: Verdict
    arrivals: float = 0.0
    usual_arrivals: float = 0.0
    waiting: float = 0.0
    running: float = 0.0
    seconds_each: float | None = None
    usual_seconds_each: float | None = None
    tokens_each: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Window:
    arrivals: float
    ended: float
    running: float
    waiting: float
    seconds_each: float
    tokens_each: float


def request_pattern(at_ms: Instants, values: Floats, now_ms: int) -> Pattern:
    """Judge one server by its `METRICS`, float64[n, 6] at `at_ms`, NaN where missing."""
    windows = [
        _window(at_ms, values, end, NOW_MS) for end in range(now_ms, int(at_ms[0]) if at_ms.size else 0, -NOW_MS)
    ]
    if not windows or windows[0] is None:
        return Pattern(Verdict.NOT_ENOUGH_DATA, reason="no request figures in the last five minutes")
    now, past = windows[0], [window for window in windows[1:] if window is not None]
    if len(past) < MIN_PAST:
        return Pattern(
            Verdict.NOT_ENOUGH_DATA, reason=f"{len(past)} earlier windows of five minutes, {MIN_PAST} needed"
        )
    usual = float(np.median([window.arrivals for window in past]))
    usual_ended = float(np.median([window.ended for window in past]))
    usual_seconds = _median([window.seconds_each for window in past])
    verdict = Verdict.HEALTHY
    queued = now.waiting >= QUEUE * max(now.running, 1.0)
    slow = np.isfinite(now.seconds_each) and now.seconds_each >= max(LONG * (usual_seconds or 0.0), LONG_SECONDS)
    stuck = now.running >= 1.0 and usual_ended > 0 and now.ended <= usual_ended / LONG
    if usual > 0 and now.arrivals >= FLOOD * usual and queued:
        verdict = Verdict.FLOOD
    elif now.arrivals < FLOOD * usual and (stuck or (slow and usual_seconds is not None)):
        verdict = Verdict.LONG_REQUESTS
    return Pattern(
        verdict,
        now.arrivals,
        usual,
        now.waiting,
        now.running,
        _known(now.seconds_each),
        usual_seconds,
        _known(now.tokens_each),
    )


def _window(at_ms: Instants, values: Floats, end_ms: int, span_ms: int) -> _Window | None:
    rows = values[(at_ms > end_ms - span_ms - MINUTE) & (at_ms <= end_ms)]
    instants = at_ms[(at_ms > end_ms - span_ms - MINUTE) & (at_ms <= end_ms)]
    seen = np.isfinite(rows[:, :3]).all(axis=1)
    rows, instants = rows[seen], instants[seen]
    if len(rows) < 2:
        return None
    seconds = float(instants[-1] - instants[0]) / SECOND
    running, waiting = rows[:, 0], rows[:, 1]
    ended, prompt, generated, latency = (_increase(rows[:, place]) for place in range(2, 6))
    in_system = running + waiting
    came = max(0.0, ended + float(in_system[-1] - in_system[0]))
    each = latency / ended if ended > 0 else np.nan
    tokens = (prompt + generated) / ended if ended > 0 else np.nan
    return _Window(came / seconds, ended / seconds, float(running.mean()), float(waiting.mean()), each, tokens)


def _increase(values: Floats) -> float:
    """How much a counter grew; one that started again counts from zero. NaN where it is not there."""
    known = values[np.isfinite(values)]
    if known.size < 2:
        return float("nan")
    steps = np.diff(known)
    return float(np.where(steps >= 0, steps, known[1:]).sum())


def _median(values: list[float]) -> float | None:
    known = [value for value in values if np.isfinite(value)]
    return float(np.median(known)) if known else None


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
