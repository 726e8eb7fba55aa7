"""Rules that foretell a failure, judged by whether one came: those that are seldom right become notes."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.finding import Finding
from tocsin.journal.journal import Journal

FORETELLING_PART = "foretelling"
"""Name of this state in a checkpoint of the journal."""
WINDOW_MS = 48 * HOUR
"""A failure within this bears a sign out."""
KEPT_MS = 30 * DAY
LEAST_CASES = 5
"""Fewer settled signs show nothing of a rule."""


@dataclass(frozen=True, slots=True)
class _Sign:
    rule: str
    gpu: str
    at_ms: int


class ForetellingRules:
    """The signs that each of `rules` gave, and the failures that followed: a fold of findings that opened.

    A sign is right if a fault that pages opened on its GPU within `WINDOW_MS`; it counts when that time is over,
    whatever came before. Belongs to the thread that evaluates.
    """

    def __init__(self, journal: Journal, rules: Collection[str], floor: float) -> None:
        self._rules = frozenset(rules)
        self._floor = floor
        self._open: deque[_Sign] = deque()
        self._hit: set[_Sign] = set()
        self._settled: dict[str, deque[tuple[int, bool]]] = {}
        after, state = journal.folded(FORETELLING_PART)
        if state is not None:
            self._restore(state)
        for entry in journal.entries(after=after, kinds=(EntryKind.FINDING_OPENED,)):
            self._fold(entry)

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._open = deque(_Sign(*one) for one in state["open"])
        self._hit = {_Sign(*one) for one in state["hit"]}
        settled = state["settled"].items()
        self._settled = {rule: deque((at_ms, right) for at_ms, right in found) for rule, found in settled}

    def state(self) -> dict[str, Any]:
        """As JSON, for a checkpoint."""
        return {
            "open": [(one.rule, one.gpu, one.at_ms) for one in self._open],
            "hit": sorted((one.rule, one.gpu, one.at_ms) for one in self._hit),
            "settled": {rule: list(found) for rule, found in self._settled.items()},
        }

    def _fold(self, entry: Entry) -> None:
        found = entry.payload.get("finding")
        if isinstance(found, dict):
            level = found.get("level") or {"critical": "page"}.get(str(found.get("severity")), "")
            subject = found.get("subject", {})
            self._take(str(found.get("rule")), str(subject.get("name")), str(level), int(found.get("started_ms", 0)))

    def opened(self, findings: Iterable[Finding]) -> None:
        """Take in findings that are new."""
        for one in findings:
            self._take(one.rule, one.subject.name, one.alert_level, one.started_ms)

    def _take(self, rule: str, gpu: str, level: str, at_ms: int) -> None:
        self._settle(at_ms)
        if rule in self._rules:
            self._open.append(_Sign(rule, gpu, at_ms))
        elif level == AlertLevel.PAGE:
            self._hit |= {one for one in self._open if one.gpu == gpu and one.at_ms <= at_ms <= one.at_ms + WINDOW_MS}

    def _settle(self, now_ms: int) -> None:
        while self._open and self._open[0].at_ms + WINDOW_MS <= now_ms:
            sign = self._open.popleft()
            found = self._settled.setdefault(sign.rule, deque())
            found.append((sign.at_ms, sign in self._hit))
            self._hit.discard(sign)
            while found and found[0][0] < now_ms - KEPT_MS:
                found.popleft()

    def precision(self, rule: str, now_ms: int) -> float | None:
        """Share of the signs of `rule` that a failure followed; None where too few are settled."""
        self._settle(now_ms)
        found = self._settled.get(rule, ())
        return sum(right for _, right in found) / len(found) if len(found) >= LEAST_CASES else None

    def levelled(self, findings: Sequence[Finding], now_ms: int) -> list[Finding]:
        """`findings`, those of rules whose signs hold too seldom as notes."""
        poor = {
            rule
            for rule in {one.rule for one in findings} & self._rules
            if (share := self.precision(rule, now_ms)) is not None and share < self._floor
        }
        return [replace(one, level=AlertLevel.NOTE) if one.rule in poor else one for one in findings]
