"""The table of fault codes of AMD and Ascend, the table of their metrics, and what an unknown code comes to."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tocsin.domain.device_fault import BROKEN, OVER, DeviceFault
from tocsin.domain.event import Event, EventKind
from tocsin.domain.metrics import METRICS
from tocsin.domain.reading import Missing
from tocsin.domain.vendor_metrics import AMD, ASCEND, UNITS, in_our_unit, vendor_metrics
from tocsin.queries.card_life import record_of
from tocsin.queries.card_words import Names, headline
from tocsin.queries.scoreboard import is_hardware
from tocsin.rules.device_faults import fault_meaning, shipped_meanings
from tocsin.rules.incidents import collapse
from tocsin.rules.load import load_rules
from tocsin.rules.symptoms import Symptom, symptom_of
from tocsin.topology.topology import Topology
from tocsin_testing.builders import T0, gpu
from tocsin_testing.rule_runs import Run, instant


def test_every_row_is_whole_and_says_where_it_is_from() -> None:
    for row in shipped_meanings().values():
        assert row.help, row
        assert row.provenance, row
        assert row.meaning is not DeviceFault.UNKNOWN, row
        assert row.help == row.help.strip(". "), row


def test_what_no_table_has_is_unknown_and_the_first_code_that_has_a_row_speaks() -> None:
    assert fault_meaning(ASCEND, "FFFFFFFF", "level:Nobody").meaning is DeviceFault.UNKNOWN
    assert fault_meaning(AMD, "ras_uncorrected:new_block", "ras_uncorrected").meaning is DeviceFault.BLOCK_UNCORRECTED
    assert fault_meaning(ASCEND, "80E01801").meaning is DeviceFault.MEMORY_UNCORRECTED


def test_every_meaning_has_a_rule() -> None:
    codes = {
        code
        for rule in load_rules()
        for condition in rule.conditions
        if condition.kind == "event_count" and getattr(condition, "event", None) is EventKind.DEVICE_FAULT
        for code in getattr(condition, "codes", ())
    }
    assert codes == {int(fault) for fault in DeviceFault}
    assert max(DeviceFault) < OVER


def test_every_rule_about_them_is_on_a_page() -> None:
    docs = Path(__file__).parents[3] / "docs"
    text = "".join((docs / name).read_text(encoding="utf-8") for name in ("amd.md", "ascend.md"))
    missing = {rule.name for rule in load_rules() if rule.name.startswith("device_") and f"`{rule.name}`" not in text}
    assert missing == set()


def test_an_unknown_code_is_a_card_that_says_so() -> None:
    run = Run()
    event = Event(EventKind.DEVICE_FAULT, gpu().uuid, "node-1", instant(0), DeviceFault.UNKNOWN, "code 8ABCDEF0")
    run.step(0, {"power_watts": 300.0})
    found = run.step(1, {"power_watts": 300.0}, events=[event]).active
    assert [symptom_of(finding) for finding in found] == [Symptom.UNKNOWN]
    assert "8ABCDEF0" in found[0].sentence
    (incident,) = collapse(found, [event], Topology({gpu().uuid: "node-1"}, []))
    english, chinese = headline(record_of(incident).trouble, Names([]))
    assert english.endswith("a fault code that is in no table")
    assert chinese.endswith("未收录的故障代码")


@pytest.mark.parametrize("fault", DeviceFault)
def test_broken_hardware_counts_as_a_hardware_event(fault: DeviceFault) -> None:
    event = Event(EventKind.DEVICE_FAULT, gpu().uuid, "node-1", T0, fault)
    assert is_hardware(event) is (fault in BROKEN)


def test_rows_of_metrics_name_metrics_labels_and_units_that_exist() -> None:
    for vendor in (AMD, ASCEND):
        for row in vendor_metrics(vendor):
            spec = METRICS[row.metric]
            assert row.unit in UNITS, row
            assert row.provenance, row
            assert bool(row.label_value) <= bool(spec.label), row
        keys = [(row.call, row.key, row.metric, row.label_value) for row in vendor_metrics(vendor)]
        assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("unit", "raw", "ours"),
    [
        ("uW", 750_000_000, 750.0),
        ("uJ", 15.3e6, 15.3),
        ("MHz", "1650", 1.65e9),
        ("MiB", 2, 2.0 * 2**20),
        ("%", 93, 0.93),
        ("%", 101, Missing.BLANK),
        ("C or mC", 62_000, 62.0),
        ("C or mC", 62, 62.0),
        ("MT/s or GT/s", 32_000, 5.0),
        ("MT/s or GT/s", 16, 4.0),
        ("MT/s or GT/s", 2_500, 1.0),
        ("MT/s or GT/s", 31_000, Missing.BLANK),
        ("any", 3, 1.0),
        ("absent", 1.0, 0.0),
        ("bool", True, 1.0),
        ("count", 0xFFFF, 65535.0),
        ("W", 0xFFFF, Missing.BLANK),
        ("count", 2**64 - 1, Missing.BLANK),
        ("U or D", "U", 1.0),
        ("U or D", "X", Missing.BLANK),
        ("W", "-", Missing.BLANK),
        ("W", "soon", Missing.BLANK),
        ("W", math.nan, Missing.BLANK),
    ],
)
def test_a_vendor_s_unit_is_ours(unit: str, raw: object, ours: float | Missing) -> None:
    assert in_our_unit(unit, raw) == ours
    assert type(in_our_unit(unit, raw)) is type(ours)


@example("MiB", 1.7e302)
@given(
    st.sampled_from(sorted(UNITS)),
    st.one_of(st.integers(), st.floats(), st.text(max_size=20), st.none(), st.booleans()),
)
def test_no_answer_raises(unit: str, raw: object) -> None:
    value = in_our_unit(unit, raw)
    assert isinstance(value, Missing) or math.isfinite(value)
