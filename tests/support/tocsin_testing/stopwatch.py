"""When each part of the way from an event to a call begins and ends in a brain's process, and what CPU it takes.

The marks go into a file, a line each, so that a process that is killed leaves them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from threading import get_ident
from typing import Any

from tocsin.actions.loop.execution import Execution
from tocsin.actions.loop.loop import ActionLoop
from tocsin.rules.engine import RuleEngine
from tocsin.runtime.brain.brain import Brain
from tocsin.runtime.brain.recorder import Recorder

WATCHED: tuple[tuple[type, str], ...] = (
    (Brain, "accept_all"),
    (RuleEngine, "judge_events"),
    (RuleEngine, "step"),
    (Recorder, "record"),
    (ActionLoop, "step_alone"),
    (ActionLoop, "_execute"),
    (Execution, "begin"),
)

KEPT = "Brain.accept_all"
"""Watched where it keeps an event."""


@dataclass(frozen=True, slots=True)
class Mark:
    """An instant of `time.perf_counter`, and the CPU seconds of the thread `thread` until then."""

    at: float
    cpu: float
    thread: int


@dataclass(frozen=True, slots=True)
class Lap:
    """One call of what is watched."""

    name: str
    begin: Mark
    end: Mark


def install(path: Path) -> None:
    """Watch this process from now on."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for owner, name in WATCHED:
        setattr(owner, name, _watched(f"{owner.__name__}.{name}", getattr(owner, name), file))


def _watched(name: str, work: Callable[..., Any], file: int) -> Callable[..., Any]:
    @wraps(work)
    def timed(*args: Any, **more: Any) -> Any:
        if name == KEPT and not any(batch.events for batch in args[1]):
            return work(*args, **more)
        begun, cpu = time.perf_counter(), time.thread_time()
        try:
            return work(*args, **more)
        finally:
            ended, after = time.perf_counter(), time.thread_time()
            os.write(file, f"{name} {begun} {cpu} {ended} {after} {get_ident()}\n".encode())

    return timed


def laps(path: Path) -> Iterator[Lap]:
    """What was watched, in the order in which it ended."""
    for line in path.read_text().splitlines():
        name, *figures, thread = line.split()
        begun, cpu, ended, after = map(float, figures)
        yield Lap(name, Mark(begun, cpu, int(thread)), Mark(ended, after, int(thread)))
