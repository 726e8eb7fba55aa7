"""Python itself in the brain's process: many threads over a large heap that lasts, where a fault must not wait.

Measured with a fleet of 8,000 GPUs, a full garbage collection stops every thread for 0.2 s, and without this happens
every few seconds; a thread that computes keeps the others waiting 5 ms each time they come back from disk or network.
`make detect` shows both.

What readings and forecasts leave free in the heap goes back to the system once a minute.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tocsin.domain.clock import Clock
from tocsin.domain.heap import give_back, share_heaps
from tocsin.runtime.brain.periodic import Periodic

THRESHOLDS = (20_000, 5, 1_000_000)
"""New objects until the youngest are looked through, and how often each older generation is; the oldest never by itself
(own choice). Every thread stands while the second is looked through, 0.2 s for 400,000 objects of a forecast."""
FULL_SECONDS = 600.0
"""Between two full collections (own choice): little is left to them, as few of the brain's objects form cycles."""
SWITCH_SECONDS = 0.0005
"""How long a thread that computes keeps the interpreter while others wait (own choice)."""
BUSY_SWITCH_SECONDS, BUSY_LOAD, LOAD_SECONDS = 0.005, 2.0, 10.0
"""The same, Python's own, on a machine with more than so many threads to run for each processor, and how often that is
looked at: each that waits wakes so often for nothing, and where the one that computes has no processor that is most of
what the machine does."""
HEAP_SECONDS = 60.0
"""Between two times that free memory is given back (own choice): most is needed again at the next evaluation."""


@contextmanager
def steady(clock: Clock) -> Iterator[None]:
    """Run a brain with short pauses: full collections come every `FULL_SECONDS`, not when Python finds it has many
    objects. What was set before is set again at the end, but for the number of heaps."""
    share_heaps()
    switch = sys.getswitchinterval()
    switch_by_load()
    regular = [
        Periodic("garbage", _collect, FULL_SECONDS, clock),
        Periodic("heap", give_back, HEAP_SECONDS, clock),
        Periodic("switching", switch_by_load, LOAD_SECONDS, clock),
    ]
    with rare_collections():
        for one in regular:
            one.start()
        try:
            yield
        finally:
            for one in regular:
                one.stop()
            sys.setswitchinterval(switch)


@contextmanager
def rare_collections() -> Iterator[None]:
    """No full collection but where it is asked for; what was set before is set again at the end."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def switch_by_load() -> None:
    """Let threads take turns as often as the load of the last minute allows, where that may be read."""
    try:
        busy = os.getloadavg()[0] > BUSY_LOAD * (os.cpu_count() or 1)
    except OSError:
        busy = False
    sys.setswitchinterval(BUSY_SWITCH_SECONDS if busy else SWITCH_SECONDS)


def _collect() -> None:
    gc.collect()
