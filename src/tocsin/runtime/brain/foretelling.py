"""Rules that foretell a failure, judged by whether one came: those that are seldom right become notes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.finding import Finding
from tocsin.domain.sign_record import KEPT_MS, SignRecord
from tocsin.forecaster.live.host_weight import weighed
from tocsin.journal.port import LiveJournal

FORETELLING_PART = "foretelling"
"""Name of this state in a checkpoint of the journal."""
LEAST_CASES = 5
"""Fewer settled signs show nothing of a rule, where each host weighs its share."""


@dataclass(frozen=True, slots=True)
class _Sign:
    """Those of before hosts and worlds were on record have neither."""

    rule: str
    gpu: str
    at_ms: int
    host: str = ""
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class _Settled:
    at_ms: int
    right: bool
    host: str = ""
    simulated: bool = False


class ForetellingRules:
    """The signs that each of `rules` gave, and the failures that followed: a fold of findings that opened.

    `rules` has the milliseconds of each within which a fault that pages, on the same GPU, makes a sign right; it counts
    when that time is over, whatever came before. What opens again on a GPU meanwhile is the same sign. No host weighs
    more than a fifth, so signs of fewer than five hosts show nothing; simulated GPUs have a record of their own.
    Belongs to the thread that evaluates.
    """

    def __init__(self, journal: LiveJournal, rules: Mapping[str, int], floor: float) -> None:
        self._windows = dict(rules)
        self._floor = floor
        self._open: dict[tuple[str, str], _Sign] = {}
        self._hit: set[_Sign] = set()
        self._settled: dict[str, deque[_Settled]] = {}
        after, state = journal.folded(FORETELLING_PART)
        if state is not None:
            self._restore(state)
        for entry in journal.entries(after=after, kinds=(EntryKind.FINDING_OPENED,)):
            self._fold(entry)

    def _restore(self, state: Mapping[str, Any]) -> None:
        for one in (_Sign(*each) for each in state["open"]):
            self._open.setdefault((one.rule, one.gpu), one)
        self._hit = {_Sign(*one) for one in state["hit"]} & set(self._open.values())
        settled = state["settled"].items()
        self._settled = {rule: deque(_Settled(*each) for each in found) for rule, found in settled}

    def state(self) -> dict[str, Any]:
        """As JSON, for a checkpoint."""
        return {
            "open": [astuple(one) for one in self._open.values()],
            "hit": sorted(astuple(one) for one in self._hit),
            "settled": {rule: [astuple(one) for one in found] for rule, found in self._settled.items()},
        }

    def _fold(self, entry: Entry) -> None:
        found = entry.payload.get("finding")
        if isinstance(found, dict):
            level = found.get("level") or {"critical": "page"}.get(str(found.get("severity")), "")
            subject = found.get("subject", {})
            sign = _Sign(
                str(found.get("rule")),
                str(subject.get("name")),
                int(found.get("started_ms", 0)),
                str(subject.get("host") or ""),
                bool(found.get("simulated")),
            )
            self._take(sign, str(level))

    def opened(self, findings: Iterable[Finding]) -> None:
        """Take in findings that are new."""
        for one in findings:
            sign = _Sign(one.rule, one.subject.name, one.started_ms, one.subject.host, one.simulated)
            self._take(sign, one.alert_level)

    def _take(self, sign: _Sign, level: str) -> None:
        at_ms = sign.at_ms
        self._settle(at_ms)
        if sign.rule in self._windows:
            self._open.setdefault((sign.rule, sign.gpu), sign)
        elif level == AlertLevel.PAGE:
            here = [one for one in self._open.values() if one.gpu == sign.gpu]
            self._hit |= {one for one in here if one.at_ms <= at_ms <= self._until(one)}

    def _until(self, sign: _Sign) -> int:
        """Of a rule that foretells no longer the sign is over."""
        return sign.at_ms + self._windows.get(sign.rule, 0)

    def _settle(self, now_ms: int) -> None:
        for sign in [one for one in self._open.values() if self._until(one) <= now_ms]:
            del self._open[sign.rule, sign.gpu]
            right = sign in self._hit
            self._hit.discard(sign)
            case = _Settled(sign.at_ms, right, sign.host, sign.simulated)
            self._settled.setdefault(sign.rule, deque()).append(case)
        for found in self._settled.values():
            while found and found[0].at_ms < now_ms - KEPT_MS:
                found.popleft()

    def precision(self, rule: str, now_ms: int, *, simulated: bool = False) -> float | None:
        """Share of the signs of `rule` that a failure followed, each host weighing a fifth at most; None where too few
        are settled. Those of `simulated` GPUs or of real ones."""
        self._settle(now_ms)
        found = [(one.host, one.right) for one in self._settled.get(rule, ()) if one.simulated is simulated]
        signs, right = weighed(found, 1)
        return right / signs if signs >= LEAST_CASES else None

    def levelled(self, findings: Sequence[Finding], now_ms: int) -> list[Finding]:
        """`findings`, those of rules whose signs hold too seldom as notes."""
        told = {(one.rule, one.simulated) for one in findings if one.rule in self._windows}
        poor = {(rule, world) for rule, world in told if self._is_poor(self.precision(rule, now_ms, simulated=world))}
        return [replace(one, level=AlertLevel.NOTE) if (one.rule, one.simulated) in poor else one for one in findings]

    def _is_poor(self, precision: float | None) -> bool:
        return precision is not None and precision < self._floor

    def records(self, now_ms: int) -> list[SignRecord]:
        """Of each rule that gave signs, by name; those of real GPUs before those of simulated ones."""
        self._settle(now_ms)
        found = []
        for rule in sorted(self._windows):
            for world in (False, True):
                over = [one.right for one in self._settled.get(rule, ()) if one.simulated is world]
                going = sum(one.rule == rule and one.simulated is world for one in self._open.values())
                if over or going:
                    share = self.precision(rule, now_ms, simulated=world)
                    found.append(SignRecord(rule, len(over), sum(over), going, share, self._is_poor(share), world))
        return found
