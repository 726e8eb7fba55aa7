"""An agent in a process that can be killed at any instant, and what it put on file of what it promised.

The agent is the product's, with its spool on disk and its uplink over HTTP. Only the source is made up, and pauses are
shorter: a run that kills once a second would mostly wait.
"""

from __future__ import annotations

import gzip
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from ctypes import Array, c_int
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import httpx2
import structlog

from tocsin.collector import uplink
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import SystemClock
from tocsin.domain.reading import Gpu, Reading
from tocsin.runtime.agent import process as agent_process
from tocsin_testing.brain_child import context

HOT, COOL = 95.0, 40.0
PUSH_SECONDS = 0.1


class Course:
    """What the test lets happen on a site, in shared memory: which GPUs are hot, and how often each agent reads.

    Hot are those from `first` to before `last`, counted round `size`. An agent reads at most `allowed` times in all its
    lives: on a slow machine readings are no more, they come later.
    """

    def __init__(self, size: int, agents: int) -> None:
        self.size = size
        self._bounds: Array[c_int] = context().RawArray("i", 3)
        self._read: Array[c_int] = context().RawArray("i", agents)

    def heat(self, first: int, last: int) -> None:
        self._bounds[0], self._bounds[1] = first, last

    def is_hot(self, number: int) -> bool:
        first, last = self._bounds[0], self._bounds[1]
        return (number - first) % self.size < last - first

    def allow(self, readings: int) -> None:
        """At least that many of each agent, for each of its GPUs."""
        self._bounds[2] = max(self._bounds[2], readings)

    def may_read(self, agent: int) -> bool:
        """Whether the agent may; that counts as one."""
        if self._read[agent] >= self._bounds[2]:
            return False
        self._read[agent] += 1
        return True


class Node:
    """The source: the GPUs of one host, each at 95 or at 40 degrees."""

    name = "killed"

    def __init__(self, site: AgentSite, tell: Callable[[str, int], None]) -> None:
        self._site = site
        self._gpus = site.gpus
        self._tell = tell

    def gpus(self) -> Sequence[Gpu]:
        return self._gpus

    def read(self, now_ms: int) -> Batch:
        course, numbers = self._site.course, self._site.numbers
        if not course.may_read(self._site.number):
            return Batch()
        self._tell("read", now_ms)
        warmth = [(gpu, HOT if course.is_hot(n) else COOL) for n, gpu in zip(numbers, self._gpus, strict=True)]
        return Batch(readings=[Reading(gpu, now_ms, {"gpu_temperature_celsius": value}) for gpu, value in warmth])

    def close(self) -> None:
        """Nothing is open."""


class Wire(httpx2.HTTPTransport):
    """Real HTTP that tells which instants a receiver has acknowledged."""

    def __init__(self, tell: Callable[[str, int], None]) -> None:
        super().__init__(trust_env=False)
        self._tell = tell

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response = super().handle_request(request)
        if response.status_code == 204:
            lines = gzip.decompress(request.read()).decode().splitlines()
            for at_ms in sorted({int(line.rpartition(" ")[2]) for line in lines}):
                self._tell("acknowledged", at_ms)
        return response


class ToldAgent(agent_process.Agent):
    """Tells what is in its spool."""

    tell: Callable[[str, int], None]

    def read(self) -> Batch:
        batch = super().read()
        if batch.readings:
            self.tell("spooled", batch.readings[0].at_ms)
        return batch


@dataclass
class AgentSite:
    """One host with its agent: `numbers` are those of its GPUs in the site, `number` its own."""

    settings: Settings
    number: int
    numbers: range
    course: Course
    told: Path

    def __post_init__(self) -> None:
        self._process: BaseProcess | None = None
        self._looked_at = 0
        self._acknowledged: set[int] = set()

    @property
    def gpus(self) -> list[Gpu]:
        host = self.settings.agent.host
        return [Gpu(f"GPU-{number:08d}", host, index=number - self.numbers.start) for number in self.numbers]

    def start(self) -> None:
        self._process = context().Process(
            target=_collect, args=(self.settings, self.number, self.numbers, self.course, self.told)
        )
        self._process.start()

    def kill(self) -> None:
        """At once, wherever it is."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None

    def drain(self) -> None:
        """Push what the last process left in the spool, as the next one would."""
        agent = _opened(self)
        try:
            agent.push()
            assert agent.spool is not None
            assert agent.spool.batches == 0, "the brain took no readings at the end"
        finally:
            agent.close()

    def acknowledged(self) -> set[int]:
        """Instants whose readings a receiver has acknowledged by now."""
        with self.told.open("rb") if self.told.exists() else nullcontext() as file:
            if file is not None:
                file.seek(self._looked_at)
                text = file.read()
                whole = text[: text.rfind(b"\n") + 1]
                self._looked_at += len(whole)
                lines = (line.split() for line in whole.splitlines())
                self._acknowledged.update(int(at_ms) for word, at_ms in lines if word == b"acknowledged")
        return self._acknowledged

    def instants(self, word: str) -> list[int]:
        """Instants of the readings that were `read`, `spooled` or `acknowledged`, in order of telling."""
        lines = self.told.read_bytes().split(b"\n")[:-1] if self.told.exists() else []
        return [int(line.split()[1]) for line in lines if line.split()[0].decode() == word]


def _opened(site: AgentSite) -> ToldAgent:
    file = os.open(site.told, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def tell(word: str, at_ms: int) -> None:
        # One call of the system: a process that is killed leaves a whole line or none.
        os.write(file, f"{word} {at_ms}\n".encode())

    agent = ToldAgent(site.settings, Node(site, tell), SystemClock(), transport=Wire(tell), companions=[])
    agent.tell = tell
    return agent


def _collect(settings: Settings, number: int, numbers: range, course: Course, told: Path) -> None:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    uplink.FIRST_PAUSE_SECONDS = uplink.MAX_PAUSE_SECONDS = PUSH_SECONDS
    agent_process.PUSH_SECONDS = PUSH_SECONDS
    _opened(AgentSite(settings, number, numbers, course, told)).run(threading.Event())
