"""What Slurm's commands print is a stranger's word: it takes bounded memory, and time in proportion to it."""

from __future__ import annotations

import sys
import tracemalloc

import pytest

from tocsin.actions.slurm import client
from tocsin.actions.slurm.client import CommandResult, CommandRunner, SlurmProblem, Trouble, trouble_of
from tocsin.config.slurm import SlurmSettings
from tocsin_testing.growth import MOST, growth

ENDLESS = "import sys\nwhile True: sys.{stream}.write('x' * 65536)"


def runner(code: str) -> CommandRunner:
    return CommandRunner(SlurmSettings(command=[sys.executable, "-c", code]))


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_command_that_prints_without_end_is_ended(monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    """Before: all that it printed until the deadline was kept, gigabytes of it."""
    most = 4 << 20
    monkeypatch.setattr(client, "MOST_BYTES", most)
    tracemalloc.start()
    try:
        with pytest.raises(SlurmProblem, match=r"an answer of more than 4 MiB") as told:
            runner(ENDLESS.format(stream=stream)).run(["squeue"], 60)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert told.value.trouble is Trouble.UNREADABLE
    assert peak < 3 * most


def test_both_streams_are_read_to_their_end() -> None:
    code = "import sys\nsys.stderr.write('e' * 300_000)\nsys.stdout.write('o' * 300_000)\nsys.exit(3)"
    assert runner(code).run(["squeue"], 60) == CommandResult(3, "o" * 300_000, "e" * 300_000)


@pytest.mark.parametrize(
    "code", ["import time\ntime.sleep(60)", "import os, time\nos.close(1); os.close(2)\ntime.sleep(60)"]
)
def test_a_command_that_does_not_end_is_ended(code: str) -> None:
    with pytest.raises(SlurmProblem, match=r"no end within 0\.5 s"):
        runner(code).run(["squeue"], 0.5)


@pytest.mark.parametrize("word", ["job ", "could not load ", "must be "])
def test_what_went_wrong_is_told_in_time_in_proportion(word: str) -> None:
    """Before: one line of a megabyte took minutes."""
    assert growth(lambda size: CommandResult(1, "", word * (size * 20)), trouble_of, 250) < MOST
