"""A brain whose store is a server's judges from its first evaluation on, and knows the past once that is read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, SECOND, ManualClock
from tocsin.domain.decision import Ruling
from tocsin.domain.event import Event
from tocsin.domain.finding import ActionKind, Finding
from tocsin.domain.reading import Reading
from tocsin.journal.journal import read_entries
from tocsin.rules.engine import Evaluation, Inputs, RuleEngine
from tocsin.runtime.brain import rule_keeper
from tocsin.runtime.brain.assembly import RunningBrain, open_brain
from tocsin.runtime.brain.past_reader import SAMPLE_SPAN_MS
from tocsin.runtime.brain.warm_up import GIVEN_UP_MS, OFTEN_MS, WHOLE_MS, WarmUp
from tocsin.store.embedded.store import SqliteStore
from tocsin.store.port import StoreUnavailable
from tocsin_testing.builders import T0, gpu, reading, xid
from tocsin_testing.started_brain import settings_in

SAMPLES = OFTEN_MS // SAMPLE_SPAN_MS
"""Samples of the last half hour; those of the day before are more."""
CLEARED = 10
"""Minutes after which what has ended has cleared."""
FLEET = [gpu(n) for n in range(4)]


class Site:
    """A brain and its starts, over one store and journal."""

    def __init__(self, folder: Path) -> None:
        self.settings, self.clock = settings_in(folder), ManualClock(T0)
        self.running = self.start()

    def start(self) -> RunningBrain:
        return open_brain(self.settings, self.clock)

    def restart(self) -> WarmUp:
        self.running.stop()
        self.running = self.start()
        assert self.running.brain.rules.warming is not None
        return self.running.brain.rules.warming

    def minute(self, *events: Event, hot: Collection[int] = (), lost: Collection[int] = ()) -> None:
        """One minute on: GPUs report but for those that are `lost`, `hot` ones at 87 C."""
        self.clock.advance(MINUTE)
        now_ms = self.clock.now_ms()
        found = [
            reading(one, now_ms, temperature_celsius=(86.5 if n in hot else 50.0) + now_ms // MINUTE % 2)
            for n, one in enumerate(FLEET)
            if n not in lost
        ]
        self.running.brain.accept(Batch(found, events))
        self.running.brain.tick()

    def rules(self) -> set[str]:
        return {f"{one.rule} {one.subject.name}" for one in self.running.brain.active}

    def told(self, kind: str) -> list[str]:
        """The findings on record that opened or cleared, as the journal names them."""
        return [str(entry.payload["id"]) for entry in read_entries(self.settings.journal.path, kinds=[kind])]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    made = Site(tmp_path)
    made.running.brain.rules.warming = None
    monkeypatch.setattr(rule_keeper, "OF_THIS_HOST", frozenset())
    yield made
    made.running.stop()


def read_all(warming: WarmUp) -> int:
    """Looks until all is read."""
    looks = 0
    while not warming.done:
        warming.look()
        looks += 1
    return looks


def test_what_is_open_goes_on_and_what_comes_is_judged_while_the_past_is_read(site: Site) -> None:
    for _ in range(20):
        site.minute(hot=[3])
    opened = site.told("finding_opened")
    assert site.rules() == {"temperature_high GPU-00000003"}
    warming = site.restart()
    site.minute(hot=[3])
    assert site.rules() == {"temperature_high GPU-00000003"}, "it takes minutes to be found anew, and goes on meanwhile"
    site.minute(xid(79, FLEET[1], site.clock.now_ms() + 30 * SECOND), hot=[3])
    assert site.rules() == {"temperature_high GPU-00000003", "xid_bus GPU-00000001"}
    assert read_all(warming) > SAMPLES
    site.minute(hot=[3])
    assert site.running.brain.rules.warming is None
    assert site.rules() == {"temperature_high GPU-00000003", "xid_bus GPU-00000001"}
    assert site.told("finding_opened")[: len(opened)] == opened
    assert len(site.told("finding_opened")) == len(opened) + 1, "nothing opened twice"
    assert site.told("finding_cleared") == []


def test_the_engine_that_knows_the_past_judges_as_if_it_had_been_there_from_the_start(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for minute in range(25):
        site.minute(hot=[3] if minute > 20 else [], lost=[0] if minute > 8 else [])
    warming = site.restart()
    for _ in range(4):
        site.minute(hot=[3], lost=[0])
    read_all(warming)
    site.minute(hot=[3], lost=[0])
    beside = {(one.rule, one.subject.key, one.started_ms) for one in site.running.brain.active}
    monkeypatch.setattr(rule_keeper, "OF_THIS_HOST", frozenset({site.settings.store.kind}))
    site.running.stop()
    site.running = site.start()
    site.running.brain.tick()
    assert {(one.rule, one.subject.key, one.started_ms) for one in site.running.brain.active} == beside
    assert {rule for rule, _, _ in beside} == {"temperature_high", "gpu_silent"}


def test_what_ended_while_it_was_away_ends_once_the_past_is_known(site: Site) -> None:
    for _ in range(20):
        site.minute(hot=[3])
    warming = site.restart()
    for _ in range(20):
        site.minute()
    assert site.rules() == {"temperature_high GPU-00000003"}
    assert site.told("finding_cleared") == [], "it may be that it was only not seen again"
    read_all(warming)
    for _ in range(CLEARED):
        site.minute()
    assert site.rules() == set()
    assert sorted(site.told("finding_cleared")) == sorted(site.told("finding_opened"))


def test_what_opened_just_before_the_past_was_known_keeps_its_name(site: Site) -> None:
    for _ in range(20):
        site.minute()
    warming = site.restart()
    read_all(warming)
    # The engine that is done has not read these minutes.
    site.running.brain.rules.warming = None
    for _ in range(8):
        site.minute(hot=[3])
    opened = site.told("finding_opened")
    assert opened
    site.running.brain.rules.warming = warming
    site.minute(hot=[3])
    site.minute(hot=[3])
    assert site.running.brain.rules.warming is None
    assert site.told("finding_opened") == opened
    assert site.told("finding_cleared") == []


def test_no_event_is_judged_by_an_engine_that_has_not_the_fleet_yet(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(20):
        site.minute()
    warming = site.restart()
    for _ in range(10):
        site.minute()
    read_all(warming)
    make = warming.engine

    def never(_inputs: Inputs) -> Evaluation:
        raise AssertionError("judged between two parts of the fleet")

    def watched(events: Sequence[Event], adopted: Iterable[Finding]) -> RuleEngine:
        made = make(events, adopted)
        load = made.load_ahead

        def load_and_tell(now_ms: int, readings: Sequence[Reading]) -> None:
            load(now_ms, readings)
            site.running.brain.accept(Batch((), [xid(79, FLEET[1], now_ms)]))

        monkeypatch.setattr(made, "load_ahead", load_and_tell)
        monkeypatch.setattr(made, "judge_events", never)
        return made

    monkeypatch.setattr(warming, "engine", watched)
    site.clock.advance(5 * SECOND)
    site.running.brain.tick()
    assert site.running.brain.rules.warming is None
    assert "xid_bus GPU-00000001" in site.rules(), "it waited for the same evaluation"


def test_nothing_is_done_before_the_past_is_known(site: Site) -> None:
    def held() -> bool:
        statuses = [one for one in site.running.brain.statuses() if one.decision.action != ActionKind.NOTIFY]
        rulings = [v.ruling for one in statuses for v in one.verdicts if v.guard == "boot_grace"]
        assert rulings
        return rulings[-1] is Ruling.HOLD

    for _ in range(20):
        site.minute(hot=[3])
    assert not held()
    warming = site.restart()
    for _ in range(10):
        site.minute(hot=[3])
    assert held(), "the five minutes of the grace are over, and what is open stands on record alone"
    read_all(warming)
    site.minute(hot=[3])
    site.minute(hot=[3])
    assert not held()


def test_a_store_that_does_not_answer_is_asked_again_where_it_stopped(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(20):
        site.minute(hot=[3])
    warming = site.restart()
    for _ in range(3):
        warming.look()
    left = len(warming._spans)

    def refuse(*_: object) -> Iterator[Reading]:
        raise StoreUnavailable("down")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "readings", refuse)
        with pytest.raises(StoreUnavailable):
            warming.look()
        warming.look()
    assert len(warming._spans) == left, "asked less often the oftener it fails"
    read_all(warming)
    site.minute(hot=[3])
    assert site.rules() == {"temperature_high GPU-00000003"}


def test_it_does_without_a_past_that_does_not_come(site: Site) -> None:
    for _ in range(20):
        site.minute(hot=[3])
    warming = site.restart()
    for _ in range(GIVEN_UP_MS // MINUTE):
        site.minute()
    assert site.running.brain.rules.warming is warming
    for _ in range(CLEARED):
        site.minute()
    assert site.running.brain.rules.warming is None
    looked = warming._spans[:]
    warming.look()
    assert warming._spans == looked, "nothing more is read"
    assert site.rules() == set()
    assert sorted(site.told("finding_cleared")) == sorted(site.told("finding_opened"))


def test_what_comes_in_while_the_past_is_read_is_read_too(site: Site) -> None:
    for _ in range(20):
        site.minute()
    warming = site.restart()
    for minute in range(12):
        site.minute(hot=[3] if minute >= 6 else [])
        warming.look()
    read_all(warming)
    assert site.clock.now_ms() - warming._until_ms < WHOLE_MS
    site.minute(hot=[3])
    (found,) = site.running.brain.active
    assert found.started_ms == T0 + 27 * MINUTE


def test_the_next_brain_of_the_process_goes_on_reading(site: Site) -> None:
    for _ in range(20):
        site.minute(hot=[3])
    warming = site.restart()
    site.minute(hot=[3])
    warming.look()
    handover = site.running.brain.handover()
    assert handover.rules.warming is warming
    site.running.stop()
    site.running = site.start()
    handover.rules.go_on(site.running.brain.store, ())
    read_all(warming)
    assert warming.with_open([]) == []
