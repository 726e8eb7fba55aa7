"""Laws of every guard, Tocsin's own and those of other packages: a pure question that is always answered, in words."""

from __future__ import annotations

import copy
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.actions.guards.base import Applies, Guard, Hold, evaluate, guard, guards, worst
from tocsin.actions.model.view import FleetView
from tocsin.domain.decision import Decision, Ruling
from tocsin.domain.finding import ActionKind
from tocsin.plugins import OWN_PACKAGE, Kind, plugins
from tocsin_testing.builders import T0
from tocsin_testing.law_guards import decisions, instants, views
from tocsin_testing.notify_world import DECISION

DOC = (Path(__file__).parents[2] / "docs" / "guards.md").read_text("utf-8")
LONGEST_REASON = 400
EACH = pytest.mark.parametrize("one", guards(), ids=lambda one: one.name)
FEW = settings(max_examples=150)
OPAQUE = re.compile(r"<[\w.]+ object|\bNone\b|\{.*:.*\}|Traceback")
"""What comes of a value that was put into a sentence by mistake."""


def test_each_is_found_under_its_own_name_in_its_own_place() -> None:
    assert {one.name for one in guards()} == set(plugins(Kind.GUARD))
    stages = [one.stage for one in guards()]
    assert stages == sorted(set(stages)), "two guards in one place of the list"


@EACH
def test_it_is_declared_with_a_name_and_says_what_it_asks(one: Guard) -> None:
    assert isinstance(one, Guard)
    assert re.fullmatch(r"[a-z][a-z_]*", one.name)
    assert one.stage > 0
    assert isinstance(one.applies, Applies)
    assert (one.check.__doc__ or "").strip(), "the docstring is its question"


@EACH
def test_the_documentation_has_its_section(one: Guard) -> None:
    if plugins(Kind.GUARD)[one.name].package == OWN_PACKAGE:
        assert f"\n## `{one.name}`\n" in DOC


def test_the_documentation_names_those_that_count_for_the_breaker() -> None:
    said = re.search(r"^- Counts: (.*?)\.$", DOC, re.MULTILINE | re.DOTALL)
    assert said is not None
    counted = [one.name for one in guards() if one.counts_for_breaker]
    assert re.findall(r"`(\w+)`", said[1]) == [*counted, "selection"]


@FEW
@given(decisions, views, instants)
def test_each_is_pure_and_always_answers(decision: Decision, view: FleetView, now_ms: int) -> None:
    before = copy.deepcopy((decision, view))
    for one in guards():
        if one.applies.covers(decision.action):
            one.check(decision, view, now_ms)  # raises nothing, also where `Guard` would catch it
        verdict = one(decision, view, now_ms)
        assert one(decision, view, now_ms) == verdict, one.name
        assert one(*before, now_ms) == verdict, one.name
        assert (decision, view) == before, one.name


@FEW
@given(decisions, views, instants)
def test_each_answers_in_plain_words_and_a_hold_ends_later(decision: Decision, view: FleetView, now_ms: int) -> None:
    for one in guards():
        verdict = one(decision, view, now_ms)
        assert verdict.guard == one.name
        assert verdict.until_ms is None or (verdict.ruling is Ruling.HOLD and verdict.until_ms > now_ms), one.name
        if verdict.ruling is not Ruling.ALLOW:
            assert verdict.reason.strip(), one.name
            assert verdict.reason.isprintable(), one.name
            assert len(verdict.reason) <= LONGEST_REASON, one.name
            assert not verdict.reason.endswith("."), one.name
            assert not OPAQUE.search(verdict.reason), verdict.reason


@FEW
@given(decisions, views, instants)
def test_what_it_does_not_apply_to_it_allows(decision: Decision, view: FleetView, now_ms: int) -> None:
    asked = {one.name for one in guards() if one.applies.covers(decision.action)}
    held = {v.guard for v in evaluate(decision, view, now_ms) if v.ruling is not Ruling.ALLOW}
    assert held <= asked
    if decision.action is ActionKind.NOTIFY:
        assert asked == {one.name for one in guards() if one.applies is Applies.EVERYTHING}


@FEW
@given(decisions, views, instants, st.randoms(use_true_random=False))
def test_no_answer_hangs_on_the_order(decision: Decision, view: FleetView, now_ms: int, chance: random.Random) -> None:
    verdicts = {verdict.guard: verdict for verdict in evaluate(decision, view, now_ms)}
    shuffled = list(guards())
    chance.shuffle(shuffled)
    assert {one.name: one(decision, view, now_ms) for one in shuffled} == verdicts
    members = list(view.gpus.items())
    chance.shuffle(members)
    again = {verdict.guard: verdict for verdict in evaluate(decision, replace(view, gpus=dict(members)), now_ms)}
    assert {name: verdict.ruling for name, verdict in again.items()} == {n: v.ruling for n, v in verdicts.items()}
    assert worst(chance.sample(list(verdicts.values()), len(verdicts))) is worst(verdicts.values())


@FEW
@given(decisions, views, instants)
def test_a_denial_lasts(decision: Decision, view: FleetView, now_ms: int) -> None:
    """What is denied once is denied while nothing but time goes on: nobody waits for it."""
    denied = {v.guard for v in evaluate(decision, view, now_ms) if v.ruling is Ruling.DENY}
    later = {v.guard for v in evaluate(decision, view, now_ms + 60_000) if v.ruling is Ruling.DENY}
    assert denied <= later


def test_a_guard_that_breaks_off_holds() -> None:
    @guard("broken", 1000, Applies.EVERYTHING)
    def broken(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
        raise LookupError("no such rack")

    verdict = broken(DECISION, FleetView(T0, T0), T0)
    assert (verdict.ruling, verdict.reason) == (Ruling.HOLD, "guard broken broke off: LookupError: no such rack")


def test_a_guard_that_answers_something_else_holds() -> None:
    @guard("odd", 1000, Applies.EVERYTHING)
    def odd(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
        return True  # type: ignore[return-value]  # as a package without types may

    verdict = odd(DECISION, FleetView(T0, T0), T0)
    assert verdict.ruling is Ruling.HOLD
    assert verdict.reason == "guard odd broke off: TypeError: it answered True in place of None, Hold or Deny"
