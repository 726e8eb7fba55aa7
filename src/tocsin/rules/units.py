"""Durations and values as people write and read them."""

from __future__ import annotations

import math
import re

from tocsin.domain.clock import DAY, HOUR, MINUTE, SECOND

_UNITS = {"ms": 1, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")

_SHOWN = {
    "ratio": (100, "{:.3g} %"),
    "celsius": (1, "{:.3g} °C"),
    "watts": (1, "{:.4g} W"),
    "hertz": (1e-6, "{:.4g} MHz"),
    "seconds": (1, "{:.3g} s"),
}
"""What a value of a unit is multiplied by for reading, and how it is written then."""
_BARE = frozenset({"", "bool", "action", "state", "xid", "bits", "p-state", "events"})
_ACTION, _ACTION_ZH = (
    ("none", "GPU reset", "node reboot", "drain P2P", "drain and reset", "recover IMEX domain", "bus reset",
     "system reboot"),
    ("无", "重置 GPU", "重启节点", "排空 P2P", "排空并重置", "恢复 IMEX 域", "总线重置", "重启系统"),
)  # fmt: skip
"""What the driver asks for by number, 0 first (nvml.h, NVML_GPU_RECOVERY_ACTION_*)."""
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def parse_duration(value: object) -> int:
    """Milliseconds of a text such as ``90s``, ``15m``, ``24h``, ``7d`` or ``1h30m``.

    Raises ValueError where `value` is anything else; a bare number says no unit and is refused.
    """
    if isinstance(value, str) and _DURATION.fullmatch(value):
        return round(sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value)))
    raise ValueError("is no duration; write it with a unit, such as '90s', '15m', '24h' or '7d'")


def show_duration(milliseconds: float) -> str:
    """`milliseconds` in the one or two largest units, for example ``15 min`` or ``2 h 5 min``."""
    seconds = round(milliseconds / SECOND)
    if seconds < 60:
        return f"{seconds} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(round(milliseconds / HOUR), 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def show_value(value: float | None, unit: str) -> str:
    """`value` with `unit` as the metric table names it, scaled for reading; ``unknown`` for None and NaN."""
    if value is None or math.isnan(value):
        return "unknown"
    if unit == "bytes":
        return _show_bytes(value)
    if unit in _SHOWN:
        factor, form = _SHOWN[unit]
        return form.format(value * factor)
    return f"{value:.6g}" if unit in _BARE else f"{value:.6g} {unit}"


def named_value(value: float | None, unit: str) -> tuple[str, str]:
    """`show_value` as a finding tells it, in English and Chinese: what the driver asks for has a name as well."""
    shown = show_value(value, unit)
    if unit == "action" and value is not None and value in range(len(_ACTION)):
        return f"{shown} ({_ACTION[int(value)]})", f"{shown}（{_ACTION_ZH[int(value)]}）"
    return shown, ""


def _show_bytes(value: float) -> str:
    power = 0
    while abs(value) >= 1024 and power < len(_BYTES) - 1:
        value /= 1024
        power += 1
    return f"{value:.3g} {_BYTES[power]}"
