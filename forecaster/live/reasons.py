"""Why a row scores as it does: what the score loses when one thing looked as it does on the rest of the fleet.

Occlusion by groups of features (Zeiler and Fergus 2014), with the fleet's median at the same instant in place of the
row's own values: it works for every scorer, and compares a GPU with its peers by the way. Differences are in log-odds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tocsin.domain.clock import HOUR, to_minute
from tocsin.forecaster.features.examples import Examples, Floats, HeldSequences, Ints, Singles
from tocsin.forecaster.hazard.scorer import Scorer
from tocsin.forecaster.live.mended import COUNTED

LEAST = 0.1
"""Log-odds below which a reason is none."""
_FLOOR = 1e-9
UNLIKELY = 0.1
"""Probability from which on nothing is called unlikely, be it too little for a warning (own choice)."""


@dataclass(frozen=True, slots=True)
class Reason:
    """`group` adds `weight` to the log-odds of the row; `feature` is the one of the group that stands out most, with
    its `value` and the fleet's median `usual` (NaN where unknown)."""

    group: str
    weight: float
    feature: str
    value: float
    usual: float


def group_of(feature: str) -> str:
    """The channel, or the family, that a feature belongs to: ``pcie_replay.24h`` to ``pcie_replay``."""
    return feature.partition(".")[0]


def reasons(scorer: Scorer, fleet: Examples, rows: Ints, most: int = 3) -> list[list[Reason]]:
    """The strongest reasons for the score at the longest horizon of each of `rows` of `fleet`, strongest first."""
    if not rows.size:
        return []
    groups: dict[str, list[int]] = {}
    for column, name in enumerate(fleet.names):
        groups.setdefault(group_of(name), []).append(column)
    usual = _medians(fleet.features)
    base = _log_odds(scorer.score(fleet.take(rows))[:, -1])
    columns = list(groups.items())
    lost = np.empty((len(columns), rows.size))
    shown, typical = _sequences(fleet, rows)
    for place, (group, members) in enumerate(columns):
        lost[place] = base - _log_odds(
            scorer.score(_without(fleet, rows, group, members, usual, shown, typical))[:, -1]
        )
    spread = _spreads(fleet.features)
    return [
        _strongest(fleet, int(row), lost[:, place], columns, usual, spread, most)
        for place, row in enumerate(rows.tolist())
    ]


def _without(
    fleet: Examples,
    rows: Ints,
    group: str,
    members: Sequence[int],
    usual: Singles,
    shown: Singles | None,
    typical: Singles | None,
) -> Examples:
    chosen = fleet.take(rows)
    features = chosen.features.copy()
    features[:, members] = usual[list(members)]
    sequences = chosen.sequences
    if shown is not None and typical is not None and fleet.sequences is not None:
        channels = fleet.sequences.channels
        if group in channels:
            shown = shown.copy()
            shown[:, :, channels.index(group)] = typical[:, channels.index(group)]
        sequences = HeldSequences(channels, shown)
    return replace(chosen, features=features, sequences=sequences)


def _sequences(fleet: Examples, rows: Ints) -> tuple[Singles | None, Singles | None]:
    if fleet.sequences is None:
        return None, None
    # A few hundred GPUs give the median course of a fleet of thousands.
    some = np.unique(np.linspace(0, len(fleet) - 1, min(len(fleet), 512)).astype(np.int64))
    return fleet.sequences.take(rows), _medians(fleet.sequences.take(some))


def _medians(values: Singles) -> Singles:
    return np.asarray(_quantiles(values, (0.5,))[0], dtype=np.float32)


def _spreads(values: Singles) -> Floats:
    low, high = _quantiles(values, (0.05, 0.95))
    spread = high - low
    return np.where(np.isfinite(spread) & (spread > 0), spread, 1.0)


def _quantiles(values: Singles, levels: Sequence[float]) -> list[Floats]:
    """`numpy.nanquantile` over the first axis for each of `levels`, NaN where nothing is known: sorted once, where that
    goes through a table column by column."""
    ordered = np.sort(values.astype(np.float64), axis=0)
    last = np.maximum(np.isfinite(ordered).sum(axis=0) - 1, 0)
    found = []
    for level in levels:
        place = level * last
        below = np.floor(place).astype(np.int64)
        low, high = (np.take_along_axis(ordered, one[None], axis=0)[0] for one in (below, np.minimum(below + 1, last)))
        found.append(low + (high - low) * (place - below))
    return found


def _log_odds(probability: Floats) -> Floats:
    p = np.clip(probability, _FLOOR, 1 - _FLOOR)
    return np.asarray(np.log(p) - np.log1p(-p))


def _strongest(
    fleet: Examples,
    row: int,
    lost: Floats,
    columns: Sequence[tuple[str, list[int]]],
    usual: Singles,
    spread: Floats,
    most: int,
) -> list[Reason]:
    found = []
    for place in np.argsort(-np.nan_to_num(lost, nan=0.0), kind="stable")[:most].tolist():
        if not lost[place] >= LEAST:
            break
        group, members = columns[place]
        values = fleet.features[row, members].astype(np.float64)
        away = np.abs(np.nan_to_num(values - usual[members])) / spread[members]
        out = members[int(away.argmax())]
        found.append(
            Reason(group, float(lost[place]), fleet.names[out], float(fleet.features[row, out]), float(usual[out]))
        )
    return found


# One plain sentence for a risk, in English and Chinese.

_LOGGED = ("level", "rate", "1h", "6h", "24h", "3d", "7d", "30d", "hours", "count")


def why(reason: Reason) -> tuple[str, str]:
    """What stands out, in words, with the number where a person would count it."""
    english, chinese = channel_words(reason.group)
    window = reason.feature.rpartition(".")[2]
    if reason.group in COUNTED and window in _LOGGED and np.isfinite(reason.value):
        value, usual = np.expm1(reason.value), np.expm1(reason.usual)
        if window in ("level", "rate"):
            over, over_zh = (" so far", "累计") if window == "level" else (" an hour", "每小时")
        else:
            over, over_zh = f" in {window}", f"{window} 内"
        known = f" (usual {_count(usual)})" if np.isfinite(usual) else ""
        known_zh = f"（通常 {_count(usual)}）" if np.isfinite(usual) else ""
        return f"{_count(value)} {english}{over}{known}", f"{over_zh} {_count(value)} 次{chinese}{known_zh}"
    return english, chinese


def _count(value: float) -> str:
    """Whole numbers, but a rate below ten with a decimal where it has one."""
    return f"{value:,.1f}" if value < 10 and abs(value - round(value)) >= 0.05 else f"{value:,.0f}"


_SURE = 0.995
"""From here on rounding would say 100 %, which no model can know."""


def _share(chance: float) -> str:
    if chance >= _SURE:
        return "> 99%"
    return f"{chance:.0%}" if chance >= 0.1 else f"{chance:.2%}"


def likely_sentence(
    where: str,
    chance: float,
    at_ms: int,
    horizon_ms: int,
    reasons: Sequence[Reason],
    classes: Sequence[tuple[str, float]] = (),
) -> tuple[str, str]:
    """A warning with its reasons, and of when it is: a decision keeps it, and the next look says another probability.

    `classes` split the probability by class of fault, the likeliest first.
    """
    hours, at = horizon_ms / HOUR, to_minute(at_ms)
    english = f"{where}: a hardware fault within {hours:.0f} h of {at} has a probability of {_share(chance)}"
    chinese = f"{where}：自 {at} 起 {hours:.0f} 小时内发生硬件故障的概率为 {_share(chance)}"
    if classes:
        name, share = classes[0]
        kind, kind_zh = CLASSES.get(name, CLASSES["other"])
        english += f", most likely of {kind} ({_share(share)})"
        chinese += f"，最可能是{kind_zh}故障（{_share(share)}）"
    if reasons:
        words = [why(one) for one in reasons]
        english += ", because of " + "; ".join(one for one, _ in words)
        chinese += "，原因：" + "；".join(one for _, one in words)
    return english + ".", chinese + "。"


def unlikely_sentence(where: str, chance: float, at_ms: int, horizon_ms: int) -> tuple[str, str]:
    """Nothing to warn of."""
    hours, at = horizon_ms / HOUR, to_minute(at_ms)
    return (
        f"{where}: a hardware fault within {hours:.0f} h of {at} is unlikely (probability {_share(chance)}).",
        f"{where}：自 {at} 起 {hours:.0f} 小时内发生硬件故障的可能性很低（概率 {_share(chance)}）。",
    )


def unwarned_sentence(where: str, chance: float, at_ms: int, horizon_ms: int) -> tuple[str, str]:
    """Of what is too likely to be called unlikely, and not warned of."""
    english, chinese = likely_sentence(where, chance, at_ms, horizon_ms, ())
    return english.rstrip(".") + ", no warning yet.", chinese.rstrip("。") + "，尚不告警。"


def since_repair(sentences: tuple[str, str], repaired_ms: int) -> tuple[str, str]:
    """`sentences` of a GPU whose signs were mended, with what does not count any more."""
    english, chinese = sentences
    at = to_minute(repaired_ms)
    return (
        f"{english.rstrip('.')}; what it showed before its repair at {at} no longer counts.",
        f"{chinese.rstrip('。')}；{at} 修复之前的迹象不再计入。",
    )


# What channels and fault classes are called, in English and Chinese.

CHANNELS: dict[str, tuple[str, str]] = {
    "ecc_corrected": ("corrected ECC errors", "可纠正 ECC 错误"),
    "ecc_uncorrected": ("uncorrectable ECC errors", "不可纠正 ECC 错误"),
    "retired_pages": ("retired pages", "退役页"),
    "remap_correctable": ("row remaps after corrected errors", "可纠正错误引起的行重映射"),
    "remap_uncorrectable": ("row remaps after uncorrectable errors", "不可纠正错误引起的行重映射"),
    "pcie_replay": ("PCIe replays", "PCIe 重放"),
    "pcie_errors": ("PCIe errors", "PCIe 错误"),
    "nvlink_crc": ("NVLink CRC errors", "NVLink CRC 错误"),
    "nvlink_replay": ("NVLink replays", "NVLink 重放"),
    "nvlink_recovery": ("NVLink recoveries", "NVLink 恢复"),
    "nvlink_symbol": ("NVLink symbol errors", "NVLink 符号错误"),
    "thermal_slowdown": ("thermal slowdown", "过热降频"),
    "power_brake": ("power brake", "功率制动"),
    "power_cap": ("power cap", "功率封顶"),
    "energy": ("energy used", "能耗"),
    "pcie_bytes": ("PCIe traffic", "PCIe 流量"),
    "nvlink_bytes": ("NVLink traffic", "NVLink 流量"),
    "temperature": ("temperature", "温度"),
    "memory_temperature": ("memory temperature", "显存温度"),
    "thermal_margin": ("thermal margin", "热余量"),
    "power": ("power", "功率"),
    "power_limit": ("power limit", "功率上限"),
    "sm_clock": ("SM clock", "SM 时钟"),
    "memory_clock": ("memory clock", "显存时钟"),
    "utilization": ("utilisation", "利用率"),
    "sm_active": ("SM activity", "SM 活动"),
    "tensor_active": ("tensor activity", "张量核活动"),
    "dram_active": ("memory activity", "显存活动"),
    "memory_used": ("memory use", "显存占用"),
    "processes": ("processes", "进程数"),
    "fan_speed": ("fan speed", "风扇转速"),
    "fragmentation": ("memory fragmentation", "显存碎片"),
    "row_remap_pending": ("a pending row remap", "待生效的行重映射"),
    "memory_failure": ("a failed row remap", "行重映射失败"),
    "ecc_threshold": ("the SRAM error threshold", "SRAM 错误阈值"),
    "banks_worn": ("worn memory banks", "磨损的显存 bank"),
    "repair_pending": ("a pending repair", "待完成的修复"),
    "recovery_action": ("the driver's recovery verdict", "驱动的恢复建议"),
    "pcie_lanes_lost": ("lost PCIe lanes", "丢失的 PCIe 通道"),
    "pcie_speed_lost": ("lost PCIe speed", "降低的 PCIe 速率"),
    "links_down": ("NVLinks that are down", "断开的 NVLink"),
    "fabric_unhealthy": ("the NVLink fabric's health", "NVLink 网络健康"),
    "driver_latency": ("slow answers of the driver", "驱动响应缓慢"),
    "hardware_events": ("faults so far", "已发生的硬件故障"),
    "other_events": ("warnings and programs' XIDs", "告警与程序 XID"),
    "reported": ("gaps in its telemetry", "遥测缺口"),
    "frozen": ("frozen telemetry", "冻结的遥测"),
    "event": ("its XID history", "XID 历史"),
    "burst": ("a burst of faults around it", "周边故障突发"),
    "family": ("lost metric families", "消失的指标族"),
    "thermal": ("its thermal resistance", "热阻"),
    "others": ("faults of GPUs around it", "周边 GPU 的故障"),
    "silent_hours": ("silence", "无数据"),
    "flat_hours": ("values that stand still", "数值不变"),
    "lost": ("that it is lost", "GPU 丢失"),
    "back_hours": ("a return not long ago", "不久前恢复"),
    "backs": ("how often it came back", "多次恢复"),
    "age_days": ("its age", "使用时长"),
    "slot": ("its slot", "槽位"),
}
"""Channels of a plan, and families of features without one; in both languages."""

CLASSES = {
    "memory": ("memory", "显存"),
    "bus": ("PCIe bus", " PCIe 总线"),
    "nvlink": ("NVLink", " NVLink "),
    "firmware": ("firmware", "固件"),
    "thermal": ("cooling", "散热"),
    "power": ("power", "供电"),
    "other": ("another part", "其他部件"),
}


def channel_words(name: str) -> tuple[str, str]:
    """Words for a channel or family of features; its own name where there are none."""
    return CHANNELS.get(name, (name.replace("_", " "), name))
