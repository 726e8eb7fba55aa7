"""A real agent as a process, a gate between it and its store, and what the store has in the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tocsin.collector.spool import Spool
from tocsin.domain.clock import SystemClock
from tocsin.store.line_protocol.decode import decode
from tocsin_testing import needs
from tocsin_testing.mock_nvml import MockFleet

Key = tuple[str, int]
"""One reading: GPU and instant."""

INTERVAL = 0.1
ENVIRONMENT = {
    "TOCSIN_AGENT__SOURCE": "auto",
    "TOCSIN_AGENT__LISTEN": "127.0.0.1:0",
    "TOCSIN_AGENT__INTERVAL_SECONDS": str(INTERVAL),
    "TOCSIN_AGENT__PUSH_TIMEOUT_SECONDS": "2",
    "TOCSIN_AGENT__KERNEL_LOG": "off",
    "TOCSIN_AGENT__HOOK_SOCKET": "",
    "TOCSIN_LOG__LEVEL": "debug",
    "TOCSIN_LOG__FORMAT": "json",
}

GPUS = 4
"""GPUs of a node in trouble."""


def until(condition: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    """Look again and again until `condition` holds; fail by `what` where it does not in time."""
    deadline = time.monotonic() + seconds
    never = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        never.wait(0.02)


class AgentProcess:
    """``tocsin agent`` on the mock library, pushing to `push_url`. Its log goes to a file that survives it."""

    def __init__(self, folder: Path, fleet: MockFleet, push_url: str, **more: str) -> None:
        self.log = folder / f"agent-{len(list(folder.glob('agent-*.log')))}.log"
        wanted = {"TOCSIN_AGENT__PUSH_URL": push_url, "TOCSIN_AGENT__SPOOL": str(folder / "spool.db"), **more}
        self.spool = Path(wanted["TOCSIN_AGENT__SPOOL"])
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [Path(sys.executable).with_name("tocsin"), "agent"],
                stderr=out,
                cwd=folder,
                env=os.environ | fleet.environment() | ENVIRONMENT | wanted,
            )

    def entries(self, event: str) -> list[dict[str, Any]]:
        """Lines of the log that say `event`; one that was being written when the process died is left out."""
        found = []
        for line in self.log.read_bytes().split(b"\n")[:-1]:
            if line.startswith(b"{"):
                entry = json.loads(line)
                if entry["event"] == event:
                    found.append(entry)
        return found

    def acknowledged(self) -> set[int]:
        """Instants whose readings the spool took: from then on they must not be lost."""
        return {at_ms for entry in self.entries("spooled") if entry["durable"] for at_ms in entry["at_ms"]}

    def wait_for_spooled(self, count: int) -> None:
        """Wait until so many batches were taken."""
        until(lambda: len(self.entries("spooled")) >= count, f"{count} batches in the spool: {self.tail()}")

    def url(self) -> str:
        """Where ``/metrics`` is."""
        found: list[str] = []

        def said() -> bool:
            assert self.process.poll() is None, self.tail()
            found[:] = [line for line in self.log.read_text().splitlines() if line.startswith("metrics: ")]
            return bool(found)

        until(said, "the agent says where /metrics is")
        return found[0].removeprefix("metrics: ")

    def samples(self, name: str) -> list[Sample]:
        """Samples of that name on the page."""
        families = text_string_to_metric_families(httpx2.get(self.url(), timeout=5.0).text)
        return [sample for family in families for sample in family.samples if sample.name == name]

    def metric(self, name: str, **labels: str) -> float:
        """One sample; 0 where it was never counted."""
        return sum(sample.value for sample in self.samples(name) if labels.items() <= sample.labels.items())

    def stop(self) -> None:
        """End it as an operator does, and see that it ends well."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0, self.tail()
        assert "Traceback" not in self.log.read_text()

    def kill(self) -> None:
        """kill -9; safe to repeat."""
        self.process.kill()
        self.process.wait(10)

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text()[-2000:]


@contextlib.contextmanager
def agent(folder: Path, fleet: MockFleet, push_url: str, **more: str) -> Iterator[AgentProcess]:
    """An agent that is killed at the end of the block, if it still runs."""
    made = AgentProcess(folder, fleet, push_url, **more)
    try:
        yield made
    finally:
        fleet.heal()
        made.kill()


class Gate:
    """An HTTP relay to `target` that can refuse and cut; `requests` counts them by mode.

    `mode` is ``pass``; ``refuse`` (503 without asking the store); ``cut`` (the store takes the lines, and the answer
    never comes back).
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.mode = "pass"
        self.requests: Counter[str] = Counter()
        self._client = httpx2.Client(timeout=10.0, trust_env=False)
        gate = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                gate._relay(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stop relaying."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._client.close()

    def _relay(self, request: BaseHTTPRequestHandler) -> None:
        mode = self.mode
        self.requests[mode] += 1
        body = request.rfile.read(int(request.headers["Content-Length"]))
        status = 503
        if mode != "refuse":
            headers = {name: request.headers[name] for name in ("Content-Type", "Content-Encoding")}
            with contextlib.suppress(httpx2.HTTPError):
                status = self._client.post(self.target + request.path, content=body, headers=headers).status_code
        if mode == "cut":
            request.close_connection = True
            return
        request.send_response(status)
        request.send_header("Content-Length", "0")
        request.end_headers()


@contextlib.contextmanager
def gate(target: str) -> Iterator[Gate]:
    """A gate before `target`."""
    made = Gate(target)
    try:
        yield made
    finally:
        made.close()


class WallClock:
    """The wall clock of an agent's process, to be set while it runs."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "offset"
        self._file.write_bytes(bytes(16))
        library = folder / "wall_clock.so"
        source = Path(__file__).parents[2] / "chaos" / "wall_clock.c"
        compiler = needs.program("cc", "gcc")
        command = [compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-D_GNU_SOURCE", str(source), "-ldl"]
        subprocess.run([*command, "-o", str(library)], check=True)
        self.environment: Mapping[str, str] = {"LD_PRELOAD": str(library), "TOCSIN_CLOCK_OFFSET": str(self._file)}

    def set(self, offset_ms: int, step_ms: int = 0) -> None:
        """Let the process's wall clock be `offset_ms` off, and go on by `step_ms` at a time; 0: as it does."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("<qq", offset_ms, step_ms))


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system in memory of so many MiB at `folder`."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        needs.lack("a file system of its own cannot be mounted; run as root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take all the room that is left below `folder`; the file that does."""
    filler = folder / "filler"
    file = os.open(filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with contextlib.suppress(OSError):
        while True:
            os.write(file, bytes(4096))
    os.close(file)
    return filler


def kept_by_victoria_metrics(url: str) -> Counter[Key]:
    """Readings that the server has, and how often: each has an `index` of its GPU, also one without values."""
    found: Counter[Key] = Counter()
    for line in _exported(url, "gpu_info_index"):
        series = json.loads(line)
        found.update((series["metric"]["gpu_uuid"], int(at_ms)) for at_ms in series["timestamps"])
    return found


def _exported(url: str, name: str) -> list[str]:
    httpx2.get(f"{url}/internal/force_flush", timeout=10.0)
    # A window of years on either side: readings of a clock that was wrong have to be found as well.
    window = {"match[]": name, "start": "0", "end": "4102444800"}
    return httpx2.get(f"{url}/api/v1/export", params=window, timeout=30.0).text.splitlines()


def series_of(url: str, name: str) -> list[dict[str, str]]:
    """Labels of the series called `name` that the server has."""
    return [json.loads(line)["metric"] for line in _exported(url, name)]


def waiting(spool: Path) -> set[Key]:
    """Readings that wait in a spool which no agent uses."""
    queue = Spool(spool, 1 << 40, SystemClock())
    text = "".join(batch.text for batch in queue.peek(1 << 40))
    queue.close()
    decoded = decode(text, precision="ms", now_ms=1 << 50)
    assert not decoded.rejected
    return {(reading.gpu.uuid, reading.at_ms) for reading in decoded.batch.readings}


def check(store: str, spool: Path, acknowledged: set[int], gpus: list[str], *, further: int) -> None:
    """What was acknowledged is in the store or still waits; nothing is there twice; little is there besides.

    A batch that was written, and whose acknowledgement did not come back before a kill, is one of the `further` ones.
    The server shows what it took within about a second, under load later.
    """
    assert acknowledged
    left = waiting(spool)
    late = sorted({at_ms for _, at_ms in left})
    assert len(late) <= 1 / INTERVAL, f"the spool was emptied but for what came in the agent's last second: {late}"
    expected = {(gpu, at_ms) for gpu in gpus for at_ms in acknowledged} - left
    kept: Counter[Key] = Counter()

    def all_there() -> bool:
        kept.clear()
        kept.update(kept_by_victoria_metrics(store))
        return expected <= kept.keys()

    with contextlib.suppress(AssertionError):
        until(all_there, "all readings in the store", 10)
    lost = expected - kept.keys()
    assert not lost, f"{len(lost)} readings were lost, such as {sorted(lost)[:3]}"
    twice = [key for key, times in kept.items() if times > 1]
    assert not twice, f"{len(twice)} readings are there twice, such as {sorted(twice)[:3]}"
    besides = {at_ms for _, at_ms in kept} - acknowledged
    assert len(besides) <= further, f"{len(besides)} instants were never acknowledged"
