"""kill -9 of the brain and of agents at random instants under load, over real HTTP.

`TOCSIN_KILLS` sets how many (``make kills KILLS=1000``); docs/operations/kills.md has what such a run printed.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tocsin.actions.notifications.webhook import REQUESTED
from tocsin.client.client import Client
from tocsin.config.settings import Settings
from tocsin.domain.clock import HOUR, SystemClock
from tocsin.domain.entry import EntryKind
from tocsin.journal.files import read_entries
from tocsin.journal.verify import verify
from tocsin.store.embedded.store import SqliteStore
from tocsin_testing.brain_child import spawn_brain, start_brain
from tocsin_testing.chaos import until
from tocsin_testing.killed_agent import AgentSite, Course

KILLS = max(10, int(os.environ.get("TOCSIN_KILLS", "50")))
LEAST_READINGS, LEAST_EXECUTIONS = (100_000, 300) if "TOCSIN_KILLS" in os.environ else (40_000, 120)
"""What a run has to show; a brain that starts goes through all that was read before."""
AGENTS = 2
PATIENCE = 120.0
RULES = """
[[rules]]
name = "hot"
severity = "critical"
category = "thermal"
action = "throttle"
mode = "act"
alert = "{where}: {value}"
all = [{kind = "threshold", metric = "gpu_temperature_celsius", above = 85}]
"""
NEVER = threading.Event()


class Receiver:
    """Carries out what it is asked for by counting it: how often each key came, answered or not."""

    def __init__(self) -> None:
        self.executed: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, body: dict[str, object]) -> None:
        if body["type"] == REQUESTED:
            with self._lock:
                self.executed[str(body["id"])] += 1

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Its URL."""
        take = self.take

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                body = self.rfile.read(length)
                if len(body) < length:
                    # The brain was killed while it sent: nothing was asked for.
                    self.close_connection = True
                    return
                take(json.loads(body))
                self.send_response(204)
                self.end_headers()

            def handle(self) -> None:
                with suppress(ConnectionResetError):
                    super().handle()

            def log_message(self, *args: object) -> None:
                """Thousands of requests are no news."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hook"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def brain_settings(folder: Path, webhook: str, port: int) -> Settings:
    (folder / "rules.toml").write_text(RULES)
    (folder / "elsewhere").mkdir()
    return Settings.model_validate(
        {
            "store": {"path": folder / "store.db"},
            # No kill makes the journal look restored: what comes after it is executed without a person.
            "journal": {
                "path": folder / "journal.db",
                "witness": folder / "elsewhere" / "witness.json",
                "key_file": folder / "elsewhere" / "key",
            },
            "api": {"listen": f"127.0.0.1:{port}"},
            "rules": {"path": folder / "rules.toml", "evaluate_seconds": 0.4},
            "forecast": {"worker": False},
            "webhook": {"url": webhook},
            "actions": {
                "mode": "act",
                "earn_waived": ["*"],
                "executors": ["webhook"],
                "managed_pools": ["default"],
                "confirmations": 1,
                "boot_grace_seconds": 0,
                "settle_seconds": 0,
                # Nothing cools these GPUs, and the last readings stay: no goal is waited for.
                "goal_seconds": 0,
                "cooldown_seconds": 0,
                "breaker_root_causes": 100_000,
                "limits": {
                    "max_concurrent": 1000,
                    "max_concurrent_ratio": 1,
                    "max_per_host": 1000,
                    "max_per_rack": 1000,
                    "min_available_ratio": 0,
                    "attempts_per_day": 100_000,
                    "attempts_per_host_per_day": 100_000,
                },
            },
        }
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Site:
    """A brain, its agents and the receiver, and what is killed when.

    Few GPUs where there are many kills: a start goes through all that was read in the last half hour.
    """

    def __init__(self, folder: Path, receiver: Receiver, url: str, kills: int) -> None:
        self.gpus = 200 if kills <= 100 else 40
        port = free_port()
        self.kills = kills
        self.receiver = receiver
        self.settings = brain_settings(folder, url, port)
        self.url = f"http://127.0.0.1:{port}"
        self.course = Course(self.gpus, AGENTS)
        # Each GPU that gets hot is throttled, and restored once it is cool: two executions; some of them are killed.
        self.step = math.ceil(2 * LEAST_EXECUTIONS / kills)
        self.agents = [self._agent(folder, number) for number in range(AGENTS)]
        self.brain: BaseProcess | None = None
        self.killed: Counter[str] = Counter()
        self.verified = 0
        self.chance = random.Random(20261121)

    def _agent(self, folder: Path, number: int) -> AgentSite:
        gpus = self.gpus // AGENTS
        settings = Settings.model_validate(
            {
                "agent": {
                    "host": f"node-{number}",
                    "interval_seconds": 0.05,
                    "push_url": self.url,
                    "spool": folder / f"spool-{number}.db",
                }
            }
        )
        numbers = range(number * gpus, (number + 1) * gpus)
        return AgentSite(settings, number, numbers, self.course, folder / f"told-{number}")

    def acknowledged(self) -> int:
        """Readings that the brain has taken by its word."""
        return sum(len(agent.acknowledged()) * len(agent.numbers) for agent in self.agents)

    def is_complete(self) -> bool:
        """Whether as many readings were acknowledged, and as many actions carried out, as a run has to show."""
        return self.acknowledged() >= LEAST_READINGS and len(self.receiver.executed) >= LEAST_EXECUTIONS

    def begin(self) -> None:
        self.brain, _ = start_brain(self.settings)
        with Client(self.url) as client:
            # A brain that may act and has a new journal starts paused.
            client.resume()
        for agent in self.agents:
            agent.start()

    def run(self, progress: Callable[[str], None]) -> None:
        """Kill an agent, then the brain, and so on: as often as asked, and on until both quotas are met."""
        begun = time.monotonic()
        for number in itertools.count():
            if number >= self.kills and self.is_complete():
                return
            assert number < 2 * self.kills, (
                f"{self.acknowledged()} readings, {self.receiver.executed.total()} executions"
            )
            if self.brain is None:
                self.brain = spawn_brain(self.settings)
            self._heat(number)
            self._allow((number + 1) / self.kills)
            if number % 2:
                self._kill_brain(number, settled=number % 4 == 1)
            else:
                self._kill_agent(self.agents[number // 2 % AGENTS])
            if (number + 1) % 50 == 0:
                progress(f"kill {number + 1} after {time.monotonic() - begun:.0f} s: {self.acknowledged()} readings")

    def _heat(self, number: int) -> None:
        self.course.heat(number // 2 * self.step, (number // 2 + 3) * self.step)

    def _allow(self, share: float) -> None:
        """Let the agents read that share of all, for what is read before the GPUs get hot one more, and one more for
        each kill of an agent: it may have had a reading in hand."""
        needed = math.ceil(LEAST_READINGS * share / self.gpus)
        self.course.allow(needed + 1 + self.killed["agent"])

    def _kill_agent(self, agent: AgentSite) -> None:
        NEVER.wait(self.chance.uniform(0.0, 0.3))
        agent.kill()
        agent.start()
        self.killed["agent"] += 1

    def _kill_brain(self, number: int, *, settled: bool) -> None:
        """Half of the kills come in the middle of executions and once enough was read, however slow the machine is;
        the others at any instant, that of the start among them."""
        assert self.brain is not None
        if settled:
            share = (number + 1) / self.kills
            done = max(self.receiver.executed.total(), math.floor(LEAST_EXECUTIONS * share))
            wanted = done + self.chance.randint(1, self.step)
            until(lambda: self.acknowledged() >= LEAST_READINGS * share, "readings that the brain takes", PATIENCE)
            until(lambda: self.receiver.executed.total() >= wanted, "executions", PATIENCE)
        else:
            NEVER.wait(self.chance.uniform(0.0, 0.6))
        self.brain.kill()
        self.brain.join()
        self.brain = None
        self.killed["brain"] += 1
        result = verify(self.settings.journal.path, after=self.verified)
        assert result.ok, f"after kill {number + 1}: {result.problem}"
        self.verified = result.events

    def end(self) -> None:
        """Kill all, deliver what spools hold, and let the brain end what it began."""
        self.kill_all()
        self.brain, _ = start_brain(self.settings)
        for agent in self.agents:
            agent.drain()
        until(lambda: self.outcomes().keys() == self.starts().keys(), "an outcome of each execution", PATIENCE)
        self.kill_all()

    def kill_all(self) -> None:
        for agent in self.agents:
            agent.kill()
        if self.brain is not None:
            self.brain.kill()
            self.brain.join()
            self.brain = None

    def starts(self) -> Counter[str]:
        return self._keys(EntryKind.EXECUTION_STARTED)

    def outcomes(self) -> Counter[str]:
        """Of executions: notifications have no outcome of this kind."""
        return self._keys(EntryKind.OUTCOME)

    def _keys(self, kind: EntryKind) -> Counter[str]:
        return Counter(str(entry.payload["key"]) for entry in read_entries(self.settings.journal.path, kinds=[kind]))


class Audit:
    """What of a site was promised and what is there."""

    def __init__(self, site: Site, since_ms: int) -> None:
        self.site = site
        self.read, self.spooled, self.acknowledged = (
            {(gpu.uuid, at_ms) for agent in site.agents for at_ms in agent.instants(word) for gpu in agent.gpus}
            for word in ("read", "spooled", "acknowledged")
        )
        store = SqliteStore(site.settings.store.path)
        found = store.readings(since_ms - HOUR, since_ms + 24 * HOUR)
        self.kept = Counter((reading.gpu.uuid, reading.at_ms) for reading in found)
        store.close()
        self.executed, self.starts, self.outcomes = site.receiver.executed, site.starts(), site.outcomes()
        self.verified = verify(site.settings.journal.path)
        self.pauses = len(list(read_entries(site.settings.journal.path, kinds=[EntryKind.PAUSE])))

    def lost(self) -> int:
        """Readings that the brain had acknowledged, or that were in a spool, and are not in the store."""
        return len((self.acknowledged | self.spooled) - self.kept.keys())

    def doubled(self) -> int:
        return sum(times > 1 for times in self.kept.values())

    def made_up(self) -> int:
        return len(self.kept.keys() - self.read)

    def lines(self, seconds: float) -> list[str]:
        killed, executed = self.site.killed, self.executed
        interrupted = len(self.starts) - len(executed.keys() & self.starts.keys())
        return [
            f"kills: {killed['brain']} of the brain, {killed['agent']} of an agent; {seconds:.0f} s",
            f"readings: {len(self.acknowledged)} acknowledged over HTTP, {len(self.spooled)} taken by a spool; "
            f"{self.lost()} lost, {self.doubled()} doubled, {self.made_up()} never read",
            f"executions: {len(executed)} carried out; {sum(times > 1 for times in executed.values())} twice, "
            f"{len(executed.keys() - self.starts.keys())} without a start on record; "
            f"{len(self.starts)} begun on record, {interrupted} of them killed before the request, "
            f"{sum(times != 1 for times in self.outcomes.values())} without exactly one outcome",
            f"journal: {self.verified.events} entries, {'the chain holds' if self.verified.ok else 'BROKEN'}; "
            f"pauses: {self.pauses}, that of the new journal",
        ]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_kills_at_random_instants_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    receiver, since_ms, begun = Receiver(), SystemClock().now_ms(), time.monotonic()
    with receiver.serving() as url:
        site = Site(tmp_path, receiver, url, KILLS)
        try:
            site.begin()
            site.run(lambda line: print(line, flush=True))
            site.end()
        finally:
            site.kill_all()
    audit = Audit(site, since_ms)
    print(*audit.lines(time.monotonic() - begun), sep="\n")

    assert len(audit.acknowledged) >= LEAST_READINGS
    assert (audit.lost(), audit.doubled(), audit.made_up()) == (0, 0, 0)
    assert len(audit.executed) >= LEAST_EXECUTIONS
    assert [key for key, times in audit.executed.items() if times > 1] == []
    assert [key for key, times in audit.starts.items() if times > 1] == []
    assert audit.executed.keys() <= audit.starts.keys()
    assert audit.outcomes == audit.starts, "one outcome of each start"
    assert audit.verified.ok, audit.verified.problem
    assert audit.pauses == 1, "that of the new journal"
