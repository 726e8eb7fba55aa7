"""vLLM servers of this node, as a companion of the agent's source: KV cache, queues and preemptions on their GPUs.

Which server uses which GPU is told by the processes behind its port (``/proc``), unless the settings name the GPUs.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from tocsin.collector.training_hook.companion import bare, pids_on
from tocsin.config.settings import AgentSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import Clock
from tocsin.domain.errors import InputError
from tocsin.domain.reading import Missing, Reading
from tocsin.http_client import http_client
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

NAMES: Mapping[str, str] = {
    "vllm:kv_cache_usage_perc": "vllm_kv_cache_usage_ratio",
    "vllm:gpu_cache_usage_perc": "vllm_kv_cache_usage_ratio",
    "vllm:num_requests_running": "vllm_requests_running",
    "vllm:num_requests_waiting": "vllm_requests_waiting",
    "vllm:num_requests_swapped": "vllm_requests_swapped",
    "vllm:num_preemptions_total": "vllm_preemptions_total",
    "vllm:num_preemptions": "vllm_preemptions_total",
    "vllm:prompt_tokens_total": "vllm_prompt_tokens_total",
    "vllm:generation_tokens_total": "vllm_generation_tokens_total",
    "vllm:e2e_request_latency_seconds_sum": "vllm_request_latency_seconds_total",
    "vllm:e2e_request_latency_seconds_count": "vllm_requests_finished_total",
    "vllm:time_to_first_token_seconds_sum": "vllm_first_token_seconds_total",
}
"""Sample name to metric. ``gpu_cache_usage_perc`` is the older name of ``kv_cache_usage_perc``; despite their names
both are shares from 0 to 1."""

FULLEST = frozenset({"vllm_kv_cache_usage_ratio"})
"""Metrics of which the engine with the largest value counts; of the others all engines and models together."""


def read_page(text: str) -> dict[str, float]:
    """Metric to value, of the metrics that the page has. Raises ValueError where it is no such page."""
    found: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                metric = NAMES.get(sample.name)
                if metric is None or not math.isfinite(sample.value):
                    continue
                _join(found, {metric: sample.value})
    except (ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        # The parser of prometheus-client answers malformed lines with whatever it stumbles over.
        raise ValueError(f"the page cannot be read ({error})") from None
    if not found:
        raise ValueError("the page has no metric of vLLM")
    return found


_LISTEN = "0A"
"""State of a listening socket in ``/proc/net/tcp``."""


def behind_port(port: int, proc: Path = Path("/proc")) -> frozenset[int]:
    """Processes that listen on `port` and all their descendants; empty where none is found or none may be looked into.

    A server often listens in one process and computes in children of it.
    """
    if not (inodes := _inodes(port, proc)):
        return frozenset()
    parents = _parents(proc)
    listening = {pid for pid in parents if _holds(proc / str(pid), inodes)}
    children: dict[int, list[int]] = defaultdict(list)
    for pid, parent in parents.items():
        children[parent].append(pid)
    found: set[int] = set()
    waiting = list(listening)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children[pid]
    return frozenset(found)


def _inodes(port: int, proc: Path) -> set[str]:
    found = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / name).read_text(encoding="ascii", errors="replace").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            cells = line.split()
            if len(cells) > 9 and cells[3] == _LISTEN and cells[1].rpartition(":")[2] == f"{port:04X}":
                found.add(cells[9])
    return found


def _parents(proc: Path) -> dict[int, int]:
    found = {}
    for entry in proc.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
                # The name in brackets may itself hold brackets and blanks.
                found[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    return found


def _holds(process: Path, inodes: set[str]) -> bool:
    wanted = {f"socket:[{inode}]" for inode in inodes}
    with contextlib.suppress(OSError), os.scandir(process / "fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if os.readlink(entry.path) in wanted:  # noqa: PTH115  # Path.readlink would make a path of no file
                    return True
    return False


_log = logger("vllm")

TIMEOUT_SECONDS = 3.0
MAX_PAGE_BYTES = 8 * 1024 * 1024
PLACE_SECONDS = 60.0
"""Time between two looks for the processes behind a server's port."""
STALE_INTERVALS = 2.5
"""A scrape older than so many intervals is not taken for the present."""

_ENTRY = re.compile(r"^(?P<url>\S+?)(?:=(?P<gpus>(?:GPU|MIG)-[^=\s]+))?$")
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})  # noqa: S104  # compared with, not bound


@dataclass(frozen=True, slots=True)
class Server:
    """One vLLM server: the address of its page and, where the settings name them, the UUIDs of its GPUs."""

    url: str
    gpus: tuple[str, ...] = ()


def parse_entry(entry: str) -> Server:
    """``URL`` or ``URL=GPU-...,GPU-...`` of setting ``agent.vllm_urls``; a URL without a path means ``/metrics``.

    Raises InputError where it is neither.
    """
    match = _ENTRY.match(entry.strip())
    parts = urlsplit(match["url"]) if match is not None else None
    if match is None or parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(
            "agent.vllm_urls",
            entry,
            "is no address of a vLLM server",
            "write http://HOST:PORT/metrics, with =GPU-UUID,GPU-UUID behind it to name the GPUs that it uses",
        )
    url = match["url"] if parts.path not in ("", "/") else f"{parts.scheme}://{parts.netloc}/metrics"
    return Server(url, tuple(bare(gpu) for gpu in (match["gpus"] or "").split(",") if gpu))


@dataclass(frozen=True, slots=True)
class Scrape:
    """What one server last said, or why it said nothing, and when (seconds, monotonic)."""

    at: float
    values: dict[str, float]
    missing: Missing | None = None
    pids: frozenset[int] = frozenset()


class VllmCompanion:
    """Adds the metrics of family ``serving`` to the GPUs that each server uses.

    A server's GPUs are those that the settings name, else those with a process that stands behind the server's port,
    else the node's only GPU. A server that spans GPUs shows the same figures on each. Where a scrape failed its metrics
    are missing, never old. `pids` finds the processes behind a port.
    """

    name = "vllm"

    def __init__(
        self,
        servers: Sequence[Server],
        interval_seconds: float,
        clock: Clock,
        own: OwnMetrics,
        *,
        transport: httpx2.BaseTransport | None = None,
        pids: Callable[[int], frozenset[int]] = behind_port,
    ) -> None:
        self._servers = servers
        self._every = interval_seconds
        self._clock = clock
        self._own = own
        self._pids = pids
        self._client = http_client(TIMEOUT_SECONDS, transport=transport, most_bytes=None)
        self._scrapes: dict[Server, Scrape] = {}
        self._placed: dict[Server, tuple[float, frozenset[int]]] = {}
        self._warned: set[Server] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="vllm", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(2 * TIMEOUT_SECONDS)
        self._client.close()

    def scrape(self) -> None:
        for server in self._servers:
            self._scrapes[server] = self._ask(server)

    def enrich(self, batch: Batch, now_ms: int) -> Batch:  # noqa: ARG002  # scrapes age on the monotonic scale
        now = self._clock.monotonic()
        values: dict[str, dict[str, float]] = defaultdict(dict)
        missing: dict[str, dict[str, Missing]] = defaultdict(dict)
        for server, scrape in list(self._scrapes.items()):
            reason = scrape.missing
            if reason is None and now - scrape.at > STALE_INTERVALS * max(self._every, TIMEOUT_SECONDS):
                reason = Missing.TIMED_OUT
            for reading in self._home(server, scrape, batch.readings):
                if reason is None:
                    _join(values[reading.gpu.uuid], scrape.values)
                else:
                    missing[reading.gpu.uuid] |= dict.fromkeys(sorted(set(NAMES.values())), reason)
        if not values and not missing:
            return batch
        return replace(batch, readings=[_with(reading, values, missing) for reading in batch.readings])

    def _home(self, server: Server, scrape: Scrape, readings: Sequence[Reading]) -> list[Reading]:
        if server.gpus:
            found = [reading for reading in readings if bare(reading.gpu.uuid) in server.gpus]
        else:
            found = [reading for reading in readings if scrape.pids & pids_on(reading)]
            if not found and len(readings) == 1:
                found = list(readings)
        if not found and readings:
            self._own.count("tocsin_vllm_scrapes_total", outcome="without_gpu")
            if server not in self._warned:
                self._warned.add(server)
                _log.warning(
                    "no GPU is known to be this vLLM server's (said once)",
                    url=server.url,
                    remedy=f"name its GPUs: {server.url}=GPU-UUID,GPU-UUID in agent.vllm_urls",
                )
        return found

    def _ask(self, server: Server) -> Scrape:
        pids = self._behind(server)
        try:
            values = read_page(self._fetch(server.url))
        except (httpx2.HTTPError, OSError):
            self._own.count("tocsin_vllm_scrapes_total", outcome="unreachable")
            return Scrape(self._clock.monotonic(), {}, Missing.TIMED_OUT, pids)
        except ValueError as error:
            self._own.count("tocsin_vllm_scrapes_total", outcome="unreadable")
            _log.debug("page of a vLLM server cannot be used", url=server.url, problem=str(error))
            return Scrape(self._clock.monotonic(), {}, Missing.BLANK, pids)
        self._own.count("tocsin_vllm_scrapes_total", outcome="taken")
        return Scrape(self._clock.monotonic(), values, None, pids)

    def _fetch(self, url: str) -> str:
        with self._client.stream("GET", url) as response:
            response.raise_for_status()
            taken = bytearray()
            for chunk in response.iter_bytes():
                taken += chunk
                if len(taken) > MAX_PAGE_BYTES:
                    raise ValueError(f"the page is larger than {MAX_PAGE_BYTES} bytes")
        return taken.decode("utf-8", errors="replace")

    def _behind(self, server: Server) -> frozenset[int]:
        """Processes behind the port of a server on this node; looked for again once in `PLACE_SECONDS`."""
        parts = urlsplit(server.url)
        if server.gpus or parts.hostname not in _LOCAL:
            return frozenset()
        now = self._clock.monotonic()
        known = self._placed.get(server)
        if known is not None and known[1] and now - known[0] < PLACE_SECONDS:
            return known[1]
        found = self._pids(parts.port or (443 if parts.scheme == "https" else 80))
        self._placed[server] = (now, found)
        return found

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                self.scrape()
            except Exception:  # noqa: BLE001  # the supervisor of the scraping loop
                self._own.count("tocsin_loop_failures_total", loop="vllm")
                _log.exception("unexpected error, scraping goes on")
            self._closing.wait(self._every)


def _join(known: dict[str, float], more: dict[str, float]) -> None:
    """Several engines or servers on one GPU: the fullest cache, everything else together."""
    for metric, value in more.items():
        known[metric] = max(known.get(metric, 0.0), value) if metric in FULLEST else known.get(metric, 0.0) + value


def _with(reading: Reading, values: dict[str, dict[str, float]], missing: dict[str, dict[str, Missing]]) -> Reading:
    more = values.get(reading.gpu.uuid, {})
    lacking = {name: why for name, why in missing.get(reading.gpu.uuid, {}).items() if name not in more}
    if not more and not lacking:
        return reading
    return replace(reading, values={**reading.values, **more}, missing={**reading.missing, **lacking})


def open_vllm(settings: AgentSettings, clock: Clock, own: OwnMetrics) -> VllmCompanion | None:
    """The companion for the servers of ``agent.vllm_urls``, already scraping, or None where that is empty.

    Raises InputError for an entry that is no address.
    """
    if not (found := [parse_entry(entry) for entry in settings.vllm_urls]):
        return None
    made = VllmCompanion(found, settings.interval_seconds, clock, own)
    made.start()
    return made
