"""The record of a rule: what counts as a case, when the rule acts alone, and how it falls back."""

from __future__ import annotations

from typing import Any

import pytest

from tocsin.actions.loop.loop import OUTSIDE
from tocsin.actions.model.earning import RuleStanding, proven_share
from tocsin.actions.model.executor import ExecutionResult
from tocsin.actions.model.rule_record import EARLY_MS, KEEP_CASES, WINDOW_MS
from tocsin.domain.clock import DAY, HOUR, SECOND
from tocsin.domain.decision import DecisionState, Mode, Ruling
from tocsin.domain.entry import EntryKind
from tocsin.domain.finding import ActionKind, Subject, SubjectKind
from tocsin_testing.action_world import World, settings

GPU = "GPU-0-0"


def world(**more: Any) -> World:
    """Mode act, nothing waived."""
    return World(settings(**({"earn_waived": []} | more)))


def case(
    made: World,
    *,
    approve: bool = True,
    seen: bool | None = True,
    apart: int = 2 * DAY,
    action: ActionKind = ActionKind.MIGRATE,
) -> None:
    """One fault from its finding to the end of its decision, and of what was done about it."""
    made.clock.advance(apart)
    made.executor.seen = seen
    made.break_gpu(GPU, action=action)
    made.step()
    held = next((one for one in made.loop.statuses() if one.waits_for_person), None)
    if held is not None and approve:
        made.loop.operator.approve(held.decision.id, "anna")
    elif held is not None:
        made.loop.operator.reject(held.decision.id, "anna", "not so")
    for _ in range(2):
        made.step(advance=30 * SECOND)
    made.faults.clear()
    made.step()


def standing(made: World) -> RuleStanding:
    return made.loop.policy.standing("hot", simulated=False)


def test_a_rule_without_a_record_waits_and_the_decision_says_why() -> None:
    made = world()
    made.break_gpu(GPU)
    made.step()
    assert made.only().decision.mode is Mode.PROPOSE
    verdict = made.verdict("approval")
    assert verdict.ruling is Ruling.HOLD
    assert verdict.reason.endswith("; rule hot has 0 of 20 settled cases")
    assert made.only().waits_for_person
    notice = made.only(ActionKind.NOTIFY).decision.sentence
    assert "it waits for a person's approval: rule hot has 0 of 20 settled cases" in notice


def test_twenty_right_cases_earn_act_and_one_wrong_one_falls_back() -> None:
    made = world()
    for _ in range(19):
        case(made)
    assert standing(made) == RuleStanding(19, 19, 19, 19, "19 of 20 settled cases")
    case(made)
    assert standing(made).lacking == ""
    (earned,) = made.journal.of(EntryKind.RULE_EARNED_ACT)
    assert earned.payload["sentence"] == (
        "rule hot acts alone from now on: right in 20 of 20 cases, goal reached in 20 of 20"
    )
    done = len(made.executor.done)
    case(made, approve=False)
    assert len(made.executor.done) == done + 1, "it acted alone: there was nothing to reject"
    ended = next(one for one in made.loop.statuses() if one.decision.key == made.executor.done[-1])
    made.loop.operator.release(ended.decision.subject, "anna", "nothing was wrong")
    assert "right in 20 of 21 cases, which proves 81 % of 85 %" in standing(made).lacking
    made.step()
    (fell,) = made.journal.of(EntryKind.RULE_FELL_BACK)
    assert str(fell.payload["sentence"]).startswith("rule hot waits for approval from now on: it has right in 20 of 21")
    made.step()
    told = [one for one in made.notifier.told if "fell_back" in one.key]
    assert [str(one.alert_level) for one in told] == ["warning"]
    for _ in range(3):
        made.step()
    assert len([one for one in made.notifier.told if "fell_back" in one.key]) == 1
    assert not any("earned" in one.key for one in made.notifier.told)


def test_a_goal_that_is_missed_counts_though_the_statement_was_right() -> None:
    made = world()
    for number in range(20):
        case(made, seen=number % 4 > 0)
    assert standing(made).settled == standing(made).right == 20
    assert standing(made).reached == 15
    assert standing(made).lacking.startswith("goal reached in 15 of 20 cases, which proves ")


def test_an_approval_of_what_failed_earns_nothing() -> None:
    made = world()
    made.executor.result = ExecutionResult(False, "answered 404", certain=True)
    case(made)
    assert DecisionState.FAILED in [one.state for one in made.loop.statuses()]
    assert standing(made) == RuleStanding(0, 0, 1, 0, "0 of 20 settled cases")


def test_what_a_person_rejects_was_wrong_unless_the_person_says_that_it_was_right() -> None:
    made = world()
    case(made, approve=False)
    assert standing(made) == RuleStanding(1, 0, 0, 0, "1 of 20 settled cases")
    made.clock.advance(2 * DAY)
    made.break_gpu(GPU)
    made.step()
    made.loop.operator.reject(made.only().decision.id, "anna", "we drain it tonight", right=True)
    assert standing(made).settled == 1


def test_an_undo_is_wrong_only_when_it_comes_soon() -> None:
    made = world(earn_waived=["*"])
    case(made)
    made.clock.advance(EARLY_MS)
    made.loop.operator.release(Subject(SubjectKind.GPU, GPU, "node-0"), "anna", "repaired")
    assert standing(made).right == 1
    case(made, apart=10 * DAY)
    made.loop.operator.release(Subject(SubjectKind.GPU, GPU, "node-0"), OUTSIDE, "the node takes work again")
    assert (standing(made).right, standing(made).settled) == (1, 2)
    case(made, apart=10 * DAY)
    made.loop.operator.release(Subject(SubjectKind.GPU, GPU, "node-0"), "anna", "repaired", right=True)
    assert (standing(made).right, standing(made).settled) == (2, 3)


def test_one_cause_is_one_case_however_often_it_is_tried_or_comes_back_within_a_day() -> None:
    made = world(earn_waived=["*"])
    for _ in range(4):
        case(made, apart=2 * HOUR)
    assert standing(made).settled == 1
    case(made, apart=2 * HOUR, seen=False)
    assert (standing(made).measured, standing(made).reached) == (1, 0), "the worst counts"
    case(made, apart=DAY)
    assert standing(made).settled == 2


def test_what_expired_or_changed_nothing_counts_for_nothing() -> None:
    made = world()
    made.break_gpu(GPU)
    made.step()
    made.faults.clear()
    made.step()
    assert made.only().state is DecisionState.EXPIRED
    made.executor.result = ExecutionResult(True, "recorded only", lasting=False)
    case(made, seen=None)
    assert standing(made) == RuleStanding(lacking="0 of 20 settled cases")


def test_what_ran_alone_and_was_not_seen_is_neither_right_nor_wrong() -> None:
    made = world(earn_waived=["*"])
    case(made, seen=None, action=ActionKind.CHECKPOINT)
    assert (standing(made).settled, standing(made).measured) == (0, 1)


def test_what_a_person_did_by_hand_was_right() -> None:
    made = world()
    made.break_gpu(GPU)
    made.step()
    deed = {"phase": "ended", "status": "succeeded", "action": "cordon", "subject": {"kind": "host", "name": "node-0"}}
    made.journal.append(EntryKind.MANUAL_ACTION, deed, actor="anna")
    made.restart()
    made.faults.clear()
    made.step()
    assert made.only().state is DecisionState.EXPIRED
    assert standing(made) == RuleStanding(1, 1, 0, 0, "1 of 20 settled cases")


def test_old_cases_cease_to_count_and_the_rule_falls_back_by_itself() -> None:
    made = world()
    for _ in range(20):
        case(made)
    assert not standing(made).lacking
    made.clock.advance(WINDOW_MS)
    made.step()
    assert standing(made) == RuleStanding(lacking="0 of 20 settled cases")
    assert len(made.journal.of(EntryKind.RULE_FELL_BACK)) == 1


def test_memory_is_bounded_and_the_newest_count() -> None:
    made = world(earn_waived=["*"])
    for number in range(KEEP_CASES + 5):
        case(made, seen=number >= 5)
    ((rule, simulated, kept),) = made.loop.folded()["rules"]["cases"]
    assert (rule, simulated, len(kept)) == ("hot", False, KEEP_CASES)
    assert all(one["reached"] for one in kept)


@pytest.mark.parametrize(
    ("good", "count", "enough"), [(20, 20, True), (26, 27, False), (27, 28, True), (19, 20, False), (17, 20, False)]
)
def test_the_bound_is_stricter_than_the_share(good: int, count: int, enough: bool) -> None:
    assert (proven_share(good, count) >= 0.85) is enough


def test_recoveries_need_no_record() -> None:
    policy = world().policy
    assert policy.mode_of("hot", ActionKind.CORDON, simulated=False) is Mode.PROPOSE
    assert policy.mode_of("hot", ActionKind.UNCORDON, simulated=False) is Mode.ACT
    assert policy.mode_of("hot", ActionKind.RESTORE, simulated=False) is Mode.ACT


def test_a_waiver_names_rules() -> None:
    policy = world(earn_waived=["hot"]).policy
    assert policy.mode_of("hot", ActionKind.DRAIN, simulated=False) is Mode.ACT
    assert policy.mode_of("cold", ActionKind.DRAIN, simulated=False) is Mode.PROPOSE


def test_simulated_cases_are_a_record_of_their_own() -> None:
    made = world()
    for _ in range(20):
        case(made)
    assert made.loop.policy.mode_of("hot", ActionKind.DRAIN, simulated=False) is Mode.ACT
    assert made.loop.policy.mode_of("hot", ActionKind.DRAIN, simulated=True) is Mode.PROPOSE
