"""Notices of spot interruption and maintenance, as a companion of the agent's source."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import httpx2

from tocsin.collector.spot_clouds import Cloud, SpotNotice, open_cloud
from tocsin.config.cloud import CloudSettings
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, SECOND, Clock
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Severity
from tocsin.domain.notice import NoticeCode, notice_text
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

_log = logger("notices")

REPEAT_MS = 5 * MINUTE
"""A notice that stands is told again after this, so that what it caused stays live (own choice)."""
DMI = Path("/sys/class/dmi/id")
AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"
"""Chassis asset tag of every Azure machine; other machines of Microsoft's hypervisor have others."""
_GRAVE = frozenset({NoticeCode.INTERRUPTION, NoticeCode.REBOOT, NoticeCode.MOVE})


class NoticeCompanion:
    """Adds an event of kind ``maintenance_notice`` for this node when one is announced, changed or withdrawn.

    The metadata service is asked in a thread of its own. While it does not answer, what it said last stands: silence
    withdraws nothing. Of several notices of one code the earliest is told. `alarm` is called, by that thread, when the
    answer has changed.
    """

    name = "notices"

    def __init__(
        self,
        cloud: Cloud,
        settings: CloudSettings,
        host: str,
        clock: Clock,
        own: OwnMetrics,
        alarm: Callable[[], None] = lambda: None,
    ) -> None:
        self._alarm = alarm
        self._cloud = cloud
        self._settings = settings
        self._host = host
        self._clock = clock
        self._own = own
        self._standing: tuple[SpotNotice, ...] = ()
        self._told: dict[NoticeCode, tuple[int | None, int]] = {}
        self._failing = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="notices", daemon=True)

    def start(self) -> None:
        """Ask from a thread of its own until `close`."""
        self._thread.start()

    def close(self) -> None:
        """Stop asking; safe to repeat. A request that hangs is left to end with the process."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(self._settings.timeout_seconds)

    def ask(self) -> None:
        """Ask once."""
        try:
            found = self._cloud.ask(self._clock.now_ms())
        except httpx2.HTTPError as error:
            self._fail("unreachable", error)
        except ValueError as error:
            self._fail("unreadable", error)
        else:
            self._failing = False
            before, self._standing = self._standing, tuple(found)
            self._own.count("tocsin_cloud_notices_total", outcome="notice" if found else "none")
            if before != self._standing:
                self._alarm()

    def enrich(self, batch: Batch, now_ms: int) -> Batch:
        """`batch` with events for what is new."""
        events = self._news(now_ms)
        return replace(batch, events=[*batch.events, *events]) if events else batch

    def _news(self, now_ms: int) -> list[Event]:
        standing = self._earliest(self._standing, now_ms)
        events: list[Event] = []
        if self._told.keys() - standing.keys():
            events.append(self._event(NoticeCode.WITHDRAWN, "no longer announced", now_ms))
            self._told = {}
        for code, notice in standing.items():
            deadline, told_ms = self._told.get(code, (None, -REPEAT_MS))
            moved = abs((deadline or 0) - (notice.deadline_ms or 0)) >= SECOND
            if code not in self._told or moved or now_ms - told_ms >= REPEAT_MS or now_ms < told_ms:
                # One millisecond behind the withdrawal, which ends what came before it.
                text = notice_text(notice.text, notice.deadline_ms)
                events.append(self._event(code, text, now_ms + len(events[:1])))
                self._told[code] = (notice.deadline_ms, now_ms)
        return events

    def _earliest(self, notices: Sequence[SpotNotice], now_ms: int) -> dict[NoticeCode, SpotNotice]:
        found: dict[NoticeCode, SpotNotice] = {}
        for notice in notices:
            away = notice.deadline_ms is not None and notice.deadline_ms - now_ms > self._settings.lead_seconds * SECOND
            code = NoticeCode.PLANNED if away else notice.code
            known = found.get(code)
            if known is None or _end(notice) < _end(known):
                found[code] = notice
        return found

    def _event(self, code: NoticeCode, text: str, at_ms: int) -> Event:
        severity = Severity.CRITICAL if code in _GRAVE else Severity.INFO
        return Event(
            EventKind.MAINTENANCE_NOTICE, "", self._host, at_ms, int(code), text, self._cloud.name, severity=severity
        )

    def _fail(self, outcome: str, error: Exception) -> None:
        self._own.count("tocsin_cloud_notices_total", outcome=outcome)
        tell = _log.debug if self._failing else _log.warning
        self._failing = True
        tell("metadata service gives no usable answer", cloud=self._cloud.name, problem=str(error) or repr(error))

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                self.ask()
            except Exception:  # noqa: BLE001  # the supervisor of the asking loop
                self._own.count("tocsin_loop_failures_total", loop="notices")
                _log.exception("unexpected error, asking goes on")
            self._closing.wait(self._settings.poll_seconds)


def _end(notice: SpotNotice) -> float:
    return float("inf") if notice.deadline_ms is None else notice.deadline_ms


def detect(folder: Path = DMI) -> str:
    """The cloud that the firmware's tables name: ``aws``, ``gcp``, ``azure``, or empty."""
    if _read(folder / "chassis_asset_tag") == AZURE_TAG:
        return "azure"
    vendor = _read(folder / "sys_vendor")
    return {"Amazon EC2": "aws", "Google": "gcp"}.get(vendor, "")


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def open_notices(
    settings: Settings, clock: Clock, own: OwnMetrics, alarm: Callable[[], None] = lambda: None, folder: Path = DMI
) -> NoticeCompanion | None:
    """The companion that ``cloud.notices`` asks for, already asking; None where there is no such cloud."""
    wanted = settings.cloud
    name = detect(folder) if wanted.notices == "auto" else wanted.notices
    if name in ("", "off"):
        return None
    client = httpx2.Client(timeout=wanted.timeout_seconds, trust_env=False)
    host = settings.agent.host or socket.gethostname()
    made = NoticeCompanion(open_cloud(name, wanted, client), wanted, host, clock, own, alarm)
    made.start()
    return made
