"""What the agents of a simulated fleet send, recorded once and sent again at the time of day, to one cell or to ten.

To simulate and encode a reading of 10,000 GPUs takes ten seconds of a core; to send it again as another cell's, under
its own names, takes two. The sender is a process of its own: what it costs is not the brains'. Every node has an
address, a connection that it keeps, and a token of its own.
"""

from __future__ import annotations

import asyncio
import gzip
import resource
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle, groupby, product
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event

from tocsin.collector.uplink import GZIP_LEVEL
from tocsin.config.host_tokens import host_token
from tocsin.domain.batch import Batch
from tocsin.domain.clock import SECOND
from tocsin.http_client import USER_AGENT
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.spec import FleetSpec
from tocsin.store.line_protocol.encode import encode
from tocsin_testing.brain_child import context
from tocsin_testing.builders import T0
from tocsin_testing.fleet_feeder import WRITE

AT_ONCE = 128
"""Pushes under way at most: a brain that is slower than the fleet makes the fleet late."""
TRIES = 10
"""How often a push is sent that is put off, as by agents, each time after as long as the brain says."""
PUT_OFF = (408, 429, 503)
_STAMP = b"@" * len(str(T0))
_HOST, _GPU = b"sim-node-", b"GPU-"

Recording = list[list[bytes]]
"""By instant and node: the text of a push, compressed, with a mark where the instant stands."""


def record(gpus: int, instants: int, interval: float) -> Recording:
    """`instants` readings of a fleet of `gpus`, `interval` seconds apart."""
    fleet = SimulatedFleet(FleetSpec(gpus=gpus, seed=7, start_ms=T0, interval_ms=round(interval * SECOND)))
    made: Recording = []
    for _ in range(instants):
        readings = sorted(fleet.step().readings, key=lambda one: one.gpu.host)
        made.append([])
        for _, found in groupby(readings, key=lambda one: one.gpu.host):
            batch = Batch(list(found))
            text = encode(batch, packed=True).encode().replace(str(batch.readings[0].at_ms).encode(), _STAMP)
            made[-1].append(zlib.compress(text, 1))
    return made


@dataclass(frozen=True)
class Target:
    """A cell: its name, and the address of its brain."""

    name: str
    address: str


@dataclass
class Sending:
    """A fleet that sends: how many pushes were acknowledged, how often one was put off, and the CPU seconds that it
    cost to send them."""

    process: BaseProcess
    acknowledged: Synchronized[int]
    put_off: Synchronized[int]
    cpu_seconds: Synchronized[float]

    def wait_for(self, pushes: int, seconds: float) -> None:
        """Until so many are acknowledged."""
        ended = time.monotonic() + seconds
        while self.acknowledged.value < pushes:
            assert self.process.is_alive(), f"the fleet has ended with {self.process.exitcode}"
            assert time.monotonic() < ended, f"{self.acknowledged.value} of {pushes} pushes were taken"
            self.process.join(0.2)


@contextmanager
def sending(recording: Recording, targets: Sequence[Target], key: str, interval: float) -> Iterator[Sending]:
    """Every node of every cell sends its next reading each `interval` seconds, spread evenly, with a token of `key`."""
    start = context()
    stop, acknowledged, put_off, cpu = start.Event(), start.Value("q", 0), start.Value("q", 0), start.Value("d", 0.0)
    args = (recording, list(targets), key, interval, stop, acknowledged, put_off, cpu)
    process = start.Process(target=_feed, args=args)
    process.start()
    try:
        yield Sending(process, acknowledged, put_off, cpu)
    finally:
        stop.set()
        process.join(30)
        process.kill()


def _feed(
    recording: Recording,
    targets: Sequence[Target],
    key: str,
    interval: float,
    stop: Event,
    acknowledged: Synchronized[int],
    put_off: Synchronized[int],
    cpu: Synchronized[float],
) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(_Sender(targets, key, acknowledged, put_off).run(recording, interval, stop, cpu))


class _Sender:
    def __init__(
        self, targets: Sequence[Target], key: str, acknowledged: Synchronized[int], put_off: Synchronized[int]
    ) -> None:
        self._targets, self._key, self._acknowledged, self._put_off = targets, key, acknowledged, put_off
        self._places = asyncio.Semaphore(AT_ONCE)
        # Each node has an address and a connection of its own, as an agent does.
        self._open: dict[tuple[str, int], tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    async def run(self, recording: Recording, interval: float, stop: Event, cpu: Synchronized[float]) -> None:
        """Until `stop`, the recording over and over; one push that is refused, or put off `TRIES` times, ends it."""
        due, step = time.monotonic(), interval / (len(recording[0]) * len(self._targets))
        async with asyncio.TaskGroup() as under_way:
            for instant in cycle(recording):
                for (node, packed), target in product(enumerate(instant), self._targets):
                    if stop.is_set():
                        return
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                    due += step
                    await self._places.acquire()
                    under_way.create_task(self._push(target, node, packed))
                    cpu.value = time.process_time()

    async def _push(self, target: Target, node: int, packed: bytes) -> None:
        cell = target.name.encode()
        text = zlib.decompress(packed).replace(_STAMP, str(time.time_ns() // 1_000_000).encode())
        text = text.replace(_HOST, cell + b"-").replace(_GPU, _GPU + cell + b"-")
        body = gzip.compress(text, GZIP_LEVEL, mtime=0)
        # What the recording names its hosts is by number.
        token = host_token(self._key, f"{target.name}-{node:04d}")
        head = (
            f"POST {WRITE} HTTP/1.1\r\nHost: {target.address}\r\nAccept: */*\r\nAccept-Encoding: gzip, deflate\r\n"
            f"Connection: keep-alive\r\nUser-Agent: {USER_AGENT}\r\nContent-Type: text/plain; charset=utf-8\r\n"
            f"Authorization: Token {token}\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        try:
            for _ in range(TRIES):
                status, seconds = await self._send(target, node, head.encode() + body)
                if status not in PUT_OFF:
                    break
                self._put_off.value += 1
                await asyncio.sleep(seconds)
            assert 200 <= status < 300, f"{status} for {target.name}-{node:04d}"
            self._acknowledged.value += 1
        finally:
            self._places.release()

    async def _send(self, target: Target, node: int, request: bytes) -> tuple[int, float]:
        """The status of the answer, and the seconds after which to try again: one where it does not say."""
        known = self._open.pop((target.name, node), None)
        if known is not None and not known[0].at_eof():
            # A brain ends a connection that was idle for long: as agents do, the next try opens one.
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                return await self._ask(target, node, known, request)
        host, _, port = target.address.rpartition(":")
        here = f"127.1.{node // 250}.{node % 250 + 1}", 0
        return await self._ask(target, node, await asyncio.open_connection(host, int(port), local_addr=here), request)

    async def _ask(
        self, target: Target, node: int, connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], request: bytes
    ) -> tuple[int, float]:
        reader, writer = connection
        writer.write(request)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
        told = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        await reader.readexactly(int(told.get("content-length", "0")))
        if told.get("connection") == "close":
            writer.close()
        else:
            self._open[target.name, node] = connection
        return int(lines[0].split(" ", 2)[1]), float(told.get("retry-after", "1"))
