"""Words, numbers and pictures of the dashboard, without Streamlit running."""

from __future__ import annotations

import ast
import re
import string
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import pytest

import tocsin.dashboard
from tocsin.actions.guards.base import guards
from tocsin.client.models import GpuState, SeriesResponse
from tocsin.dashboard import launch, timeline
from tocsin.dashboard import text as formats
from tocsin.dashboard.palette import DARK, LIGHT
from tocsin.dashboard.text import LANGUAGES, STRINGS, TABLES, Text
from tocsin.domain.clock import HOUR, optional_iso, to_iso
from tocsin.domain.decision import DecisionState, Mode, OutcomeStatus, Ruling
from tocsin.domain.event import EventKind
from tocsin.domain.finding import ActionKind, Severity, Subject, SubjectKind
from tocsin.domain.metrics import METRICS
from tocsin.domain.prediction import PredictionStatus
from tocsin.domain.reading import Missing
from tocsin_testing import fake_fleet as fleet
from tocsin_testing.fake_service import FakeService

FOLDER = Path(tocsin.dashboard.__file__).parent
GROUPS: dict[str, type[StrEnum]] = {
    "state": GpuState,
    "severity": Severity,
    "mode": Mode,
    "ruling": Ruling,
    "decision_state": DecisionState,
    "outcome": OutcomeStatus,
    "prediction": PredictionStatus,
    "event": EventKind,
    "action": ActionKind,
}


def placeholders(words: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(words) if name}


def test_every_string_is_in_every_language_with_the_same_placeholders() -> None:
    for key, row in STRINGS.items():
        assert len(row) == len(LANGUAGES), key
        assert all(row), key
        assert len({frozenset(placeholders(words)) for words in row}) == 1, key


def test_chinese_is_chinese() -> None:
    """Only names and abbreviations are alike in both."""
    same = {words[0] for words in STRINGS.values() if words[0] == words[1]}
    assert {words for words in same if re.search(r"[a-z]{4,}", re.sub(r"\{\w+\}", "", words))} <= {"Brier {brier}"}


@pytest.mark.parametrize(("group", "values"), GROUPS.items())
def test_every_value_of_an_enumeration_has_a_word(group: str, values: type[StrEnum]) -> None:
    assert [value.value for value in values if f"{group}.{value.value}" not in STRINGS] == []


def test_every_missing_reason_and_every_guard_has_a_word() -> None:
    assert [reason.label for reason in Missing if f"missing.{reason.label}" not in STRINGS] == []
    assert [guard.name for guard in guards() if f"guard.{guard.name}" not in STRINGS] == []


def test_no_key_stands_in_two_tables() -> None:
    assert len(STRINGS) == sum(len(table) for table in TABLES.values())


def test_no_string_is_left_over() -> None:
    source = "".join(path.read_text() for path in FOLDER.glob("*.py"))
    quoted = set(re.findall(r"""["']([A-Za-z0-9_.]+)["']""", source))
    built = set(re.findall(r"""f["']([a-z_.]+\.)\{""", source))
    built |= {f"{group}." for group in re.findall(r"""\bname\(\s*["']([a-z_.]+)["']""", source)}
    built |= {f"{group}." for group in GROUPS}
    assert [key for key in STRINGS if key not in quoted and not key.startswith(tuple(built))] == []


def test_an_unknown_language_is_english_and_an_unknown_value_itself() -> None:
    assert Text("xx")("attention") == "Needs attention now"
    assert Text("en").name("guard", "a_plug_in") == "a_plug_in"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "120 min"),
        (7200, "2.0 h"),
        (172_800, "2.0 d"),
        (-30, "-30 s"),
    ],
)
def test_durations(seconds: float, expected: str) -> None:
    assert Text("en").duration(seconds) == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("gpu_memory_used_bytes", 8.0e10, ("80.00", "GB")),
        ("gpu_utilization_ratio", 0.934, ("93.4", "%")),
        ("gpu_sm_clock_hertz", 1.41e9, ("1.41", "GHz")),
        ("gpu_temperature_celsius", 86.4, ("86.4", "°C")),
        ("gpu_ecc_corrected_volatile_total", 1234567.0, ("1,234,567", "events")),
        ("gpu_unheard_of", 3.0, ("3", "")),
    ],
)
def test_quantities(name: str, value: float, expected: tuple[str, str]) -> None:
    assert formats.quantity(name, value) == expected


def test_every_metric_has_a_label_and_a_unit() -> None:
    assert all(formats.metric_label(name) for name in METRICS)
    assert formats.metric_label("gpu_memory_used_ratio") == "Memory used"
    assert formats.metric_label('gpu_nvlink_up{link="3"}') == "Nvlink up 3"
    assert formats.chart_unit("gpu_memory_used_ratio") == ("%", 100.0)
    assert formats.chart_unit("gpu_unheard_of") == ("", 1.0)


def test_numbers_that_are_not_there() -> None:
    assert [formats.percent(None), formats.degrees(None), formats.watts(None)] == ["–"] * 3
    assert [formats.watts(w) for w in (312.4, 21_300.0, 2.6e6)] == ["312 W", "21.3 kW", "2.60 MW"]


def test_a_probability_never_claims_certainty() -> None:
    assert [formats.chance(p) for p in (1.0, 0.995, 0.99, 0.5, 0.01, 0.0)] == [
        "> 99 %",
        "> 99 %",
        "99 %",
        "50 %",
        "1 %",
        "< 1 %",
    ]


def test_an_eta_without_a_far_end_says_not_before() -> None:
    now, eta, low = (to_iso(fleet.NOW_MS + hours * HOUR) for hours in (0, 10, 4))
    assert formats.eta_text(Text("en"), now, eta, low, None) == "in 10.0 h, not before 4.0 h"
    assert formats.eta_text(Text("en"), now, None, None, None) == ""


def test_sentences_are_made_readable() -> None:
    uuid = "GPU-6cc7f29a-967b-0e67-6fbd-1e3951b0a0b5"
    assert formats.readable(f"Drain {uuid} on n1") == "Drain GPU-6cc7f29a… on n1"
    sentence = "gpu_temperature_celsius reaches 82 at 2026-11-21T09:41:21.761Z; rule temperature_high"
    assert formats.readable(sentence) == "temperature reaches 82 at 2026-11-21 09:41 UTC; rule temperature_high"


def test_a_subject_is_not_named_twice() -> None:
    assert formats.without_label("n1 GPU 2: too hot.", "n1 · GPU 2") == "Too hot."
    assert formats.without_label("n1 GPU 2: gpu_power_watts is high", "n1 · GPU 2") == "Power is high"
    assert formats.without_label("n1 GPU 2 link 14: slow", "n1 · GPU 2") == "Link 14: slow"
    assert formats.without_label("n1 GPU 20: too hot.", "n1 · GPU 2") == "n1 GPU 20: too hot."


def test_every_kind_of_subject_has_a_name() -> None:
    gpus = {gpu.uuid: gpu for gpu in FakeService().gpus()}
    assert formats.subject_label(fleet.subject(fleet.HOT), gpus) == "gpu-node-03 · GPU 5"
    assert formats.subject_label(fleet.POOL_SUBJECT, gpus) == "pool inference"
    assert formats.subject_label(Subject(kind=SubjectKind.FLEET, name="fleet"), gpus) == "fleet"


def test_overlapping_spans_become_one_of_the_worst_severity() -> None:
    info, warning, critical = Severity.INFO, Severity.WARNING, Severity.CRITICAL
    spans = [(0, 10, info), (20, 30, warning), (5, 12, critical), (30, 40, warning)]
    assert timeline.merged(spans) == [(0, 12, critical), (20, 40, warning)]
    assert timeline.merged([]) == []


def test_markdown_is_shown_as_it_is() -> None:
    assert formats.markdown_safe("a_b*[c]") == r"a\_b\*\[c\]"


def series_of(where: tuple[int, int], metrics: list[str]) -> SeriesResponse:
    return FakeService().series(fleet.uuid(*where), metrics, fleet.NOW_MS - 6 * HOUR, fleet.NOW_MS, 200)


def test_the_timeline_draws_events_findings_and_predictions() -> None:
    detail = FakeService().gpu(fleet.uuid(*fleet.HOT))
    series = series_of(fleet.HOT, ["gpu_temperature_celsius", "gpu_power_watts"])
    chart = timeline.figure(timeline.Course(series), detail, to_iso(fleet.NOW_MS), Text("en"), LIGHT)
    notes = {annotation.text for annotation in chart.layout.annotations}
    assert {"XID 13", "threshold 85", "threshold 93", "80 % interval"} <= notes
    forecast = next(trace for trace in chart.data if trace.name == "forecast")
    assert forecast.y == (86.4, 93.0)
    hot = fleet.PREDICTIONS[0]
    assert chart.layout.xaxis.range[1] > optional_iso(hot.eta_ms)
    spans = {(shape.x0, shape.x1) for shape in chart.layout.shapes if shape.type == "rect"}
    assert (optional_iso(hot.eta_low_ms), optional_iso(hot.eta_high_ms)) in spans
    assert any(x0 == to_iso(fleet.FINDINGS[1].started_ms) for x0, _ in spans)


def test_events_close_together_share_a_label() -> None:
    detail = FakeService().gpu(fleet.uuid(*fleet.LOST))
    first = detail.events[0]
    later = [
        replace(first, at_ms=fleet.LOST_MS + 1_000, code=154),
        replace(first, at_ms=fleet.LOST_MS + HOUR, code=31),
    ]
    labels = timeline.grouped([*detail.events, *later], HOUR, Text("en"))
    assert labels == [(fleet.LOST_MS, "XID 79, GPU lost +1"), (fleet.LOST_MS + HOUR, "XID 31")]


def test_the_timeline_leaves_a_gap_where_there_is_no_value() -> None:
    detail = FakeService().gpu(fleet.uuid(*fleet.HOT))
    course = timeline.Course(series_of(fleet.HOT, ["gpu_power_watts"]))
    chart = timeline.figure(course, detail, to_iso(fleet.NOW_MS), Text("en"), DARK)
    assert chart.data[0].connectgaps is False
    assert None in chart.data[0].y


def test_the_timeline_looks_no_further_ahead_than_it_looks_back() -> None:
    uuid = fleet.uuid(0, 4)
    series = series_of((0, 4), ["gpu_temperature_celsius"])
    chart = timeline.figure(timeline.Course(series), FakeService().gpu(uuid), to_iso(fleet.NOW_MS), Text("en"), LIGHT)
    assert chart.layout.xaxis.range[1] < to_iso(fleet.NOW_MS + 6 * HOUR + HOUR // 2)


def test_the_command_serves_on_the_address_and_calls_nobody() -> None:
    command = launch.command("127.0.0.1", 8501)
    options = dict(zip(command[5::2], command[6::2], strict=True))
    assert command[1:4] == ["-m", "streamlit", "run"]
    assert Path(command[4]).samefile(FOLDER / "server.py")
    assert options["--server.address"] == "127.0.0.1"
    assert options["--server.port"] == "8501"
    assert options["--browser.gatherUsageStats"] == "false"
    assert options["--server.headless"] == "true"


def test_the_script_draws_nothing_by_itself() -> None:
    """Streamlit draws every expression that stands by itself in its script."""
    body = ast.parse((FOLDER / "app.py").read_text()).body[1:]
    assert [node.lineno for node in body if isinstance(node, ast.Expr)] == []


def test_the_launch_theme_is_the_palette_s_background() -> None:
    options = dict(zip(launch.command("h", 1)[5::2], launch.command("h", 1)[6::2], strict=True))
    assert options["--theme.light.textColor"] == LIGHT.text
    assert options["--theme.dark.textColor"] == DARK.text


def test_nothing_is_loaded_from_elsewhere() -> None:
    files = [path for path in FOLDER.iterdir() if path.suffix in {".py", ".css", ".js", ".svg"}]
    linked = {url for path in files for url in re.findall(r"https?://[^\s\"')]+", path.read_text())}
    assert linked <= {"http://127.0.0.1:8470", "http://www.w3.org/2000/svg"}
