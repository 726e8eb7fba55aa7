"""Brains and agents in processes of their own that can be killed at any instant."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from tocsin.config.settings import Settings
from tocsin.domain.clock import SystemClock
from tocsin.runtime.brain.assembly import run_brain
from tocsin.runtime.interpreter import steady
from tocsin_testing import stopwatch

PRELOADED = [
    *(f"tocsin_testing.{name}" for name in ("brain_child", "killed_agent", "killed_store")),
    # A brain loads its model's library at its first forecast, and a child the program that its parent runs.
    "tocsin.forecaster.hazard.scorer_hazard",
    "pytest",
]


def context() -> ForkServerContext:
    """Start method whose server has brain and agent imported already, so that a start costs a fork."""
    chosen = multiprocessing.get_context("forkserver")
    chosen.set_forkserver_preload(PRELOADED)
    return chosen


def spawn_brain(settings: Settings) -> BaseProcess:
    """Start a brain and wait for nothing: its port is the one of the settings."""
    process = context().Process(target=_serve, args=(settings, None, None))
    process.start()
    return process


def start_brain(settings: Settings, marks: Path | None = None) -> tuple[BaseProcess, str]:
    """Start a brain; returns its process and the URL of its API. Raises EOFError where it dies first. With `marks` it
    says in that file when it does what, as `tocsin_testing.stopwatch` has it."""
    start = context()
    here, there = start.Pipe(duplex=False)
    process = start.Process(target=_serve, args=(settings, there, marks))
    process.start()
    there.close()
    try:
        if not here.poll(90):
            raise TimeoutError("the brain did not start within 90 s")
        return process, str(here.recv()).removeprefix("api: ")
    finally:
        here.close()


def _serve(settings: Settings, pipe: Connection | None, marks: Path | None) -> None:
    if marks is not None:
        stopwatch.install(marks)
    clock = SystemClock()
    with steady(clock):
        run_brain(settings, clock, threading.Event(), _teller(pipe))


def _teller(pipe: Connection | None) -> Callable[[str], None]:
    """Sends the first line alone: the other end is closed once that is there."""
    told = threading.Event()

    def announce(line: str) -> None:
        if pipe is not None and not told.is_set():
            told.set()
            pipe.send(line)

    return announce
