"""Python itself in the brain's process: many threads over a large heap that lasts, where a fault must not wait.

Measured with a fleet of 8,000 GPUs, a full garbage collection stops every thread for 0.2 s, and without this happens
every few seconds; a thread that computes keeps the others waiting 5 ms each time they come back from disk or network.
`make detect` shows both.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tocsin.domain.clock import Clock
from tocsin.runtime.brain.periodic import Periodic

THRESHOLDS = (20_000, 20, 1_000_000)
"""New objects until the youngest are looked through, and how often each older generation is; the oldest never by itself
(own choice)."""
FULL_SECONDS = 600.0
"""Between two full collections (own choice): little is left to them, as few of the brain's objects form cycles."""
SWITCH_SECONDS = 0.0005
"""How long a thread that computes keeps the interpreter while others wait (own choice)."""


@contextmanager
def steady(clock: Clock) -> Iterator[None]:
    """Run a brain with short pauses: full collections come every `FULL_SECONDS`, not when Python finds it has many
    objects. What was set before is set again at the end."""
    thresholds, switch = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(*THRESHOLDS)
    sys.setswitchinterval(SWITCH_SECONDS)
    full = Periodic("garbage", _collect, FULL_SECONDS, clock)
    full.start()
    try:
        yield
    finally:
        full.stop()
        sys.setswitchinterval(switch)
        gc.set_threshold(*thresholds)


def _collect() -> None:
    gc.collect()
