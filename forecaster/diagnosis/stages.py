"""Which of six stages limits a job: storage to memory, CPU, host to device, device, between GPUs, device to host.

Own synthesis, without a model that was trained: a stage speaks by what it alone makes visible. A GPU without kernels
waits for its input, and the node's own waits tell whether for storage or for CPUs; a link near its capacity is the
limit whatever else is seen; kernels that are resident while SMs and memory rest wait for other GPUs; SMs that work are
the limit themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.domain.diagnosis import Diagnosis, Kind, Verdict
from tocsin.domain.finding import Evidence
from tocsin.forecaster.diagnosis.signals import METRICS, SATURATED, Signals, share, signals
from tocsin.forecaster.diagnosis.window import Job, WindowMeans
from tocsin.forecaster.diagnosis.words import REMEDIES, STAGES

__all__ = ["METRICS", "diagnose_job", "stage_scores"]

MIN_READINGS = 5
LEAST = 0.35
"""A stage below this score limits nothing that can be seen."""
AHEAD = 1.15
"""How much stronger than the next the strongest stage must be."""
IDLE = 0.05
COLLECTIVE_BYTES = 0.02
"""Share of a link's capacity above which GPUs count as talking to each other."""
SLOW_CLOCK = 0.95
"""A GPU whose clock lies below this share of the job's median holds the others up."""

Scores = dict[Verdict, float]


def stage_scores(seen: Signals) -> Scores:
    """How strongly each stage shows itself, 0 to 1."""
    resident, computing = share(seen.resident), share(seen.computing)
    waiting = max(0.0, resident - computing)
    gap = 1.0 - resident
    receive, transmit, nvlink = share(seen.receive), share(seen.transmit), share(seen.nvlink)
    several = seen.resident.size > 1
    talks = several and max(nvlink, min(receive, transmit)) >= COLLECTIVE_BYTES
    mutual = several and min(receive, transmit) >= 0.5 * max(receive, transmit) and waiting > gap
    between = max(waiting if talks else 0.0, nvlink / SATURATED if several else 0.0)
    into, out = (0.0, 0.0) if mutual else (receive / SATURATED, transmit / SATURATED)
    if mutual:
        between = max(between, max(receive, transmit) / SATURATED)
    found = {
        Verdict.STORAGE: gap * share(seen.storage),
        Verdict.CPU: gap * share(seen.cpu),
        Verdict.HOST_TO_DEVICE: into,
        Verdict.DEVICE: computing,
        Verdict.BETWEEN_GPUS: between,
        Verdict.DEVICE_TO_HOST: out,
    }
    return {stage: min(score, 1.0) for stage, score in found.items()}


def diagnose_job(job: Job, found: WindowMeans, now_ms: int, window_ms: int) -> Diagnosis:
    """The stage that limits `job`, by the means of its GPUs over the last `window_ms`."""
    made = _Writer(job, now_ms, window_ms)
    readings = int(found.readings.min(initial=1 << 31))
    if readings < MIN_READINGS:
        reason = f"{readings} readings in the window, {MIN_READINGS} needed"
        return made.plain(Verdict.NOT_ENOUGH_DATA, reason, f"窗口内只有 {readings} 次读数,至少需要 {MIN_READINGS} 次")
    seen = signals(found)
    if not np.isfinite(seen.resident).any():
        return made.plain(Verdict.NOT_ENOUGH_DATA, "no GPU of it reports its utilisation", "没有 GPU 报告利用率")
    if share(seen.resident) < IDLE and share(seen.storage) + share(seen.cpu) < LEAST:
        return made.plain(
            Verdict.UNCLEAR, "its GPUs do nothing, and the node waits for nothing", "GPU 空闲,节点也没有等待"
        )
    scores = stage_scores(seen)
    ranked = sorted(scores.items(), key=lambda item: -item[1])
    (stage, score), (_, second) = ranked[:2]
    if score < LEAST or score < AHEAD * second:
        return made.plain(Verdict.UNCLEAR, *_why_unclear(seen, ranked))
    return made.stage(stage, score, _evidence(seen, scores, now_ms), _straggler(job, seen))


def _why_unclear(seen: Signals, ranked: list[tuple[Verdict, float]]) -> tuple[str, str]:
    blind = not np.isfinite(seen.storage).any() and not np.isfinite(seen.cpu).any()
    if blind and share(seen.resident) < 0.5:
        rest = f"{1 - share(seen.resident):.0%}"
        return (
            f"its GPUs wait {rest} of the time, and CPU and storage of the node are not measured",
            f"GPU 有 {rest} 的时间在等待,而节点的 CPU 和存储没有测量",
        )
    (first, one), (then, two) = ranked[:2]
    if one < LEAST:
        return f"no stage stands out (strongest is {STAGES[first][0]}, {one:.2f})", "没有明显的瓶颈阶段"
    return (
        f"{STAGES[first][0]} ({one:.2f}) and {STAGES[then][0]} ({two:.2f}) show about alike",
        f"{STAGES[first][1]}({one:.2f})与{STAGES[then][1]}({two:.2f})程度相近",
    )


_SEEN = (
    ("resident", "share of time with a kernel on the GPU"),
    ("computing", "how hard SMs and memory work"),
    ("receive", "share of the PCIe link used towards the GPU"),
    ("transmit", "share of the PCIe link used from the GPU"),
    ("nvlink", "share of the NVLinks used"),
    ("clock", "SM clock as a share of its maximum"),
    ("storage", "how much the node waits for storage"),
    ("cpu", "how short the node is of CPUs"),
)


def _evidence(seen: Signals, scores: Scores, now_ms: int) -> tuple[Evidence, ...]:
    read = [
        Evidence(name, text, now_ms, share(values))
        for name, text in _SEEN
        if np.isfinite(values := getattr(seen, name)).any()
    ]
    ranked = sorted(scores.items(), key=lambda item: -item[1])
    return (*read, *(Evidence(f"stage:{stage}", STAGES[stage][0], now_ms, score) for stage, score in ranked))


def _straggler(job: Job, seen: Signals) -> tuple[str, str]:
    """The GPU that holds the others up, in words; empty where none does."""
    known = np.isfinite(seen.clock)
    if known.sum() > 2:
        usual = float(np.median(seen.clock[known]))
        slowest = int(np.nanargmin(seen.clock))
        if seen.clock[slowest] < SLOW_CLOCK * usual:
            where, clock = _where(job, slowest), seen.clock[slowest]
            return (
                f"; {where} runs at {clock:.0%} of its clock, the others at {usual:.0%}",
                f";{where} 的时钟只有 {clock:.0%},其余为 {usual:.0%}",
            )
    if np.isfinite(seen.lanes).any():
        narrow = int(np.nanargmin(seen.lanes))
        if seen.lanes[narrow] < 1.0:
            where, lanes = _where(job, narrow), seen.lanes[narrow]
            return f"; {where} has only {lanes:.0%} of its PCIe lanes", f";{where} 只有 {lanes:.0%} 的 PCIe 通道"
    return "", ""


def _where(job: Job, place: int) -> str:
    gpu = job.gpus[place]
    return f"{gpu.host} GPU {'?' if gpu.index is None else gpu.index}"


@dataclass(frozen=True, slots=True)
class _Writer:
    job: Job
    now_ms: int
    window_ms: int

    def plain(self, verdict: Verdict, reason: str, reason_zh: str) -> Diagnosis:
        sentence = f"{self.job.name}: what limits it cannot be told: {reason}."
        return self._made(verdict, 0.0, sentence, f"{self.job.name}:无法判断瓶颈:{reason_zh}。")

    def stage(
        self, stage: Verdict, score: float, evidence: tuple[Evidence, ...], straggler: tuple[str, str]
    ) -> Diagnosis:
        english, chinese = STAGES[stage]
        count = len(self.job.gpus)
        sentence = f"{self.job.name} on {count} GPU{'s' if count != 1 else ''} is limited by {english}{straggler[0]}."
        chinese = f"{self.job.name}({count} 块 GPU)受限于{chinese}{straggler[1]}。"
        return self._made(stage, score, sentence, chinese, evidence)

    def _made(
        self, verdict: Verdict, score: float, english: str, chinese: str, evidence: tuple[Evidence, ...] = ()
    ) -> Diagnosis:
        return Diagnosis(
            Kind.SLOW_JOB,
            verdict,
            self.job.name,
            self.job.hosts,
            tuple(gpu.uuid for gpu in self.job.gpus),
            self.now_ms,
            self.window_ms,
            score,
            english,
            chinese,
            REMEDIES.get(verdict, ""),
            evidence,
            self.job.simulated,
        )
