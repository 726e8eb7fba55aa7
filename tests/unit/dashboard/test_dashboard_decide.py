"""Decisions, scoreboard and audit: what a person reads and does there, over the real API of the fake fleet."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from streamlit.testing.v1 import AppTest

import tocsin.dashboard
from tocsin.client.models import DecisionStory, HazardScore, JournalQuery, RuleScore, TimelineMark
from tocsin.client.whole_journal import CellEntry
from tocsin.config.access import AccessScope, ApiSettings, Role, Token
from tocsin.dashboard import access
from tocsin.dashboard import page_audit as audit
from tocsin.dashboard.access import TOKEN_VARIABLE, URL_VARIABLE
from tocsin.dashboard.page_audit import VIEWS as AUDIT_VIEWS
from tocsin.dashboard.page_audit import chain_words, exported, folded, in_words
from tocsin.dashboard.page_decisions import PAGE, SIGNS, VIEWS, _over_time, standing
from tocsin.dashboard.page_scoreboard import FLOOR, reliability, right
from tocsin.dashboard.palette import LIGHT
from tocsin.dashboard.sessions import Login
from tocsin.dashboard.text import LANGUAGES, STRINGS, Text, decided, markdown_safe, plain_sentence
from tocsin.domain.clock import MINUTE, from_iso, to_iso
from tocsin.domain.decision import DecisionContext, DecisionState, Mode
from tocsin.domain.entry import Entry, EntryKind, Verification
from tocsin.domain.errors import Unavailable
from tocsin.domain.finding import ActionKind
from tocsin_testing import fake_fleet as fleet
from tocsin_testing.fake_service import FakeService, serving

APP = Path(tocsin.dashboard.__file__).with_name("app.py")
SECRET = "a-secret-0123456789"
TEXT = Text("en")


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def url(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with serving(service) as base:
        monkeypatch.setenv(URL_VARIABLE, base)
        yield base


def opened(page: str, **query: str) -> AppTest:
    app = AppTest.from_file(str(APP), default_timeout=60)
    app.run()
    app.switch_page(f"page_{page}.py")
    app.query_params.update(query)
    app.run()
    assert not app.exception
    return app


def said(app: AppTest) -> str:
    """All that the page says, as one text."""
    words = []
    for kind in ("html", "markdown", "caption", "error", "info", "warning", "success", "page_link", "expander"):
        for element in app.get(kind):
            proto = getattr(element, "proto", None)
            words += [str(getattr(proto, name, "")) for name in ("body", "label")]
    return "\n".join(words)


def rows(app: AppTest) -> list[str]:
    """Labels of the decisions in the list."""
    return [button.label for button in app.button if str(button.key).startswith("row-")]


def one(service: FakeService, action: ActionKind) -> str:
    return next(d.id for d in service.decisions(100) if d.action is action)


# ------------------------------------------------------------------ decisions


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_waits_for_a_person_is_shown_first_with_what_stands_in_its_way(url: str, language: str) -> None:
    text = Text(language)
    app = opened("decisions", lang=language)
    assert app.segmented_control(key="show").value == "waiting"
    assert len(rows(app)) == 2
    shown = said(app)
    assert text("stand.waiting") in shown
    assert text("why.title") in shown
    assert "https://docs.example/runbooks/guards/approval.md" in shown
    assert "https://docs.example/runbooks/actions/place_elsewhere.md" in shown


def test_a_decision_shows_what_every_guard_said_and_until_when(url: str, service: FakeService) -> None:
    shown = said(opened("decisions", decision=one(service, ActionKind.RESET_GPU)))
    assert "Guard verdicts: 19 allow, 2 hold, 0 deny" in shown
    assert "outside the maintenance windows" in shown
    assert "until 11:14 UTC" in shown
    assert TEXT("stand.held") in shown
    chinese = said(opened("decisions", decision=one(service, ActionKind.RESET_GPU), lang="zh"))
    assert "不在维护窗口内" in chinese
    assert "outside the maintenance windows" not in chinese


def test_a_decision_says_its_cause_in_the_language_of_the_page(service: FakeService) -> None:
    item = service.decisions(100)[0]
    told = replace(item, parameters=replace(item.parameters, context=DecisionContext(cause_zh="node-1 GPU 0：过热。")))
    chinese = Text("zh")
    assert decided(told, chinese) == f"{chinese.name('action', item.action.value)}：node-1 GPU 0：过热。"
    assert decided(told, chinese, 8).endswith("…")
    assert decided(told, TEXT) == decided(item, chinese) == plain_sentence(item.sentence)


@pytest.mark.parametrize(("view", "count"), [("waiting", 2), ("held", 1), ("running", 1), ("ended", 2), ("all", 6)])
def test_each_choice_of_the_list_shows_its_states(url: str, view: str, count: int) -> None:
    assert len(rows(opened("decisions", show=view))) == count


def test_every_state_has_a_place_and_a_sign() -> None:
    listed = [state for name, states in VIEWS.items() if name != "all" for state in states]
    assert sorted(listed) == sorted(DecisionState)
    assert set(SIGNS) == set(DecisionState)
    assert len({sign for sign, _ in SIGNS.values()}) >= 6
    assert len({shape for _, shape in SIGNS.values()}) == len(SIGNS)


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({"q": "GPU-NODE-06"}, 1),
        ({"rule": "temperature-high"}, 2),
        ({"pool": "inference"}, 1),
        ({"action": "throttle,checkpoint"}, 2),
        ({"action": "notify"}, 1),
        ({"q": "nothing of that name"}, 0),
    ],
)
def test_filters_of_the_url_are_applied(url: str, query: dict[str, str], count: int) -> None:
    app = opened("decisions", show="all", **query)
    assert len(rows(app)) == count
    if not count:
        assert TEXT("decisions.unfitting") in said(app)


def test_a_search_is_kept_in_the_url_and_begins_at_the_first_page(url: str) -> None:
    app = opened("decisions", show="all", **{"from": "10"})
    app.text_input(key="q").set_value("drain").run()
    assert app.query_params["q"] == "drain"
    assert "from" not in app.query_params
    assert len(rows(app)) == 1


def test_thousands_of_decisions_come_in_pages(url: str, service: FakeService) -> None:
    first = next(iter(service._decisions.values()))
    many = [replace(first, id=f"{n:016x}", sentence=f"Drain node {n}") for n in range(3_000)]
    service._decisions = {decision.id: decision for decision in many}
    app = opened("decisions", show="all")
    assert len(rows(app)) == PAGE
    assert f"1 to {PAGE} of 3000" in said(app)
    assert app.button(key="newer").disabled
    app.button(key="older").click().run()
    assert app.query_params["from"] == str(PAGE)
    assert f"Drain node {PAGE} " in rows(app)[0]
    last = opened("decisions", show="all", **{"from": "2990"})
    assert last.button(key="older").disabled


def test_choosing_a_decision_is_kept_in_the_url(url: str, service: FakeService) -> None:
    throttle = one(service, ActionKind.THROTTLE)
    app = opened("decisions", show="all")
    app.button(key=f"row-{throttle}").click().run()
    assert app.query_params["decision"] == throttle
    assert TEXT("effect.celsius_bought_per_watt") in said(app)


def test_a_decision_that_is_gone_is_said_to_be(url: str) -> None:
    app = opened("decisions", decision="0123")
    assert [w.value for w in app.warning] == ["Decision 0123 no longer exists."]


def test_what_was_done_shows_what_came_of_it(url: str, service: FakeService) -> None:
    shown = said(opened("decisions", decision=one(service, ActionKind.THROTTLE)))
    assert "Done: throttle in the simulated fleet; its effect is seen" in shown
    assert "0.0646" in shown
    assert "°C / W" in shown
    assert "−6.2" in shown
    for words in ("approved by ann", "started by simulated", "effect seen", "outcome: succeeded"):
        assert words in shown


def test_alternatives_that_were_weighed_are_shown_with_waiting_among_them(url: str, service: FakeService) -> None:
    shown = said(opened("decisions", decision=one(service, ActionKind.CHECKPOINT)))
    assert "Checkpoint (chosen)" in shown
    assert "Wait" in shown
    assert "saves 3.48 GPU-hours" in shown
    assert "Executed; effect checked in 3 min" in shown
    none = said(opened("decisions", decision=one(service, ActionKind.RESET_GPU)))
    assert "No comparison: rule row-remap-pending sets this action" in none


def test_approving_and_rejecting_reach_the_journal(url: str, service: FakeService) -> None:
    first, second = [d for d in service.decisions(10) if d.approvable]
    app = opened("decisions")
    app.button(key=f"approve-{first.id}").click().run()
    assert service.decision(first.id).approved_by == "loopback"
    assert app.success[0].value == markdown_safe(f"Approved: {first.sentence}")
    app = opened("decisions", decision=second.id)
    app.text_input(key=f"reason-{second.id}").set_value("its job ends at noon").run()
    app.button(key=f"reject-{second.id}").click().run()
    assert service.decision(second.id).state is DecisionState.REJECTED
    assert [e.kind for e in service.journal(1, 10)] == ["approval", "rejection"]
    assert "Rejected by loopback" in said(app)


def test_a_decision_that_was_settled_elsewhere_is_said_to_be(url: str, service: FakeService) -> None:
    first = next(d for d in service.decisions(10) if d.approvable)
    app = opened("decisions", decision=first.id)
    service.reject(first.id, "someone", "")
    app.button(key=f"approve-{first.id}").click().run()
    assert not app.exception
    assert "only one that waits for a person can be settled" in app.error[0].value


def test_undo_sends_the_inverse_and_leads_to_it(url: str, service: FakeService) -> None:
    throttle = one(service, ActionKind.THROTTLE)
    app = opened("decisions", decision=throttle)
    button = app.button(key=f"undo-{throttle}")
    assert button.label == "Undo: Restore limits"
    app.text_input(key=f"reason-{throttle}").set_value("too slow").run()
    app.button(key=f"undo-{throttle}").click().run()
    undoing = service.story(throttle).decision.undone_by
    assert service.decision(undoing).action is ActionKind.RESTORE
    assert TEXT("decision.other") in said(app)
    assert f"undo-{throttle}" not in {str(b.key) for b in app.button}


def test_what_nothing_undoes_has_no_button(url: str, service: FakeService) -> None:
    app = opened("decisions", decision=one(service, ActionKind.RESET_GPU))
    assert not [b for b in app.button if str(b.key).startswith(("undo-", "approve-"))]


def test_pause_and_resume_with_a_reason(url: str, service: FakeService) -> None:
    app = opened("decisions")
    app.text_input(key="pause-reason").set_value("power works").run()
    app.button(key="pause").click().run()
    assert service.summary().paused_reason == "power works"
    assert "power works" in app.button(key="resume").help
    app.button(key="resume").click().run()
    assert not service.summary().paused


def test_the_breaker_is_reset_only_after_a_second_word(url: str, service: FakeService) -> None:
    app = opened("decisions")
    assert app.button(key="breaker-reset").disabled
    app.checkbox(key="breaker-sure").check().run()
    app.button(key="breaker-reset").click().run()
    assert not service.summary().breaker.tripped
    assert "breaker-reset" not in {str(b.key) for b in app.button}


@pytest.fixture
def as_role(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    stack = []

    def use(role: Role, *scopes: AccessScope) -> None:
        token = Token(name="v", role=role, secret=SecretStr(SECRET), scopes=list(scopes))
        context = serving(service, ApiSettings(tokens=[token]))
        monkeypatch.setenv(URL_VARIABLE, context.__enter__())
        monkeypatch.setenv(TOKEN_VARIABLE, SECRET)
        stack.append(context)

    yield use
    for context in stack:
        context.__exit__(None, None, None)


def test_a_viewer_sees_controls_that_say_why_they_are_closed(
    as_role: Callable[..., None], service: FakeService
) -> None:
    as_role(Role.VIEWER)
    why = TEXT("role.lacks", role="viewer", needed="operator or admin")
    app = opened("decisions")
    mine = [b for b in app.button if str(b.key).startswith(("approve-", "reject-"))]
    assert len(mine) == 2
    assert all(b.disabled and b.help == why for b in mine)
    assert why in said(app)
    done = opened("decisions", decision=one(service, ActionKind.THROTTLE))
    assert [b.disabled for b in done.button if str(b.key).startswith("undo-")] == [True]


def test_an_operator_may_not_reset_the_breaker(as_role: Callable[..., None]) -> None:
    as_role(Role.OPERATOR)
    app = opened("decisions")
    assert not app.button(key="pause").disabled
    popovers = {p.proto.popover.label: p.proto.popover.disabled for p in app.get("popover")}
    assert popovers == {"Pause actions": False, "Reset breaker": True}


def test_limits_of_a_role_are_said(as_role: Callable[..., None]) -> None:
    as_role(Role.OPERATOR, AccessScope(pools=["train-*"], actions=["throttle"]))
    assert "Your role is limited to train-*: throttle" in said(opened("decisions"))


def test_what_the_brain_says_cannot_become_markup(url: str, service: FakeService) -> None:
    first = next(iter(service._decisions.values()))
    evil = replace(first, sentence="<img src=x onerror=alert(1)> **a** & b")
    service._decisions[first.id] = evil
    app = opened("decisions")
    assert "&lt;img src=x onerror=alert(1)&gt;" in said(app)
    assert r"\*\*a\*\*" in rows(app)[0]
    assert "<img" not in said(app)


@pytest.mark.parametrize(
    ("sentence", "plain"),
    [
        (
            "Throttle GPU-aad9484b-9db0-a619-6a43-13f58428324f on node-1: node-1 GPU 6: core temperature 90 °C.",
            "Throttle node-1 GPU 6: core temperature 90 °C.",
        ),
        ("Scale in pool a: pool a: no work waits.", "Scale in pool a: no work waits."),
        ("Drain host node-1: XID 79.", "Drain host node-1: XID 79."),
    ],
)
def test_a_decision_names_its_subject_once(sentence: str, plain: str) -> None:
    assert plain_sentence(sentence) == plain


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("state", DecisionState)
def test_where_a_decision_stands_is_one_line_in_every_state(
    service: FakeService, state: DecisionState, language: str
) -> None:
    for action in (ActionKind.DRAIN, ActionKind.THROTTLE):
        story = service.story(one(service, action))
        changed = replace(story.decision, state=state, approvable=False, approved_by="ann")
        told = standing(story.model_copy(update={"decision": changed}), to_iso(fleet.NOW_MS), Text(language))
        assert told
        assert "{" not in told


def test_observed_decisions_say_that_they_are_only_recorded(service: FakeService) -> None:
    story = service.story(one(service, ActionKind.DRAIN))
    watched = replace(story.decision, mode=Mode.OBSERVE, approvable=False)
    assert standing(story.model_copy(update={"decision": watched}), to_iso(0), TEXT) == TEXT("stand.observed")


def test_the_settle_time_counts_down(service: FakeService) -> None:
    story: DecisionStory = service.story(one(service, ActionKind.CHECKPOINT))
    later = to_iso(fleet.NOW_MS + 60 * MINUTE)
    assert standing(story, later, TEXT) == "Executed; effect checked now"


def test_a_what_if_question_is_answered_and_changes_nothing(url: str, service: FakeService) -> None:
    app = opened("decisions")
    before = service.decisions(100)
    asking = [one for one in app.button if one.label == TEXT("what_if.ask")]
    asking[0].click().run()
    assert TEXT("what_if.counts", decisions=3, would_run=2, still_held=1, not_known=0) in said(app)
    [one for one in app.button if one.label == TEXT("what_if.ask")][1].click().run()
    assert "is no rule of this service" in app.warning[0].value
    assert service.decisions(100) == before


# ------------------------------------------------------------------ scoreboard


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("board", ["rules", "crossings", "hazards"])
def test_each_part_of_the_scoreboard_draws_and_is_called_simulated(url: str, board: str, language: str) -> None:
    text = Text(language)
    app = opened("scoreboard", board=board, lang=language)
    assert text("score.simulated") in said(app)
    assert app.get("plotly_chart")
    assert not app.error


def test_a_real_fleet_s_scores_are_not_called_simulated(url: str, service: FakeService) -> None:
    service.simulated = False
    assert TEXT("score.simulated") not in said(opened("scoreboard"))


def test_the_scoreboard_begins_with_the_morning_report(url: str, service: FakeService) -> None:
    told = service.morning_report(24).sentences
    assert all(one.text in said(opened("scoreboard")) for one in told)
    assert all(one.text_zh in said(opened("scoreboard", lang="zh")) for one in told)


def test_probabilities_come_with_their_figures(url: str) -> None:
    shown = said(opened("scoreboard", board="hazards"))
    for words in ("57 %", "44 %", "4 of 9, 19 % to 73 %", "2.32", "3 of 7 alarms", "guessing: 1.4 %"):
        assert words in shown
    assert "4 approved, 1 rejected" in shown
    assert "Only 9 faults so far" in shown


def test_a_new_version_says_that_there_is_not_enough_data(url: str, service: FakeService) -> None:
    fresh = service.scoreboard().hazards[1]
    key = f"{fresh.model}/{fresh.model_version}/{fresh.target}/{fresh.horizon_s:g}"
    app = opened("scoreboard", board="hazards", model=key)
    assert "Not enough data yet: of 0 predictions the outcome is known, 64 are open" in app.info[0].value
    assert not app.get("plotly_chart")


@pytest.mark.parametrize(
    ("confirmed", "unconfirmed", "says"),
    [
        (0, 0, "not yet"),
        (3, 1, "3 of 4: not enough data yet"),
        (9, 1, "9 of 10 (90 %)"),
        (0, 12, "0 of 12 (0 %)"),
    ],
)
def test_how_often_a_rule_was_right_is_a_share_only_with_enough_behind_it(
    confirmed: int, unconfirmed: int, says: str
) -> None:
    rule = RuleScore(
        rule="r",
        action=ActionKind.DRAIN,
        decisions=confirmed + unconfirmed,
        would_have_acted=0,
        confirmed=confirmed,
        unconfirmed=unconfirmed,
    )
    assert right(rule, TEXT) == says


def test_the_reliability_diagram_has_counts_and_intervals(service: FakeService) -> None:
    score: HazardScore = service.scoreboard().hazards[0]
    _, drawn = reliability(score.reliability, TEXT, LIGHT).data
    assert list(drawn.text) == [f"{one.predictions:,}" for one in score.reliability]
    assert drawn.y[0] == FLOOR
    assert drawn.marker.symbol[0] == "circle-open"
    top = drawn.y[1] + drawn.error_y.array[1]
    assert top == pytest.approx(score.reliability[1].observed_high)
    bottom = drawn.y[1] - drawn.error_y.arrayminus[1]
    assert bottom == pytest.approx(score.reliability[1].observed_low)


def test_crossings_are_told_by_model_and_version(url: str) -> None:
    shown = said(opened("scoreboard", board="crossings"))
    assert "holt 1" in shown
    assert "filling 2" in shown
    assert "31 of 38 crossings fell inside the stated interval." in shown


def test_what_came_of_actions_is_shown(url: str) -> None:
    shown = said(opened("scoreboard"))
    assert "6 / 7" in shown
    assert "Degrees gained per watt 0.065 °C / W" in shown
    assert "17 of 26 (65 %)" in shown


# ------------------------------------------------------------------ audit


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_audit_tells_who_approved_what(url: str, service: FakeService, language: str) -> None:
    first = next(d for d in service.decisions(10) if d.approvable)
    service.approve(first.id, "ann")
    shown = said(opened("audit", lang=language))
    assert Text(language)("entry.approval", who="ann", told=first.sentence) in shown
    assert "<b>ann</b>" in shown
    assert service.journal(0, 10)[-1].hash[:16] in shown


def test_the_state_of_the_chain_is_shown_and_checked_again_when_asked(url: str, service: FakeService) -> None:
    app = opened("audit")
    assert "The hash chain is valid, entries: 1" in said(app)
    service.verify_journal = lambda after, previous: Verification(False, 1, "entry 2 was edited")  # type: ignore[method-assign]
    app.button(key="check").click().run()
    assert "✕ The hash chain is broken: entry 2 was edited" in said(app)
    assert TEXT("audit.chain.unchecked") in chain_words(None, "", TEXT)


def test_the_journal_is_paged_backwards(url: str, service: FakeService) -> None:
    for n in range(45):
        service._record("login", f"user-{n}", {})
    app = opened("audit")
    assert "#46 to #27 of 46" in said(app)
    app.button(key="older").click().run()
    assert "#26 to #7 of 46" in said(app)
    app.button(key="older").click().run()
    assert app.button(key="older").disabled
    app.button(key="newest").click().run()
    assert "before" not in app.query_params


def judged(service: FakeService, decision: str, *guards: str) -> None:
    verdicts = [{"guard": "mode", "ruling": "allow"}, *({"guard": guard, "ruling": "hold"} for guard in guards)]
    service._record("verdict", "tocsin", {"decision": decision, "overall": "hold", "verdicts": verdicts})


def test_verdicts_on_one_decision_by_the_same_guards_are_one_row(url: str, service: FakeService) -> None:
    for _ in range(30):
        for decision in ("d1", "d2"):
            judged(service, decision, "approval")
            judged(service, decision, "approval", "max_concurrent")
    app = opened("audit")
    page = said(app)
    assert "#121 to #22 of 121" in page, "the most that one page reads"
    assert page.count("<summary") == 4
    assert page.count("(25 times since ") == 4
    names = [TEXT.name("guard", guard) for guard in ("approval", "max_concurrent")]
    assert f"({', '.join(names)})" in page
    app.button(key="older").click().run()
    assert "#21 to #1 of 121" in said(app), "no entry is left out"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["", "x", "y"])), max_size=40), st.integers(1, 6))
def test_folding_covers_the_newest_entries_each_once(told: list[tuple[str, str]], most: int) -> None:
    entries = [
        Entry(
            seq, 1, 0, "verdict" if guard else "login", "tocsin",
            {"decision": decision, "verdicts": [{"guard": guard, "ruling": "hold"}]},
            simulated=False, hash="", previous_hash="",
        )
        for seq, (decision, guard) in zip(range(len(told), 0, -1), told, strict=True)
    ]  # fmt: skip
    rows = folded([CellEntry("", one) for one in entries], most)
    covered = sorted((one.entry.seq for row in rows for one in row), reverse=True)
    assert covered == [one.seq for one in entries[: len(covered)]]
    assert len(rows) <= most
    assert len(covered) == len(entries) or len(rows) == most
    newest = [row[0].entry.seq for row in rows]
    assert newest == sorted(newest, reverse=True)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"view": "people"}, {"ann", "bob"}),
        ({"actor": "bob"}, {"bob"}),
        ({"q": "power works"}, {"ann"}),
        ({"kind": "resume"}, {"bob"}),
        ({"view": "findings"}, set()),
    ],
)
def test_the_audit_is_filtered_by_the_url(
    url: str, service: FakeService, query: dict[str, str], expected: set[str]
) -> None:
    service.pause("ann", "power works")
    service.resume("bob")
    shown = said(opened("audit", **query))
    assert {name for name in ("ann", "bob") if f"<b>{name}</b>" in shown} == expected


def test_every_kind_of_entry_has_words_and_a_place() -> None:
    listed = [kind for kinds in AUDIT_VIEWS.values() for kind in kinds]
    assert sorted(listed) == sorted(kind.value for kind in EntryKind)
    assert {f"entry.{kind.value}" for kind in EntryKind} <= set(STRINGS)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", EntryKind)
def test_an_entry_of_any_kind_and_any_payload_reads(kind: EntryKind, language: str) -> None:
    for payload in ({}, {"phase": "due"}, {"seen": False, "reason": "x"}, {"outcome": {"status": "failed"}}):
        entry = Entry(1, 1, 0, kind.value, "ann", payload, simulated=False, hash="h", previous_hash="")
        told = in_words(entry, {}, Text(language))
        assert told
        assert "{" not in told


def test_an_export_is_the_journal_as_the_api_sends_it(url: str, service: FakeService) -> None:
    service.pause("ann", "works")
    with exported("jsonl", JournalQuery(), "") as lines:
        assert [json.loads(line)["kind"] for line in lines] == ["service_started", "pause"]
    with exported("cef", JournalQuery(kinds=("pause",)), "") as lines:
        assert lines.read().startswith(b"CEF:0|Tocsin|")


def test_what_a_journal_holds_cannot_become_markup(url: str, service: FakeService) -> None:
    service.pause("<script>alert(1)</script>", "<img src=x>")
    shown = said(opened("audit"))
    assert "<script>alert" not in shown
    assert "<img" not in shown


def test_an_export_is_asked_for_as_whoever_is_logged_in(
    as_role: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streamlit calls it in a thread of its own, where there is neither session nor cookie."""
    as_role(Role.VIEWER)
    monkeypatch.setenv(TOKEN_VARIABLE, "of-nobody-0123456789")
    monkeypatch.setattr(access, "current_login", lambda: Login(SECRET, "ann", "viewer", 2**62))
    drawn: dict[str, Any] = {}
    monkeypatch.setattr("streamlit.download_button", lambda label, data, **_: drawn.update({label: data}))
    audit._download("jsonl", TEXT)
    monkeypatch.setattr(access, "current_login", lambda: None)
    with ThreadPoolExecutor(1) as pool, pool.submit(drawn[TEXT("audit.export.jsonl")]).result() as lines:
        assert json.loads(lines.readline())["kind"] == "service_started"


def test_the_audit_without_an_api_says_so_and_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL_VARIABLE, "http://127.0.0.1:9")
    asked: list[bool] = []
    monkeypatch.setattr(access, "look_again", lambda: asked.append(True))
    app = opened("audit")
    assert TEXT("problem.down") in app.error[0].value
    assert asked


def test_a_chain_that_cannot_be_checked_leaves_the_page_as_it_is(
    url: str, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(after: int, previous: str) -> Verification:
        raise Unavailable("the disk is slow")

    monkeypatch.setattr(service, "verify_journal", fail)
    app = opened("audit")
    assert "the disk is slow" in app.info[0].value
    assert TEXT("audit.chain.unchecked") in said(app)
    assert not app.button(key="check").disabled
    assert "#1" in said(app)
    assert not app.run().info


def test_a_check_of_the_chain_is_answered_by_the_brain_alone(
    url: str, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it said last, which other looks may stand on while it is busy, is no check."""
    app = opened("audit")
    assert "The hash chain is valid" in said(app)

    def fail(after: int, previous: str) -> Verification:
        raise Unavailable("the disk is slow")

    monkeypatch.setattr(service, "verify_journal", fail)
    app.button(key="check").click().run()
    assert "the disk is slow" in app.info[0].value


def test_a_new_decision_does_not_come_under_the_button_of_the_one_that_is_shown(url: str, service: FakeService) -> None:
    app = opened("decisions")
    shown = next(str(b.key) for b in app.button if str(b.key).startswith("approve-"))
    first = service._decisions[shown.removeprefix("approve-")]
    new = replace(first, id="f" * 16, at_ms=from_iso("2026-12-31T00:00:00.000Z"), sentence="Drain node 99")
    service._decisions = {new.id: new, **service._decisions}
    app.run()
    assert "Drain node 99" in rows(app)[0]
    assert [str(b.key) for b in app.button if str(b.key).startswith("approve-")] == [shown]
    app.button(key=shown).click().run()
    assert not [b for b in app.button if str(b.key).startswith("approve-")]
    app.button(key=f"row-{new.id}").click().run()
    assert [str(b.key) for b in app.button if str(b.key).startswith("approve-")] == [f"approve-{new.id}"]


def test_words_under_the_mouse_cannot_become_markup(service: FakeService) -> None:
    first = next(iter(service._decisions.values()))
    mark = TimelineMark(
        id=first.id,
        at=to_iso(first.at_ms),
        action=first.action,
        state=first.state,
        severity=first.severity,
        sentence="<b>node</b>",
    )
    chart = _over_time([mark], "", TEXT, LIGHT)
    assert list(chart.data[0].text) == ["&lt;b&gt;node&lt;/b&gt;"]
    assert chart.data[0].marker.color not in LIGHT.states.values()


def test_an_error_ends_neither_its_own_frame_nor_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("streamlit.error", lambda words, **_: told.append(words))
    access.show_problem(Unavailable("a`` ![x](http://evil/)\n\n# b"), TEXT)
    assert told[0].endswith("``a'' ![x](http://evil/) # b``")


def test_the_reason_of_a_pause_is_shown_as_it_was_typed(url: str, service: FakeService) -> None:
    service.pause("ann", "![x](http://evil/)")
    assert opened("decisions").button(key="resume").help.endswith(r"!\[x\](http\://evil/)")
