"""Every word that the dashboard says itself, in English and Chinese.

What the brain says (findings, predictions, guards, plans, executions) is shown as it comes: in Chinese where the brain
has that, else in English.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from importlib import resources

from tocsin.client.models import DecisionOut, GpuSummary
from tocsin.domain.clock import SECOND, from_iso
from tocsin.domain.finding import ActionKind, Subject, SubjectKind
from tocsin.domain.metrics import METRICS, spec_of, split_variant

# Numbers and instants as people read them.

NOTHING = "–"
_UUID = re.compile(r"\b((?:GPU|MIG)-[0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_INSTANT = re.compile(r"\b(\d{4}-\d{2}-\d{2})T(\d{2}:\d{2}):\d{2}(?:\.\d+)?Z")
_METRIC = re.compile(r"\b[a-z]+_[a-z0-9_]+\b")
_GPU_TWICE = re.compile(r"GPU-[0-9a-f]{8}… on (\S+): \1 GPU (\d+)\b")
_TWICE = re.compile(r"\b((?:pool|host) \S+): \1\b")
_UNIT_SUFFIX = re.compile(r"_(?:celsius|ratio|watts|bytes_per_second|bytes|hertz|joules_total|seconds_total)$")
_BOUGHT = "celsius_bought_per_watt"
_CHANGE = "_change"
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SYMBOLS = {"celsius": "°C", "watts": "W", "hertz": "Hz", "bytes": "B", "bytes/s": "B/s", "seconds": "s", "joules": "J"}


def percent(ratio: float | None) -> str:
    """`ratio` as a percentage."""
    return NOTHING if ratio is None else f"{ratio:.0%}".replace("%", " %")


def share(ratio: float | None) -> str:
    """`ratio` as a percentage that keeps two digits of a small one."""
    if ratio is None:
        return NOTHING
    return percent(ratio) if ratio >= 0.1 or ratio == 0 else f"{100 * ratio:.2g} %"


def chance(probability: float) -> str:
    """A probability as a percentage that never claims certainty."""
    if probability > 0.99:
        return "> 99 %"
    return "< 1 %" if probability < 0.01 else percent(probability)


def number(value: float) -> str:
    """A quantity with as many digits as tell."""
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.1f}" if size >= 10 else f"{value:,.2f}"


def money(value: float | None, currency: str) -> str:
    """An amount with its currency; empty where there is no price."""
    return "" if value is None else f"{number(value)} {currency}".strip()


def degrees(value: float | None) -> str:
    """A temperature."""
    return NOTHING if value is None else f"{value:.0f} °C"


def watts(value: float | None) -> str:
    """A power, in kW from 10,000 W and in MW from 1,000 kW on."""
    if value is None:
        return NOTHING
    if value >= 1e6:
        return f"{value / 1e6:.2f} MW"
    return f"{value / 1000:.1f} kW" if value >= 10_000 else f"{value:.0f} W"


def quantity(name: str, value: float) -> tuple[str, str]:
    """`value` of metric `name` as number and unit, with a prefix where the number is large."""
    spec = spec_of(name)
    unit = spec.unit if spec else ""
    if unit == "ratio":
        return f"{100 * value:.1f}", "%"
    symbol = _SYMBOLS.get(unit, unit)
    if symbol in {"B", "B/s", "Hz", "J"}:
        for size, prefix in _PREFIXES:
            if abs(value) >= size:
                return f"{value / size:.2f}", prefix + symbol
    return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}", symbol


def metric_label(name: str) -> str:
    """`name` in words: without ``gpu_`` and the unit's suffix."""
    plain, _, variant = split_variant(name)
    words = _UNIT_SUFFIX.sub("", plain.removeprefix("gpu_")).removesuffix("_total").replace("_", " ")
    return f"{words[:1].upper()}{words[1:]}" + (f" {variant}" if variant else "")


def metric_words(name: str, text: Text) -> str:
    """`name` in the words of the language, as far as its table has them; else as `metric_label` has it."""
    plain, _, variant = split_variant(name)
    known = text.name("metric", plain)
    return metric_label(name) if known == plain else known + (f" {variant}" if variant else "")


def effect_words(name: str, value: float, text: Text) -> tuple[str, str, str]:
    """One figure of what an action did: what it is, the number with its sign, and its unit."""
    if name == _BOUGHT:
        return text(f"effect.{_BOUGHT}"), f"{value:.3g}", "°C / W"
    metric = name.removesuffix(_CHANGE)
    label, (number, unit) = metric_words(metric, text), quantity(metric, value)
    if name.endswith(_CHANGE):
        label = text("effect.change", what=label)
    return label, f"{'+' if value > 0 else ''}{number}".replace("-", "\N{MINUS SIGN}"), unit


def chart_unit(name: str) -> tuple[str, float]:
    """The unit in which metric `name` is drawn, and the factor to it."""
    if (spec := METRICS.get(split_variant(name)[0])) is None:
        return "", 1.0
    known = {"ratio": ("%", 100.0), "hertz": ("GHz", 1e-9), "bytes": ("GB", 1e-9), "bytes/s": ("GB/s", 1e-9)}
    return known.get(spec.unit, (_SYMBOLS.get(spec.unit, spec.unit), 1.0))


def seconds_between(start: str, end: str) -> float:
    """Seconds from one instant of the wire to another."""
    return (from_iso(end) - from_iso(start)) / SECOND


def clock(at: str) -> str:
    """An instant of the wire as date and minute, UTC."""
    return f"{at[:10]} {at[11:16]}"


def short_clock(at: str, now: str) -> str:
    """An instant of the wire as minute, with its date where that is not the date of `now`; UTC."""
    return at[11:16] if at[:10] == now[:10] else clock(at)


def gpu_at(host: str, index: int | None, uuid: str) -> str:
    """Where a GPU sits: host and index, or the end of its UUID where the index is unknown."""
    return f"{host} · GPU {index}" if index is not None else f"{host} · {uuid[-8:]}"


def gpu_label(gpu: GpuSummary) -> str:
    """Where a GPU sits, as `gpu_at` has it."""
    return gpu_at(gpu.host, gpu.index, gpu.uuid)


def readable(sentence: str) -> str:
    """A sentence of the brain with UUIDs cut to eight digits, metrics by their labels and instants to the minute."""
    sentence = _UUID.sub(r"\1…", sentence)
    sentence = _INSTANT.sub(r"\1 \2 UTC", sentence)
    return _METRIC.sub(lambda found: metric_label(found[0]).lower() if found[0] in METRICS else found[0], sentence)


def plain_sentence(sentence: str, most: int | None = None) -> str:
    """A decision's sentence, `readable`, that names its subject once: the cause begins with the name again.

    With `most` it is cut to so many characters.
    """
    plain = _TWICE.sub(r"\1", _GPU_TWICE.sub(r"\1 GPU \2", readable(sentence)))
    return plain if most is None or len(plain) <= most else f"{plain[:most].rstrip()}…"


def without_label(sentence: str, label: str) -> str:
    """`sentence` without the name of its subject at its start, where the name stands beside it anyway."""
    name = label.replace(" · ", " ")
    for prefix in (f"{name}: ", f"{name} "):
        if sentence.startswith(prefix):
            rest = readable(sentence.removeprefix(prefix))
            return rest[:1].upper() + rest[1:]
    return readable(sentence)


def subject_label(subject: Subject, gpus: Mapping[str, GpuSummary]) -> str:
    """What a subject is called: host and index of a GPU, else its kind and name."""
    if subject.kind is SubjectKind.GPU and subject.name in gpus:
        return gpu_label(gpus[subject.name])
    return subject.kind.value if subject.kind is SubjectKind.FLEET else f"{subject.kind.value} {subject.name}"


def markdown_safe(words: str) -> str:
    """`words` such that Markdown shows them as they are."""
    return re.sub(r"([\\`*_\[\]<>:$~#])", r"\\\1", words)


def eta_text(text: Text, now: str, eta: str | None, low: str | None, high: str | None) -> str:
    """When a crossing is expected, with its interval; empty where none is."""
    if eta is None:
        return ""
    parts = [text("eta", time=text.duration(max(0.0, seconds_between(now, eta))))]
    if low is not None:
        early = text.duration(max(0.0, seconds_between(now, low)))
        if high is None:
            parts.append(text("eta.open", low=early))
        else:
            late = text.duration(max(0.0, seconds_between(now, high)))
            parts.append(text("eta.range", low=early, high=late))
    return ", ".join(parts)


LANGUAGES = {"en": "English", "zh": "中文"}
TABLES: dict[str, dict[str, list[str]]] = tomllib.loads(
    resources.files("tocsin.dashboard").joinpath("strings.toml").read_text(encoding="utf-8")
)
"""The strings by page, then by key: English, Chinese."""
STRINGS: dict[str, list[str]] = {key: words for table in TABLES.values() for key, words in table.items()}
"""Every string. A key stands in one table alone, which a test sees to."""


class Text:
    """Looks words up in one language."""

    def __init__(self, language: str) -> None:
        self.language = language if language in LANGUAGES else "en"
        self._column = list(LANGUAGES).index(self.language)

    def __call__(self, key: str, **values: object) -> str:
        """The string `key` with `values` filled in. Raises KeyError for a key that the table lacks."""
        return STRINGS[key][self._column].format(**values)

    def name(self, group: str, value: str) -> str:
        """The word for `value` of an enumeration; `value` itself where the table has none."""
        row = STRINGS.get(f"{group}.{value}")
        return row[self._column] if row else value

    def said(self, english: str, chinese: str) -> str:
        """What the brain says, in Chinese where that is the language and the brain has it."""
        return chinese if self.language == "zh" and chinese else english

    def duration(self, seconds: float) -> str:
        """`seconds` in the largest unit that leaves a number above one: 42 s, 18 min, 2.6 h, 3.1 d."""
        size = abs(seconds)
        for unit, length in (("d", 86_400), ("h", 3_600)):
            if size >= 2 * length:
                return self(f"unit.{unit}", n=f"{seconds / length:.1f}")
        return self("unit.min", n=f"{seconds / 60:.0f}") if size >= 120 else self("unit.s", n=f"{seconds:.0f}")


def decided(decision: DecisionOut, text: Text, most: int | None = None) -> str:
    """What is to be done and why, `readable`; with `most` it is cut to so many characters."""
    return decided_words(decision.action, decision.sentence, decision.parameters.context.cause_zh, text, most)


def decided_words(action: ActionKind, sentence: str, cause_zh: str, text: Text, most: int | None = None) -> str:
    """`decided` of the parts of a decision."""
    if text.language != "zh" or not cause_zh:
        return plain_sentence(sentence, most)
    plain = readable(f"{text.name('action', action.value)}：{cause_zh}")
    return plain if most is None or len(plain) <= most else f"{plain[:most].rstrip()}…"


def recorded(payload: Mapping[str, object], name: str, text: Text) -> str:
    """Field `name` of an entry of the journal, in Chinese where that is the language and the entry has it."""
    return text.said(str(payload.get(name) or ""), str(payload.get(f"{name}_zh") or ""))
