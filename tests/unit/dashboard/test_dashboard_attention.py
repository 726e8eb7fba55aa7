"""Items of the list of what needs attention, as they are written."""

from __future__ import annotations

import pytest

from tocsin.client.models import AttentionItem, GpuState
from tocsin.dashboard import attention
from tocsin.dashboard.text import Text
from tocsin.domain.clock import HOUR, to_iso
from tocsin.domain.finding import Subject, SubjectKind
from tocsin_testing.builders import T0

EN, ZH = Text("en"), Text("zh")
NOW = to_iso(T0)


def item(kind: SubjectKind = SubjectKind.GPU, name: str = "GPU-12345678", **more: object) -> AttentionItem:
    subject = Subject(kind=kind, name=name, host="n1" if kind is SubjectKind.GPU else "")
    return AttentionItem(subject=subject, **{"index": 3, "state": GpuState.WARNING, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "name", "label"),
    [(SubjectKind.GPU, "GPU-12345678", "n1 · GPU 3"), (SubjectKind.HOST, "n1", "n1"),
     (SubjectKind.POOL, "train", "pool train"), (SubjectKind.FLEET, "fleet", "whole fleet")],
)  # fmt: skip
def test_every_subject_has_a_label(kind: SubjectKind, name: str, label: str) -> None:
    assert attention.label_of(item(kind, name), EN) == label


@pytest.mark.parametrize(
    ("costs", "words"),
    [({}, ""), ({"cost_gpu_hours": 0.02}, "< 0.1 GPU-hours"), ({"cost_gpu_hours": 6.25}, "6.2 GPU-hours"),
     ({"cost_gpu_hours": 1234.5}, "1,234 GPU-hours"),
     ({"cost_gpu_hours": 6.0, "cost_money": 1520.4, "currency": "EUR"}, "1,520 EUR")],
)  # fmt: skip
def test_cost_is_money_where_there_is_a_price(costs: dict[str, object], words: str) -> None:
    assert attention.cost_text(item(**costs), EN) == words


def test_an_item_has_sentence_forecast_and_figures() -> None:
    told = item(
        sentence="n1 GPU 3: too hot", since=to_iso(T0 - HOUR), subjects=4, others=2, probability=0.75,
        prediction="it gets hotter", prediction_zh="会更热", eta=to_iso(T0 + 2 * HOUR), cost_gpu_hours=12.0,
    )  # fmt: skip
    english, chinese = attention.body(told, NOW, EN), attention.body(told, NOW, ZH)
    for words in (
        ">Too hot<",
        "↗ 75 % · in 2.0 h",
        "It gets hotter",
        "for 60 min",
        "and 2 more",
        "affects 4",
        "12 GPU-hours",
    ):
        assert words.lower() in english.lower()
    assert "会更热" in chinese
    assert "等待的代价" in chinese


def test_what_a_rule_repeats_of_a_prediction_is_said_once() -> None:
    told = item(sentence="n1 GPU 3: it will fail", prediction="n1 GPU 3: it will fail", probability=0.5)
    assert attention.body(told, NOW, EN).lower().count("it will fail</div>") == 1


def test_a_silent_gpu_is_said_to_be_silent() -> None:
    assert "Does not respond" in attention.body(item(state=GpuState.LOST), NOW, EN)
    assert "没有新数据" in attention.body(item(state=GpuState.STALE), NOW, ZH)


def test_nothing_of_it_becomes_markup() -> None:
    assert "<img" not in attention.body(item(sentence='<img src="x">'), NOW, EN)
