"""Every follower before a server that can be away, talk nonsense, or have something new."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

import httpx2

from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, ManualClock, to_iso
from tocsin.domain.reading import Reading
from tocsin.plugins import OWN_PACKAGE, Kind, load, plugins
from tocsin.runtime.brain.alert_silences import open_alert_silences
from tocsin.runtime.brain.assembly import RunningBrain, open_brain
from tocsin.runtime.brain.brain import Brain
from tocsin.runtime.brain.follower import Follower
from tocsin.runtime.brain.promql_follower import open_promql
from tocsin.runtime.brain.store_follower import StoreFollower
from tocsin.store.memory import MemoryStore
from tocsin.store.port import StoreUnavailable
from tocsin_testing.builders import T0, gpu
from tocsin_testing.dcgm_site import Point, labels_of
from tocsin_testing.fake_prometheus import FakePrometheus

URL = "http://server:9090"


class FollowedServer(Protocol):
    """What a follower follows. `nonsense`, where set, is the body of every answer; `away` refuses each request."""

    away: bool
    nonsense: bytes | None
    asked: int

    def show(self, number: int, now_ms: int) -> None:
        """It has one more thing, of `now_ms`."""


class _Wire:
    """An HTTP server of which `answer` makes the answers."""

    def __init__(self) -> None:
        self.away, self.nonsense, self.asked = False, cast("bytes | None", None), 0

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.asked += 1
        if self.away:
            raise httpx2.ConnectError("refused")
        return self.answer(request) if self.nonsense is None else httpx2.Response(200, content=self.nonsense)

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        raise NotImplementedError


class PrometheusServer(_Wire):
    """It scrapes one GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = FakePrometheus([])  # type: ignore[method-assign]

    def show(self, number: int, now_ms: int) -> None:
        shown = {"DCGM_FI_DEV_GPU_TEMP": 50.0 + number, "DCGM_FI_DEV_POWER_USAGE": 200.0}
        cast("FakePrometheus", self.answer).scrape(
            Point(name, labels_of(1, 0), value, now_ms) for name, value in shown.items()
        )


class AlertmanagerServer(_Wire):
    """Its silences stand for a day."""

    def __init__(self) -> None:
        super().__init__()
        self.silences: list[dict[str, Any]] = []

    def show(self, number: int, now_ms: int) -> None:
        matcher = {"name": "host", "value": f"node-{number}", "isRegex": False, "isEqual": True}
        times = {"startsAt": to_iso(now_ms - HOUR), "endsAt": to_iso(now_ms + 24 * HOUR)}
        said = {"id": f"s{number}", "status": {"state": "active"}, "comment": "fans", "createdBy": "ann"}
        self.silences.append(said | times | {"matchers": [matcher]})

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json=self.silences)


class SharedStore(MemoryStore):
    """A store that agents write to; what is no answer of a store its client says as unavailable."""

    def __init__(self) -> None:
        super().__init__()
        self.away, self.nonsense, self.asked = False, cast("bytes | None", None), 0

    def show(self, number: int, now_ms: int) -> None:
        self.write(Batch(readings=[Reading(gpu(0), now_ms, {"gpu_temperature_celsius": 50.0 + number})]))

    def latest(self, since_ms: int) -> list[Reading]:
        self.asked += 1
        if self.away or self.nonsense is not None:
            raise StoreUnavailable("no store answers")
        return super().latest(since_ms)


class BoardFile:
    """The file that the follower of another package reads."""

    def __init__(self, path: Path) -> None:
        self._path, self._kept, self.asked = path, "", 0
        path.write_text("")

    def show(self, number: int, now_ms: int) -> None:
        self._kept += f"GPU-board node-9 {50 + number} {now_ms}\n"
        self._path.write_text(self._kept)

    @property
    def away(self) -> bool:
        return not self._path.exists()

    @away.setter
    def away(self, value: bool) -> None:
        self._path.unlink(missing_ok=True)
        if not value:
            self._path.write_text(self._kept)

    @property
    def nonsense(self) -> bytes | None:
        return None

    @nonsense.setter
    def nonsense(self, value: bytes | None) -> None:
        self._path.write_bytes(self._kept.encode() if value is None else value)


class Followed:
    """A brain, one follower of it that the test calls, and what that follows."""

    def __init__(self, running: RunningBrain, follower: Follower, server: FollowedServer, clock: ManualClock) -> None:
        self.running, self.brain = running, running.brain
        self.follower, self.server, self.clock = follower, server, clock
        self.shown = 0

    def show(self) -> None:
        self.shown += 1
        self.server.show(self.shown, self.clock.now_ms())

    def look(self, after_seconds: float) -> float:
        """One look, so long after the one before; the seconds of CPU that it took."""
        self.clock.advance(round(after_seconds * 1000))
        begun = time.thread_time()
        self.follower.look()
        return time.thread_time() - begun

    def has(self) -> tuple[object, ...]:
        """All that the brain has by this follower."""
        silences = tuple(sorted(one.id for one in self.brain.alert_silences.known))
        readings = tuple((one.gpu.uuid, one.at_ms, dict(one.values)) for one in self.brain.memory.latest())
        return silences, readings, tuple(one.id for one in self.brain.memory.events_since(0))

    def close(self) -> None:
        self.follower.close()
        self.running.stop()


def plain_brain(folder: Path, clock: ManualClock, **sections: Any) -> RunningBrain:
    """A brain whose settings name no server but those in `sections`."""
    wanted = {
        "store": {"kind": "memory", "path": folder / "store.db"},
        "journal": {"path": folder / "journal.db"},
        "forecast": {"worker": False},
    }
    return open_brain(Settings.model_validate(wanted | sections), clock)


def followed(name: str, folder: Path) -> Followed:
    """Follower `name` before a server that has nothing yet."""
    return _FACTORIES[name](folder, ManualClock(T0))


def _promql(folder: Path, clock: ManualClock) -> Followed:
    running, server = plain_brain(folder, clock, promql={"url": URL}), PrometheusServer()
    made = open_promql(running.brain, httpx2.MockTransport(server))
    assert made is not None
    return Followed(running, made, server, clock)


def _silences(folder: Path, clock: ManualClock) -> Followed:
    running, server = plain_brain(folder, clock, alertmanager={"url": URL}), AlertmanagerServer()
    made = open_alert_silences(running.brain, httpx2.MockTransport(server))
    assert made is not None
    return Followed(running, made, server, clock)


def _store(folder: Path, clock: ManualClock) -> Followed:
    running, server = plain_brain(folder, clock), SharedStore()
    brain, memory = running.brain, running.brain.memory
    made = StoreFollower(
        server, memory.latest, memory.has_event, brain.take_stored, clock, 120_000, brain.metrics, every_seconds=10.0
    )
    return Followed(running, made, server, clock)


def _of_another_package(name: str) -> Callable[[Path, ManualClock], Followed]:
    def make(folder: Path, clock: ManualClock) -> Followed:
        running, server = plain_brain(folder, clock), BoardFile(folder / "acme_board.txt")
        opened: Callable[[Brain], Follower | None] = load(Kind.FOLLOWER, name, "follower")
        made = opened(running.brain)
        assert made is not None
        return Followed(running, made, server, clock)

    return make


_FACTORIES: dict[str, Callable[[Path, ManualClock], Followed]] = {
    "silences": _silences,
    "store": _store,
    "promql": _promql,
} | {one.name: _of_another_package(one.name) for one in plugins(Kind.FOLLOWER).values() if one.package != OWN_PACKAGE}
NAMES = list(_FACTORIES)
