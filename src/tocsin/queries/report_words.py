"""The words of the morning report, in English and Chinese."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tocsin.queries.card_words import Words

_TABLE: Mapping[str, Words] = {
    "span": ("the last {hours} h", "过去 {hours} 小时"),
    "no_gpus": ("No GPU reports: nothing is known of {span}", "没有 GPU 上报，{span}的情况未知"),
    "quiet": ("Nothing broke in {span}", "{span}没有新故障"),
    "broke": ("{n} fault began in {span}|{n} faults began in {span}", "{span}新增 {n} 起故障"),
    "over": ("{n} of them over", "其中 {n} 起已结束"),
    "worst": ("the worst: {what}", "最严重：{what}"),
    "cards": ("{n} card is open now|{n} cards are open now", "现有 {n} 张未结卡片"),
    "no_cards": ("no card is open now", "现在没有未结卡片"),
    "watched": ("Tocsin carried out no action: it only watches (mode observe)", "Tocsin 未执行动作：仅观察模式"),
    "idle": ("Tocsin carried out no action", "Tocsin 未执行动作"),
    "did": (
        "Tocsin carried out {n} action: {ends}|Tocsin carried out {n} actions: {ends}",
        "Tocsin 执行了 {n} 个动作：{ends}",
    ),
    "did_least": ("Tocsin carried out {n} actions at least: {ends}", "Tocsin 至少执行了 {n} 个动作：{ends}"),
    "end_done": ('{n} "done"', "{n} 个“已完成”"),
    "end_missed": ('{n} "done, goal not reached"', "{n} 个“已执行，目标未达成”"),
    "end_failed": ('{n} "failed"', "{n} 个“失败”"),
    "running": ("{n} runs now|{n} run now", "{n} 个正在执行"),
    "unsettled": ("Nothing settled yet: no forecast came due", "尚无定论：没有到期的预测"),
    "all_right": (
        "Nothing proved wrong: the {n} forecast that came due came true|"
        "Nothing proved wrong: all {n} forecasts that came due came true",
        "没有错误：到期的 {n} 条预测全部应验",
    ),
    "wrong": ("Wrong: {parts}", "错误：{parts}"),
    "forecasts": (
        "{wrong} of {n} forecasts that came due did not come true",
        "到期的 {n} 条预测中 {wrong} 条未应验",
    ),
    "came_true": ("{n} of {n} forecasts that came due came true", "到期的 {n} 条预测全部应验"),
    "no_forecasts": ("no forecast came due", "没有到期的预测"),
    "rejected": ("people rejected {n} decision|people rejected {n} decisions", "{n} 个决策被人拒绝"),
    "missed": ("{n} action did not reach its goal|{n} actions did not reach their goal", "{n} 个动作目标未达成"),
    "failed": ("{n} action failed|{n} actions failed", "{n} 个动作失败"),
    "no_wait": ("No action waits for your yes", "没有动作等待批准"),
    "waits": (
        "{n} action waits for your yes|{n} actions wait for your yes",
        "{n} 个动作等待批准",
    ),
    "first_wait": ("until {until}: {what}", "截止 {until}：{what}"),
    "first_of": ("the first until {until}: {what}", "最先到期 {until}：{what}"),
    "paused": ("all actions are paused", "所有动作已暂停"),
    "tripped": ("the breaker is tripped and no action runs", "熔断器已触发，不执行动作"),
    "no_forecast": ("No forecast stands", "没有有效预测"),
    "expect": ("The soonest forecast: {what}", "最近的预测：{what}"),
    "at": ("at {at}", "约 {at}"),
    "within": ("within {hours} h", "{hours} 小时内"),
    "chance": ("probability {chance}", "概率 {chance}"),
    "more": ("{n} more forecast stands|{n} more forecasts stand", "另有 {n} 条有效预测"),
}


def say(key: str, **values: Any) -> Words:
    """The words of `key`, filled in as `filled` has it."""
    return filled(_TABLE[key], **values)


def filled(words: Words, **values: Any) -> Words:
    """`words` with `values` in their places; a value that is a pair is English and Chinese itself.

    Where there are two English forms, the first is for an `n` of 1.
    """
    made = []
    for place, form in enumerate(words):
        one, _, many = form.partition("|")
        own = {name: value[place] if isinstance(value, tuple) else value for name, value in values.items()}
        made.append((one if not many or values.get("n") == 1 else many).format(**own))
    return made[0], made[1]


def listed(*parts: Words) -> Words:
    """`parts` after one another."""
    return ", ".join(english for english, _ in parts), "，".join(chinese for _, chinese in parts)


def sentence(*parts: Words) -> Words:
    """`parts` as one sentence."""
    return "; ".join(english for english, _ in parts) + ".", "；".join(chinese for _, chinese in parts) + "。"
