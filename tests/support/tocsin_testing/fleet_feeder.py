"""A fleet of nodes that push readings to a brain, in a process of its own: what it costs is not the brain's."""

from __future__ import annotations

import gzip
import http.client
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tocsin.domain.batch import Batch
from tocsin.domain.clock import SystemClock
from tocsin.domain.reading import Gpu, Reading
from tocsin.store.line_protocol.encode import encode
from tocsin_testing.brain_child import context
from tocsin_testing.scale import GPUS_PER_NODE

WRITE = "/api/v2/write?org=tocsin&bucket=tocsin&precision=ms"


@contextmanager
def feeding(url: str, gpus: Sequence[Gpu], values: Mapping[str, float], interval: float) -> Iterator[None]:
    """Every node sends `values` of its GPUs once per `interval` seconds, one node after the other, spread evenly.
    Returns once all have sent; a brain that refuses them ends the process, which is told at the end."""
    start = context()
    ready, stop = start.Event(), start.Event()
    process = start.Process(target=_feed, args=(url, list(gpus), dict(values), interval, ready, stop))
    process.start()
    try:
        assert ready.wait(6 * interval + 60), f"the fleet has not sent its first readings: {process.exitcode}"
        yield
        assert process.is_alive(), f"the fleet has ended with {process.exitcode}"
    finally:
        stop.set()
        process.join(30)
        process.kill()


def _feed(
    url: str,
    gpus: list[Gpu],
    values: dict[str, float],
    interval: float,
    ready: threading.Event,
    stop: threading.Event,
) -> None:
    nodes = [gpus[first : first + GPUS_PER_NODE] for first in range(0, len(gpus), GPUS_PER_NODE)]
    clock, brain = SystemClock(), http.client.HTTPConnection(url.removeprefix("http://"))
    begun, sent = time.monotonic(), 0
    while not stop.is_set():
        for node in nodes:
            now_ms = clock.now_ms()
            batch = Batch(readings=[Reading(gpu, now_ms, values) for gpu in node])
            body = gzip.compress(encode(batch, info=sent < len(nodes)).encode(), 1)
            brain.request("POST", WRITE, body, {"Content-Encoding": "gzip"})
            answer = brain.getresponse()
            answer.read()
            assert answer.status < 300, answer.status
            sent += 1
            stop.wait(max(0.0, begun + sent * interval / len(nodes) - time.monotonic()))
        ready.set()
