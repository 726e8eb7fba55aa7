"""The ticket clock's figures and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import DAY, HOUR, to_iso
from tocsin.forecaster.evaluation.result import Figure, ReportTable
from tocsin.forecaster.evaluation.ticket_clock import (
    AFTER_MS,
    BAR_PER_NODE_DAY,
    BEFORE_MS,
    LoggedIncident,
    TicketScore,
    episode_starts,
    figures,
    figures_above,
    nulls,
)
from tocsin_benchmarks.gwdg.ticket import (
    LEAST_PRECISION,
    SHARES,
    Node,
    Union,
    bar_of,
    judged,
    observed,
    start_rows,
)

NULL_HEAD = (
    "figure",
    "alerts",
    "always on",
    "coin, 95 %",
    "shifts, mean",
    "shifts, 95 %",
    "shifts that reach it",
    "shifts of the time in alarm, 95 %",
    "those that reach it",
)
LEADS_MS = {"found": None, "found_24h": 24 * HOUR, "found_48h": 48 * HOUR}


def ticket_figures(scored: TicketScore, draws: int, seed: int, bars: bool = True) -> dict[str, Figure]:
    """Shares of the scorable incidents with intervals by incident, and the price in alerts."""
    rng = np.random.default_rng(seed)
    total = len(scored.found)
    out = {}
    for name, least_ms in LEADS_MS.items():
        hit = np.array([_found(scored, place, least_ms) for place in range(total)], dtype=np.float64)
        low, high = _interval(hit, draws, rng)
        out[f"{name}_share"] = Figure(
            float(hit.mean()) if total else float("nan"), low, high, SHARES[name] if bars else None
        )
    ahead = sum(one.lead_ms is not None and one.lead_ms > 0 for one in scored.found)
    out["found_before_the_day_share"] = Figure(ahead / total if total else float("nan"))
    out["start_precision"] = Figure(scored.precision or 0.0, bar=LEAST_PRECISION if bars else None)
    out["starts_per_node_day"] = Figure(scored.per_node_day, bar=BAR_PER_NODE_DAY if bars else None, least=False)
    return out


def _found(scored: TicketScore, place: int, least_ms: int | None) -> bool:
    lead_ms = scored.found[place].lead_ms
    return lead_ms is not None and (least_ms is None or lead_ms >= least_ms)


def _interval(
    hit: np.ndarray[tuple[int], np.dtype[np.float64]], draws: int, rng: np.random.Generator
) -> tuple[float | None, float | None]:
    if hit.size == 0 or draws == 0:
        return None, None
    low, high = np.percentile(hit[rng.integers(0, hit.size, (draws, hit.size))].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def incident_table(scored: TicketScore, nodes: Sequence[Node], unions: Mapping[str, Union]) -> ReportTable:
    """Each scorable incident with the start that found it."""
    by_name = {node.record.node: node for node in nodes}
    rows: list[tuple[str | float | int | None, ...]] = []
    for one in scored.found:
        name = one.incident.node
        told: tuple[str | float | None, ...] = (None, None, None, "not found")
        if one.start_ms is not None:
            cause = by_name[name].causes(unions[name], one.start_ms)
            told = (to_iso(one.start_ms), _hours(one.lead_ms), _hours(one.fresh_lead_ms), cause)
        rows.append((name, to_iso(one.incident.day_ms)[:10], one.incident.category, *told))
    head = ("node", "logged day", "category", "start", "lead h", "lead h, own start", "signs at the start")
    return ReportTable("Incidents", head, rows)


def _hours(span_ms: int | None) -> float | None:
    return None if span_ms is None else span_ms / HOUR


def start_table(nodes: Sequence[Node], unions: Mapping[str, Union], incidents: Sequence[LoggedIncident]) -> ReportTable:
    """Every start, and the next logged day of its node."""
    rows = []
    for name, at_ms, cause in start_rows(nodes, unions):
        days = [
            one.day_ms
            for one in incidents
            if one.node == name and one.day_ms - BEFORE_MS <= at_ms < one.day_ms + AFTER_MS
        ]
        rows.append((name, to_iso(at_ms), cause, to_iso(min(days))[:10] if days else "not followed"))
    return ReportTable("Starts", ("node", "start", "signs", "followed by"), rows)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The null alerts beside the alerts. `above` names the figures above the shifts of the starts, `above_whole` those
    above the shifts of the whole time in alarm, which come apart into more starts."""

    table: ReportTable
    above: Sequence[str]
    above_whole: Sequence[str]
    draws: int


def judgement(
    nodes: Sequence[Node], unions: Mapping[str, Union], incidents: Sequence[LoggedIncident], seed: int, draws: int
) -> Judgement:
    """Compare with alerts that know nothing."""
    scored = judged(nodes, unions, incidents)
    bar = bar_of(scored)
    whole = {node.record.node: node.alerts(unions[node.record.node]) for node in nodes}
    starts = {name: episode_starts(times) for name, times in whole.items()}
    own = [one for one in incidents if one.node in whole]
    by_start, by_time = (
        nulls(times, own, observed(nodes), seed=seed, draws=draws, bar=bar) for times in (starts, whole)
    )
    rows = [
        (
            name,
            value,
            by_start.always_on.spreads[name].mean,
            by_start.coin.spreads[name].p95,
            by_start.shifts.spreads[name].mean,
            by_start.shifts.spreads[name].p95,
            by_start.shifts.spreads[name].reached,
            by_time.shifts.spreads[name].p95,
            by_time.shifts.spreads[name].reached,
        )
        for name, value in figures(scored, bar).items()
    ]
    above, above_whole = (figures_above(scored, one.shifts, bar) for one in (by_start, by_time))
    table = ReportTable("Alerts that know nothing", NULL_HEAD, rows)
    return Judgement(table, _skill(above), _skill(above_whole), draws)


def _skill(names: Sequence[str]) -> list[str]:
    """More starts are no skill."""
    return [name for name in names if name != "per_node_day"]


def sign_table(nodes: Sequence[Node], scored: TicketScore) -> ReportTable:
    """What each sign showed in the 7 days before and the day of each scorable incident: hours in which it held."""
    by_name = {node.record.node: node for node in nodes}
    rows: list[tuple[str | float, ...]] = []
    for one in scored.found:
        node = by_name[one.incident.node]
        at_ms = node.record.at_ms
        step_h = float(np.median(np.diff(at_ms))) / HOUR if at_ms.size > 1 else 0.0
        inside = (at_ms >= one.incident.day_ms - BEFORE_MS) & (at_ms < one.incident.day_ms + DAY)
        held = [float((node.signs[name] & inside).sum()) * step_h for name in node.signs]
        rows.append((one.incident.node, to_iso(one.incident.day_ms)[:10], *held))
    names = tuple(nodes[0].signs) if nodes else ()
    return ReportTable("Hours of each sign around the incidents", ("node", "logged day", *names), rows)
