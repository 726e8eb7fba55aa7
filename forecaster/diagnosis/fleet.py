"""All diagnoses of a fleet at one instant, worst first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.diagnosis import Diagnosis, Kind, Verdict
from tocsin.domain.finding import Evidence
from tocsin.domain.identity import Gpu
from tocsin.domain.owner import Owner
from tocsin.forecaster.diagnosis import requests, signals
from tocsin.forecaster.diagnosis.idle import IDLE_UTILIZATION, free, held_idle, stranded
from tocsin.forecaster.diagnosis.memory import Growth, memory_trend, orphaned
from tocsin.forecaster.diagnosis.requests import Pattern, request_pattern
from tocsin.forecaster.diagnosis.stages import diagnose_job
from tocsin.forecaster.diagnosis.window import Job, WindowMeans, jobs, means
from tocsin.forecaster.diagnosis.words import REMEDIES
from tocsin.store.grid import by_gpu
from tocsin.store.port import Columns, Series

USED, TOTAL, PROCESSES = "gpu_memory_used_bytes", "gpu_memory_total_bytes", "gpu_processes"
STAGE_METRICS = tuple(dict.fromkeys((*signals.METRICS, USED, TOTAL, PROCESSES, "gpu_memory_used_ratio")))
"""Metrics of the newest window."""
PAST_METRICS = (USED, *requests.METRICS)
"""Metrics of the longer past."""
STAGE_MS = 15 * MINUTE
PAST_MS = 60 * MINUTE
GIB = float(1 << 30)


@dataclass(frozen=True, slots=True)
class Inputs:
    """`recent` holds `STAGE_METRICS` of the last `STAGE_MS`, `past` `PAST_METRICS` of the last `PAST_MS`; `owners` are
    by UUID."""

    now_ms: int
    gpus: Sequence[Gpu]
    owners: Mapping[str, Sequence[Owner]]
    recent: Columns
    past: Columns


def diagnose(inputs: Inputs) -> list[Diagnosis]:
    """Every job's limiting stage, and what is wrong with memory, idle GPUs and requests; strongest first by kind."""
    found = means(inputs.recent, inputs.gpus)
    past = by_gpu(inputs.past, [gpu.uuid for gpu in inputs.gpus])
    utilisation = found.of("gpu_utilization_ratio")
    busy = frozenset(g.uuid for g, u in zip(found.gpus, utilisation.tolist(), strict=True) if u >= IDLE_UTILIZATION)
    made = [
        *_slow_jobs(inputs, found, busy),
        *_leaks(inputs, found, past),
        *_orphans(inputs, found),
        *_idle(inputs, found),
        *_requests(inputs, past),
    ]
    order = list(Kind)
    return sorted(made, key=lambda one: (order.index(one.kind), -one.score, one.name))


def _slow_jobs(inputs: Inputs, found: WindowMeans, busy: frozenset[str]) -> list[Diagnosis]:
    return [
        diagnose_job(job, found.take(job.gpus), inputs.now_ms, STAGE_MS)
        for job in jobs(inputs.gpus, inputs.owners, busy)
    ]


def _named(gpu: Gpu) -> str:
    return f"{gpu.host} GPU {'?' if gpu.index is None else gpu.index}"


def _owned(inputs: Inputs, gpu: Gpu) -> str:
    labels = dict.fromkeys(owner.label for owner in inputs.owners.get(gpu.uuid, ()))
    return f" ({', '.join(labels)})" if labels else ""


def _leaks(inputs: Inputs, found: WindowMeans, past: Mapping[str, Series]) -> list[Diagnosis]:
    made = []
    for gpu, size in zip(found.gpus, found.of(TOTAL).tolist(), strict=True):
        one = past[gpu.uuid]
        if not np.isfinite(size) or not one.at_ms.size:
            continue
        trend = memory_trend(one.at_ms, one.values[:, 0], size)
        if trend.growth is not Growth.GROWING or trend.full_ms is None:
            continue
        pace, left = trend.bytes_per_hour / GIB, trend.full_ms / HOUR
        english = f"memory grows by {pace:.2f} GiB an hour without a plateau and is full in {left:.1f} h"
        chinese = f"显存以每小时 {pace:.2f} GiB 持续增长,没有平台期,约 {left:.1f} 小时后耗尽"
        piece = Evidence(USED, "growth of the lows, bytes an hour", inputs.now_ms, trend.bytes_per_hour)
        # The sooner it is full, the stronger: an hour or less counts in full.
        score = 1.0 / max(1.0, left)
        made.append(_single(inputs, Kind.MEMORY, Verdict.LEAK, gpu, score, english, chinese, piece))
    return made


def _orphans(inputs: Inputs, found: WindowMeans) -> list[Diagnosis]:
    made = []
    models = np.array([gpu.model for gpu in found.gpus], dtype=np.str_)
    left = orphaned(found.of(USED), found.of(PROCESSES), models)
    for gpu, size in zip(found.gpus, left.tolist(), strict=True):
        if size > 0:
            english = f"{size / GIB:.1f} GiB are in use although no process is on the GPU"
            chinese = f"没有进程,但仍占用 {size / GIB:.1f} GiB 显存"
            piece = Evidence(USED, "bytes beyond an idle GPU of the model", inputs.now_ms, size)
            made.append(_single(inputs, Kind.MEMORY, Verdict.ORPHAN, gpu, 1.0, english, chinese, piece))
    return made


def _idle(inputs: Inputs, found: WindowMeans) -> list[Diagnosis]:
    made = []
    span = STAGE_MS // MINUTE
    usage = found.of("gpu_utilization_ratio")
    for place in np.flatnonzero(held_idle(found)).tolist():
        gpu = found.gpus[place]
        piece = Evidence("gpu_utilization_ratio", "mean over the window", inputs.now_ms, float(usage[place]))
        english = f"held by a process, and {usage[place]:.0%} busy over {span} minutes"
        chinese = f"被进程占用,但 {span} 分钟内利用率只有 {usage[place]:.0%}"
        made.append(
            _single(inputs, Kind.IDLE, Verdict.HELD_IDLE, gpu, 1.0 - float(usage[place]), english, chinese, piece)
        )
    for host, members in stranded(found.gpus, free(found)).items():
        count = len(members)
        english = f"{host}: {count} free GPU{'s' if count != 1 else ''} that no job of a whole node can use there."
        made.append(
            Diagnosis(
                Kind.IDLE,
                Verdict.STRANDED,
                host,
                (host,),
                tuple(gpu.uuid for gpu in members),
                inputs.now_ms,
                STAGE_MS,
                0.5,
                english,
                f"{host}:有 {count} 块空闲 GPU,整机作业无法使用。",
                REMEDIES[Verdict.STRANDED],
                simulated=any(gpu.simulated for gpu in members),
            )
        )
    return made


def _requests(inputs: Inputs, past: Mapping[str, Series]) -> list[Diagnosis]:
    made = []
    for gpu in inputs.gpus:
        one = past[gpu.uuid]
        figures = one.values[:, 1:]
        if not np.isfinite(figures[:, :1]).any():
            continue
        found = request_pattern(one.at_ms, figures, inputs.now_ms)
        if found.verdict in (Verdict.FLOOD, Verdict.LONG_REQUESTS):
            english, chinese = _request_words(found)
            piece = Evidence("vllm_requests_waiting", "requests waiting on average", inputs.now_ms, found.waiting)
            made.append(_single(inputs, Kind.REQUESTS, found.verdict, gpu, 1.0, english, chinese, piece))
    return made


def _request_words(found: Pattern) -> tuple[str, str]:
    came, usual = found.arrivals * 60, found.usual_arrivals * 60
    if found.verdict is Verdict.FLOOD:
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
    inputs: Inputs, kind: Kind, verdict: Verdict, gpu: Gpu, score: float, english: str, chinese: str, piece: Evidence
) -> Diagnosis:
    job = Job(_named(gpu), (gpu,))
    return Diagnosis(
        kind,
        verdict,
        job.name,
        job.hosts,
        (gpu.uuid,),
        inputs.now_ms,
        PAST_MS if kind in (Kind.MEMORY, Kind.REQUESTS) else STAGE_MS,
        score,
        f"{job.name}{_owned(inputs, gpu)}: {english}.",
        f"{job.name}{_owned(inputs, gpu)}:{chinese}。",
        REMEDIES[verdict],
        (piece,),
        gpu.simulated,
    )
