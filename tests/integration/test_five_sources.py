"""One fault, one card with one cause, whoever tells of it: NVML, DCGM, nvidia-smi, AMD's library and Ascend's npu-smi.

What they answer is in ``tests/data/vendors``, written by scripts that know nothing of the mapping.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from tocsin.actions.model.controls import Controls
from tocsin.client.models_cards import Card
from tocsin.collector.amdsmi.source import AmdSmiSource
from tocsin.collector.dcgm import exposition, fields
from tocsin.collector.npu_smi.source import NpuSmiSource
from tocsin.collector.nvidia_smi import formats
from tocsin.collector.nvidia_smi.source import NvidiaSmiSource
from tocsin.collector.nvml import probes, tiers
from tocsin.collector.nvml.library import PynvmlLibrary
from tocsin.collector.nvml.source import NvmlSource
from tocsin.collector.smi_program import SmiAnswer
from tocsin.collector.source import NodeIdentity, Source
from tocsin.config.settings import CostSettings
from tocsin.domain.clock import MINUTE, ManualClock
from tocsin.domain.event import Event
from tocsin.domain.reading import Reading, sanitise
from tocsin.domain.usage import Prices
from tocsin.domain.vendor_metrics import AMD, ASCEND, VendorMetric, read_vendor_metrics
from tocsin.queries.card_life import CardLife
from tocsin.queries.cards import CardInputs, forecast_levels, make_cards
from tocsin.queries.fleet_map import snapshot_of
from tocsin.rules.engine import Inputs, RuleEngine
from tocsin.rules.incidents import OpenIncidents
from tocsin.rules.load import load_rules
from tocsin.topology.topology import Topology
from tocsin_testing import nvidia_facts
from tocsin_testing.builders import T0
from tocsin_testing.dcgm_pages import Exporter, exporter_source
from tocsin_testing.mock_gpus import h100
from tocsin_testing.mock_nvml import MockFleet
from tocsin_testing.smi import FakeSmi
from tocsin_testing.vendor_doubles import FakeAmd, FakeNpu
from tocsin_testing.vendor_facts import recorded as vendor

FAULTS = {
    "memory": "memory error that cannot be corrected",
    "link": "a link to other GPUs is down",
    "bus": "fell off its PCIe bus",
    "heat": "too hot",
}
"""Fault to what the headline of its card says."""
MINUTES = 8
"""Longer than any rule of these waits, and than the slowest round of any source."""
PLACE = NodeIdentity("node-1")
Breaks = Callable[[str], None]
"""Lets one of the source's GPUs have a fault."""
Rows = dict[str, tuple[VendorMetric, ...]]
Opened = tuple[Source, Breaks]


def nvml(stack: ExitStack, folder: Path, clock: ManualClock, _rows: Rows) -> Opened:
    fleet = stack.enter_context(MockFleet(folder, [h100(0), h100(1)]).loaded())
    source = NvmlSource(PynvmlLibrary(), PLACE, clock=clock)
    stack.callback(source.close)

    def answers(case: str) -> None:
        ill, told = fleet.gpus[1], json.loads(nvidia_facts.text_of(f"nvml_{case}.json"))
        for number, scope, value in told["fields"]:
            ill.field(number, value, "ull" if scope is None else "uint", scope)
        for function, arguments, value in told["calls"]:
            ill.set(function, *arguments, to=value)
        if told["error"]:
            ill.fail("*", told["error"])
        fleet.apply()

    answers("healthy")
    return source, answers


def dcgm(_stack: ExitStack, _folder: Path, clock: ManualClock, _rows: Rows) -> Opened:
    exporter = Exporter(nvidia_facts.text_of("dcgm_healthy.prom"))

    def breaks(fault: str) -> None:
        exporter.page = nvidia_facts.text_of(f"dcgm_{fault}.prom")

    return exporter_source(exporter, clock=clock, node=PLACE), breaks


def nvidia_smi(_stack: ExitStack, _folder: Path, _clock: ManualClock, _rows: Rows) -> Opened:
    smi = FakeSmi()

    def prints(case: str) -> None:
        told = json.loads(nvidia_facts.text_of(f"nvidia_smi_{case}.json"))
        smi.xml = SmiAnswer(told["code"], told["text"])
        smi.csv = smi.xml if told["code"] else None
        smi.links = told["links"]

    prints("healthy")
    return NvidiaSmiSource(smi, PLACE), prints


def amd(stack: ExitStack, folder: Path, clock: ManualClock, rows: Rows) -> Opened:
    library = FakeAmd(vendor("amd_healthy.json"))
    (folder / "sys/bus/pci/devices/0000:1b:00.0").mkdir(parents=True)
    source = AmdSmiSource(library, PLACE, clock, folder / "sys", rows=rows.get(AMD))
    stack.callback(source.close)

    def breaks(fault: str) -> None:
        library.cards = vendor(f"amd_{fault}.json")

    return source, breaks


def ascend(_stack: ExitStack, _folder: Path, clock: ManualClock, rows: Rows) -> Opened:
    program = FakeNpu(vendor("ascend_healthy.json"))

    def breaks(fault: str) -> None:
        program.texts = vendor(f"ascend_{fault}.json")

    return NpuSmiSource(program, PLACE, clock, rows=rows.get(ASCEND)), breaks


SOURCES = {"nvml": nvml, "dcgm_exporter": dcgm, "nvidia_smi": nvidia_smi, "amdsmi": amd, "npu_smi": ascend}


class Brain:
    """Rules, incidents and cards over what a source reads, minute by minute."""

    def __init__(self, source: Source, clock: ManualClock) -> None:
        self._source = source
        self._clock = clock
        self._rules = load_rules()
        self._engine = RuleEngine(self._rules)
        self._open = OpenIncidents()
        self._events: list[Event] = []
        self._newest: dict[str, Reading] = {}

    def values(self, gpu: int) -> dict[str, float]:
        """The newest values of a GPU by its number on the node."""
        return next(dict(one.values) for one in self._newest.values() if one.gpu.index == gpu)

    def minute(self) -> list[Card]:
        self._clock.advance(MINUTE)
        now_ms = self._clock.now_ms()
        batch = self._source.read(now_ms)
        self._events += batch.events
        self._newest |= {one.gpu.uuid: sanitise(one)[0] for one in batch.readings}
        found = self._engine.step(Inputs(now_ms, tuple(self._newest.values()), batch.events)).active
        topology = Topology({uuid: one.gpu.host for uuid, one in self._newest.items()}, [])
        incidents = self._open.step(found, self._events, topology, now_ms)
        snapshot = snapshot_of(self._newest.values(), found, (), now_ms, 2 * MINUTE)
        levels, life = forecast_levels(self._rules), CardLife()
        signs = self._rules.foretelling
        inputs = CardInputs(
            snapshot, incidents, (), (), levels, signs, life, Controls(), CostSettings(), Prices(), 2 * MINUTE
        )
        return [one.card for one in make_cards(inputs)]


def cards_of(name: str, fault: str, folder: Path, rows: Rows | None = None) -> tuple[list[Card], dict[str, float]]:
    """The cards of the last minute of a fault, before which there is none, and what the second GPU reads then."""
    clock = ManualClock(T0)
    with ExitStack() as stack:
        source, breaks = SOURCES[name](stack, folder, clock, rows or {})
        brain = Brain(source, clock)
        for _ in range(3):
            assert brain.minute() == [], "a sound node has no card"
        breaks(fault)
        for _ in range(MINUTES):
            cards = brain.minute()
        return cards, brain.values(1)


def causes(cards: list[Card]) -> list[str]:
    """What the headlines say, without the place."""
    return [card.headline.partition(": ")[2] for card in cards]


_UNCORRECTED, _CORRECTED = "gpu_ecc_dram_uncorrected_volatile_total", "gpu_ecc_dram_corrected_volatile_total"
_TOTAL_BAD, _TOTAL_MENDED = "gpu_ecc_uncorrected_volatile_total", "gpu_ecc_corrected_volatile_total"
_HEAT: dict[str, float] = {"gpu_temperature_celsius": 93, "gpu_memory_temperature_celsius": 48}
_LINK: dict[str, float] = {'gpu_nvlink_up{link="3"}': 0, 'gpu_nvlink_up{link="2"}': 1}
READ: dict[str, dict[str, dict[str, float]]] = {
    "nvml": {"memory": {_UNCORRECTED: 2, _CORRECTED: 7, _TOTAL_BAD: 2}, "link": _LINK, "heat": _HEAT, "bus": {}},
    "dcgm_exporter": {"memory": {_TOTAL_BAD: 2, _TOTAL_MENDED: 7}, "link": _LINK, "heat": _HEAT, "bus": {}},
    "nvidia_smi": {"memory": {_UNCORRECTED: 2, _CORRECTED: 7}, "link": _LINK, "heat": _HEAT, "bus": {}},
    "amdsmi": {
        "memory": {_UNCORRECTED: 2, "gpu_ecc_uncorrected_volatile_total": 2, "gpu_ecc_deferred_volatile_total": 0},
        "link": {'gpu_nvlink_up{link="3"}': 0, 'gpu_nvlink_up{link="2"}': 1, "gpu_nvlink_links_max": 8},
        "heat": {"gpu_temperature_celsius": 101, "gpu_memory_temperature_celsius": 55, "gpu_power_watts": 612},
        "bus": {},
    },
    "npu_smi": {
        "memory": {_UNCORRECTED: 1, _CORRECTED: 4},
        "link": {'gpu_nvlink_up{link="network"}': 0, "gpu_processes": 1},
        "heat": {"gpu_temperature_celsius": 95, "gpu_power_watts": 127.6, "gpu_memory_used_bytes": 57_347 * 2.0**20},
        "bus": {},
    },
}
"""What the second card reads in the fault, in our units, by what the fixtures say in the vendors'."""


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", SOURCES)
def test_one_fault_is_one_card_with_the_same_cause_from_every_source(name: str, fault: str, tmp_path: Path) -> None:
    _holds(*cards_of(name, fault, tmp_path), name, fault)


def _holds(cards: list[Card], values: dict[str, float], name: str, fault: str) -> None:
    assert causes(cards) == [FAULTS[fault]]
    assert cards[0].subject.host == "node-1"
    assert {metric: values.get(metric) for metric in READ[name][fault]} == READ[name][fault]


def _swapped(vendor_name: str, one: int, other: int) -> Rows:
    """The table with the metrics of two rows of a vendor exchanged."""
    text = resources.files("tocsin.domain").joinpath("vendor_metrics.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    rows[one]["metric"], rows[other]["metric"] = rows[other]["metric"], rows[one]["metric"]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return {vendor_name: read_vendor_metrics(out.getvalue().splitlines(), vendor_name)}


def _number(vendor_name: str, metric: str, key: str) -> int:
    text = resources.files("tocsin.domain").joinpath("vendor_metrics.csv").read_text(encoding="utf-8")
    return next(
        number
        for number, row in enumerate(csv.DictReader(text.splitlines()))
        if (row["vendor"], row["metric"]) == (vendor_name, metric) and key in (row["key"], row["call"])
    )


_ECC = "gpu_ecc_dram_{}_volatile_total"
_TOTAL = "gpu_ecc_{}_volatile_total"
_HOT, _HBM = "amdsmi_get_temp_metric(HOTSPOT, CURRENT)", "amdsmi_get_temp_metric(VRAM, CURRENT)"
Row = tuple[str, str]
"""A row by its metric and its key or call."""
SWAPS: dict[str, tuple[str, str, str, Row, Row]] = {
    "amd memory": (
        *("amdsmi", "memory", AMD),
        (_TOTAL.format("uncorrected"), "uncorrectable_count"),
        (_TOTAL.format("deferred"), "deferred_count"),
    ),
    "amd heat": (
        *("amdsmi", "heat", AMD),
        ("gpu_temperature_celsius", _HOT),
        ("gpu_memory_temperature_celsius", _HBM),
    ),
    "amd link": ("amdsmi", "link", AMD, ("gpu_nvlink_up", "status[]"), ("gpu_nvlink_links_max", "total_links")),
    "ascend memory": (
        *("npu_smi", "memory", ASCEND),
        (_ECC.format("uncorrected"), "HBM Double Bit Error Count"),
        (_ECC.format("corrected"), "HBM Single Bit Error Count"),
    ),
    "ascend heat": ("npu_smi", "heat", ASCEND, ("gpu_temperature_celsius", "Temp(C)"), ("gpu_power_watts", "Power(W)")),
    "ascend link": ("npu_smi", "link", ASCEND, ("gpu_nvlink_up", "81078603"), ("gpu_processes", "processes")),
}
"""Source, fault, vendor, and the two rows."""


@pytest.mark.parametrize("name", SWAPS)
def test_two_rows_of_the_mapping_exchanged_are_another_answer(name: str, tmp_path: Path) -> None:
    source, fault, vendor_name, one, other = SWAPS[name]
    rows = _swapped(vendor_name, _number(vendor_name, *one), _number(vendor_name, *other))
    (tmp_path / "as_it_is").mkdir()
    (tmp_path / "swapped").mkdir()
    _holds(*cards_of(source, fault, tmp_path / "as_it_is"), source, fault)
    with pytest.raises(AssertionError):
        _holds(*cards_of(source, fault, tmp_path / "swapped", rows), source, fault)


# ------------------------------------------------------------------ NVIDIA's mappings


def _nvml_fields(patch: pytest.MonkeyPatch, one: str, other: str) -> None:
    """The keys of two fields of NVML exchanged."""
    turned = {one: other, other: one}
    slow = tuple(replace(row, key=turned.get(row.key, row.key)) for row in probes.fields_of(probes.Tier.SLOW))
    patch.setitem(probes._FIELDS, probes.Tier.SLOW, slow)


def _nvml_calls(patch: pytest.MonkeyPatch, one: str, other: str) -> None:
    """What two functions of NVML feed, exchanged."""
    rows = {row.metrics[0]: row for row in probes.calls_of(probes.Tier.FAST)}
    turned = {one: rows[other], other: rows[one]}

    def fed(row: probes.CallProbe) -> probes.CallProbe:
        like = turned.get(row.metrics[0], row)
        return replace(row, metrics=like.metrics, read=like.read)

    fast = tuple(fed(row) for row in probes.calls_of(probes.Tier.FAST))
    patch.setitem(probes._CALLS, probes.Tier.FAST, fast)


def _nvml_links(patch: pytest.MonkeyPatch, one: str, other: str) -> None:
    """The fields of two metrics of links exchanged."""
    fields = {row.metric: row.field for row in probes.LINK_FIELDS}
    turned = {one: fields[other], other: fields[one]}
    patch.setattr(
        tiers, "LINK_FIELDS", tuple(replace(row, field=turned.get(row.metric, row.field)) for row in probes.LINK_FIELDS)
    )


def _dcgm_names(patch: pytest.MonkeyPatch, one: str, other: str) -> None:
    """What two names of DCGM feed, exchanged."""
    rows = dict(fields.BY_DCGM_NAME)
    patch.setattr(fields, "BY_DCGM_NAME", {**rows, one: rows[other], other: rows[one]})
    patch.setattr(fields, "field_named", fields.field_named.__wrapped__)
    patch.setattr(exposition, "field_named", fields.field_named)


def _smi_cells(patch: pytest.MonkeyPatch, one: str, other: str) -> None:
    """The keys of two cells of nvidia-smi exchanged."""
    turned = {one: other, other: one}
    patch.setattr(formats, "ROWS", tuple(replace(row, key=turned.get(row.key, row.key)) for row in formats.ROWS))


Swap = Callable[[pytest.MonkeyPatch, str, str], None]
_D = "DCGM_FI_DEV_"
NVIDIA_SWAPS: dict[str, tuple[str, str, Swap, str, str]] = {
    "nvml memory": ("nvml", "memory", _nvml_fields, _UNCORRECTED, _CORRECTED),
    "nvml heat": ("nvml", "heat", _nvml_calls, "gpu_temperature_celsius", "gpu_sm_clock_hertz"),
    "nvml link": ("nvml", "link", _nvml_links, "gpu_nvlink_up", "gpu_nvlink_replay_errors_total"),
    "dcgm memory": ("dcgm_exporter", "memory", _dcgm_names, f"{_D}ECC_DBE_VOL_TOTAL", f"{_D}ECC_SBE_VOL_TOTAL"),
    "dcgm heat": ("dcgm_exporter", "heat", _dcgm_names, f"{_D}GPU_TEMP", f"{_D}MEMORY_TEMP"),
    "dcgm link": ("dcgm_exporter", "link", _dcgm_names, f"{_D}NVLINK_GET_STATE", f"{_D}PCIE_REPLAY_COUNTER"),
    "nvidia-smi memory": ("nvidia_smi", "memory", _smi_cells, _UNCORRECTED, _CORRECTED),
    "nvidia-smi heat": (
        *("nvidia_smi", "heat", _smi_cells),
        *("gpu_temperature_celsius", "gpu_memory_temperature_celsius"),
    ),
}
"""Source, fault, how, and the two rows. nvidia-smi tells of links in words, by no table."""


@pytest.mark.parametrize("name", NVIDIA_SWAPS)
def test_two_rows_of_nvidias_mappings_exchanged_are_another_answer(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, fault, swap, one, other = NVIDIA_SWAPS[name]
    swap(monkeypatch, one, other)
    with pytest.raises(AssertionError):
        _holds(*cards_of(source, fault, tmp_path), source, fault)


def test_the_files_are_what_the_script_writes() -> None:
    for name, text in nvidia_facts.files().items():
        assert nvidia_facts.text_of(name) == text, "python -m tocsin_testing.nvidia_facts"
