"""The words of what changed lately, in English and Chinese."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tocsin.domain.decision import OutcomeStatus
from tocsin.domain.silence import MatcherKind
from tocsin.queries.card_words import Words
from tocsin.queries.report_words import filled

_TABLE: Mapping[str, Words] = {
    "opened": ("{what}", "{what}"),
    "worse": ("Worse: {what}", "加重：{what}"),
    "resolved": ("Over: {what}", "已结束：{what}"),
    "runs": ("{what} runs", "{what} 执行中"),
    "ended": ("{what}: {end}", "{what}：{end}"),
    "rejected": ("{who} rejected: {what}", "{who} 拒绝：{what}"),
    "by_hand": ("{who} by hand: {what}", "{who} 手动执行：{what}"),
    "started": ("The brain started in mode {mode}", "brain 已启动，模式 {mode}"),
    "mode": ("The brain started in mode {mode}, before it was {before}", "brain 已启动，模式由 {before} 改为 {mode}"),
    "paused": ("{who} paused all actions{why}", "{who} 暂停了所有动作{why}"),
    "resumed": ("{who} resumed actions", "{who} 恢复了动作"),
    "tripped": ("The breaker tripped: no action runs", "熔断器已触发：不执行动作"),
    "reset": ("{who} reset the breaker", "{who} 复位了熔断器"),
    "earned": ("Rule {rule} acts alone from now on", "规则 {rule} 从此可自行执行"),
    "fell_back": ("Rule {rule} waits for approval again", "规则 {rule} 重新需要批准"),
    "model": ("Risk model {version} is in service", "风险模型 {version} 已启用"),
    "given_back": ("{who} gave back {what}", "{who} 交还 {what}"),
    "acknowledged": ("{who} acknowledged a card until {until}", "{who} 认领了一张卡片，至 {until}"),
    "snoozed": ("{who} snoozed {what} until {until}", "{who} 暂缓 {what}，至 {until}"),
    "planned": ("{who} planned maintenance of {what} until {until}", "{who} 计划维护 {what}，至 {until}"),
    "silence_ended": ("{who} ended what was set for {what}", "{who} 提前结束了 {what} 的设置"),
    "version": ("{what} of {hosts}: {before} became {after}", "{hosts} 的{what}：{before} 变为 {after}"),
    "version_many": (
        "{what} of {n} hosts ({hosts}): {before} became {after}",
        "{n} 台主机（{hosts}）的{what}：{before} 变为 {after}",
    ),
    "joined": ("Host {host} is new", "新主机 {host}"),
    "joined_many": ("{n} hosts are new: {hosts}", "{n} 台新主机：{hosts}"),
}
_ENDS: Mapping[OutcomeStatus, Words] = {
    OutcomeStatus.SUCCEEDED: ("done", "已完成"),
    OutcomeStatus.FAILED: ("failed", "失败"),
    OutcomeStatus.GOAL_NOT_REACHED: ("done, goal not reached", "已执行，目标未达成"),
    OutcomeStatus.UNVERIFIED: ("done, effect not verified", "已执行，效果未验证"),
    OutcomeStatus.RESTORED: ("undone", "已撤销"),
}
_UNKNOWN_END: Words = ("ended", "已结束")
_PLACES: Mapping[str, Words] = {
    MatcherKind.CARD: ("a card", "一张卡片"),
    MatcherKind.HOST: ("host {name}", "主机 {name}"),
    MatcherKind.POOL: ("pool {name}", "资源池 {name}"),
    MatcherKind.RACK: ("rack {name}", "机架 {name}"),
    MatcherKind.LABEL: ("label {name}", "标签 {name}"),
}


def say(key: str, **values: Any) -> Words:
    """The words of `key`, filled in."""
    return filled(_TABLE[key], **values)


def ended(status: str) -> Words:
    """How an execution ended."""
    return _ENDS[OutcomeStatus(status)] if status in set(OutcomeStatus) else _UNKNOWN_END


def place(key: str) -> Words:
    """What a silence covers, by its ``kind:name``."""
    kind, _, name = key.partition(":")
    return filled(_PLACES[kind], name=name) if kind in _PLACES else (key, key)
