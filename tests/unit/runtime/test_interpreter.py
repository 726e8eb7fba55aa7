"""Python in the brain's process: no full collection by itself, one at its time, and all as before at the end."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from tocsin.domain.clock import MINUTE, ManualClock, SystemClock
from tocsin.domain.heap import ARENAS
from tocsin.runtime.interpreter import (
    BUSY_SWITCH_SECONDS,
    FULL_SECONDS,
    HEAP_SECONDS,
    LOAD_SECONDS,
    SWITCH_SECONDS,
    steady,
)
from tocsin_testing.chaos import until


class Ring:
    """Refers to itself, so that it goes with a collection alone."""

    def __init__(self) -> None:
        self.me = self


def test_no_full_collection_comes_by_itself_and_all_is_as_before_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    before = gc.get_threshold(), sys.getswitchinterval()
    with steady(SystemClock()):
        full = gc.get_stats()[2]["collections"]
        kept = [[n] for n in range(500_000)]
        assert gc.get_stats()[2]["collections"] <= full + 1  # the one of the start
        assert sys.getswitchinterval() < before[1]
        assert kept
    assert (gc.get_threshold(), sys.getswitchinterval()) == before


def test_threads_take_turns_less_often_on_a_machine_with_too_much_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, load = ManualClock(0), [0.0]
    monkeypatch.setattr(os, "getloadavg", lambda: (load[0], 0.0, 0.0))
    with steady(clock):
        assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
        load[0] = 2.5 * (os.cpu_count() or 1)
        clock.advance(int(LOAD_SECONDS * 1000))
        until(lambda: sys.getswitchinterval() == pytest.approx(BUSY_SWITCH_SECONDS), "longer turns")
        load[0] = 1.0
        clock.advance(int(LOAD_SECONDS * 1000))
        until(lambda: sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS), "short ones again")


def test_a_load_that_may_not_be_read_keeps_nothing_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> tuple[float, float, float]:
        raise OSError

    monkeypatch.setattr(os, "getloadavg", refused)
    with steady(ManualClock(0)):
        assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)


def test_cycles_that_grew_old_go_at_the_next_full_collection() -> None:
    clock = ManualClock(0)
    with steady(clock):
        ring = Ring()
        gc.collect(0)
        gc.collect(1)
        gone = weakref.ref(ring)
        del ring
        gc.collect(1)
        assert gone() is not None
        clock.advance(int(FULL_SECONDS * 1000) + MINUTE)
        until(lambda: gone() is None, "the full collection")


THREADS_THAT_TAKE_MEMORY = """
import ctypes, sys, threading
from tocsin.domain.clock import SystemClock
from tocsin.runtime.interpreter import steady

def take(all_hold):
    held = bytes(100_000)
    all_hold.wait()

def heaps(path):
    all_hold = threading.Barrier(9)
    threads = [threading.Thread(target=take, args=(all_hold,)) for _ in range(8)]
    for one in threads:
        one.start()
    all_hold.wait()
    for one in threads:
        one.join()
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    file = ctypes.c_void_p(libc.fopen(path.encode(), b"w"))
    libc.malloc_info(0, file)
    libc.fclose(file)

if sys.argv[2] == "steady":
    with steady(SystemClock()):
        heaps(sys.argv[1])
else:
    heaps(sys.argv[1])
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="the C library is not glibc")
def test_the_threads_of_a_brain_share_few_heaps(tmp_path: Path) -> None:
    def heaps(how: str) -> int:
        path, plain = tmp_path / how, {name: text for name, text in os.environ.items() if "MALLOC" not in name}
        subprocess.run([sys.executable, "-c", THREADS_THAT_TAKE_MEMORY, str(path), how], env=plain, check=True)
        return path.read_text().count("<heap nr=")

    assert heaps("plain") > ARENAS
    assert heaps("steady") <= ARENAS


def test_what_is_free_in_the_heap_goes_back_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, given = ManualClock(0), list[int]()
    monkeypatch.setattr("tocsin.runtime.interpreter.give_back", lambda: given.append(clock.now_ms()))
    with steady(clock):
        until(lambda: len(given) == 1, "the first time")
        clock.advance(int(HEAP_SECONDS * 1000))
        until(lambda: len(given) == 2, "the second time")


@pytest.mark.smoke
def test_the_brain_starts_without_what_models_are_made_with() -> None:
    """They belong to the worker; a brain that takes over would wait for them."""
    heavy = ("scipy", "sklearn", "torch", "statsmodels", "streamlit", "pandas")
    code = f"import sys, tocsin.runtime.brain.assembly; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
