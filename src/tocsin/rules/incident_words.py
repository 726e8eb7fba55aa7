"""What an incident says, in English and Chinese."""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.domain.clock import to_minute
from tocsin.domain.finding import Finding
from tocsin.domain.place import Place, PlaceKind
from tocsin.rules.cause_groups import CauseGroup
from tocsin.rules.symptoms import Symptom, code_of
from tocsin.rules.units import show_duration

Words = tuple[str, str]
"""The same in English and in Chinese, which is empty where a part of it has none."""

_LOOK_AT: dict[tuple[Symptom, PlaceKind], Words] = {
    (Symptom.HEAT, PlaceKind.HOST): ("its air flow: fans, filters, inlet temperature", "风道：风扇、滤网、进风温度"),
    (Symptom.HEAT, PlaceKind.CHASSIS): (
        "its cooling: fans, coolant, inlet temperature",
        "散热：风扇、冷却液、进口温度",
    ),
    (Symptom.HEAT, PlaceKind.RACK): (
        "its cooling: coolant or air supply, inlet temperature",
        "散热：冷却液或送风、进口温度",
    ),
    (Symptom.HEAT, PlaceKind.COOLING_ZONE): (
        "its cooling: air handler or coolant distribution unit",
        "散热：空调箱或冷却液分配单元",
    ),
    (Symptom.POWER, PlaceKind.HOST): ("its power supplies and cables", "电源与线缆"),
    (Symptom.POWER, PlaceKind.CHASSIS): ("its power shelf", "电源框"),
    (Symptom.POWER, PlaceKind.RACK): ("its power feed and power shelves", "供电回路与电源框"),
    (Symptom.POWER, PlaceKind.POWER_ZONE): (
        "its feed: breaker, busbar or distribution unit",
        "供电：断路器、母线或配电单元",
    ),
    (Symptom.BUS, PlaceKind.HOST): ("its PCIe switches, risers and power supplies", "PCIe 交换芯片、转接卡与电源"),
    (Symptom.BUS, PlaceKind.CHASSIS): ("its power shelf", "电源框"),
    (Symptom.BUS, PlaceKind.RACK): ("its power", "供电"),
    (Symptom.BUS, PlaceKind.POWER_ZONE): (
        "its feed: breaker, busbar or distribution unit",
        "供电：断路器、母线或配电单元",
    ),
    (Symptom.DARK, PlaceKind.HOST): ("whether it is up, its network link and its agent", "是否运行、网络链路与 agent"),
    (Symptom.DARK, PlaceKind.CHASSIS): ("its power shelf and its network link", "电源框与网络链路"),
    (Symptom.DARK, PlaceKind.RACK): ("its power or its network switch", "供电或网络交换机"),
    (Symptom.DARK, PlaceKind.SWITCH): ("the switch and its uplinks", "交换机及其上行链路"),
    (Symptom.DARK, PlaceKind.POWER_ZONE): (
        "its feed: breaker, busbar or distribution unit",
        "供电：断路器、母线或配电单元",
    ),
    (Symptom.NETWORK, PlaceKind.GPU): (
        "its network port: cable, transceiver, switch port",
        "其网络端口：线缆、光模块、交换机端口",
    ),
    (Symptom.NETWORK, PlaceKind.HOST): ("its network cards and their cables", "网卡及其线缆"),
    (Symptom.NETWORK, PlaceKind.RAIL): ("the switch of this rail and its uplinks", "该轨道的交换机及其上行链路"),
    (Symptom.NETWORK, PlaceKind.SWITCH): ("the switch and its uplinks", "交换机及其上行链路"),
    (Symptom.STALE, PlaceKind.HOST): ("its driver, exporter and agent", "驱动、exporter 与 agent"),
    (Symptom.NVLINK, PlaceKind.GPU): ("its NVLinks: cable, connector or port", "NVLink：线缆、接头或端口"),
    (Symptom.NVLINK, PlaceKind.LINK): (
        "the link: cable, connector and ports at both ends",
        "该链路：线缆、接头与两端端口",
    ),
    (Symptom.NVLINK, PlaceKind.HOST): ("its NVSwitches and the fabric manager", "NVSwitch 与 fabric manager"),
    (Symptom.NVLINK, PlaceKind.NVLINK_DOMAIN): ("its NVSwitches and the fabric manager", "NVSwitch 与 fabric manager"),
    (Symptom.NVLINK_SIDE, PlaceKind.HOST): ("its NVLinks and NVSwitches", "NVLink 与 NVSwitch"),
    (Symptom.NVLINK_SIDE, PlaceKind.NVLINK_DOMAIN): ("its NVLinks and NVSwitches", "NVLink 与 NVSwitch"),
    (Symptom.NVLINK_ECHO, PlaceKind.HOST): (
        "its NVLinks and NVSwitches; no GPU reported the failed end",
        "NVLink 与 NVSwitch；没有 GPU 报告故障端",
    ),
    (Symptom.NVLINK_ECHO, PlaceKind.NVLINK_DOMAIN): (
        "its NVLinks and NVSwitches; no GPU reported the failed end",
        "NVLink 与 NVSwitch；没有 GPU 报告故障端",
    ),
    (Symptom.SWITCH, PlaceKind.HOST): ("its NVSwitches and the fabric manager", "NVSwitch 与 fabric manager"),
    (Symptom.FIRMWARE, PlaceKind.HOST): ("its driver and GPU firmware", "驱动与 GPU 固件"),
    (Symptom.HANG, PlaceKind.HOST): ("its driver, and the program that ran there", "驱动，以及当时运行的程序"),
    (Symptom.HANG, PlaceKind.JOB): ("the job's program and its slowest rank", "该作业的程序及其最慢的 rank"),
    (Symptom.PROGRAM, PlaceKind.HOST): ("the program that ran there", "当时运行的程序"),
    (Symptom.PROGRAM, PlaceKind.JOB): ("the job's program", "该作业的程序"),
    (Symptom.CLEANUP, PlaceKind.HOST): (
        "the programs that ended there, and the fabric manager",
        "在那里结束的程序，以及 fabric manager",
    ),
    (Symptom.MEMORY, PlaceKind.HOST): (
        "its power and temperature: memory of several GPUs seldom fails at once",
        "供电与温度：多块 GPU 的显存很少同时损坏",
    ),
}
"""What to look at, by the kind of symptom and of place."""


_PLACES_ZH: dict[PlaceKind, str] = {
    PlaceKind.GPU: "该 GPU",
    PlaceKind.LINK: "链路",
    PlaceKind.HOST: "主机",
    PlaceKind.CHASSIS: "机箱",
    PlaceKind.RACK: "机架",
    PlaceKind.POWER_ZONE: "供电区",
    PlaceKind.COOLING_ZONE: "制冷区",
    PlaceKind.NVLINK_DOMAIN: "NVLink 域",
    PlaceKind.SWITCH: "交换机",
    PlaceKind.RAIL: "轨道",
    PlaceKind.JOB: "作业",
    PlaceKind.POOL: "资源池",
}


def burst(root: Finding, members: Sequence[Finding], group: CauseGroup, shown: int) -> Words:
    """`members`, the oldest first, as what `root` explains; `shown` is how many show the cause itself."""
    if len(members) == 1:
        return root.sentence, root.sentence_zh
    hosts = len({finding.subject.host for finding in members if finding.subject.host})
    starts = [finding.started_ms for finding in members]
    others = sorted({f"XID {code}" for finding in members if (code := code_of(finding)) not in (None, code_of(root))})
    also = f", also {', '.join(others)}" if others else ""
    span = show_duration(max(starts) - min(starts))
    on, on_zh = (f" on {hosts} host{'s' if hosts != 1 else ''}", f" {hosts} 台主机上的") if hosts else ("", "")
    explained = f"It explains {len(members)} findings{on} within {span}{also}."
    also_zh = f"，另有 {'、'.join(others)}" if others else ""
    explained_zh = f"它解释了 {span} 内{on_zh} {len(members)} 个发现{also_zh}。"
    head, head_zh = _together(group, len(group.gpus) or shown) if shown > 1 else ("", "")
    tail, tail_zh = _look_at(group)
    chinese = f"{head_zh}{root.sentence_zh}{explained_zh}{tail_zh}" if root.sentence_zh else ""
    return f"{head}{root.sentence} {explained}{tail}", chinese


def _together(group: CauseGroup, gpus: int) -> Words:
    """That several GPUs of one place show the same."""
    if group.place.kind is PlaceKind.GPU:
        return "", ""
    place, place_zh = _named(group.place)
    return f"{place}: {gpus} GPUs show the same. First: ", f"{place_zh}：{gpus} 块 GPU 现象相同。最先："


def _look_at(group: CauseGroup) -> Words:
    look, look_zh = _LOOK_AT.get((group.kind, group.place.kind), ("", ""))
    if not look:
        return "", ""
    if group.place.kind is PlaceKind.GPU:
        return f" Look at this GPU: {look}.", f"请检查该 GPU：{look_zh}。"
    place, place_zh = _named(group.place, start=False)
    return f" Look at {place}: {look}.", f"请检查{place_zh}：{look_zh}。"


def standing(holding: Sequence[Finding], place: Place) -> Words:
    """What `holding`, the oldest first, say of `place`: load, memory in use or fragmentation."""
    oldest = holding[0]
    if len(holding) == 1:
        return oldest.sentence, oldest.sentence_zh
    hosts = len({finding.subject.host for finding in holding})
    where, where_zh = _named(place) if place.name else ("Without a pool", "无资源池")
    of = f"{len(holding)} GPUs of {hosts} host{'s' if hosts != 1 else ''}"
    chinese = f"{where_zh}：{hosts} 台主机的 {len(holding)} 块 GPU 现象相同。最久：{oldest.sentence_zh}"
    return f"{where}: {of} show the same. Longest: {oldest.sentence}", chinese if oldest.sentence_zh else ""


def again(hot: Sequence[Finding], group: CauseGroup, since_ms: int) -> Words:
    """That heat which came and went is there again: `hot` are its findings that hold, the oldest first."""
    first = hot[0]
    gpus = len({finding.subject.key for finding in hot})
    head, head_zh = _together(group, gpus) if gpus > 1 else ("", "")
    tail, tail_zh = _look_at(group)
    since = to_minute(since_ms)
    chinese = f"{head_zh}{first.sentence_zh}自 {since} 起时有时无。{tail_zh}" if first.sentence_zh else ""
    return f"{head}{first.sentence} It has come and gone since {since}.{tail}", chinese


def over(left: int) -> Words:
    """That the cause has cleared, and `left` of what it explains have not."""
    english = f" It has cleared; {left} of what it explains {'has' if left == 1 else 'have'} not."
    return english, f"原因已消失；它解释的发现中还有 {left} 个未消失。"


def _named(place: Place, *, start: bool = True) -> Words:
    words = place.kind.replace("_", " ").replace("nvlink", "NVLink")
    words = words[:1].upper() + words[1:] if start else words
    return f"{words} {place.name}", f"{_PLACES_ZH[place.kind]} {place.name}"
