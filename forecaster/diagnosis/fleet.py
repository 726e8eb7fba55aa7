"""All diagnoses of a fleet at one instant, worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import HOUR, MINUTE, SECOND, to_minute
from tocsin.domain.diagnosis import Diagnosis, DiagnosisKind, DiagnosisVerdict
from tocsin.domain.finding import Evidence
from tocsin.domain.fragmentation import WHOLE_NODE
from tocsin.domain.grouping import grouped
from tocsin.domain.metrics import split_variant
from tocsin.domain.prediction import Prediction, most_urgent
from tocsin.domain.reading import Gpu, Owner
from tocsin.forecaster.capacity.filling import OUT_OF_MEMORY
from tocsin.forecaster.capacity.leak import MEMORY_LEAK, WORDS
from tocsin.forecaster.diagnosis import stages as signals
from tocsin.forecaster.diagnosis.stages import POD_LEAK, REMEDIES, diagnose_job
from tocsin.forecaster.diagnosis.window import (
    IDLE_UTILIZATION,
    ObservedJob,
    WindowMeans,
    free,
    held_idle,
    jobs,
    means,
    stranded_by_host,
)
from tocsin.forecaster.trend.statements import where
from tocsin.store.grid import by_gpu
from tocsin.store.port import Columns, Series

# Memory that is held where no process is left.

Instants = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

ORPHAN_BYTES = 1 << 30
"""Memory above what idle GPUs of the model hold, with no process, from which on something was left behind."""


def orphaned(used: Floats, processes: Floats, models: npt.NDArray[np.str_]) -> Floats:
    """Bytes that each GPU holds without any process beyond what such a GPU holds at rest; 0 where that is little.

    All of shape (gpus,); NaN where unknown. "At rest" is the least that a GPU of the model holds; a model of which
    there is only one GPU in use or at rest says nothing of itself. Processes must be those of the whole host: an agent
    in a container without the host's process namespace sees none.
    """
    found = np.zeros(used.size)
    for model in np.unique(models):
        mine = (models == model) & np.isfinite(used)
        if mine.sum() < 2:
            continue
        excess = used - used[mine].min()
        found = np.where(mine & (processes == 0) & (excess >= ORPHAN_BYTES), excess, found)
    return found


# Abuse of shared inference GPUs: floods of requests, and long jobs that pose as requests. Both are told from the
# server's own past: a flood is many more arrivals than usual while a queue builds up; a long asynchronous job holds
# its slots while hardly any request ends. Counts are those of ``vllm_*`` or of any server that gives the same.

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

    verdict: DiagnosisVerdict
    arrivals: float = 0.0
    usual_arrivals: float = 0.0
    waiting: float = 0.0
    running: float = 0.0
    seconds_each: float | None = None
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
    first_ms = int(at_ms[0]) if at_ms.size else now_ms
    windows = [_window(at_ms, values, end, NOW_MS) for end in range(now_ms, first_ms, -NOW_MS)]
    if not windows or windows[0] is None:
        return Pattern(DiagnosisVerdict.NOT_ENOUGH_DATA, reason="no request figures in the last five minutes")
    now, past = windows[0], [window for window in windows[1:] if window is not None]
    if len(past) < MIN_PAST:
        return Pattern(
            DiagnosisVerdict.NOT_ENOUGH_DATA, reason=f"{len(past)} earlier windows of five minutes, {MIN_PAST} needed"
        )
    usual = float(np.median([window.arrivals for window in past]))
    usual_ended = float(np.median([window.ended for window in past]))
    usual_seconds = _median([window.seconds_each for window in past])
    queued = now.waiting >= QUEUE * max(now.running, 1.0)
    slow = np.isfinite(now.seconds_each) and now.seconds_each >= max(LONG * (usual_seconds or 0.0), LONG_SECONDS)
    stuck = now.running >= 1.0 and usual_ended > 0 and now.ended <= usual_ended / LONG
    if usual > 0 and now.arrivals >= FLOOD * usual and queued:
        verdict = DiagnosisVerdict.FLOOD
    elif now.arrivals < FLOOD * usual and (stuck or (slow and usual_seconds is not None)):
        verdict = DiagnosisVerdict.LONG_REQUESTS
    else:
        verdict = DiagnosisVerdict.HEALTHY
    return Pattern(
        verdict,
        now.arrivals,
        usual,
        now.waiting,
        now.running,
        _known(now.seconds_each),
        _known(now.tokens_each),
    )


def _window(at_ms: Instants, values: Floats, end_ms: int, span_ms: int) -> _Window | None:
    seen = (at_ms > end_ms - span_ms - MINUTE) & (at_ms <= end_ms) & np.isfinite(values[:, :3]).all(axis=1)
    rows, instants = values[seen], at_ms[seen]
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


USED, TOTAL, PROCESSES = "gpu_memory_used_bytes", "gpu_memory_total_bytes", "gpu_processes"
STAGE_METRICS = tuple(dict.fromkeys((*signals.METRICS, USED, TOTAL, PROCESSES, "gpu_memory_used_ratio")))
"""Metrics of the newest window."""
PAST_METRICS = METRICS
"""Metrics of the longer past."""
STAGE_MS = 15 * MINUTE
PAST_MS = 60 * MINUTE
GIB = float(1 << 30)


@dataclass(frozen=True, slots=True)
class DiagnosisInputs:
    """`recent` holds `STAGE_METRICS` of the last `STAGE_MS`, `past` `PAST_METRICS` of the last `PAST_MS`; `owners` are
    by UUID, `filling` the forecasts in force."""

    now_ms: int
    gpus: Sequence[Gpu]
    owners: Mapping[str, Sequence[Owner]]
    recent: Columns
    past: Columns
    filling: Sequence[Prediction] = ()


def diagnose(inputs: DiagnosisInputs) -> list[Diagnosis]:
    """Every job's limiting stage, and what is wrong with memory, idle GPUs and requests; strongest first by kind."""
    found = means(inputs.recent, inputs.gpus)
    past = by_gpu(inputs.past, [gpu.uuid for gpu in inputs.gpus])
    utilisation = found.of("gpu_utilization_ratio")
    busy = frozenset(g.uuid for g, u in zip(found.gpus, utilisation.tolist(), strict=True) if u >= IDLE_UTILIZATION)
    made = [
        *(
            diagnose_job(job, found.take(job.gpus), inputs.now_ms, STAGE_MS)
            for job in jobs(inputs.gpus, inputs.owners, busy)
        ),
        *_leaks(inputs),
        *_orphans(inputs, found),
        *_idle(inputs, found),
        *_requests(inputs, past),
    ]
    order = list(DiagnosisKind)
    return sorted(made, key=lambda one: (order.index(one.kind), -one.score, one.name))


def _owned(inputs: DiagnosisInputs, gpu: Gpu) -> str:
    labels = dict.fromkeys(owner.label for owner in inputs.owners.get(gpu.uuid, ()))
    return f" ({', '.join(labels)})" if labels else ""


def _leaks(inputs: DiagnosisInputs) -> list[Diagnosis]:
    """What the forecasts say of memory: growth alone is as often a cache that holds where it was made to."""
    gpus = {gpu.uuid: gpu for gpu in inputs.gpus}
    coming = [one for one in inputs.filling if one.target in (MEMORY_LEAK, OUT_OF_MEMORY) and one.warns]
    made = []
    for uuid, said in grouped((one.subject.name, one) for one in coming).items():
        soonest = most_urgent(said)
        if uuid not in gpus or soonest is None or soonest.eta_ms is None or soonest.eta_ms <= inputs.now_ms:
            continue
        what, what_zh = WORDS[split_variant(soonest.metric)[0]]
        at = to_minute(soonest.eta_ms)
        english = f"{what} grows without a plateau and, if it goes on, is full at {at}"
        chinese = f"{what_zh}持续增长,没有平台期;照此速度将在 {at} 耗尽"
        # The sooner it is full, the stronger: an hour or less counts in full.
        score = 1.0 / max(1.0, (soonest.eta_ms - inputs.now_ms) / HOUR)
        leak = DiagnosisVerdict.LEAK, gpus[uuid], score, english, chinese
        one = _single(inputs, DiagnosisKind.MEMORY, *leak, soonest.evidence[0])
        made.append(replace(one, remedy=POD_LEAK) if _in_pods(inputs.owners.get(uuid, ())) else one)
    return made


def _in_pods(owners: Sequence[Owner]) -> bool:
    """Whether all that is known of what runs is pods: a server among them has no checkpoint."""
    return bool(owners) and all(bool(one.pod or one.pod_uid) and not one.slurm_job for one in owners)


def _orphans(inputs: DiagnosisInputs, found: WindowMeans) -> list[Diagnosis]:
    made = []
    models = np.array([gpu.model for gpu in found.gpus], dtype=np.str_)
    left = orphaned(found.of(USED), found.of(PROCESSES), models)
    for gpu, size in zip(found.gpus, left.tolist(), strict=True):
        if size > 0:
            english = f"{size / GIB:.1f} GiB are in use although no process is on the GPU"
            chinese = f"没有进程,但仍占用 {size / GIB:.1f} GiB 显存"
            piece = Evidence(USED, "bytes beyond an idle GPU of the model", inputs.now_ms, size)
            made.append(
                _single(inputs, DiagnosisKind.MEMORY, DiagnosisVerdict.ORPHAN, gpu, 1.0, english, chinese, piece)
            )
    return made


def _idle(inputs: DiagnosisInputs, found: WindowMeans) -> list[Diagnosis]:
    made = []
    span = STAGE_MS // MINUTE
    usage = found.of("gpu_utilization_ratio")
    for place in np.flatnonzero(held_idle(found)).tolist():
        gpu = found.gpus[place]
        piece = Evidence("gpu_utilization_ratio", "mean over the window", inputs.now_ms, float(usage[place]))
        english = f"held by a process, and {usage[place]:.0%} busy over {span} minutes"
        chinese = f"被进程占用,但 {span} 分钟内利用率只有 {usage[place]:.0%}"
        made.append(
            _single(
                inputs,
                DiagnosisKind.IDLE,
                DiagnosisVerdict.HELD_IDLE,
                gpu,
                1.0 - float(usage[place]),
                english,
                chinese,
                piece,
            )
        )
    return made + [_stranded(inputs, host, members) for host, members in _to_be_joined(found).items()]


def _to_be_joined(found: WindowMeans) -> dict[str, tuple[Gpu, ...]]:
    """Stranded GPUs by node, where the pool has enough free ones in all that moving work would make a node whole."""
    is_free = free(found)
    sizes = Counter(gpu.host for gpu in found.gpus if not gpu.is_mig)
    pools = Counter(
        gpu.pool for gpu, open_ in zip(found.gpus, is_free.tolist(), strict=True) if open_ and not gpu.is_mig
    )
    apart = stranded_by_host(found.gpus, is_free)
    return {host: members for host, members in apart.items() if min(WHOLE_NODE, sizes[host]) <= pools[members[0].pool]}


def _stranded(inputs: DiagnosisInputs, host: str, members: Sequence[Gpu]) -> Diagnosis:
    count = len(members)
    return Diagnosis(
        DiagnosisKind.IDLE,
        DiagnosisVerdict.STRANDED,
        host,
        (host,),
        tuple(gpu.uuid for gpu in members),
        inputs.now_ms,
        STAGE_MS,
        0.5,
        f"{host}: {count} free GPU{'s' if count != 1 else ''} that no job of a whole node can use there.",
        f"{host}:有 {count} 块空闲 GPU,整机作业无法使用。",
        REMEDIES[DiagnosisVerdict.STRANDED],
        simulated=any(gpu.simulated for gpu in members),
    )


def _requests(inputs: DiagnosisInputs, past: Mapping[str, Series]) -> list[Diagnosis]:
    made = []
    for gpu in inputs.gpus:
        one = past[gpu.uuid]
        figures = one.values
        if not np.isfinite(figures[:, :1]).any():
            continue
        found = request_pattern(one.at_ms, figures, inputs.now_ms)
        if found.verdict in (DiagnosisVerdict.FLOOD, DiagnosisVerdict.LONG_REQUESTS):
            english, chinese = _request_words(found)
            piece = Evidence("vllm_requests_waiting", "requests waiting on average", inputs.now_ms, found.waiting)
            made.append(_single(inputs, DiagnosisKind.REQUESTS, found.verdict, gpu, 1.0, english, chinese, piece))
    return made


def _request_words(found: Pattern) -> tuple[str, str]:
    came, usual = found.arrivals * 60, found.usual_arrivals * 60
    if found.verdict is DiagnosisVerdict.FLOOD:
        return (
            f"{came:.0f} requests arrive a minute, {usual:.0f} are usual, and {found.waiting:.0f} wait",
            f"每分钟到达 {came:.0f} 个请求(平时 {usual:.0f}),{found.waiting:.0f} 个在等待",
        )
    each = "hardly any ends" if found.seconds_each is None else f"each takes {found.seconds_each:.0f} s"
    each_zh = "几乎没有请求结束" if found.seconds_each is None else f"每个请求耗时 {found.seconds_each:.0f} 秒"
    return (
        f"{found.running:.0f} requests hold the server and {each}: long jobs, not requests",
        f"{found.running:.0f} 个请求长期占用服务,{each_zh}:更像长任务而不是请求",
    )


def _single(
    inputs: DiagnosisInputs,
    kind: DiagnosisKind,
    verdict: DiagnosisVerdict,
    gpu: Gpu,
    score: float,
    english: str,
    chinese: str,
    piece: Evidence,
) -> Diagnosis:
    job = ObservedJob(where(gpu), (gpu,))
    return Diagnosis(
        kind,
        verdict,
        job.name,
        job.hosts,
        (gpu.uuid,),
        inputs.now_ms,
        PAST_MS if kind in (DiagnosisKind.MEMORY, DiagnosisKind.REQUESTS) else STAGE_MS,
        score,
        f"{job.name}{_owned(inputs, gpu)}: {english}.",
        f"{job.name_zh}{_owned(inputs, gpu)}:{chinese}。",
        REMEDIES[verdict],
        (piece,),
        gpu.simulated,
    )
