"""What the running service said over a recording, scored by two clocks beside alerts that know nothing.

The ticket clock (`tocsin.forecaster.evaluation.ticket_clock`) asks how long before the operator's note something was
said. The event clock asks how long before, or after, the first hardware event of a node. Statements are those that
people are told: notifications. Those about machines are scored; what a program does to memory, or how much of a pool is
used, is counted beside them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import HOUR, MINUTE, to_iso
from tocsin.domain.event import Event
from tocsin.domain.finding import Category
from tocsin.domain.reading import Gpu
from tocsin.domain.words import counted
from tocsin.forecaster.evaluation.ticket_clock import (
    BAR_PER_NODE_DAY,
    DRAWS,
    QUANTILE,
    Instants,
    LoggedIncident,
    Nulls,
    TicketScore,
    episode_starts,
    figures,
    nulls,
    scorable,
    score,
    shifted_times,
    tossed_times,
)
from tocsin.forecaster.features.onsets import onsets_of

MACHINE = frozenset({Category.HARDWARE, Category.POWER, Category.THERMAL, Category.TELEMETRY})
"""Categories of statements about machines: of what an operator's log of hardware incidents is about."""
SHARES = {"found": 1.0, "found_24h": 6 / 7, "found_48h": 4 / 7}
"""Least shares of the scorable incidents at any lead, with 24 h and with 48 h, that the joint bar asks for."""
LEAST_PRECISION = 0.9
MOST_REACHED = 0.1
"""Greatest share of the coins, and of each kind of shift, that may reach the joint bar."""
WARNED_MS = 48 * HOUR
"""How long before an event a statement still counts as its warning."""
TOLD_MS = 24 * HOUR
"""How long after an event a statement still counts as its announcement."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One notification: what people were told at `at_ms`, about which `nodes`."""

    at_ms: int
    nodes: tuple[str, ...]
    rule: str
    level: str
    category: Category
    sentence: str

    @property
    def about_machines(self) -> bool:
        return self.category in MACHINE

    def as_json(self) -> dict[str, object]:
        return {
            "at": to_iso(self.at_ms), "nodes": list(self.nodes), "rule": self.rule, "level": self.level,
            "category": str(self.category), "scored": self.about_machines, "sentence": self.sentence,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Said:
    """All that was told, in the order of time, and at which observed instants a statement about machines held on each
    node: int64[k], rising."""

    statements: tuple[Statement, ...]
    alarm: Mapping[str, Instants]

    def times(self) -> dict[str, Instants]:
        """When each node was spoken of, rising."""
        found: dict[str, list[int]] = {}
        for one in self.statements:
            for node in one.nodes if one.about_machines else ():
                found.setdefault(node, []).append(one.at_ms)
        return {node: np.unique(np.array(times, np.int64)) for node, times in found.items()}


@dataclass(frozen=True, slots=True)
class TicketClock:
    """By the operator's log: `bar` in counts of the scorable incidents, nulls by shifts of the starts and of the whole
    time in alarm."""

    score: TicketScore
    bar: Mapping[str, float]
    by_start: Nulls
    by_time: Nulls
    unscorable: int

    @property
    def held(self) -> bool:
        """Whether every part of the joint bar is reached at once."""
        return bool(figures(self.score, self.bar)["bar"])

    def null_shares(self) -> dict[str, float]:
        """Share of each kind of alert that knows nothing which reaches the joint bar."""
        return {
            "always on": self.by_start.always_on.spreads["bar"].mean,
            "coin of equal budget": self.by_start.coin.spreads["bar"].mean,
            "shifted starts": self.by_start.shifts.spreads["bar"].mean,
            "shifted time in alarm": self.by_time.shifts.spreads["bar"].mean,
        }

    @property
    def verdict(self) -> bool:
        """Reached by what was said, missed by always-on, and by nearly all coins and shifts."""
        shares = self.null_shares()
        rest = [share for name, share in shares.items() if name != "always on"]
        return self.held and shares["always on"] == 0 and max(rest) <= MOST_REACHED


@dataclass(frozen=True, slots=True)
class EventClock:
    """By the first hardware events of each node, `events` of them, a day apart or more.

    `warned` were spoken of within 48 h before, `announced` within 24 h from then on, after `delay_minutes` at the
    median. `warnings` are starts that no event had come before within 24 h, `followed` those of them with an event
    within 48 h. `nulls` has for coins and shifts the mean and the 95th percentile of `warned`.
    """

    events: int
    warned: int
    announced: int
    delay_minutes: float | None
    warnings: int
    followed: int
    nulls: Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class LiveScore:
    """What was said, judged; `ticket` is None without a log of incidents."""

    said: Said
    event: EventClock
    ticket: TicketClock | None
    node_days: float


def live_bar(incidents: int) -> dict[str, float]:
    """The joint bar in counts of `incidents` that can be scored."""
    return {
        **{name: float(math.ceil(share * incidents - 1e-9)) for name, share in SHARES.items()},
        "precision": LEAST_PRECISION,
    }


def ticket_clock(
    said: Said,
    incidents: Sequence[LoggedIncident],
    observed: Mapping[str, Instants],
    *,
    seed: int = 0,
    draws: int = DRAWS,
) -> TicketClock:
    """Score the starts of `said` against the log, beside alerts that know nothing."""
    times, bar = said.times(), live_bar(len(scorable(incidents, observed)))
    starts = {node: episode_starts(at_ms) for node, at_ms in times.items()}
    whole = {node: np.union1d(said.alarm.get(node, at_ms[:0]), at_ms) for node, at_ms in times.items()}
    by_start, by_time = (nulls(one, incidents, observed, seed=seed, draws=draws, bar=bar) for one in (starts, whole))
    found = score(starts, incidents, observed)
    return TicketClock(found, bar, by_start, by_time, len(incidents) - len(found.found))


def node_onsets(events: Iterable[Event], gpus: Sequence[Gpu]) -> dict[str, Instants]:
    """The first hardware events of each node: those of several of its GPUs within a day are one."""
    # By host first: a board that was moved has a history on each of two.
    own = {host: [gpu for gpu in gpus if gpu.host == host] for host in sorted({gpu.host for gpu in gpus})}
    told = list(events)
    found = {
        host: [onset.at_ms for onset in onsets_of([one for one in told if one.host == host], mine)]
        for host, mine in own.items()
    }
    return {host: episode_starts(np.array(at_ms, np.int64)) for host, at_ms in found.items() if at_ms}


def event_clock(
    said: Said,
    onsets: Mapping[str, Instants],
    observed: Mapping[str, Instants],
    *,
    seed: int = 0,
    draws: int = DRAWS,
) -> EventClock:
    """Score what was said against the events themselves."""
    times = said.times()
    starts = {node: episode_starts(at_ms) for node, at_ms in times.items()}
    delays = [
        first - at
        for node, at_ms in onsets.items()
        for at in at_ms.tolist()
        if (first := _next(times.get(node), at)) is not None and first - at < TOLD_MS
    ]
    fresh = [(node, at) for node, at_ms in starts.items() for at in at_ms.tolist() if not _just(onsets.get(node), at)]
    rng = np.random.default_rng(seed)
    seen = {node: at_ms for node, at_ms in observed.items() if at_ms.size}
    # As many as were said, reminders among them: a stuck one must look no better than chance.
    total = sum(at_ms.size for at_ms in times.values())
    drawn = {
        "coin of equal budget": [_warned(tossed_times(rng, total, seen), onsets) for _ in range(draws)],
        "shifted starts": [_warned(shifted_times(rng, times, seen), onsets) for _ in range(draws)],
    }
    return EventClock(
        events=sum(at_ms.size for at_ms in onsets.values()),
        warned=_warned(times, onsets),
        announced=len(delays),
        delay_minutes=float(np.median(delays)) / MINUTE if delays else None,
        warnings=len(fresh),
        followed=sum(_soon(onsets.get(node), at) for node, at in fresh),
        nulls={name: (float(np.mean(one)), float(np.percentile(one, QUANTILE))) for name, one in drawn.items() if one},
    )


def _warned(times: Mapping[str, Instants], onsets: Mapping[str, Instants]) -> int:
    """How many events something was said before, within 48 h."""
    return sum(
        bool(((own >= at - WARNED_MS) & (own < at)).any())
        for node, at_ms in onsets.items()
        if (own := times.get(node)) is not None
        for at in at_ms.tolist()
    )


def _next(times: Instants | None, at_ms: int) -> int | None:
    place = 0 if times is None else int(np.searchsorted(times, at_ms))
    return None if times is None or place == times.size else int(times[place])


def _soon(onsets: Instants | None, at_ms: int) -> bool:
    """Whether an event comes within 48 h."""
    ahead = _next(onsets, at_ms)
    return ahead is not None and ahead - at_ms <= WARNED_MS


def _just(onsets: Instants | None, at_ms: int) -> bool:
    """Whether an event came at `at_ms` or within a day before."""
    return onsets is not None and bool(((onsets <= at_ms) & (onsets > at_ms - TOLD_MS)).any())


# The score in words.


def score_json(found: LiveScore) -> dict[str, object]:
    """The part of ``tocsin replay --live --json`` about statements and both clocks."""
    event, ticket = found.event, found.ticket
    return {
        "node_days": round(found.node_days, 2),
        "statements": [one.as_json() for one in found.said.statements],
        "event": {
            "events": event.events, "warned": event.warned, "announced": event.announced,
            "delay_minutes": event.delay_minutes, "warnings": event.warnings, "followed": event.followed,
            "null": {name: {"mean": mean, "p95": p95} for name, (mean, p95) in event.nulls.items()},
        },
        "ticket": None if ticket is None else _ticket_json(ticket),
    }  # fmt: skip


def _ticket_json(ticket: TicketClock) -> dict[str, object]:
    return {
        "incidents": [
            {
                "node": one.incident.node,
                "incident_date": to_iso(one.incident.day_ms)[:10],
                "start": None if one.start_ms is None else to_iso(one.start_ms),
                "lead_hours": None if one.lead_ms is None else round(one.lead_ms / HOUR, 2),
            }
            for one in ticket.score.found
        ],
        "figures": figures(ticket.score, ticket.bar),
        "bar": {**ticket.bar, "per_node_day": BAR_PER_NODE_DAY},
        "held": ticket.held,
        "null_reaches_bar": ticket.null_shares(),
        "verdict": ticket.verdict,
        "unscorable": ticket.unscorable,
    }


def score_lines(found: LiveScore) -> list[str]:
    """What was said by rule, and both clocks."""
    told = Counter((one.rule, one.level, one.about_machines) for one in found.said.statements)
    lines = [f"said: {counted(len(found.said.statements), 'notification')} over {found.node_days:.1f} node-days"]
    lines += [
        f"  {rule} {number} ({level}{'' if scored else ', not about machines: not scored'})"
        for (rule, level, scored), number in sorted(told.items())
    ]
    lines += ["", *_event_lines(found.event)]
    return lines if found.ticket is None else [*lines, "", *_ticket_lines(found.ticket)]


def _event_lines(event: EventClock) -> list[str]:
    late = "" if event.delay_minutes is None else f", {event.delay_minutes:.0f} min after it at the median"
    rest = [f"  {name}: {mean:.1f} warned of, 95th percentile {p95:.0f}" for name, (mean, p95) in event.nulls.items()]
    return [
        f"event clock: {counted(event.events, 'hardware event')} of nodes; {event.warned} warned of within 48 h "
        f"before, {event.announced} announced within 24 h{late}",
        f"  {counted(event.warnings, 'start')} without an event of the day before, {event.followed} followed by one "
        "within 48 h",
        *rest,
    ]


def _ticket_lines(ticket: TicketClock) -> list[str]:
    lines = [f"ticket clock: {'node':<24} {'logged':<10} {'start':<16} {'lead':>8}"]
    for one in ticket.score.found:
        begun = "not found" if one.start_ms is None else to_iso(one.start_ms)[:16].replace("T", " ")
        lead = "-" if one.lead_ms is None else f"{one.lead_ms / HOUR:.1f} h"
        lines.append(f"              {one.incident.node:<24} {to_iso(one.incident.day_ms)[:10]} {begun:<16} {lead:>8}")
    lines += [
        "",
        f"{'figure':<14} {'said':>8} {'asked':>8} {'always on':>10} {'coin p95':>9} {'starts p95':>11} {'time p95':>9}",
    ]
    asked = {**ticket.bar, "per_node_day": BAR_PER_NODE_DAY}
    for name, value in figures(ticket.score, ticket.bar).items():
        least = f"{asked[name]:.3g}" if name in asked else ""
        start, time = ticket.by_start, ticket.by_time
        lines.append(
            f"{name:<14} {value:>8.3g} {least:>8} {start.always_on.spreads[name].mean:>10.3g} "
            f"{start.coin.spreads[name].p95:>9.3g} {start.shifts.spreads[name].p95:>11.3g} "
            f"{time.shifts.spreads[name].p95:>9.3g}"
        )
    shares = ", ".join(f"{name} {share:.1%}" for name, share in ticket.null_shares().items())
    verb = "reached" if ticket.held else "NOT reached"
    skill = "above what knows nothing" if ticket.verdict else "NOT above what knows nothing"
    return [*lines, "", f"joint bar {verb}; reached by: {shares}: {skill}."]
