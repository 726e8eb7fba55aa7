"""Every condition of docs/scan_conditions.md: its rule and a scan's verdict, on every recorded GPU that shows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.collector.nvidia_smi.source import NvidiaSmiSource
from tocsin.collector.nvml import events as nvml_events
from tocsin.collector.nvml.source import NvmlSource
from tocsin.collector.smi_program import SmiAnswer
from tocsin.collector.source import NodeIdentity
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Severity
from tocsin.domain.metrics import METRICS
from tocsin.domain.reading import Missing, Reading
from tocsin.rules.sxid import shipped_sxids
from tocsin.rules.xid import shipped_catalogue
from tocsin.rules.xid_nvlink import decode, sub_codes
from tocsin.runtime.agent.scan import NodeHealth, scan
from tocsin_testing.builders import T0, gpu
from tocsin_testing.dcgm_pages import DATA, Exporter, exporter_source
from tocsin_testing.nvml_replay import RecordedNvml, devices
from tocsin_testing.rule_runs import rule
from tocsin_testing.scan_page import ROWS, RULES, VERDICTS, Row, TwoLooks, looked, page, shown_by, table
from tocsin_testing.smi import FakeSmi, recorded


@cache
def profiles() -> dict[str, Reading]:
    """A reading of each recorded GPU without a fault, by where it is recorded."""
    place = NodeIdentity("node-1")
    found = {}
    for name in ("a100-healthy", "h100-healthy"):
        source = NvmlSource(RecordedNvml(devices(name)[:1]), place, 10.0)
        found[f"nvml {name}"] = source.read(T0).readings[0]
        source.close()
    crash = SmiAnswer(139, recorded("h100-truncated.xml"))
    for name in ("h100-healthy-query.csv", "b200-healthy-query.csv", "blackwell-v13.xml"):
        answer = SmiAnswer(0, recorded(name))
        program = FakeSmi(answer) if name.endswith("xml") else FakeSmi(crash, answer)
        found[f"nvidia-smi {name}"] = NvidiaSmiSource(program, place).read(T0).readings[0]
    page = (DATA / "exporter_4_8_2.prom").read_text()
    found["dcgm-exporter exporter_4_8_2.prom"] = exporter_source(Exporter(page)).read(T0).readings[0]
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.rule}-{row.seen}")
def test_a_condition_has_the_rule_and_the_verdict_of_the_page(row: Row) -> None:
    report = looked(TwoLooks(replace(gpu(), model="Tesla T4"), [row.first, row.second]))
    assert row.rule in {finding.rule for finding in report.findings}
    assert report.health is row.health


PROFILES = tuple(profiles())


def _cases() -> Iterator[tuple[Row, str]]:
    """Each condition with each recorded GPU that has its metrics."""
    for name, reading in profiles().items():
        for row in shown_by(reading):
            yield row, name


@pytest.mark.parametrize(("row", "name"), list(_cases()), ids=str)
def test_a_condition_is_found_on_every_recorded_gpu_that_shows_it(row: Row, name: str) -> None:
    reading = profiles()[name]
    report = looked(TwoLooks(reading.gpu, [{**reading.values, **row.first}, {**reading.values, **row.second}]))
    assert row.rule in {finding.rule for finding in report.findings}
    assert report.health >= row.health


@pytest.mark.parametrize("name", [name for name in PROFILES if "blackwell" not in name])
def test_a_recorded_gpu_without_a_fault_is_healthy(name: str) -> None:
    reading = profiles()[name]
    report = looked(TwoLooks(reading.gpu, [dict(reading.values)] * 2))
    assert [finding.sentence for finding in report.findings if finding.severity is not Severity.INFO] == []
    assert report.health is NodeHealth.HEALTHY


def test_every_hardware_metric_has_a_rule_or_a_reason_for_none() -> None:
    hardware = {"thermal", "power", "clocks", "ecc", "pcie", "nvlink"}
    extra = {"gpu_xid_last_code", "gpu_xid_events_total", "gpu_driver_events_total", "gpu_driver_latency_seconds"}
    metrics = {m.name for m in METRICS.values() if m.entity == "gpu" and m.family in hardware} | extra
    ruled = {ref.spec.name for each_rule in RULES for each in each_rule.conditions for ref in each.metrics()}
    reasons = [metric for row in table("without_rule") for metric in row["metrics"].split(", ")]
    assert sorted(reasons) == sorted(metrics - ruled)


def test_every_rule_about_values_of_a_gpu_has_a_row() -> None:
    ruled = {
        each.name
        for each in RULES
        if each.sheet not in ("pool", "fleet")
        and each.conditions[0].kind in ("threshold", "rate")
        and each.table.scope.instances != "only"
        and not each.table.scope.labels
    }
    assert {row.rule for row in ROWS} == ruled


def test_a_link_that_is_down_is_found_on_a_card_of_another_vendor() -> None:
    card = gpu(labels={"vendor": "amd"})
    report = looked(TwoLooks(card, [{'gpu_nvlink_up{link="3"}': 0.0}] * 2))
    assert [finding.rule for finding in report.findings] == ["device_link_down"]
    assert report.health is NodeHealth.ATTENTION


EVENTS = {
    (row["event"], row["class"], row["severity"]): (row["rule"], VERDICTS[row["scan"]]) for row in table("events")
}


def found(event: Event) -> tuple[str, NodeHealth]:
    report = looked(TwoLooks(gpu(), [{"gpu_power_watts": 100.0}] * 2), event)
    rules = [finding.rule for finding in report.findings]
    assert len(rules) <= 1
    return (rules[0] if rules else "none"), report.health


def test_every_xid_has_the_rule_and_the_verdict_of_its_class() -> None:
    for spec in [*shipped_catalogue().specs(), shipped_catalogue().of(60_000)]:
        seen = found(Event(EventKind.XID, gpu().uuid, "node-1", T0, spec.code))
        assert seen == EVENTS["XID", spec.xid_class, spec.severity.value], spec.code


def test_every_sxid_has_the_rule_and_the_verdict_of_its_class() -> None:
    for spec in [*shipped_sxids().specs(), shipped_sxids().of(99_999)]:
        seen = found(Event(EventKind.SXID, "", "node-1", T0, spec.code))
        assert seen == EVENTS["SXid", spec.sxid_class, spec.severity.value], spec.code


def test_every_nvlink_sub_code_has_the_rule_and_the_verdict_of_its_rating() -> None:
    for row in sub_codes():
        word = int(row.from_r575.replace("-", "0"), 2)
        told = decode(row.xid, (word, row.error_status), unit=row.unit.split("/")[0], driver=575)
        assert told is not None
        assert told.rating is not None
        event = Event(EventKind.XID, gpu().uuid, "node-1", T0, row.xid, severity=told.rating, remedy=told.immediate)
        assert found(event) == EVENTS["Sub-code", "nvlink", told.rating.value], row


@pytest.mark.parametrize("kind", [kind for kind in EventKind if kind not in (EventKind.XID, EventKind.SXID)])
def test_every_other_event_has_the_rule_and_the_verdict_of_the_page(kind: EventKind) -> None:
    event = Event(kind, gpu().uuid, "node-1", T0, 1)
    assert found(event) == EVENTS[kind.value, "", ""]


def test_the_second_look_through_nvml_asks_for_link_errors_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent asks once a minute, so that 500 errors a second were nothing to a scan."""
    monkeypatch.setattr(nvml_events, "WAIT_MS", 10)
    library = RecordedNvml(devices("h100-healthy")[:1])
    fields = library.devices[0]["nvmlDeviceGetFieldValues"]["value"]
    name = "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL"
    source = NvmlSource(library, NodeIdentity("node-1"), 10.0)
    clock = ManualClock(T0)
    fields[name] = {**fields.get(name, {}), "nvmlReturn": 0, "value": 1000}

    def pause(seconds: float) -> None:
        clock.advance(round(seconds * SECOND))
        fields[name] = {**fields[name], "value": 1500}

    report = scan(source, RULES, clock, pause)
    source.close()
    assert [finding.rule for finding in report.findings] == ["nvlink_errors"]
    assert report.health is NodeHealth.ATTENTION


LIMITS = sorted(
    name
    for name, spec in METRICS.items()
    if spec.static and ("_temperature_" in name or "power_limit" in name or name.endswith("_max_hertz"))
)


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_of_zero_is_none(name: str) -> None:
    """Fallback sources give 0 for a limit that they do not know; a GPU at 40 °C was 40 °C too hot by it."""
    cool = {"gpu_temperature_celsius": 40.0, "gpu_memory_temperature_celsius": 40.0, "gpu_power_watts": 60.0}
    report = looked(TwoLooks(gpu(), [{**cool, name: 0.0}] * 2))
    assert report.findings == ()
    assert report.gpus[0].reading.missing[name] is Missing.BLANK


@given(level=st.integers(1, 1000), growth=st.integers(0, 2_000_000), window=st.integers(1, 60), slow=st.booleans())
def test_growth_between_looks_never_says_more_than_the_rule(level: int, growth: int, window: int, slow: bool) -> None:
    """A rate slower than per second holds in a scan only where it holds over its whole window, whatever follows."""
    per, over = ("1m", window * 60) if slow else ("1s", window)
    condition = f'kind = "rate", metric = "gpu_pcie_replay_total", over = "{over}s", per = "{per}", above = {level}.0'
    rules = rule(f"all = [{{ {condition} }}]", alert="{where}")
    source = TwoLooks(gpu(), [{"gpu_pcie_replay_total": 7.0}, {"gpu_pcie_replay_total": 7.0 + growth}])
    clock = ManualClock(T0)
    report = scan(source, rules, clock, lambda seconds: clock.advance(round(seconds * SECOND)))
    allowed = level * over / 60 if slow else level
    assert bool(report.findings) == (growth > allowed)


def test_the_page_is_made_from_the_rows() -> None:
    written = (Path(__file__).parents[3] / "docs" / "scan_conditions.md").read_text(encoding="utf-8")
    assert written == page(), "run: python -m tocsin_testing.scan_page > docs/scan_conditions.md"
