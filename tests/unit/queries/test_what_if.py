"""What another limit or mode would have let run, over the journal of a loop that held things."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tocsin.client.models_what_if import WhatIfAfter, WhatIfAnswer, WhatIfOut, WhatIfRequest
from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.decision import Mode
from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.errors import InputError
from tocsin.domain.event import Event, EventKind
from tocsin.queries.what_if import WhatIfInputs, change_of, what_if
from tocsin_testing.action_world import World, settings
from tocsin_testing.builders import T0

HELD = "GPU-1-0"


def two_broken(**limits: Any) -> World:
    """A fleet where one GPU was acted on and the second is held by the `limits`."""
    wide = {"max_concurrent": 1000, "max_concurrent_ratio": 1.0, "max_per_host": 1000, "max_per_rack": 1000,
            "min_available_ratio": 0.0}  # fmt: skip
    world = World(settings(limits=wide | limits))
    world.break_gpu("GPU-0-0")
    world.step()
    world.break_gpu(HELD)
    world.step()
    return world


def ask(world: World, *, entries: list[Entry] | None = None, events: tuple[Event, ...] = (), end_ms: int = T0 + HOUR,
        service: Mode = Mode.ACT, waived: bool = True, **asked: Any) -> WhatIfOut:  # fmt: skip
    change = change_of(WhatIfRequest(**asked), service, {"hot"}.__contains__, waived)
    told = world.journal.log if entries is None else entries
    return what_if(WhatIfInputs(world.loop.statuses(), told, events, T0 - DAY, end_ms), change)


@pytest.mark.parametrize(
    ("guard", "set_to", "enough", "too_little"),
    [
        ("max_concurrent", {"max_concurrent": 1}, 2, 1),
        ("max_share", {"max_concurrent_ratio": 0.25}, 0.5, 0.49),
        ("max_per_rack", {"max_per_rack": 1}, 2, 1),
        ("capacity", {"min_available_ratio": 0.75}, 0.5, 0.51),
    ],
)
def test_a_wider_limit_lets_run_what_its_figure_allows(
    guard: str, set_to: dict[str, float], enough: float, too_little: float
) -> None:
    world = two_broken(**set_to)
    wide = ask(world, guard=guard, limit=enough)
    assert [(one.subject.name, one.answer) for one in wide.items] == [(HELD, WhatIfAnswer.WOULD_RUN)]
    assert (wide.decisions, wide.would_run, wide.complete) == (1, 1, True)
    narrow = ask(world, guard=guard, limit=too_little)
    assert [(one.answer, one.held_by) for one in narrow.items] == [(WhatIfAnswer.STILL_HELD, [guard])]
    other = ask(world, guard="cooldown", limit=0)
    assert [(one.answer, one.held_by) for one in other.items] == [(WhatIfAnswer.STILL_HELD, [guard])]


def test_a_verdict_without_its_figures_is_not_known() -> None:
    world = two_broken(max_concurrent=1)
    old = [replace(one, payload=_without_figures(one)) for one in world.journal.of(EntryKind.VERDICT)]
    (found,) = ask(world, entries=old, guard="max_concurrent", limit=1000).items
    assert (found.answer, found.held_by) == (WhatIfAnswer.NOT_KNOWN, ["max_concurrent"])
    assert found.why == "the figure that max_concurrent saw was not recorded"


def _without_figures(entry: Entry) -> dict[str, Any]:
    payload: dict[str, Any] = dict(entry.payload)
    kept = ("guard", "ruling", "reason", "until_ms")
    return payload | {"verdicts": [{key: one[key] for key in kept} for one in payload["verdicts"]]}


def proposed() -> World:
    world = World(settings(mode="propose"))
    world.break_gpu(HELD)
    world.step()
    return world


def test_a_rule_that_acts_waits_for_nobody() -> None:
    world = proposed()
    assert [one.answer for one in ask(world, rule="hot", mode="act").items] == [WhatIfAnswer.WOULD_RUN]
    assert ask(world, rule="hot", mode="propose").items[0].held_by == ["approval"]
    assert ask(world, rule="hot", mode="observe").items[0].held_by == ["mode", "approval"]


def test_the_service_bounds_the_rule_and_a_record_is_not_guessed() -> None:
    world = proposed()
    bounded = ask(world, rule="hot", mode="act", service=Mode.PROPOSE)
    assert bounded.items[0].answer is WhatIfAnswer.STILL_HELD
    assert bounded.change == "rule hot in mode act, bounded to propose by actions.mode"
    unearned = ask(world, rule="hot", mode="act", waived=False).items[0]
    assert (unearned.answer, unearned.held_by) == (WhatIfAnswer.NOT_KNOWN, ["approval"])


def test_what_came_of_the_gpu() -> None:
    world = two_broken(max_concurrent=1)
    change = {"guard": "max_concurrent", "limit": 2}
    later = T0 + 3 * DAY
    host = {"kind": "host", "name": "node-1"}
    manual = Entry(9, 1, T0 + HOUR, "manual_action", "ann", {"status": "succeeded", "subject": host}, False, "", "")
    lost = Event(EventKind.GPU_LOST, HELD, "node-1", T0 + HOUR)
    log = world.journal.log
    assert ask(world, **change).after == {WhatIfAfter.NOT_KNOWN: 1}
    assert ask(world, **change, end_ms=later).after == {WhatIfAfter.NOTHING: 1}
    assert ask(world, **change, end_ms=later, entries=[*log, manual]).after == {WhatIfAfter.REPAIRED: 1}
    assert ask(world, **change, entries=[*log, manual], events=(lost,)).after == {WhatIfAfter.FAILED: 1}


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({}, "guard"),
        ({"guard": "max_share", "limit": 1, "rule": "hot", "mode": "act"}, "guard"),
        ({"guard": "pause", "limit": 1}, "guard"),
        ({"guard": "max_share"}, "limit"),
        ({"rule": "hot"}, "mode"),
        ({"rule": "cold", "mode": "act"}, "rule"),
    ],
)
def test_a_question_that_names_no_one_change_is_one_error(asked: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as error:
        change_of(WhatIfRequest(**asked), Mode.ACT, {"hot"}.__contains__, waived=True)
    assert error.value.field == field
