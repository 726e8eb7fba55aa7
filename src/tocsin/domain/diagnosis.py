"""What a diagnosis says: a verdict, how sure it is, what it rests on, and one sentence in English and Chinese."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tocsin.domain.finding import Evidence


class DiagnosisKind(StrEnum):
    """What was asked."""

    SLOW_JOB = "slow_job"
    MEMORY = "memory"
    IDLE = "idle"
    REQUESTS = "requests"


class DiagnosisVerdict(StrEnum):
    """The answer; the value is what API and command line show."""

    STORAGE = "storage_to_memory"
    CPU = "cpu"
    HOST_TO_DEVICE = "host_to_device"
    DEVICE = "device"
    BETWEEN_GPUS = "between_gpus"
    NETWORK = "network"
    DEVICE_TO_HOST = "device_to_host"
    LEAK = "memory_leak"
    ORPHAN = "memory_without_process"
    HELD_IDLE = "held_idle"
    STRANDED = "stranded"
    FLOOD = "request_flood"
    LONG_REQUESTS = "long_requests"
    UNCLEAR = "unclear"
    HEALTHY = "healthy"
    NOT_ENOUGH_DATA = "not_enough_data"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One verdict on one job or GPU.

    `score` is 0 to 1: how strongly the evidence speaks for the verdict, not a probability. `gpus` are the UUIDs that
    it is about. `remedy` is what usually helps, empty where nothing is wrong.
    """

    kind: DiagnosisKind
    verdict: DiagnosisVerdict
    name: str
    hosts: tuple[str, ...]
    gpus: tuple[str, ...]
    at_ms: int
    window_ms: int
    score: float
    sentence: str
    sentence_zh: str
    remedy: str = ""
    evidence: tuple[Evidence, ...] = ()
    simulated: bool = False
