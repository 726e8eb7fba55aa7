"""The words of a card: short enough for a phone, in English and Chinese, with instants and no ages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tocsin.actions.model.ledger_entry import APPROVAL, DecisionStatus
from tocsin.client.models_cards import HEADLINE_CHARACTERS
from tocsin.domain.clock import DAY, to_iso
from tocsin.domain.decision import DecisionState, Ruling, Verdict
from tocsin.domain.finding import ActionKind, Category, Incident, Severity, Subject, SubjectKind
from tocsin.domain.phrase import in_chinese
from tocsin.domain.place import Place, PlaceKind
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Reading
from tocsin.domain.versions import COMPONENTS
from tocsin.domain.words import counted
from tocsin.forecaster.capacity.filling import FRAGMENTATION
from tocsin.rules.symptoms import Symptom

Words = tuple[str, str]
"""The same in English and in Chinese."""

_SYMPTOMS: Mapping[Symptom, Words] = {
    Symptom.BUS: ("fell off its PCIe bus", "从 PCIe 总线掉线"),
    Symptom.DARK: ("reports nothing", "没有上报任何读数"),
    Symptom.NVLINK: ("an NVLink failed", "一条 NVLink 链路故障"),
    Symptom.NVLINK_SIDE: ("NVLink errors", "NVLink 出错"),
    Symptom.NVLINK_ECHO: ("NVLink errors", "NVLink 出错"),
    Symptom.SWITCH: ("an NVSwitch reports errors", "NVSwitch 报错"),
    Symptom.MEMORY: ("memory error that cannot be corrected", "出现无法纠正的显存错误"),
    Symptom.FIRMWARE: ("the GPU's firmware does not answer", "GPU 固件无响应"),
    Symptom.HANG: ("hangs: busy, and nothing is computed", "挂起：显示忙碌但没有计算"),
    Symptom.POWER: ("slowed down for want of power", "因供电问题降频"),
    Symptom.HEAT: ("too hot", "温度过高"),
    Symptom.PROGRAM: ("a program crashed; the GPU is sound", "程序崩溃，GPU 本身正常"),
    Symptom.CLEANUP: ("the driver ended programs", "驱动终止了程序"),
    Symptom.RESET: ("was reset: what ran on it is lost", "已被复位：其上的任务丢失"),
    Symptom.VERDICT: ("the driver asks for a repair", "驱动要求修复"),
    Symptom.STALE: ("readings stand still or are incomplete", "读数停滞或不完整"),
    Symptom.DRIFT: ("versions differ between hosts", "主机之间版本不一致"),
    Symptom.UNKNOWN: ("a fault code that is in no table", "未收录的故障代码"),
}
_MINOR: Mapping[Symptom, Words] = {
    Symptom.MEMORY: ("memory needs a repair or has few spares left", "显存需要修复或备用行不足"),
}
"""Where the finding is less than critical."""
_CATEGORIES: Mapping[Category, Words] = {
    Category.HARDWARE: ("hardware trouble", "硬件异常"),
    Category.APPLICATION: ("a program is in trouble", "程序异常"),
    Category.THERMAL: ("too hot", "温度过高"),
    Category.POWER: ("power trouble", "供电异常"),
    Category.MEMORY: ("memory is nearly full", "显存将满"),
    Category.FRAGMENTATION: ("free capacity is fragmented", "空闲资源碎片化"),
    Category.CAPACITY: ("load or capacity is out of bounds", "负载或容量超出范围"),
    Category.TELEMETRY: ("readings are in doubt", "读数可疑"),
    Category.VERSIONS: ("versions differ between hosts", "主机之间版本不一致"),
}
_EXPECTED: Mapping[Category, Words] = {
    Category.HARDWARE: ("raised risk of a hardware fault", "硬件故障风险升高"),
    Category.THERMAL: ("expected to get too hot", "预计温度过高"),
    Category.MEMORY: ("memory is expected to run full", "预计显存用尽"),
    Category.FRAGMENTATION: ("free memory is expected to be fragmented", "预计显存碎片化"),
    Category.CAPACITY: ("expected to be short of GPUs", "预计 GPU 不足"),
}
_LIKELY: Mapping[Category, Words] = {Category.HARDWARE: ("a hardware fault is expected", "预计发生硬件故障")}
"""The same from `LIKELY_FROM` on."""
LIKELY_FROM = 0.5
"""Probability from which on a fault is rather to be expected than not."""
_METRICS: tuple[tuple[str, Words], ...] = (
    ("gpu_pcie", ("PCIe link trouble", "PCIe 链路异常")),
    ("gpu_nvlink_up", ("a link to other GPUs is down", "与其他 GPU 的链路断开")),
    ("gpu_nvlink", ("NVLink errors", "NVLink 出错")),
    ("gpu_fabric", ("NVLink fabric trouble", "NVLink 网络异常")),
    ("gpu_c2c", ("errors between CPU and GPU", "CPU 与 GPU 间链路出错")),
)
_LINK_FAULT: Words = ("a link to other GPUs failed", "与其他 GPU 的链路故障")
"""What AMD's or Ascend's own words tell of: those have no metric."""
_ACTIONS: Mapping[ActionKind, Words] = {
    ActionKind.SCALE_OUT: ("more work than GPUs", "任务多于 GPU"),
    ActionKind.SCALE_IN: ("mostly idle", "大部分空闲"),
    ActionKind.MIGRATE: ("the machine will be taken away", "机器即将被回收"),
}
"""Of capacity: what the rule asks for tells what it found."""
_PLACES: Mapping[PlaceKind, Words] = {
    PlaceKind.LINK: ("NVLink", "NVLink"),
    PlaceKind.HOST: ("host", "主机"),
    PlaceKind.CHASSIS: ("chassis", "机箱"),
    PlaceKind.RACK: ("rack", "机架"),
    PlaceKind.POWER_ZONE: ("power zone", "供电区"),
    PlaceKind.COOLING_ZONE: ("cooling zone", "制冷区"),
    PlaceKind.NVLINK_DOMAIN: ("NVLink domain", "NVLink 域"),
    PlaceKind.SWITCH: ("switch", "交换机"),
    PlaceKind.RAIL: ("rail", "轨道"),
    PlaceKind.JOB: ("job", "作业"),
    PlaceKind.POOL: ("pool", "资源池"),
}
_PROGRAM: Words = ("Nothing to do to the GPU: look at the program.", "无需对 GPU 操作：请检查程序。")
_LINKS: Words = (
    "Nothing can be done from here: look at its NVLinks, cables and switches.",
    "无法从这里处理：请检查其 NVLink、线缆和交换机。",
)
_NOBODY_ACTS: Mapping[Symptom, Words] = {
    Symptom.POWER: (
        "Nothing can be done from here: look at its power supplies and feed.",
        "无法从这里处理：请检查其电源与供电。",
    ),
    Symptom.HEAT: ("Nothing can be done from here: look at its cooling.", "无法从这里处理：请检查其散热。"),
    Symptom.DARK: (
        "Nothing can be done from here: see whether it is up, its network and its agent.",
        "无法从这里处理：请检查其是否运行、网络与 agent。",
    ),
    Symptom.STALE: (
        "Nothing can be done from here: look at its driver, exporter and agent.",
        "无法从这里处理：请检查其驱动、exporter 与 agent。",
    ),
    Symptom.DRIFT: (
        "Nothing can be done from here: bring these hosts to the version of their pool, or say that they are meant to "
        "differ by a label `role`.",
        "无法从这里处理：请将这些主机改为资源池的版本，或确认其差异是否有意。",
    ),
    Symptom.PROGRAM: _PROGRAM,
    Symptom.CLEANUP: _PROGRAM,
    Symptom.NVLINK_SIDE: _LINKS,
    Symptom.NVLINK_ECHO: _LINKS,
    Symptom.SWITCH: (
        "Nothing can be done from here: look at its NVSwitches and the fabric manager.",
        "无法从这里处理：请检查其 NVSwitch 与 fabric manager。",
    ),
}
_UUID = re.compile(r"\b(?:gpu:)?((?:GPU|MIG|AMD|NPU)-[0-9A-Za-z-]+)")
_TWICE = re.compile(r"(?<![\w.-])([\w.-]+)( GPU \d+) on \1\b")
"""A host told twice. It is tried where a name begins alone: tried within one, a long name takes its length squared."""
_INSTANT = re.compile(r"\b(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\d(?:\.\d+)?Z")


@dataclass(frozen=True, slots=True)
class CardCause:
    """What a headline is made of: the symptom and rank of a root cause, where it sits, and how many GPUs show it.

    `category` is None for several kinds on one card, `probability` where nothing is forecast or none is stated.
    """

    symptom: Symptom
    category: Category | None
    severity: Severity
    action: ActionKind
    metric: str
    subject: Subject
    place: Place | None = None
    gpus: int = 1
    probability: float | None = None


def expected_cause(prediction: Prediction) -> CardCause:
    """What the headline of a forecast is made of."""
    category = Category.HARDWARE
    if prediction.subject.kind is SubjectKind.POOL:
        category = Category.CAPACITY
    elif prediction.target == FRAGMENTATION:
        category = Category.FRAGMENTATION
    elif prediction.metric.startswith("gpu_memory"):
        category = Category.MEMORY
    elif "temperature" in prediction.metric:
        category = Category.THERMAL
    symptom, subject = Symptom.FORECAST, prediction.subject
    cause = CardCause(symptom, category, Severity.WARNING, ActionKind.NOTIFY, prediction.metric, subject)
    return replace(cause, probability=prediction.probability)


class Names:
    """GPUs as people name them, by UUID: host and index."""

    def __init__(self, readings: Iterable[Reading]) -> None:
        self._gpus = {one.gpu.uuid: one.gpu for one in readings}

    def gpu(self, uuid: str, host: str = "") -> str:
        """``node-1 GPU 3``; host and the end of the UUID where the index is unknown."""
        gpu = self._gpus.get(uuid)
        if gpu is None or gpu.index is None:
            return f"{host or (gpu.host if gpu else '')} GPU {uuid[-8:]}".strip()
        return f"{gpu.host} GPU {gpu.index}"

    def index(self, uuid: str) -> int | None:
        """The GPU's index on its host."""
        gpu = self._gpus.get(uuid)
        return None if gpu is None else gpu.index

    def plain(self, words: str) -> str:
        """`words` with UUIDs as people name the GPUs, and instants to the minute."""
        named = _UUID.sub(lambda found: self.gpu(found[1]) if found[1] in self._gpus else found[1][:12], words)
        return _INSTANT.sub(r"\1 \2 UTC", _TWICE.sub(r"\1\2", named))

    def subject(self, subject: Subject) -> Words:
        if subject.kind is SubjectKind.GPU:
            return (self.gpu(subject.name, subject.host),) * 2
        kinds = {SubjectKind.HOST: "主机", SubjectKind.POOL: "资源池"}
        if subject.kind is SubjectKind.FLEET:
            return "the fleet", "整个集群"
        return f"{subject.kind} {subject.name}", f"{kinds[subject.kind]} {subject.name}"

    def where(self, trouble: CardCause) -> Words:
        """The place of a trouble, with the number of its GPUs where they are several."""
        place = trouble.place
        if place is None and trouble.subject.kind is SubjectKind.FLEET and trouble.gpus > 1:
            noun = "GPUs" if trouble.symptom in (Symptom.DARK, Symptom.BUS) else "places"
            return f"{trouble.gpus} {noun}", f"{trouble.gpus} 处"
        if place is None or place.kind is PlaceKind.GPU:
            return self.subject(trouble.subject)
        english, chinese = (f"{word} {place.name}" for word in _PLACES[place.kind])
        if trouble.gpus < 2:
            return english, chinese
        return f"{trouble.gpus} GPUs of {english}", f"{chinese} 的 {trouble.gpus} 块 GPU"


def headline(trouble: CardCause, names: Names) -> Words:
    """What is wrong and where, HEADLINE_CHARACTERS at most each."""
    what = _what(trouble)
    english, chinese = (f"{where}: {said}" for where, said in zip(names.where(trouble), what, strict=True))
    return _fit(english), _fit(chinese)


def _fit(text: str) -> str:
    return text if len(text) <= HEADLINE_CHARACTERS else f"{text[: HEADLINE_CHARACTERS - 1]}…"


def _what(trouble: CardCause) -> Words:
    if trouble.category is None and trouble.symptom is Symptom.FORECAST:
        return "early signs of a fault, or of memory that runs full", "故障或显存用尽的早期迹象"
    if trouble.category is None:
        return "nothing is broken, load and memory could be better placed", "没有故障，负载与显存的分布可以改进"
    known = _CATEGORIES[trouble.category]
    if trouble.symptom is Symptom.FORECAST:
        likely = _LIKELY if (trouble.probability or 0.0) >= LIKELY_FROM else {}
        return likely.get(trouble.category) or _EXPECTED.get(trouble.category, known)
    if trouble.symptom is Symptom.DRIFT:
        return _differs(trouble.subject.detail)
    if trouble.category is Category.CAPACITY:
        return _ACTIONS.get(trouble.action, known)
    minor = {} if trouble.severity is Severity.CRITICAL else _MINOR
    by_metric = next((words for prefix, words in _METRICS if trouble.metric.startswith(prefix)), None)
    if trouble.symptom in (Symptom.OTHER, Symptom.NVLINK_ECHO) and by_metric is not None:
        return by_metric
    if trouble.symptom is Symptom.NVLINK_ECHO and not trouble.metric:
        return _LINK_FAULT
    return minor.get(trouble.symptom) or _SYMPTOMS.get(trouble.symptom) or known


def _differs(detail: str) -> Words:
    """That versions differ, by the part of the pool that is meant: component, GPU model and role."""
    key, _, group = detail.partition(" ")
    component = COMPONENTS.get(key)
    if component is None:
        return _SYMPTOMS[Symptom.DRIFT]
    english, chinese = f"{component.name} differs between hosts", f"主机之间{component.chinese}版本不一致"
    return (f"{english} with {group}", f"{chinese}（{group}）") if group else (english, chinese)


def clock(at_ms: int, now_ms: int) -> str:
    """An instant as people read it: the minute, with its date where that is another day than that of `now_ms`; UTC."""
    text = to_iso(at_ms)
    minute = f"{text[11:16]} UTC"
    return minute if at_ms // DAY == now_ms // DAY else f"{text[:10]} {minute}"


_STAGES: Mapping[DecisionState, Words] = {
    DecisionState.EXECUTING: ("{action} runs since {at}", "{action} 自 {at} 起执行中"),
    DecisionState.VERIFYING: (
        "{action} ran; checking since {at} whether it helped",
        "{action} 已执行，自 {at} 起核查效果",
    ),
    DecisionState.APPROVED: ("{action} is approved and starts once nothing holds it", "{action} 已批准，无阻碍即开始"),
}


_ACTIONS_ZH: Mapping[str, str] = {
    ActionKind.NOTIFY: "通知",
    ActionKind.THROTTLE: "限速",
    ActionKind.RESTORE: "恢复限制",
    ActionKind.PLACE_ELSEWHERE: "另行调度",
    ActionKind.DEFRAGMENT: "整理碎片",
    ActionKind.SCALE_OUT: "扩容",
    ActionKind.SCALE_IN: "缩容",
    ActionKind.CHECKPOINT: "保存检查点",
    ActionKind.MIGRATE: "迁移",
    ActionKind.CORDON_GPU: "封锁单卡",
    ActionKind.UNCORDON_GPU: "解除单卡封锁",
    ActionKind.CORDON: "封锁",
    ActionKind.UNCORDON: "解除封锁",
    ActionKind.DRAIN: "排空",
    ActionKind.RESET_GPU: "复位",
    ActionKind.REBOOT_NODE: "重启",
    ActionKind.RMA_TICKET: "提交返修工单",
}


def action_words(action: str) -> Words:
    """An action in words; one that is unknown here by its own name."""
    english = action.replace("_", " ")
    return english, _ACTIONS_ZH.get(action, english)


def named(action: ActionKind) -> str:
    """An action in words."""
    return str(action).replace("_", " ")


def as_line(words: Words) -> Words:
    """`words` as they begin a line."""
    english, chinese = words
    return english[:1].upper() + english[1:], chinese


_NOTHING: Words = ("nothing: watch only", "无动作，仅观察")


def next_of(status: DecisionStatus | None, now_ms: int, expires_ms: int | None) -> Words:
    """What happens next, and when: by the decision that the card is about, None where it has none."""
    return as_line(_NOTHING if status is None else _next_of(status, now_ms, expires_ms))


def choice_of(wanted: Sequence[DecisionStatus]) -> Words:
    """What happens next where several decisions are wanted, none of them before the others."""
    waiting = sum(status.waits_for_person for status in wanted)
    if not waiting:
        return f"{len(wanted)} actions run or start", f"{len(wanted)} 个动作执行中或即将开始"
    wait = "waits" if waiting == 1 else "wait"
    return f"{counted(waiting, 'decision')} {wait} for your approval", f"{waiting} 个决策等待批准"


def _next_of(status: DecisionStatus, now_ms: int, expires_ms: int | None) -> Words:
    action = action_words(status.decision.action)
    if status.waits_for_person and expires_ms is not None:
        until = clock(expires_ms, now_ms)
        return f"waits for your approval until {until}", f"等待批准，截止 {until}"
    if (stage := _STAGES.get(status.state)) is not None:
        at = clock(status.updated_ms, now_ms)
        english, chinese = (one.format(action=done, at=at) for one, done in zip(stage, action, strict=True))
        return english, chinese
    return _next_of_held(status, action, now_ms)


def _next_of_held(status: DecisionStatus, action: Words, now_ms: int) -> Words:
    english, chinese = action
    holds = [verdict for verdict in status.verdicts if verdict.ruling is Ruling.HOLD]
    if status.state is not DecisionState.HELD:
        return _NOTHING
    if not holds:
        return f"{english} starts within a minute", f"{chinese} 将在一分钟内开始"
    ends = [verdict.until_ms for verdict in holds]
    if None not in ends:
        at = clock(max(end for end in ends if end is not None), now_ms)
        return f"{english} is tried again at {at}", f"{chinese} 将于 {at} 重试"
    return f"{english} is held; it is looked at again with every evaluation", f"{chinese} 暂缓，每次评估都会重新检查"


def against(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """What holds or denies, but for the approval that a person can give."""
    return [one for one in verdicts if one.ruling is not Ruling.ALLOW and one.guard != APPROVAL]


_ENDED: Mapping[DecisionState, Words] = {
    DecisionState.REJECTED: ("was rejected", "已被拒绝"),
    DecisionState.EXPIRED: ("expired", "已过期"),
    DecisionState.FAILED: ("failed", "失败"),
    DecisionState.GOAL_NOT_REACHED: ("ran and did not help", "已执行，但没有效果"),
    DecisionState.DONE: ("was done, and the cause is still there", "已完成，但原因仍在"),
}


_WOULD_CHANGE: Mapping[str, Words] = {
    "max_concurrent": (
        "once one of these is done, or with a higher `actions.limits.max_concurrent`",
        "待其中之一完成，或调高 `actions.limits.max_concurrent` 后可开始",
    ),
    "max_share": (
        "once fewer are out of service, or with a higher `actions.limits.max_concurrent_ratio`",
        "待停用的 GPU 减少，或调高 `actions.limits.max_concurrent_ratio` 后可开始",
    ),
    "max_per_host": (
        "once that is done, or with a higher `actions.limits.max_per_host`",
        "待其完成，或调高 `actions.limits.max_per_host` 后可开始",
    ),
    "max_per_rack": (
        "once that is done, or with a higher `actions.limits.max_per_rack`",
        "待其完成，或调高 `actions.limits.max_per_rack` 后可开始",
    ),
    "capacity": (
        "once more GPUs of the pool serve, or with a lower `actions.limits.min_available_ratio`",
        "待资源池有更多 GPU 在役，或调低 `actions.limits.min_available_ratio` 后可开始",
    ),
}
"""When what a limit holds may start, by guard: a yes alone starts nothing."""


def obstacle_of(status: DecisionStatus, names: Names) -> tuple[Words, str]:
    """Why a decision that is wanted cannot run now, and the guard that holds it; both empty where it can.

    A guard may speak English alone: then the Chinese leaves it to the guard's name.
    """
    action, action_zh = action_words(status.decision.action)
    stopped = against(status.verdicts)
    if stopped and status.state in (DecisionState.HELD, DecisionState.APPROVED):
        reason, reason_zh = names.plain(stopped[0].reason or stopped[0].guard), names.plain(in_chinese(stopped[0].said))
        because = f"：{reason_zh.removesuffix('。')}。" if reason_zh else ""
        when, when_zh = _WOULD_CHANGE.get(stopped[0].guard, ("", ""))
        when, when_zh = f" It can start {when}." if when else "", f"{when_zh}。" if when_zh and reason_zh else ""
        said = (
            f"{action} cannot start now: {reason.removesuffix('.')}.{when}",
            f"{action_zh} 目前不能开始{because}{when_zh}",
        )
        return as_line(said), stopped[0].guard
    ended = _ENDED.get(status.state)
    if ended is None:
        return ("", ""), ""
    then, then_zh = ("", "") if status.outcome is None else (status.outcome.next_step, status.outcome.next_step_zh)
    told = status.state in (DecisionState.REJECTED, DecisionState.EXPIRED, DecisionState.FAILED)
    why, why_zh = (status.reason, status.reason_zh) if told else ("", "")
    words = "; ".join(names.plain(part).rstrip(".") for part in (why, then) if part)
    words_zh = "；".join(names.plain(part) for part in (why_zh, then_zh) if part)
    english = f"{action} {ended[0]}{f': {words}' if words else ''}."
    return as_line((english, f"{action_zh} {ended[1]}{f'：{words_zh}' if words_zh else ''}。")), ""


def left_over(incident: Incident, names: Names, now_ms: int) -> Words:
    """What a card says where the cause has ended, and nothing is done about what still holds of it."""
    holding = [one for one in incident.members if one.id not in incident.cleared]
    ended = clock(incident.root.last_ms, now_ms)
    if not holding:
        return f"Its cause ended at {ended}.", f"原因已于 {ended} 消失。"
    worst = max(holding, key=lambda one: (one.alert_level.rank, one.severity.rank, -one.started_ms))
    left, left_zh = names.plain(worst.sentence), names.plain(worst.sentence_zh)
    return f"Its cause ended at {ended}; what is left: {left}", f"原因已于 {ended} 消失；仍存在：{left_zh}"


def no_action(trouble: CardCause) -> Words:
    """Why a cause has no action at all."""
    if trouble.symptom is Symptom.FORECAST:
        # Of what is forecast alone: something else may have failed there.
        return "It has not happened yet: watch only.", "尚未发生：仅观察。"
    unknown = ("No action is known for this: a person should look.", "没有已知的动作：请人工检查。")
    return _NOBODY_ACTS.get(trouble.symptom, unknown)
