"""What people said of a GPU or host, told to the other cells of the fleet: where it moves, that goes along."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tocsin.actions.model.controls import Controls, HoldOff
from tocsin.actions.model.scope import base_key
from tocsin.actions.model.silences import Silence
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.finding import Finding
from tocsin.domain.fleet_share import PastRow
from tocsin.domain.silence import Matcher, MatcherKind, SilenceKind

MOST_TOLD = 1_000
"""Rows that one cell tells, the last to end first (own choice)."""
HOLD_OFF = "hold_off"
_COVERS = "covers"
_PLACES = {
    MatcherKind.CARD: frozenset(SilenceKind),
    MatcherKind.HOST: frozenset(SilenceKind),
    # What is snoozed by rack is what this cell shows of it; what is planned there is true of all of it.
    MatcherKind.RACK: frozenset({SilenceKind.MAINTENANCE}),
}
"""What is told of silences: pools and labels of one name are each cell's own."""


def past_of(controls: Controls, findings: Mapping[str, Finding], now_ms: int) -> tuple[PastRow, ...]:
    """What this cell tells of its own hold-offs and silences; `findings` are the active ones by id."""
    rows = [*_hold_offs(controls, now_ms), *_silences(controls, findings, now_ms)]
    rows.sort(key=lambda row: (-row.until_ms, row.kind, row.name))
    return tuple(rows[:MOST_TOLD])


def _hold_offs(controls: Controls, now_ms: int) -> Iterator[PastRow]:
    for key, one in controls.hold_offs.items():
        if now_ms < one.until_ms:
            yield PastRow(HOLD_OFF, key, 0, one.until_ms, {"actor": one.actor, "reason": one.reason})


def _silences(controls: Controls, findings: Mapping[str, Finding], now_ms: int) -> Iterator[PastRow]:
    for one in controls.silences:
        if now_ms < one.until_ms and one.kind in _PLACES.get(one.matcher.kind, frozenset()):
            # An id of a finding is of one cell; its rule and subject are the same in every one.
            named = [findings[name] for name in sorted(one.causes) if name in findings]
            content = {
                "actor": one.actor,
                "reason": one.reason,
                "matcher": [one.matcher.kind.value, one.matcher.name],
                "level": one.level.value,
                _COVERS: sorted([found.rule, base_key(found.subject)] for found in named),
            }
            yield PastRow(one.kind.value, one.id, one.starts_ms, one.until_ms, content)


def with_past(own: Controls, rows: Sequence[tuple[str, PastRow]], findings: Mapping[str, Finding]) -> Controls:
    """`own` with what other cells have told, each by its cell's name; of two hold-offs the longer one counts."""
    if not rows:
        return own
    hold_offs = dict(own.hold_offs)
    silences = list(own.silences)
    by_cause: dict[tuple[str, str], list[str]] = {}
    for name, found in findings.items():
        by_cause.setdefault((found.rule, base_key(found.subject)), []).append(name)
    for cell, row in rows:
        who = f"{row.content.get('actor', '')} (cell {cell})"
        reason = str(row.content.get("reason", ""))
        if row.kind != HOLD_OFF:
            silences += _silence(row, cell, who, reason, by_cause)
        elif (known := hold_offs.get(row.name)) is None or known.until_ms < row.until_ms:
            hold_offs[row.name] = HoldOff(row.until_ms, who, reason)
    return replace(own, hold_offs=hold_offs, silences=tuple(silences))


def _silence(
    row: PastRow, cell: str, who: str, reason: str, by_cause: Mapping[tuple[str, str], Sequence[str]]
) -> list[Silence]:
    """The silence, over what it covers here; none where that is nothing, or it is of a version that is not known."""
    try:
        kind, (place, name) = SilenceKind(row.kind), row.content["matcher"]
        matcher, level = Matcher(MatcherKind(place), str(name)), AlertLevel(row.content["level"])
        covers = [(str(rule), str(subject)) for rule, subject in row.content[_COVERS]]
    except (KeyError, TypeError, ValueError):
        return []
    causes = frozenset(found for one in covers for found in by_cause.get(one, ()))
    if matcher.kind is MatcherKind.CARD and not causes:
        return []
    named = f"{cell}:{row.name}"
    return [Silence(named, kind, matcher, row.starts_ms, row.until_ms, row.starts_ms, who, reason, causes, level)]
