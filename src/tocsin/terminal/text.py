"""Numbers, spans and sentences as they stand in a terminal. No state is told by colour alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tocsin.client.models import GpuState, GpuSummary
from tocsin.domain.clock import SECOND, from_iso
from tocsin.domain.decision import Ruling
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.metrics import METRICS

NOTHING = "-"
SYMBOLS = {
    GpuState.OK: "●",
    GpuState.STALE: "?",
    GpuState.WARNING: "▲",
    GpuState.CRITICAL: "◆",
    GpuState.LOST: "✕",
}
FORECAST = "↗"
RULINGS = {Ruling.ALLOW: "✓", Ruling.HOLD: "Ⅱ", Ruling.DENY: "✕"}
_BLOCKS = " ▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_UUID = re.compile(r"\b((?:GPU|MIG)-[0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MILLISECONDS = re.compile(r"(?<=T\d\d:\d\d:\d\d)\.\d{3}(?=Z)")
_METRIC = re.compile(r"\bgpu_[a-z0-9_]+\b")
_UNITS = {"bytes", "celsius", "hertz", "joules", "per", "ratio", "second", "seconds", "total", "watts"}
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86_400.0


def percent(ratio: float | None) -> str:
    """`ratio` as a whole percentage."""
    return NOTHING if ratio is None else f"{100 * ratio:.0f} %"


def chance(probability: float) -> str:
    """A probability that never claims certainty."""
    return "> 99 %" if probability > 0.99 else "< 1 %" if probability < 0.01 else percent(probability)


def degrees(celsius: float | None) -> str:
    """A temperature."""
    return NOTHING if celsius is None else f"{celsius:.0f} °C"


def watts(value: float | None) -> str:
    """A power, in kW from 10,000 W on."""
    if value is None:
        return NOTHING
    return f"{value / 1000:,.1f} kW" if value >= 10_000 else f"{value:.0f} W"


def span(seconds: float) -> str:
    """A time span by its largest unit: ``8 s``, ``12 min``, ``2.6 h``, ``3.1 d``."""
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 2 * _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    return f"{seconds / _HOUR:.1f} h" if seconds < 2 * _DAY else f"{seconds / _DAY:.1f} d"


def lead_seconds(now: str, eta: str | None) -> float | None:
    """Seconds from `now` until `eta`, both RFC 3339; 0 where that has passed, None where there is none."""
    return None if eta is None else max(0.0, (from_iso(eta) - from_iso(now)) / SECOND)


def lead(now: str, eta: str | None, low: str | None = None, high: str | None = None) -> str:
    """When a crossing is expected, with its interval: ``in 2.6 h (1.5 h to 4.4 h)``; empty where none is."""
    seconds = lead_seconds(now, eta)
    if seconds is None:
        return ""
    text = f"in {span(seconds)}"
    early, late = lead_seconds(now, low), lead_seconds(now, high)
    if early is None:
        return text
    return f"{text} ({span(early)} to {span(late)})" if late is not None else f"{text} (not before {span(early)})"


def label(gpu: GpuSummary) -> str:
    """Where a GPU sits: host and index, or the end of its UUID where that is unknown."""
    place = f"GPU {gpu.index}" if gpu.index is not None else gpu.uuid[-8:]
    return f"{gpu.host} {place}{f' {gpu.mig_profile}' if gpu.mig_profile else ''}"


def subject_label(subject: Subject, labels: dict[str, str]) -> str:
    """What a subject is called; `labels` are those of the GPUs by UUID."""
    if subject.kind is SubjectKind.GPU:
        return labels.get(subject.name, subject.name)
    return subject.kind.value if subject.kind is SubjectKind.FLEET else f"{subject.kind.value} {subject.name}"


def whole_seconds(sentence: str) -> str:
    """`sentence` with its instants as people read them."""
    return _MILLISECONDS.sub("", sentence)


def plain(sentence: str, name: str = "") -> str:
    """`sentence` in one line, UUIDs cut to eight digits, metrics in words, without the `name` of its subject at its
    start.
    """
    sentence = _UUID.sub(r"\1…", whole_seconds(" ".join(sentence.split())))
    sentence = _METRIC.sub(lambda found: _worded(found[0]), sentence)
    for prefix in (f"{name}: ", f"{name} "):
        if name and sentence.startswith(prefix):
            rest = sentence.removeprefix(prefix)
            return rest[:1].upper() + rest[1:]
    return sentence


def _worded(metric: str) -> str:
    """`metric` without its prefix and its unit; another word as it is."""
    if metric not in METRICS:
        return metric
    parts = metric.split("_")[1:]
    while len(parts) > 1 and parts[-1] in _UNITS:
        parts.pop()
    return " ".join(parts)


def bar(ratio: float | None, width: int) -> str:
    """`ratio` as a bar of `width` cells, an eighth of a cell fine."""
    if ratio is None:
        return " " * width
    whole, rest = divmod(round(min(1.0, max(0.0, ratio)) * width * 8), 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(width)


def sparkline(values: Sequence[float | None], width: int, low: float = 0.0, high: float = 1.0) -> str:
    """The last `width` values as one line of blocks, on a scale from `low` to `high`; a space where there is none.

    The highest leaves an eighth of the line free: those of one line and the next would run together.
    """
    top = low + (high - low) * 8.0 / 7.0
    return chart(list(values)[-width:], 1, low, top)[0].rjust(width) if width > 0 else ""


def chart(values: Sequence[float | None], height: int, low: float, high: float) -> list[str]:
    """`values` as blocks, a column each, in `height` lines from the top; a value is a sliver at least."""
    scale = (high - low) or 1.0
    levels = [None if v is None else max(1, round(min(1.0, max(0.0, (v - low) / scale)) * height * 8)) for v in values]
    return [
        "".join(" " if level is None else _BLOCKS[min(8, max(0, level - 8 * line))] for level in levels)
        for line in reversed(range(height))
    ]


def spread(values: Sequence[float | None], width: int) -> list[float | None]:
    """`values` over `width` columns: the greatest of each where there are more, repeated where there are fewer."""
    if not values:
        return []
    columns: list[float | None] = []
    for column in range(width):
        first = column * len(values) // width
        last = max(first + 1, (column + 1) * len(values) // width)
        present = [value for value in values[first:last] if value is not None]
        columns.append(max(present) if present else None)
    return columns


def fit(text: str, width: int) -> str:
    """`text` cut to `width` characters, the cut marked."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
