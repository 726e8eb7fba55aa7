"""Notices of spot interruption and maintenance, as a companion of the agent's source."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Protocol

import httpx2

from tocsin.config.cloud import CloudSettings
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, SECOND, Clock, from_iso
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Severity
from tocsin.domain.notice import NoticeCode, notice_text
from tocsin.http_client import http_client
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

# Metadata services. AWS: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
# and .../monitoring- instances-status-check_sched.html; Google:
# .../compute/docs/metadata/getting-live-migration-notice; Azure:
# https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events

GCP_PREEMPTION_MS = 30 * SECOND
"""Compute Engine ends a preempted machine 30 s after it says so, at best."""
GCP_MAINTENANCE_MS = 60 * MINUTE
"""Machines with GPUs cannot be migrated live; their maintenance is announced an hour ahead."""
AWS_TOKEN_SECONDS = 21_600
AZURE_FIRST_SECONDS = 130.0
"""The first call switches the service on and may take two minutes."""
MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SpotNotice:
    """One announcement; `deadline_ms` is None where it says no time."""

    code: NoticeCode
    text: str
    deadline_ms: int | None = None


class Cloud(Protocol):
    """One metadata service."""

    name: str

    def ask(self, now_ms: int) -> list[SpotNotice]:
        """What is announced now; raises httpx2.HTTPError where it does not answer, ValueError for nonsense."""


class Aws:
    """EC2: spot interruptions, rebalance recommendations and scheduled events, by IMDSv2."""

    name = "aws"
    _CODES: Mapping[str, NoticeCode] = {
        "instance-reboot": NoticeCode.REBOOT,
        "system-reboot": NoticeCode.REBOOT,
        "system-maintenance": NoticeCode.FREEZE,
        "instance-retirement": NoticeCode.INTERRUPTION,
        "instance-stop": NoticeCode.INTERRUPTION,
    }

    def __init__(self, client: httpx2.Client, url: str) -> None:
        self._client = client
        self._url = url
        self._token = ""

    def ask(self, now_ms: int) -> list[SpotNotice]:  # noqa: ARG002  # EC2 says every time itself
        found: list[SpotNotice] = []
        if spot := self._get("spot/instance-action"):
            item = _object(spot)
            found.append(
                SpotNotice(NoticeCode.INTERRUPTION, f"EC2 spot: {_text(item, 'action')}", _iso(item.get("time")))
            )
        if self._get("events/recommendations/rebalance"):
            found.append(SpotNotice(NoticeCode.PLANNED, "EC2 recommends to leave: interruption has become likely"))
        for item in _objects(self._get("events/maintenance/scheduled") or "[]"):
            if item.get("State", "active") == "active":
                code = self._CODES.get(_text(item, "Code"), NoticeCode.PLANNED)
                said = f"EC2 {_text(item, 'Code')}: {_text(item, 'Description')}"
                found.append(SpotNotice(code, said, _date(item.get("NotBefore"))))
        return found

    def _get(self, path: str) -> str:
        """A page, empty where there is none; an expired token is renewed once."""
        for _ in range(2):
            if not self._token:
                self._token = self._new_token()
            headers = {"X-aws-ec2-metadata-token": self._token}
            response = self._client.get(f"{self._url}/latest/meta-data/{path}", headers=headers)
            if response.status_code == 404:
                return ""
            if response.status_code != 401:
                return _body(response)
            self._token = ""
        raise ValueError("the metadata service refuses its own token")

    def _new_token(self) -> str:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(AWS_TOKEN_SECONDS)}
        token = _body(self._client.put(f"{self._url}/latest/api/token", headers=headers)).strip()
        if not token.isascii() or not token.isprintable():
            raise ValueError("its token is no text")
        return token


class Gcp:
    """Compute Engine: preemption and host maintenance."""

    name = "gcp"

    def __init__(self, client: httpx2.Client, url: str) -> None:
        self._client = client
        self._url = url
        self._since: dict[str, int] = {}

    def ask(self, now_ms: int) -> list[SpotNotice]:
        answers = {path: self._get(path).upper() for path in ("preempted", "maintenance-event")}
        maintenance = answers["maintenance-event"]
        ends = maintenance == "TERMINATE_ON_HOST_MAINTENANCE"
        self._since = {
            name: self._since.get(name, now_ms)
            for name, holds in (("preempted", answers["preempted"] == "TRUE"), ("ends", ends))
            if holds
        }
        found: list[SpotNotice] = []
        if "preempted" in self._since:
            deadline = self._since["preempted"] + GCP_PREEMPTION_MS
            found.append(SpotNotice(NoticeCode.INTERRUPTION, "Compute Engine preempts this machine", deadline))
        if "ends" in self._since:
            deadline = self._since["ends"] + GCP_MAINTENANCE_MS
            found.append(
                SpotNotice(NoticeCode.INTERRUPTION, "Compute Engine ends this machine for maintenance", deadline)
            )
        elif maintenance.startswith("MIGRATE"):
            found.append(SpotNotice(NoticeCode.FREEZE, "Compute Engine moves this machine while it runs"))
        return found

    def _get(self, path: str) -> str:
        url = f"{self._url}/computeMetadata/v1/instance/{path}"
        response = self._client.get(url, headers={"Metadata-Flavor": "Google"})
        if response.headers.get("Metadata-Flavor") != "Google":
            raise ValueError("the answer is not Google's: it lacks Metadata-Flavor")
        return _body(response).strip()


class Azure:
    """Azure: scheduled events of this machine."""

    name = "azure"
    _CODES: Mapping[str, NoticeCode] = {
        "Freeze": NoticeCode.FREEZE,
        "Reboot": NoticeCode.REBOOT,
        "Redeploy": NoticeCode.MOVE,
        "Preempt": NoticeCode.INTERRUPTION,
        "Terminate": NoticeCode.INTERRUPTION,
    }

    def __init__(self, client: httpx2.Client, url: str, vm: str = "") -> None:
        self._client = client
        self._url = url
        self._vm = vm
        self._answered = False
        self._started: dict[str, int] = {}

    def ask(self, now_ms: int) -> list[SpotNotice]:
        if not self._vm:
            self._vm = self._get("instance/compute/name?api-version=2021-02-01&format=text").strip()
        document = _object(self._get("scheduledevents?api-version=2020-07-01", first=not self._answered))
        self._answered = True
        events = document.get("Events")
        if isinstance(events, list):
            mine = [item for item in events if isinstance(item, dict) and self._is_mine(item)]
            begun = [_text(item, "EventId") for item in mine if item.get("EventStatus") == "Started"]
            self._started = {name: self._started.get(name, now_ms) for name in begun}
            return [self._notice(item) for item in mine]
        raise ValueError("there is no list of events in it")

    def _is_mine(self, item: Mapping[str, Any]) -> bool:
        resources = item.get("Resources")
        return isinstance(resources, list) and self._vm in resources and item.get("EventStatus") != "Completed"

    def _notice(self, item: Mapping[str, Any]) -> SpotNotice:
        code = self._CODES.get(_text(item, "EventType"), NoticeCode.PLANNED)
        said = f"Azure {_text(item, 'EventType')}: {_text(item, 'Description')}"
        # An event that has started says no time: it is when that was first seen.
        begun = self._started[_text(item, "EventId")] if item.get("EventStatus") == "Started" else None
        return SpotNotice(code, said, _date(item.get("NotBefore")) or begun)

    def _get(self, path: str, *, first: bool = False) -> str:
        more: dict[str, Any] = {"timeout": AZURE_FIRST_SECONDS} if first else {}
        return _body(self._client.get(f"{self._url}/metadata/{path}", headers={"Metadata": "true"}, **more))


def open_cloud(name: str, settings: CloudSettings, client: httpx2.Client) -> Cloud:
    """The metadata service of cloud `name`: ``aws``, ``gcp`` or ``azure``."""
    if name == "aws":
        return Aws(client, settings.aws_url.rstrip("/"))
    if name == "gcp":
        return Gcp(client, settings.gcp_url.rstrip("/"))
    return Azure(client, settings.azure_url.rstrip("/"), settings.azure_vm)


def _body(response: httpx2.Response) -> str:
    response.raise_for_status()
    if len(response.content) > MAX_BYTES:
        raise ValueError(f"the answer is larger than {MAX_BYTES} bytes")
    return response.content.decode("utf-8", "replace")


def _object(text: str) -> dict[str, Any]:
    found = _json(text)
    if isinstance(found, dict):
        return found
    raise ValueError("the answer is no JSON object")


def _objects(text: str) -> list[dict[str, Any]]:
    found = _json(text)
    if isinstance(found, list):
        return [item for item in found if isinstance(item, dict)]
    raise ValueError("the answer is no JSON list")


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _text(item: Mapping[str, Any], key: str) -> str:
    value = item.get(key)
    return value if isinstance(value, str) else "unknown"


def _iso(value: object) -> int | None:
    try:
        return from_iso(value) if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None


def _date(value: object) -> int | None:
    """An instant as mail and HTTP write it, or ISO 8601."""
    if not isinstance(value, str) or not value.strip():
        return None
    try:
        return round(parsedate_to_datetime(value).timestamp() * SECOND)
    except (ValueError, OverflowError, TypeError, IndexError, OSError):
        return _iso(value)


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
    withdraws nothing. Of several notices of one code the earliest is reported. `alarm` is called, by that thread, when
    the answer has changed.
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
        self._reported: dict[NoticeCode, tuple[int | None, int]] = {}
        self._failing = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="notices", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop asking; safe to repeat. A request that hangs is left to end with the process."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(self._settings.timeout_seconds)

    def ask(self) -> None:
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
        events = self._news(now_ms)
        return replace(batch, events=[*batch.events, *events]) if events else batch

    def _news(self, now_ms: int) -> list[Event]:
        standing = self._earliest(self._standing, now_ms)
        events: list[Event] = []
        if self._reported.keys() - standing.keys():
            events.append(self._event(NoticeCode.WITHDRAWN, "no longer announced", now_ms))
            self._reported = {}
        for code, notice in standing.items():
            deadline, reported_ms = self._reported.get(code, (None, -REPEAT_MS))
            moved = abs((deadline or 0) - (notice.deadline_ms or 0)) >= SECOND
            if code not in self._reported or moved or now_ms - reported_ms >= REPEAT_MS or now_ms < reported_ms:
                # One millisecond behind the withdrawal, which ends what came before it.
                text = notice_text(notice.text, notice.deadline_ms)
                events.append(self._event(code, text, now_ms + len(events[:1])))
                self._reported[code] = (notice.deadline_ms, now_ms)
        return events

    def _earliest(self, notices: Sequence[SpotNotice], now_ms: int) -> dict[NoticeCode, SpotNotice]:
        found: dict[NoticeCode, SpotNotice] = {}
        for notice in notices:
            away = notice.deadline_ms is not None and notice.deadline_ms - now_ms > self._settings.lead_seconds * SECOND
            code = NoticeCode.PLANNED if away else notice.code
            if (known := found.get(code)) is None or _end(notice) < _end(known):
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
    return {"Amazon EC2": "aws", "Google": "gcp"}.get(_read(folder / "sys_vendor"), "")


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
    client = http_client(wanted.timeout_seconds)
    host = settings.agent.host or socket.gethostname()
    made = NoticeCompanion(open_cloud(name, wanted, client), wanted, host, clock, own, alarm)
    made.start()
    return made
