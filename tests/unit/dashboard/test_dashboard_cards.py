"""Cards as the dashboard writes them."""

from __future__ import annotations

import pytest

from tocsin.client.models import GpuState
from tocsin.client.models_cards import Card, CardAction, CardEvidence, CardState, CardTouches
from tocsin.dashboard import cards
from tocsin.dashboard.text import Text
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import HOUR, to_iso
from tocsin.domain.finding import ActionKind, Subject, SubjectKind
from tocsin_testing.builders import T0

EN, ZH = Text("en"), Text("zh")
NOW = to_iso(T0)


def card(**more: object) -> Card:
    made: dict[str, object] = {
        "id": "c1", "headline": "n1 GPU 3: too hot", "headline_zh": "n1 GPU 3: 温度过高", "state": CardState.OPEN,
        "health": GpuState.CRITICAL, "level": AlertLevel.PAGE, "since": to_iso(T0 - HOUR),
        "next": "Nothing: watch only", "next_zh": "无动作，仅观察",
        "subject": Subject(SubjectKind.GPU, "GPU-12345678", "n1"),
    }  # fmt: skip
    return Card.model_validate({**made, **more})


def test_a_card_says_what_where_it_stands_and_what_is_next() -> None:
    english, chinese = cards.head(card(), NOW, EN), cards.head(card(), NOW, ZH)
    for words in ("n1 GPU 3: too hot", "<b>Open</b>", f"since {to_iso(T0 - HOUR)[11:16]} UTC", "Nothing: watch only"):
        assert words in english
    for words in ("温度过高", "<b>未处理</b>", "无动作，仅观察"):
        assert words in chinese


def test_why_nothing_can_be_done_stands_in_the_place_of_what_is_next() -> None:
    shown = cards.head(card(obstacle="Drain cannot start now: paused by ann."), NOW, EN)
    assert "paused by ann" in shown
    assert "watch only" not in shown


def test_in_chinese_the_guard_is_named_and_its_english_is_left_out() -> None:
    held = card(
        obstacle="Drain cannot start now: 3 under action already.", obstacle_zh="排空 目前不能开始",
        obstacle_guard="max_concurrent", confidence="measured", confidence_zh="已测得",
    )  # fmt: skip
    shown = cards.head(held, NOW, ZH) + cards.details(held, ZH)
    assert f"排空 目前不能开始（{ZH.name('guard', 'max_concurrent')}）。" in shown
    assert "已测得" in shown
    assert "under action" not in shown
    assert "measured" not in shown


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"state": CardState.REOPENED, "reopened_from": to_iso(T0 - 2 * HOUR)}, "came again after"),
        ({"probability": 0.75}, "↗ 75 %"),
        ({"waiting_gpu_hours": 0.02}, "&lt; 0.1 GPU-hours"),
        ({"waiting_gpu_hours": 6.0, "waiting_money": 1520.4, "currency": "EUR"}, "1,520 EUR"),
    ],
)
def test_what_a_card_knows_is_said(more: dict[str, object], words: str) -> None:
    assert words in cards.head(card(**more), NOW, EN)


def test_every_state_has_a_word_in_both_languages() -> None:
    for state in CardState:
        assert EN.name("card_state", state.value) != state.value
        assert ZH.name("card_state", state.value) != state.value


def test_the_rest_has_the_action_its_price_and_the_evidence_and_runs_no_html() -> None:
    action = CardAction(
        kind=ActionKind.DRAIN, sentence="Drain n1.", decision="d", cost_gpu_hours=2.0, benefit_gpu_hours=20.0
    )
    told = [CardEvidence(kind="finding", text="<img src=x>", name="a_rule", xid=79)]
    touches = CardTouches(gpus=8, hosts=1, jobs=1, gpu_names=["n1 GPU 3"], job_names=["slurm 7"])
    shown = cards.details(card(action=action, evidence=told, touches=touches), EN)
    for words in ("GPUs 8, hosts 1, jobs 1", "n1 GPU 3, slurm 7", "Drain n1.", "costs 2 GPU-hours, saves 20", "XID 79"):
        assert words in shown
    assert "<img" not in shown


def test_the_button_says_for_how_many_a_yes_is() -> None:
    action = CardAction(kind=ActionKind.THROTTLE, sentence="Throttle n1 GPU 0.", decision="d", can_approve=True)
    assert cards.approve_label(action, EN) == "Review and approve: Throttle"
    assert cards.approve_label(action.model_copy(update={"alike": 7}), EN) == "Review and approve: Throttle, all 8"
