"""What `tocsin status` prints for people: what needs one first, then the rest in a line each, or all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tocsin.cli.cards import summary_lines
from tocsin.client.models_cards import CardState
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import optional_iso
from tocsin.domain.words import counted

if TYPE_CHECKING:
    from tocsin.client.control import Readiness
    from tocsin.client.models import DecisionOut, FleetSummary
    from tocsin.client.models_cards import Card
    from tocsin.domain.prediction import Prediction

MOST_SHOWN = 8
"""Cards, predictions and decisions that a person is shown of each; --json has all but the cards of tocsin cards."""
_BAD = (
    "tocsin_store_write_failures_total",
    "tocsin_store_damaged_segments",
    "tocsin_store_damaged_rows",
    "tocsin_forecast_failures_total",
    "tocsin_forecast_worker_deaths",
    "tocsin_loop_failures_total",
)
_HANDLED = frozenset({CardState.ACKNOWLEDGED, CardState.ACTING, CardState.VERIFYING, CardState.RESOLVED})
"""States in which somebody, or an action, is at it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the brain answered, of one cell or of all.

    `cells` are those that have each card, where they are several; `total` is how many cards there are, `hidden` a line
    on those that are not shown; `waiting` are decisions that wait for a person.
    """

    summary: FleetSummary
    ready: Readiness
    service: Mapping[str, float]
    cards: Sequence[Card]
    total: int
    waiting: Sequence[DecisionOut]
    ahead: Sequence[Prediction]
    hidden: Sequence[str] = ()
    cells: Sequence[str] = ()


def needs_a_look(service: Mapping[str, float]) -> bool:
    """Whether anything has failed since the brain started, or a server that it should read cannot be read now."""
    return any(service.get(name, 0.0) > 0 for name in _BAD) or service.get("tocsin_promql_up", 1.0) == 0


def first_lines(seen: Seen) -> list[str]:
    """What needs a person: cards, decisions, the service where something is wrong. Of the rest how much there is."""
    mine = [n for n, card in enumerate(seen.cards) if _needs_person(card)]
    shown = [seen.cards[n] for n in mine[:MOST_SHOWN]]
    cells = [seen.cells[n] for n in mine[:MOST_SHOWN]] if seen.cells else ()
    cards = summary_lines(shown, len(mine), cells)
    waiting = waiting_lines(seen.waiting, _asked_on(shown), seen.summary.decisions_approvable)
    return [
        *_mode_lines(seen.summary),
        *_trouble_lines(seen),
        *(["needs a person:", *cards] if cards else []),
        *waiting,
        *([] if cards or waiting else ["nothing needs a person"]),
        *_rest_lines(seen, frozenset(seen.cards[n].id for n in mine)),
        "tocsin status --all shows all of it",
    ]


def all_lines(seen: Seen) -> list[str]:
    """Everything, what needs a person first."""
    order = sorted(range(len(seen.cards)), key=lambda n: not _needs_person(seen.cards[n]))[:MOST_SHOWN]
    shown, cells = [seen.cards[n] for n in order], [seen.cells[n] for n in order] if seen.cells else ()
    return [
        *_mode_lines(seen.summary),
        *summary_lines(shown, seen.total, cells),
        *seen.hidden,
        *waiting_lines(seen.waiting, _asked_on(shown), seen.summary.decisions_approvable),
        *_ahead_lines(seen.ahead, seen.summary.now),
        *_figure_lines(seen.summary),
        *health_lines(seen.ready, seen.service),
    ]


def _needs_person(card: Card) -> bool:
    """Whether it asks for a yes, or pages and nobody and nothing is at it."""
    if card.action is not None and card.action.can_approve:
        return True
    return card.level is AlertLevel.PAGE and card.action is None and card.state not in _HANDLED


def _asked_on(cards: Sequence[Card]) -> set[str]:
    return {card.action.decision for card in cards if card.action is not None and card.action.can_approve}


def _mode_lines(summary: FleetSummary) -> list[str]:
    """How far it may act, and how the fleet is."""
    paused = f"paused by {summary.paused_by} ({summary.paused_reason or 'no reason given'})"
    tripped = f"breaker tripped ({summary.breaker.reason or 'no reason given'}); tocsin breaker reset"
    breaker = tripped if summary.breaker.tripped else "breaker closed"
    marked = " (simulated)" if summary.simulated else ""
    states = ", ".join(f"{count} {state}" for state, count in summary.states.items() if count) or "no GPU yet"
    return [
        f"Tocsin {summary.version}: mode {summary.mode}, {paused if summary.paused else 'running'}, {breaker}",
        f"{summary.gpus} GPUs on {summary.hosts} hosts{marked}: {states}",
        *([f"journal: {summary.journal_witness}"] if summary.journal_witness else []),
    ]


def _trouble_lines(seen: Seen) -> list[str]:
    """How the service is, where it is not ready, stands by, or anything of it has failed."""
    leads = seen.service.get("tocsin_brain_active", 1.0) > 0
    if seen.ready.ready and leads and not needs_a_look(seen.service):
        return []
    return health_lines(seen.ready, seen.service)


def _rest_lines(seen: Seen, shown: Collection[str]) -> list[str]:
    """How much there is beside what needs a person: cards by level, what is predicted, the service where it is well."""
    from tocsin.terminal.text import lead

    levels = Counter(card.level for card in seen.cards if card.id not in shown)
    unread = seen.total - len(seen.cards)
    cards = [f"{levels[one]} {one}" for one in reversed(AlertLevel) if levels[one]]
    rest = ", ".join([*cards, *([f"{unread} more"] if unread > 0 else [])])
    soonest = min((one for one in seen.ahead if one.eta_ms), key=lambda one: one.eta_ms or 0, default=None)
    when = "" if soonest is None else f", the first {lead(seen.summary.now, optional_iso(soonest.eta_ms))}"
    well = [line for line in health_lines(seen.ready, seen.service) if line.startswith("promql:")]
    return [
        *([f"other cards: {rest} (tocsin cards)"] if rest else []),
        *seen.hidden,
        *([f"{counted(len(seen.ahead), 'predicted crossing')}{when}"] if seen.ahead else []),
        *([] if _trouble_lines(seen) else ["brain, store and forecaster: nothing failed", *well]),
    ]


def health_lines(ready: Readiness, service: Mapping[str, float]) -> list[str]:
    """Brain, store and forecaster, a line each, and the source `promql` where there is one."""

    def count(name: str) -> int:
        return round(service.get(name, 0.0))

    waits = "; ".join(ready.reasons) or "no reason given"
    standby = "" if service.get("tocsin_brain_active", 1.0) else ", on standby: another brain holds the lease"
    loops = count("tocsin_loop_failures_total")
    brain = f"brain: {'ready' if ready.ready else f'not ready ({waits})'}{standby}"
    damaged = count("tocsin_store_damaged_segments")
    rows = count("tocsin_store_damaged_rows")
    store = f"store: {count('tocsin_store_writes_total')} writes, {count('tocsin_store_write_failures_total')} failed"
    silent = count("tocsin_model_silent_gpus")
    forecaster = (
        f"forecaster: {count('tocsin_forecast_seconds_count')} forecasts, "
        f"{count('tocsin_forecast_failures_total')} failed, worker died {count('tocsin_forecast_worker_deaths')} times"
    )
    return [
        brain + (f"; {loops} unexpected errors (see its log)" if loops else ""),
        store
        + (f", {damaged} files damaged and set aside (see docs/store_embedded.md)" if damaged else "")
        + (f", {rows} rows damaged and set aside (see docs/store_embedded.md)" if rows else ""),
        forecaster + (f"; no forecast for {silent} GPUs" if silent else ""),
        *_promql_line(service),
    ]


def _promql_line(service: Mapping[str, float]) -> list[str]:
    """The source `promql`; no line where the brain reads none."""
    if "tocsin_promql_up" not in service:
        return []
    if not service["tocsin_promql_up"]:
        return ["promql: nothing can be read (the log of the brain has the reason; see docs/promql.md)"]
    return [f"promql: {round(service.get('tocsin_promql_gpus', 0.0))} GPUs in the last answers"]


def _figure_lines(summary: FleetSummary) -> list[str]:
    figures = [
        form.format(value * factor)
        for value, form, factor in (
            (summary.utilization_ratio, "{:.0f} % busy", 100.0),
            (summary.memory_used_ratio, "memory {:.0f} % full", 100.0),
            (summary.power_watts, "{:.1f} kW", 0.001),
            (summary.last_reading_age_s, "last reading {:.0f} s ago", 1.0),
        )
        if value is not None
    ]
    found = ", ".join(f"{count} {severity}" for severity, count in summary.findings.items() if count) or "none"
    heard = [f"{summary.levels[one]} {one}" for one in reversed(AlertLevel) if summary.levels.get(one)]
    levels = f" ({', '.join(heard)})" if heard else ""
    return [
        *([", ".join(figures)] if figures else []),
        f"findings: {found}; incidents: {summary.incidents}{levels}; predicted crossings: {summary.predictions}",
        *([summary.risk_model] if summary.risk_model else []),
        *summary.muted,
    ]


def _ahead_lines(ahead: Sequence[Prediction], now: str) -> list[str]:
    from tocsin.terminal.text import chance, lead, plain

    lines = [
        f"  {lead(now, *map(optional_iso, (one.eta_ms, one.eta_low_ms, one.eta_high_ms)))}"
        f"{'' if one.probability is None else f', {chance(one.probability)}'}: {plain(one.sentence)}"
        for one in ahead[:MOST_SHOWN]
    ]
    return ["predicted:", *lines, *_more(len(ahead))] if lines else []


def waiting_lines(waiting: Sequence[DecisionOut], on_cards: Collection[str], count: int) -> list[str]:
    """Decisions that wait for a person and that no card above asks for; `count` is of all that wait."""
    from tocsin.terminal.text import plain

    listed = [decision for decision in waiting if decision.id not in on_cards]
    rest = max(len(listed), count - (len(waiting) - len(listed)))
    also = "also " if on_cards else ""
    title = f"{also}waiting for a person ({rest}; tocsin approve ID, tocsin reject ID):"
    lines = [f"  {decision.id}  {plain(decision.sentence)}" for decision in listed[:MOST_SHOWN]]
    return [title, *lines, *_more(rest)] if listed else []


def _more(count: int) -> list[str]:
    return [f"  and {count - MOST_SHOWN} more (see --json)"] if count > MOST_SHOWN else []
