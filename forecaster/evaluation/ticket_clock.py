"""The ticket clock: how long before the operator logged an incident did an alert start.

An incident is a (node, logged day at 00:00 UTC). Alerts belong to a node, and only starts count: alert times closer
than 24 h are one episode, and its first time is the start. An incident is found by a start in [day - 7 d, day + 24 h);
its lead is the day less the earliest such start. A start is followed where a logged incident of its node has it in
that same span. Pure functions on integer milliseconds; null alerts that know
nothing are scored by the same clock.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import DAY, HOUR, from_iso
from tocsin.domain.errors import InputError

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

    def instants(incident: LoggedIncident) -> int:
        times = observed.get(incident.node, _NONE)
        return int(((times >= incident.day_ms - SCORABLE_WINDOW_MS) & (times < incident.day_ms)).sum())

    return [incident for incident in incidents if instants(incident) >= SCORABLE_INSTANTS]


def node_days(observed: Mapping[str, Instants]) -> float:
    """Days of observation over all nodes: distinct instants times each node's usual step (median), gaps left out."""
    return sum(times.size * float(np.median(np.diff(times))) / DAY for times in observed.values() if times.size > 1)


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


# An operator's log of incidents: a CSV with columns ``node`` and ``incidentDate``, others as they come.

REQUIRED = ("node", "incidentDate")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WORDED = re.compile(r"^(\d{1,2}) ([A-Za-z]{3})[a-z]* (\d{4})$")


@dataclass(frozen=True, slots=True)
class IncidentLog:
    """The incidents by node and day, each once, and one problem for each line that could not be used."""

    incidents: Sequence[LoggedIncident]
    problems: list[InputError]


def parse_day(text: str) -> int:
    """Milliseconds of 00:00 UTC of a day like ``21 Mar 2025``, or of that of an ISO 8601 date or instant.

    Raises ValueError for anything else. Month names are English whatever the locale.
    """
    match = _WORDED.match(text.strip())
    if match is None:
        at_ms = from_iso(text.strip())
        return at_ms - at_ms % DAY
    day, month, year = match.groups()
    number = _MONTHS.index(month.lower()) + 1
    return from_iso(f"{year}-{number:02d}-{int(day):02d}")


def read_incidents(path: Path) -> IncidentLog:
    """Read `path`. Raises InputError where it cannot be read or lacks a column."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("incidents", str(path), f"cannot be read: {error}", "name a readable CSV") from None
    reader = csv.DictReader(lines)
    missing = [name for name in REQUIRED if name not in (reader.fieldnames or ())]
    if missing:
        header = lines[0] if lines else ""
        raise InputError(str(path), header, f"column {', '.join(missing)} is missing", "name a log of incidents")
    found: dict[tuple[str, int], LoggedIncident] = {}
    problems = []
    for row in reader:
        node, text = row["node"] or "", row["incidentDate"] or ""
        try:
            day_ms = parse_day(text)
        except ValueError:
            where = f"{path}:{reader.line_num} incidentDate"
            problems.append(InputError(where, text, "is no date", "write 21 Mar 2025 or 2025-03-21"))
            continue
        found.setdefault((node, day_ms), LoggedIncident(node, day_ms, row.get("category") or ""))
    return IncidentLog([found[key] for key in sorted(found)], problems)


# Three alerts that know nothing, scored by the same ticket clock: what a figure is worth shows only beside them.

DRAWS = 1_000
"""How many coins are tossed and how many circular shifts are made."""
QUANTILE = 95.0
"""Skill is claimed only above this percentile of the shifts."""
SKILL_FIGURE = "fresh_24h"
"""The figure that skill is claimed on. The plain count of found incidents is a poor judge where several incidents of
one node lie within a week: a single start then finds them all, for a shifted alert as for a real one."""

Draw = Callable[[], Mapping[str, Instants]]


BAR = {"found": 6.0, "found_24h": 6.0, "found_48h": 3.0, "precision": 0.85}
"""What the shipped rules must at least reach together on the seven development incidents, set before any rule ran."""
BAR_PER_NODE_DAY = 0.2
"""The most starts per node-day that the bar allows."""


def figures(result: TicketScore, bar: Mapping[str, float] = BAR) -> dict[str, float]:
    """The figures that are compared, by name.

    `found` counts incidents found, `found_24h` and `found_48h` those with at least that lead, `fresh_24h` those with
    24 h where each start serves one incident only, `precision` is 0 without starts, `per_node_day` counts starts, and
    `bar` is 1 where all of `bar` is reached at once within `BAR_PER_NODE_DAY`.
    """
    single = {
        "found": float(result.count()),
        "found_24h": float(result.count(24 * HOUR)),
        "found_48h": float(result.count(48 * HOUR)),
        "fresh_24h": float(result.count_fresh(24 * HOUR)),
        "precision": result.precision or 0.0,
        "per_node_day": result.per_node_day,
    }
    whole = all(single[name] >= least for name, least in bar.items())
    return {**single, "bar": float(whole and result.per_node_day <= BAR_PER_NODE_DAY)}


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over the draws: mean, 95th percentile, and the share of draws that reach the real alerts' figure."""

    mean: float
    p95: float
    reached: float


@dataclass(frozen=True, slots=True)
class NullAlert:
    """What a null alert gets over `draws` draws, by the names of `figures`."""

    draws: int
    spreads: Mapping[str, Spread]


@dataclass(frozen=True, slots=True)
class Nulls:
    """The three null alerts."""

    always_on: NullAlert
    coin: NullAlert
    shifts: NullAlert


def _null(
    draw: Draw,
    draws: int,
    real: TicketScore,
    incidents: Sequence[LoggedIncident],
    seen: Mapping[str, Instants],
    bar: Mapping[str, float],
) -> NullAlert:
    target = figures(real, bar)
    rows = [figures(score(draw(), incidents, seen), bar) for _ in range(draws)]
    spreads = {}
    for name, value in target.items():
        column = np.array([row[name] for row in rows])
        p95 = float(np.percentile(column, QUANTILE))
        spreads[name] = Spread(float(column.mean()), p95, float((column >= value).mean()))
    return NullAlert(draws, spreads)


def _shifted(times: Instants, seen: Instants, offset: int) -> Instants:
    """Each alert moved on by `offset` observed instants, from the last to the first: gaps stay free of alerts."""
    place = np.searchsorted(seen, times).clip(0, seen.size - 1)
    return np.sort(seen[(place + offset) % seen.size])


def shifted_times(
    rng: np.random.Generator, times: Mapping[str, Instants], seen: Mapping[str, Instants]
) -> dict[str, Instants]:
    """One circular shift: all of a node's alerts move together by a random number of its `seen` instants."""
    return {
        node: _shifted(values, seen[node], int(rng.integers(0, seen[node].size)))
        for node, values in times.items()
        if node in seen
    }


def tossed_times(rng: np.random.Generator, starts: int, seen: Mapping[str, Instants]) -> dict[str, Instants]:
    """One coin: `starts` alerts at observed (node, instant) pairs, drawn evenly."""
    owners = np.repeat(np.arange(len(seen)), [times.size for times in seen.values()])
    if owners.size == 0:
        return {}
    instants = np.concatenate(list(seen.values()))
    picks = rng.integers(0, owners.size, starts)
    return {node: np.sort(instants[picks[owners[picks] == i]]) for i, node in enumerate(seen)}


def nulls(
    times: Mapping[str, Instants],
    incidents: Sequence[LoggedIncident],
    observed: Mapping[str, Instants],
    *,
    seed: int = 0,
    draws: int = DRAWS,
    bar: Mapping[str, float] = BAR,
) -> Nulls:
    """Score the null alerts beside the alert `times` per node.

    Always-on alerts at every observed instant. The coin has as many starts as the real alerts, at observed (node,
    instant) pairs drawn evenly. A circular shift moves all of a node's alerts together by one random number of
    observed instants, so that it keeps their number and spacing and only loses their place; each node gets its own.
    Shifting within what was observed is the stricter choice: a shift into a gap of the recording could find nothing.
    """
    rng = np.random.default_rng(seed)
    seen = {node: values for node, values in observed.items() if values.size}
    real = score(times, incidents, observed)

    return Nulls(
        always_on=_null(lambda: seen, 1, real, incidents, seen, bar),
        coin=_null(lambda: tossed_times(rng, real.starts, seen), draws, real, incidents, seen, bar),
        shifts=_null(lambda: shifted_times(rng, times, seen), draws, real, incidents, seen, bar),
    )


def figures_above(result: TicketScore, shifts: NullAlert, bar: Mapping[str, float] = BAR) -> list[str]:
    """Names of the figures that lie above the shifts' 95th percentile. One that is at its best possible value there
    already cannot lie above it."""
    return [name for name, value in figures(result, bar).items() if value > shifts.spreads[name].p95]


def skilful(result: TicketScore, shifts: NullAlert) -> bool:
    """Whether `SKILL_FIGURE` lies above the shifts' 95th percentile."""
    return SKILL_FIGURE in figures_above(result, shifts)
