"""One plain sentence for a risk, in English and Chinese."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tocsin.domain.clock import HOUR
from tocsin.forecaster.live.cases import Likeness
from tocsin.forecaster.live.reasons import Reason
from tocsin.forecaster.live.words import CLASSES, channel_words

_LOGGED = ("level", "rate", "1h", "6h", "24h", "3d", "7d", "30d", "hours", "count")
_COUNTED = frozenset(
    {
        "ecc_corrected", "ecc_uncorrected", "retired_pages", "remap_correctable", "remap_uncorrectable", "pcie_replay",
        "pcie_errors", "nvlink_crc", "nvlink_replay", "nvlink_recovery", "nvlink_symbol", "hardware_events",
        "other_events",
    }
)  # fmt: skip
"""Channels whose growth a person counts; it stands as log(1 + growth) in the features."""


def why(reason: Reason) -> tuple[str, str]:
    """What stands out, in words, with the number where a person would count it."""
    english, chinese = channel_words(reason.group)
    window = reason.feature.rpartition(".")[2]
    if reason.group in _COUNTED and window in _LOGGED and np.isfinite(reason.value):
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
    horizon_ms: int,
    reasons: Sequence[Reason],
    like: Likeness | None,
    classes: Sequence[tuple[str, float]] = (),
) -> tuple[str, str]:
    """A warning with its reasons and what such situations came to; `classes` split the probability by class of fault,
    the likeliest first."""
    hours = horizon_ms / HOUR
    english = f"{where}: a hardware fault within {hours:.0f} h has a probability of {_share(chance)}"
    chinese = f"{where}：{hours:.0f} 小时内发生硬件故障的概率为 {_share(chance)}"
    if classes:
        name, share = classes[0]
        kind, kind_zh = CLASSES.get(name, CLASSES["other"])
        english += f", most likely of {kind} ({_share(share)})"
        chinese += f"，最可能是{kind_zh}故障（{_share(share)}）"
    if reasons:
        words = [why(one) for one in reasons]
        english += ", because of " + "; ".join(one for one, _ in words)
        chinese += "，原因：" + "；".join(one for _, one in words)
    if like is not None and like.of:
        english += f"; {like.faults} of {like.of} similar past situations ended in a fault"
        chinese += f"；相似的 {like.of} 个历史情形中有 {like.faults} 个随后发生故障"
    return english + ".", chinese + "。"


def unlikely_sentence(where: str, chance: float, horizon_ms: int) -> tuple[str, str]:
    """Nothing to warn of."""
    hours = horizon_ms / HOUR
    return (
        f"{where}: a hardware fault within {hours:.0f} h is unlikely (probability {_share(chance)}).",
        f"{where}：{hours:.0f} 小时内发生硬件故障的可能性很低（概率 {_share(chance)}）。",
    )
