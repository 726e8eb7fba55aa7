"""What a start reads of open incidents from the journal is what the brain had: none falls apart over a restart."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import MINUTE, ManualClock
from tocsin.domain.entry import Entry
from tocsin.domain.finding import ActionKind, Category, Finding, Incident, Severity, Subject, SubjectKind
from tocsin.journal.journal import Journal
from tocsin.rules.incidents import OpenIncidents
from tocsin.rules.xid import xid
from tocsin.runtime.brain.recorder import Recorder
from tocsin.topology.topology import NO_TOPOLOGY
from tocsin_testing.builders import T0

CODES = (45, 48, 79, 119, 145, 149)
STEPS = 25


def found(code: int, number: int, at_ms: int) -> Finding:
    spec, subject = xid(code), Subject(SubjectKind.GPU, f"GPU-{number}", f"node-{number // 4}")
    category = Category.APPLICATION if code == 45 else Category.HARDWARE
    said = ("gpu_xid_last_code", float(code))
    return Finding(f"xid_{spec.xid_class}", subject, Severity.CRITICAL, category, spec.action, at_ms, at_ms, "s", *said)


def full(number: int, at_ms: int) -> Finding:
    subject = Subject(SubjectKind.GPU, f"GPU-{number}", f"node-{number // 4}", f"pool-{number % 4}")
    rule, kind = "memory_full", (Category.MEMORY, ActionKind.NOTIFY)
    return Finding(rule, subject, Severity.WARNING, *kind, at_ms, at_ms, "s", level=AlertLevel.NOTE)


def hot(number: int, at_ms: int, *, page: bool) -> Finding:
    subject = Subject(SubjectKind.GPU, f"GPU-{number}", f"node-{number}")
    rule, severity = ("slow", Severity.CRITICAL) if page else ("hot", Severity.WARNING)
    return Finding(rule, subject, severity, Category.THERMAL, ActionKind.THROTTLE, at_ms, at_ms, "s")


class Part:
    """A journal up to an entry, with a checkpoint behind entry `after`."""

    def __init__(self, entries: list[Entry], after: int, state: object, until: int) -> None:
        self._entries = entries
        self._until = until
        self.folded = lambda _part: (after, state)

    def entries(self, after: int = 0, kinds: tuple[str, ...] = ()) -> list[Entry]:
        return [entry for entry in self._entries if after < entry.seq <= self._until and entry.kind in kinds]


def as_named(incidents: list[Incident]) -> list[tuple[str, list[str], list[str]]]:
    return [(one.id, [member.id for member in one.members], sorted(one.cleared)) for one in incidents]


def through_json(state: object) -> object:
    return json.loads(json.dumps(state, allow_nan=False))


@pytest.mark.parametrize("seed", range(8))
def test_a_start_from_any_entry_goes_on_with_the_same_incidents(tmp_path: Path, seed: int) -> None:
    chance, clock = Random(seed), ManualClock(T0)
    with closing(Journal.open(tmp_path / "journal.db", clock)) as journal:
        book, recorder = OpenIncidents(), Recorder(journal)
        live: list[Finding] = []
        after_restarts: list[bool] = []
        rested: list[bool] = []
        came_back: list[bool] = []
        for _ in range(STEPS):
            clock.advance(MINUTE)
            now = clock.now_ms()
            live = [replace(one, last_ms=now) for one in live if chance.random() < 0.8]
            new = [found(chance.choice(CODES), chance.randrange(8), now - MINUTE) for _ in range(chance.randrange(5))]
            new += [full(chance.randrange(4), now - MINUTE) for _ in range(chance.randrange(2))]
            new += [hot(8 + chance.randrange(6), now - MINUTE, page=chance.random() < 0.2) for _ in range(2)]
            known = {(one.rule, one.subject.key) for one in live}
            lasts = {"memory_full", "hot", "slow"}
            new = [one for one in new if one.rule not in lasts or (one.rule, one.subject.key) not in known]
            # Of one rule and subject there is one finding at a time.
            live = list({(one.rule, one.subject.key): one for one in [*new, *live]}.values())
            made = book.step(live, (), NO_TOPOLOGY, now)
            recorder.record(live, made, resting=book.resting)
            rested.append(bool(book.resting))
            came_back.extend(one.cause_cleared for one in made if one.root.category is Category.THERMAL)
            started = OpenIncidents(Recorder(journal).held(), now)
            clock.advance(MINUTE)
            again, goes_on = (one.step(live, (), NO_TOPOLOGY, clock.now_ms()) for one in (started, book))
            assert as_named(again) == as_named(goes_on)
            after_restarts.append(any(one.cause_cleared for one in again))
        assert any(after_restarts), "causes did clear before their effects"
        assert any(rested), "what stands was over for a while"
        assert any(came_back), "heat came and went"
        entries = list(journal.entries())
        whole = through_json(recorder.state())
        assert through_json(Recorder(journal).state()) == whole
        for cut in chance.sample(range(len(entries) + 1), 6):
            first = Recorder(Part(entries, 0, None, cut)).state()  # type: ignore[arg-type]
            later = Recorder(Part(entries, cut, through_json(first), len(entries)))  # type: ignore[arg-type]
            assert through_json(later.state()) == whole
