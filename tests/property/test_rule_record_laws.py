"""Any sequence of outcomes: a rule acts only on a record that the settings allow, the same after any restart."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tocsin.actions.model.decision_log import Ledger
from tocsin.actions.model.earning import RuleCase, proven_share, standing_of
from tocsin.actions.model.policy import Policy
from tocsin.actions.model.rule_record import KEEP_CASES, WINDOW_MS
from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.decision import Mode
from tocsin.domain.entry import EntryKind
from tocsin.domain.finding import ActionKind
from tocsin_testing.action_world import World, settings

GPUS = ("GPU-0-0", "GPU-1-0", "GPU-2-1")
LEAST = 20
ends = st.sampled_from(["done", "done", "done", "missed", "unseen", "rejected", "undone", "expired"])
events = st.lists(
    st.tuples(ends, st.sampled_from(GPUS), st.sampled_from([HOUR, DAY, 20 * DAY]), st.booleans()), max_size=12
)


def live(made: World, end: str, uuid: str, apart: int) -> None:
    """One fault, and what became of its decision."""
    made.clock.advance(apart)
    made.executor.seen = {"missed": False, "unseen": None}.get(end, True)
    made.break_gpu(uuid, action=ActionKind.CHECKPOINT)
    made.step()
    held = next((one for one in made.loop.statuses() if one.waits_for_person), None)
    if held is not None and end == "rejected":
        made.loop.operator.reject(held.decision.id, "anna", "no")
    elif held is not None and end != "expired":
        made.loop.operator.approve(held.decision.id, "anna")
    for _ in range(4):
        made.step()
    if end == "undone" and made.executor.done:
        last = next(one for one in made.loop.statuses() if one.decision.key == made.executor.done[-1])
        made.loop.operator.release(last.decision.subject, "anna")
    made.faults.clear()
    made.step()


def allowed(made: World) -> bool:
    """Whether the record meets the settings, counted anew out of the cases."""
    wanted = made.policy.settings
    cases = made.loop._decision_log.ledger.rules.window(made.clock.now_ms()).get(("hot", False), ())
    assert len(cases) <= KEEP_CASES
    assert all(made.clock.now_ms() < one.at_ms + WINDOW_MS for one in cases)
    right = [one.right for one in cases if one.right is not None]
    reached = [one.reached for one in cases if one.reached is not None]
    return (
        len(right) >= wanted.earn_cases
        and proven_share(sum(right), len(right)) >= wanted.earn_precision
        and proven_share(sum(reached), len(reached)) >= wanted.earn_goal_share
    )


def mode(made: World) -> Mode:
    return made.loop.policy.mode_of("hot", ActionKind.CHECKPOINT, simulated=False)


def plain(state: dict[str, Any]) -> Any:
    return json.loads(json.dumps(state["rules"], sort_keys=True))


@given(events, st.integers(0, 24))
@hypothesis_settings(max_examples=25)
def test_the_mode_in_force_is_act_only_where_the_record_meets_the_settings(
    told: list[tuple[str, str, int, bool]], before: int
) -> None:
    made = World(settings(earn_waived=[]))
    for _ in range(before):
        live(made, "done", GPUS[0], DAY + HOUR)
    for end, uuid, apart, restart in told:
        live(made, end, uuid, apart)
        assert (mode(made) is Mode.ACT) is allowed(made)
        if restart:
            was, state = mode(made), plain(made.loop.folded())
            made.restart()
            assert mode(made) is was
            assert plain(made.loop.folded()) == state
    replayed = Ledger()
    for entry in made.journal.log:
        replayed.apply(entry)
    assert plain(replayed.state()) == plain(made.loop.folded())
    restored = Ledger.restored(json.loads(json.dumps(made.loop.folded())))
    assert plain(restored.state()) == plain(made.loop.folded())
    acting = made.journal.of(EntryKind.RULE_EARNED_ACT, EntryKind.RULE_FELL_BACK)
    kinds = [entry.kind for entry in acting]
    assert kinds[::2] == [EntryKind.RULE_EARNED_ACT] * len(kinds[::2]), "they take turns, the first one earns"
    assert kinds[1::2] == [EntryKind.RULE_FELL_BACK] * len(kinds[1::2])


@given(st.lists(st.booleans(), max_size=KEEP_CASES))
def test_without_enough_cases_no_share_is_enough(rights: list[bool]) -> None:
    policy = Policy(settings(earn_waived=[]))
    cases = [RuleCase("gpu:a", str(n), n, n, one, True) for n, one in enumerate(rights)]
    found = standing_of(cases, policy.settings)
    assert (not found.lacking) <= (len(rights) >= LEAST and sum(rights) >= 0.85 * len(rights))
