"""Alerts that an Alertmanager has sent, as evidence on the cards of the GPUs and hosts that they name.

What must hold: an alert of others opens no card and starts no action; it says on a card that somebody else sees
something there. Alertmanager sends nothing of what it silences or inhibits, so nothing of that is shown; of what is
silenced after it was told it sends no end, so that is left off the cards by the silences that the brain knows. They are
in memory alone: what fires is told again every ``repeat_interval``.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue, ValidationError

from tocsin.actions.model.alert_silences import AlertSilences
from tocsin.client.models_alerts import ForeignAlert
from tocsin.client.models_cards import Card, CardEvidence, CardState
from tocsin.collector.dcgm.exposition import LineLabels, host_of
from tocsin.collector.push.fleet import Admits
from tocsin.domain.clock import HOUR, from_iso, to_iso
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.reading import Reading
from tocsin.queries.cards import MadeCard

MAX_KEPT = 5_000
MOST_OF_HOST = 200
"""Alerts of one host, so that what one node says leaves room for the others (own choice)."""
KEPT_MS = 12 * HOUR
"""An alert that was not told again for this long is over: three of Alertmanager's usual intervals of repetition."""
SHOWN = 5
"""Alerts on one card."""
_UUID = ("gpu_uuid", "uuid", "exported_uuid")
_SUMMARY = ("summary", "description", "message")
_SUMMARY_CHARACTERS = 300
_LABEL_CHARACTERS = 4_096
"""Characters of all labels of an alert that are kept for silences to match; one with more is silenced by none."""


@dataclass(frozen=True, slots=True)
class _Alert:
    """One that fires; `gpu` is empty where it is about the host, `labels` where they are too long to keep."""

    name: str
    text: str
    host: str
    gpu: str
    since_ms: int | None
    told_ms: int
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Fleet:
    """Where the GPUs are: UUID by host and index, host by UUID, and the hosts."""

    places: Mapping[tuple[str, str], str]
    host_of: Mapping[str, str]
    hosts: frozenset[str]


class ForeignAlerts:
    """What fires by the last word on it; safe to use from several threads."""

    def __init__(
        self, latest: Callable[[], Iterable[Reading]], silences: Callable[[], AlertSilences] = AlertSilences
    ) -> None:
        self._latest = latest
        self._silences = silences
        self._lock = threading.Lock()
        self._kept: dict[str, _Alert] = {}
        self._of_host = Counter[str]()

    def take(self, alerts: Sequence[JsonValue], admits: Admits, now_ms: int) -> Counter[str]:
        """Take alerts in; how many there were by outcome: firing, resolved, malformed, unknown_place, refused, full."""
        outcomes: Counter[str] = Counter()
        places = {(one.gpu.host, str(one.gpu.index)): one.gpu.uuid for one in self._latest() if not one.gpu.is_mig}
        hosts = {one.gpu.uuid: one.gpu.host for one in self._latest()}
        fleet = _Fleet(places, hosts, frozenset(hosts.values()))
        with self._lock:
            self._kept = {name: one for name, one in self._kept.items() if now_ms - one.told_ms < KEPT_MS}
            self._of_host = Counter(one.host for one in self._kept.values())
            for found in alerts:
                outcomes[self._one(found, admits, fleet, now_ms)] += 1
        return outcomes

    def _one(self, found: JsonValue, admits: Admits, fleet: _Fleet, now_ms: int) -> str:
        try:
            alert = ForeignAlert.model_validate(found)
        except ValidationError:
            return "malformed"
        labels = LineLabels(alert.labels)
        uuid = labels.first(*_UUID)
        host = fleet.host_of.get(uuid) or labels.first("host") or host_of(labels)
        uuid = uuid if uuid in fleet.host_of else fleet.places.get((host, labels.first("gpu", "gpu_index")), "")
        if host not in fleet.hosts:
            return "unknown_place"
        before = self._kept.get(alert.fingerprint)
        # A fingerprint is no secret: whose alert it was counts as well, or any node could end the alerts of others.
        places_of = [(host, uuid), *([] if before is None else [(before.host, before.gpu)])]
        if any(admits(one, [gpu] if gpu else []) for one, gpu in places_of):
            return "refused"
        if alert.status == "resolved":
            self._drop(alert.fingerprint)
            return "resolved"
        if (before is None or before.host != host) and not self._has_room(alert.fingerprint, host):
            return "full"
        self._drop(alert.fingerprint)
        self._of_host[host] += 1
        self._kept[alert.fingerprint] = _kept_of(alert, labels, host, uuid, now_ms)
        return "firing"

    def _has_room(self, fingerprint: str, host: str) -> bool:
        whole = len(self._kept) < MAX_KEPT or fingerprint in self._kept
        return whole and self._of_host[host] < MOST_OF_HOST

    def _drop(self, fingerprint: str) -> None:
        gone = self._kept.pop(fingerprint, None)
        if gone is not None:
            self._of_host[gone.host] -= 1

    def on(self, made: Sequence[MadeCard], now_ms: int) -> list[MadeCard]:
        """`made` with what fires, and is not silenced, at the place of each card that is open."""
        with self._lock:
            firing = [one for one in self._kept.values() if now_ms - one.told_ms < KEPT_MS]
        if not firing:
            return list(made)
        silences = self._silences()

        def heard(alert: _Alert) -> bool:
            return not alert.labels or silences.over_alert(alert.labels, now_ms) is None

        return [replace(one, card=_with(one, firing, heard)) if _is_open(one) else one for one in made]


def _kept_of(alert: ForeignAlert, labels: LineLabels, host: str, gpu: str, now_ms: int) -> _Alert:
    said = LineLabels(alert.annotations).first(*_SUMMARY) or ", ".join(f"{k}={v}" for k, v in alert.labels.items())
    name = labels.first("alertname") or "alert"
    since = _instant(alert.starts_at)
    short = sum(len(key) + len(value) for key, value in alert.labels.items()) <= _LABEL_CHARACTERS
    return _Alert(name[:100], said[:_SUMMARY_CHARACTERS], host, gpu, since, now_ms, alert.labels if short else {})


def _is_open(made: MadeCard) -> bool:
    return made.card.state is not CardState.RESOLVED


def _with(made: MadeCard, firing: Sequence[_Alert], heard: Callable[[_Alert], bool]) -> Card:
    subjects = [subject for cause in made.causes for subject in cause.subjects] or [made.card.subject]
    about = [one for one in firing if _is_about(one, subjects) and heard(one)]
    about.sort(key=lambda one: (one.since_ms or one.told_ms, one.name))
    told = [
        CardEvidence(
            kind="alert", text=one.text, name=one.name, at=None if one.since_ms is None else to_iso(one.since_ms)
        )
        for one in about[:SHOWN]
    ]
    return made.card.model_copy(update={"evidence": [*made.card.evidence, *told]}) if told else made.card


def _is_about(alert: _Alert, subjects: Collection[Subject]) -> bool:
    """Whether it names one of the GPUs, or a host of them as a whole."""
    return any(
        (subject.kind is SubjectKind.GPU and subject.name == alert.gpu)
        or (subject.kind is SubjectKind.GPU and not alert.gpu and subject.host == alert.host)
        or (subject.kind is SubjectKind.HOST and subject.name == alert.host)
        for subject in subjects
    )


def _instant(text: str) -> int | None:
    """Milliseconds; None where the sender has no instant that can be shown."""
    try:
        at_ms = from_iso(text)
    except (ValueError, OverflowError):
        return None
    return at_ms if 0 <= at_ms < 253_402_300_800_000 else None
