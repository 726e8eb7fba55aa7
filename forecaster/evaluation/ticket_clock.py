"""The ticket clock: how long before the operator logged an incident did an alert start.

An incident is a (node, logged day at 00:00 UTC). Alerts belong to a node, and only starts count: alert times closer
than 24 h are one episode, and its first time is the start. An incident is found by a start in [day - 7 d, day + 24 h);
its lead is the day less the earliest such start. A start is followed where a logged incident of its node has it in
that same span. Pure functions on integer milliseconds; the null alerts are in `forecaster/evaluation/ticket_nulls.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import DAY, HOUR

Instants = npt.NDArray[np.int64]

MERGE_MS = 24 * HOUR
"""Alert times closer than this belong to one episode."""
BEFORE_MS = 7 * DAY
"""How long before the logged day a start still counts."""
AFTER_MS = 24 * HOUR
"""How long after 00:00 of the logged day it does: the log has days, not hours."""
SCORABLE_WINDOW_MS = 48 * HOUR
SCORABLE_INSTANTS = 100
"""An incident is scored where the node has telemetry at this many instants of `SCORABLE_WINDOW_MS` before its day."""
MAX_STARTS_PER_NODE_DAY = 0.2
"""Alert budget of the protocol."""

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, order=True)
class Alert:
    """A rule started to hold on a node."""

    at_ms: int
    node: str
    rule: str


@dataclass(frozen=True, slots=True)
class LoggedIncident:
    """What the operator wrote down: `day_ms` is 00:00 UTC of the day."""

    node: str
    day_ms: int
    category: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What the alerts did for one incident.

    `start_ms` is the earliest start in its span, None where there is none, and `lead_ms` the day less that start.
    `fresh_lead_ms` counts only starts after the node's previous logged day, so that no start serves two incidents.
    """

    incident: LoggedIncident
    start_ms: int | None
    fresh_start_ms: int | None

    @property
    def lead_ms(self) -> int | None:
        return None if self.start_ms is None else self.incident.day_ms - self.start_ms

    @property
    def fresh_lead_ms(self) -> int | None:
        return None if self.fresh_start_ms is None else self.incident.day_ms - self.fresh_start_ms


@dataclass(frozen=True, slots=True)
class TicketScore:
    """Figures of one set of alerts. `node_days` is how long nodes were observed."""

    found: tuple[Found, ...]
    starts: int
    followed: int
    node_days: float

    @property
    def precision(self) -> float | None:
        """Share of starts that an incident followed; None without starts."""
        return self.followed / self.starts if self.starts else None

    @property
    def per_node_day(self) -> float:
        return self.starts / self.node_days if self.node_days else 0.0

    def count(self, lead_ms: int | None = None) -> int:
        """How many incidents were found, at any lead or with at least `lead_ms`."""
        leads = [one.lead_ms for one in self.found if one.lead_ms is not None]
        return len(leads) if lead_ms is None else sum(lead >= lead_ms for lead in leads)

    def count_fresh(self, lead_ms: int) -> int:
        """How many were found with at least `lead_ms` where no start serves two incidents."""
        return sum(one.fresh_lead_ms is not None and one.fresh_lead_ms >= lead_ms for one in self.found)


def episode_starts(times: Instants) -> Instants:
    """First time of each episode; `times` in any order, int64[n] milliseconds."""
    if times.size == 0:
        return _NONE
    ordered = np.sort(times)
    return ordered[np.concatenate(([True], np.diff(ordered) >= MERGE_MS))]


def by_node(alerts: Iterable[Alert]) -> dict[str, Instants]:
    """Alert times of each node, rising."""
    times: dict[str, list[int]] = {}
    for alert in sorted(alerts):
        times.setdefault(alert.node, []).append(alert.at_ms)
    return {node: np.array(values, np.int64) for node, values in times.items()}


def scorable(incidents: Sequence[LoggedIncident], observed: Mapping[str, Instants]) -> list[LoggedIncident]:
    """Incidents before which the node has enough telemetry. `observed` has each node's distinct instants, rising."""
    kept = []
    for incident in incidents:
        times = observed.get(incident.node, _NONE)
        first, last = np.searchsorted(times, [incident.day_ms - SCORABLE_WINDOW_MS, incident.day_ms])
        if last - first >= SCORABLE_INSTANTS:
            kept.append(incident)
    return kept


def node_days(observed: Mapping[str, Instants]) -> float:
    """Days of observation over all nodes: distinct instants times each node's usual step (median), gaps left out."""
    total = 0.0
    for times in observed.values():
        if times.size > 1:
            total += times.size * float(np.median(np.diff(times))) / DAY
    return total


def _earliest(starts: Instants, low_ms: int, high_ms: int) -> int | None:
    first = int(np.searchsorted(starts, low_ms))
    return int(starts[first]) if first < starts.size and starts[first] < high_ms else None


def _found(incident: LoggedIncident, starts: Instants, days: Instants) -> Found:
    low, high = incident.day_ms - BEFORE_MS, incident.day_ms + AFTER_MS
    earlier = days[days < incident.day_ms]
    fresh_low = max(low, int(earlier[-1])) if earlier.size else low
    return Found(incident, _earliest(starts, low, high), _earliest(starts, fresh_low, high))


def _followed(starts: Instants, days: Instants) -> int:
    """How many `starts` lie in [day - 7 d, day + 24 h) of one of `days`."""
    if starts.size == 0 or days.size == 0:
        return 0
    before = starts[:, None] >= days[None, :] - BEFORE_MS
    after = starts[:, None] < days[None, :] + AFTER_MS
    return int((before & after).any(axis=1).sum())


def score(
    times: Mapping[str, Instants], incidents: Sequence[LoggedIncident], observed: Mapping[str, Instants]
) -> TicketScore:
    """Score alert `times` per node against the logged `incidents`.

    Only scorable incidents can be found; every logged one counts as following a start. Alerts on nodes that were not
    observed are scored like any other.
    """
    starts = {node: episode_starts(values) for node, values in times.items()}
    days = {node: np.unique([i.day_ms for i in incidents if i.node == node]) for node in {i.node for i in incidents}}
    found = [_found(one, starts.get(one.node, _NONE), days[one.node]) for one in scorable(incidents, observed)]
    followed = sum(_followed(values, days.get(node, _NONE)) for node, values in starts.items())
    return TicketScore(tuple(found), sum(v.size for v in starts.values()), followed, node_days(observed))
