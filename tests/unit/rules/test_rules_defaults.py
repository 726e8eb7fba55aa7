"""Every shipped rule: a case in which it fires, and one in which it does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.decision import Mode
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import ActionKind, Category, Severity, Subject, SubjectKind
from tocsin.domain.model_limits import model_limit
from tocsin.domain.notice import NoticeCode, notice_text
from tocsin.domain.pool import PoolState
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Gpu, Missing, Reading
from tocsin.rules.load import load_rules
from tocsin.rules.xid import shipped_catalogue
from tocsin_testing.builders import gpu, xid
from tocsin_testing.rule_runs import Run, Values, instant

Make = Callable[[int], Values | dict[Gpu, Values]]


@dataclass(frozen=True)
class Case:
    """`minutes` of readings, one a minute or `every` so many, then events, predictions and pools at the end."""

    minutes: int = 0
    values: Make | Values = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    pools: tuple[PoolState, ...] = ()
    missing: Mapping[str, Missing] = field(default_factory=dict)
    every: int = 1

    def run(self) -> Run:
        run = Run()
        make = self.values if callable(self.values) else lambda _: self.values
        for minute in range(0, self.minutes + 1, self.every):
            last = minute == self.minutes
            events = [e for e in self.events if last or e.at_ms <= instant(minute)]
            marked = (
                [Reading(gpu(), instant(minute), {"gpu_fan_speed_ratio": 0.5}, self.missing)] if self.missing else ()
            )
            predictions = self.predictions if last else ()
            run.step(minute, make(minute), events=events, predictions=predictions, pools=self.pools, readings=marked)
        return run


def event(kind: EventKind, code: int = 0) -> Case:
    return Case(events=(Event(kind, gpu().uuid, "node-1", instant(0), code),))


def notice(number: NoticeCode) -> Case:
    text = notice_text("the cloud announces it", instant(2))
    return Case(events=(Event(EventKind.MAINTENANCE_NOTICE, "", "node-1", instant(0), number, text),))


def switch(number: int, times: int) -> Case:
    return Case(events=tuple(Event(EventKind.SXID, "", "node-1", instant(-n), number) for n in range(times)))


def node_fault(*numbers: int) -> Case:
    events = (Event(EventKind.NODE_FAULT, "", "node-1", instant(n), number) for n, number in enumerate(numbers))
    return Case(len(numbers), events=tuple(events))


def device_fault(*numbers: int) -> Case:
    where = gpu().uuid
    events = (Event(EventKind.DEVICE_FAULT, where, "node-1", instant(n), number) for n, number in enumerate(numbers))
    return Case(len(numbers), events=tuple(events))


def code(*numbers: int) -> Case:
    return Case(events=tuple(xid(number, at_ms=instant(0)) for number in numbers))


def crossing(metric: str, minutes: int, subject: Subject | None = None, sure: float | None = None) -> Case:
    subject = subject or Subject(SubjectKind.GPU, gpu().uuid, "node-1")
    yes, target = PredictionStatus.CROSSING, f"time_to_threshold:{metric}"
    eta = instant(minutes)
    made = Prediction(subject, target, instant(0), 999 * HOUR, yes, "m", "1", "s", metric, 1.0, 0.5, eta_ms=eta)
    pools = (PoolState(subject.name),) if subject.kind is SubjectKind.POOL else ()
    return Case(predictions=(replace(made, probability=sure),), pools=pools)


def risk(probability: float) -> Case:
    subject, likely = Subject(SubjectKind.GPU, gpu().uuid, "node-1"), PredictionStatus.LIKELY
    said = "node-1 GPU 0: a memory fault within 48 h is to be expected."
    made = Prediction(subject, "hardware_fault", instant(0), 48 * HOUR, likely, "m", "1", said, probability=probability)
    return Case(predictions=(made,))


def filling(target: str, minutes: int) -> Case:
    """Something that is full in `minutes`, said as long ago as that is beyond what counts."""
    subject = Subject(SubjectKind.GPU, gpu().uuid, "node-1")
    yes, eta = PredictionStatus.CROSSING, instant(minutes)
    said = "node-1 GPU 0: memory grows without a plateau."
    made = Prediction(subject, target, instant(0), 20 * MINUTE, yes, "filling", "1", said, "m", 0.985, 0.9, eta_ms=eta)
    return Case(predictions=(made if minutes < 20 else replace(made, at_ms=instant(-4)),))


POOL = Subject(SubjectKind.POOL, "default")


def flat(minutes: int = 0, **values: float) -> Case:
    return Case(minutes, values)


def counter(name: str, per_minute: float, minutes: int = 6) -> Case:
    return Case(minutes, lambda minute: {name: 100 + per_minute * minute})


def pool(utilization: float, minutes: int = 16, **state: object) -> Case:
    pools = (PoolState("default", **state),) if state else ()  # type: ignore[arg-type]
    return Case(minutes, {"utilization_ratio": utilization}, pools=pools)


def fleet(free: dict[str, int], minutes: int = 11) -> Case:
    values: dict[Gpu, Values] = {}
    for host, count in free.items():
        for n in range(8):
            idle = n < count
            which = gpu(uuid=f"{host}-{n}", host=host)
            values[which] = {"utilization_ratio": 0.0 if idle else 0.9, "processes": 0 if idle else 1}
    return Case(minutes, lambda _: values)


def peers(hot: float) -> Case:
    values = {gpu(n): {"temperature_celsius": 50.0 + (hot if n == 0 else n), "power_watts": 300.0} for n in range(7)}
    return Case(31, lambda _: values)


def node_of_four(hot: float) -> Case:
    """The first GPU of four is so much hotter than its mates, who draw less by a fifth."""
    values = {
        gpu(n): {"temperature_celsius": 55.0 + (hot if n == 0 else 0), "power_watts": 330.0 if n == 0 else 300.0}
        for n in range(4)
    }
    return Case(6 * 60 + 1, lambda _: values)


def link(rising: str) -> Case:
    name = 'nvlink_recovery_errors_total{link="%s"}'
    return Case(2, lambda minute: {name % n: float(minute if n in rising else 0) for n in "0123"})


def symbols(one: float) -> Case:
    name = 'nvlink_symbol_errors_total{link="%s"}'
    return Case(2, lambda minute: {name % n: minute * (one if n == "2" else 10.0) for n in "0123"})


def grown(per_hour: float, **remapped: float) -> Case:
    """Errors of two counters of links and one of memory, two an hour for two days and then `per_hour` for two more."""
    names = ("nvlink_crc_flit_errors_total", "nvlink_crc_data_errors_total", "ecc_corrected_volatile_total")

    def values(minute: int) -> Values:
        hours = minute / 60
        total = 2.0 * min(hours, 48.0) + per_hour * max(hours - 48.0, 0.0)
        return dict.fromkeys(names, total) | {name: at * (hours > 48) for name, at in remapped.items()}

    return Case(96 * 60, values, every=60)


def unordered(again: float) -> Case:
    """6,600 packets a minute out of order, of which `again` a minute are asked for once more."""
    port = '{port="mlx5_0:1"}'
    names = f"network_out_of_sequence_total{port}", f"network_sequence_errors_total{port}"
    return Case(12, lambda minute: {names[0]: 6_600.0 * minute, names[1]: 5 + again * minute})


def retries(a_minute: float, in_pieces: float) -> Case:
    """One process of which `a_minute` allocations fail at first, `in_pieces` of its free memory outside one piece."""
    name = 'allocator_retries_total{pid="7"}'
    return Case(6, lambda minute: {name: 5.0 + a_minute * minute, PROCESS: in_pieces})


def still(moving: bool) -> Case:
    def values(minute: int) -> Values:
        energy = 5000.0 + (60 * minute if moving else 0)
        return {"energy_joules_total": energy, "temperature_celsius": 24, "power_watts": 83, "sm_clock_hertz": 1.41e9}

    return Case(60, values)


def family(without: int) -> Case:
    def values(minute: int) -> dict[Gpu, Values]:
        full, less = {"power_watts": 83.0, "temperature_celsius": 24.0}, {"temperature_celsius": 24.0}
        return {
            gpu(0): less if minute >= 2 else full,
            gpu(1, host="node-2"): less if without > 1 and minute >= 2 else full,
        }

    return Case(13, values)


def silence(gone: int) -> Case:
    return Case(15, lambda m: {gpu(n): {"power_watts": 80.0 + m} for n in range(2) if n >= gone or m < 3} or {})


PROCESS = 'allocator_external_fragmentation_ratio{pid="7"}'
INSTANCE = 'mig_instance_memory_used_ratio{instance="1"}'
MIG = gpu(9, uuid="MIG-1", parent=gpu().uuid)
LOADED = {"utilization_ratio": 0.9, "pcie_link_width_max": 16.0, "pcie_link_generation_max": 5.0}
HUNG = {"utilization_ratio": 1.0, "sm_active_ratio": 0.0, "power_watts": 80.0, "power_limit_default_watts": 700.0}


def versions(component: str, minutes: int, odd: int) -> Case:
    """Five hosts, of which `odd` have another version than the rest."""
    fleet = {
        gpu(n, host=f"node-{n}", labels={f"{component}_version": "2" if n < odd else "1"}): {"power_watts": 300.0}
        for n in range(5)
    }
    return Case(minutes, lambda _: fleet)


CASES: dict[str, tuple[Case, Case]] = {
    "pool_overloaded": (pool(0.95, pending_gpus=2.0), pool(0.95, pending_gpus=0.0)),
    "pool_underused": (pool(0.1), pool(0.1, pending_gpus=3.0)),
    "allocator_fragmented": (Case(10, {PROCESS: 0.4}), Case(9, {PROCESS: 0.4})),
    "allocator_retries": (retries(2, 0.4), retries(2, 0.2)),
    "mig_fragmented": (flat(10, mig_fragmentation_ratio=0.31), flat(20, mig_fragmentation_ratio=0.3)),
    "fleet_fragmented": (fleet({"a": 4, "b": 5}), fleet({"a": 8, "b": 1})),
    "temperature_high": (
        flat(1, temperature_celsius=83, temperature_slowdown_celsius=89),
        flat(5, temperature_celsius=83, temperature_slowdown_celsius=95),
    ),
    "thermal_margin_low": (flat(2, thermal_margin_celsius=2), flat(5, thermal_margin_celsius=3)),
    "thermal_margin_gone": (flat(1, thermal_margin_celsius=0), flat(5, thermal_margin_celsius=1)),
    "thermal_margin_at_slowdown": (flat(1, thermal_margin_celsius=-3), flat(5, thermal_margin_celsius=-2)),
    "memory_temperature_high": (
        flat(1, memory_temperature_celsius=96, memory_temperature_max_operating_celsius=95),
        flat(5, memory_temperature_celsius=95, memory_temperature_max_operating_celsius=95),
    ),
    "thermal_slowdown": (
        counter("hw_thermal_slowdown_seconds_total", 2),
        counter("hw_thermal_slowdown_seconds_total", 0),
    ),
    "temperature_limit_reached": (
        flat(1, temperature_celsius=93, temperature_slowdown_celsius=93, temperature_shutdown_celsius=96),
        flat(5, temperature_celsius=92, temperature_slowdown_celsius=93, temperature_shutdown_celsius=96),
    ),
    "thermal_slowdown_by_driver": (
        flat(2, clocks_event_reasons_bitmask=0x20),
        counter("sw_thermal_slowdown_seconds_total", 11),
    ),
    "temperature_above_peers": (peers(25), peers(10)),
    "temperature_above_node_mates": (node_of_four(16), node_of_four(14)),
    "memory_full": (flat(15, memory_used_ratio=0.91), flat(14, memory_used_ratio=0.91)),
    "instance_memory_full": (Case(2, {INSTANCE: 0.81}), Case(9, {INSTANCE: 0.8})),
    "mig_device_memory_full": (
        Case(2, lambda _: {MIG: {"memory_used_ratio": 0.85}}),
        flat(9, memory_used_ratio=0.85),
    ),
    "driver_recovery_action": (flat(recovery_action=1), flat(recovery_action=0)),
    "row_remap_pending": (flat(1, row_remap_pending=1), flat(5, row_remap_pending=0)),
    "row_remap_failed": (flat(row_remap_failure=1), flat(row_remap_failure=0, memory_unrepairable=0)),
    "memory_spares_used_up": (
        Case(0, {'row_remap_banks{availability="none"}': 1}),
        flat(5, row_remap_uncorrectable_total=511, retired_pages_corrected_total=62),
    ),
    "ecc_uncorrectable": (
        counter("ecc_uncorrected_volatile_total", 1, minutes=1),
        counter("ecc_uncorrected_volatile_total", 0),
    ),
    "xid_bus": (code(79), code(176)),
    "xid_memory": (code(48), code(63)),
    "xid_memory_repair": (code(63), code(48)),
    "xid_nvlink_nonfatal": (
        Case(events=(replace(xid(149, at_ms=instant(0)), severity=Severity.WARNING, remedy="ignore"),)),
        code(149, 108),
    ),
    "xid_nvlink": (code(149), code(137)),
    "xid_firmware": (code(119), code(61)),
    "xid_power": (code(54), code(162)),
    "xid_application": (code(31), code(79)),
    "xid_application_repeated": (
        Case(events=tuple(xid(31, at_ms=instant(-n)) for n in range(10))),
        Case(events=tuple(xid(31, at_ms=instant(-n)) for n in range(9))),
    ),
    "xid_other": (code(61), code(154)),
    "nvswitch_fabric_fatal": (event(EventKind.SXID, 12020), event(EventKind.SXID, 20034)),
    "nvswitch_partition_fatal": (event(EventKind.SXID, 20034), event(EventKind.SXID, 12020)),
    "nvswitch_link_errors": (switch(20001, 10), switch(20001, 9)),
    "nvswitch_error": (event(EventKind.SXID, 11012), event(EventKind.SXID, 20034)),
    "duplicate_identity": (event(EventKind.DUPLICATE_IDENTITY), event(EventKind.GPU_FOUND)),
    "maintenance_notice": (notice(NoticeCode.INTERRUPTION), notice(NoticeCode.PLANNED)),
    "maintenance_planned": (notice(NoticeCode.FREEZE), notice(NoticeCode.REBOOT)),
    "gpu_lost": (event(EventKind.GPU_LOST), event(EventKind.DRIVER_RELOAD)),
    "pcie_width_reduced": (flat(5, **LOADED, pcie_link_width=8), flat(9, **LOADED, pcie_link_width=16)),
    "pcie_generation_reduced": (
        flat(5, **LOADED, pcie_link_generation=3),
        flat(9, **{**LOADED, "utilization_ratio": 0.0}, pcie_link_generation=1),
    ),
    "pcie_replays": (counter("pcie_replay_total", 20), counter("pcie_replay_total", 15)),
    "pcie_fatal_errors": (
        counter('pcie_errors_total{kind="fatal"}', 1, minutes=1),
        counter('pcie_errors_total{kind="correctable"}', 60),
    ),
    "pcie_crc_errors": (
        counter('pcie_errors_total{kind="lcrc"}', 3, minutes=1),
        counter('pcie_errors_total{kind="correctable"}', 60),
    ),
    "nvlink_recovery_one_link": (link("2"), link("13")),
    "nvlink_symbol_errors_one_link": (symbols(2500.0), symbols(2450.0)),
    "nvlink_crc_grows": (grown(32.0), grown(16.0)),
    "memory_errors_grow": (grown(8.0, row_remap_correctable_total=2), grown(8.0, row_remap_correctable_total=1)),
    "nvlink_recoveries": (
        counter("nvlink_recovery_errors_total", 2, minutes=1),
        counter("nvlink_recovery_errors_total", 1, minutes=1),
    ),
    "nvlink_errors": (counter("nvlink_crc_flit_errors_total", 6000), counter("nvlink_crc_flit_errors_total", 5900)),
    "nvlink_link_errors": (
        counter('nvlink_crc_errors_total{link="3"}', 6000),
        counter('nvlink_crc_errors_total{link="3"}', 5900),
    ),
    "nvlink_recovery_failed": (
        counter('nvlink_link_recovery_total{result="failed"}', 1, minutes=1),
        counter('nvlink_link_recovery_total{result="successful"}', 1),
    ),
    "nvlink_down": (
        Case(1, {'nvlink_up{link="4"}': 0, 'nvlink_up{link="5"}': 1, "fabric_state": 3}),
        Case(5, {'nvlink_up{link="4"}': 0, 'nvlink_up{link="5"}': 1}),
    ),
    "c2c_errors": (
        counter('c2c_link_errors_total{kind="interrupt"}', 1, minutes=1),
        counter('c2c_link_errors_total{kind="replay"}', 60),
    ),
    "fabric_unhealthy": (flat(1, fabric_health=2), flat(5, fabric_health=3)),
    "fabric_limited": (flat(1, fabric_health=3), flat(5, fabric_health=1)),
    "fabric_degraded": (
        Case(1, {'fabric_problem{problem="route_unhealthy"}': 1, 'fabric_problem{problem="degraded_bandwidth"}': 0}),
        Case(5, {'fabric_problem{problem="route_unhealthy"}': 0}),
    ),
    "fabric_not_ready": (flat(10, fabric_state=2), flat(20, fabric_state=3)),
    "network_link_down": (
        Case(2, {'network_port_up{port="mlx5_0:1"}': 0}),
        Case(5, {'network_port_up{port="mlx5_0:1"}': 1}),
    ),
    "network_link_flaps": (
        counter('network_link_downs_total{port="mlx5_0:1"}', 1, minutes=3),
        counter('network_link_downs_total{port="mlx5_0:1"}', 1, minutes=2),
    ),
    "network_signal_errors": (
        counter('network_symbol_errors_total{port="mlx5_0:1"}', 61, minutes=2),
        counter('network_symbol_errors_total{port="mlx5_0:1"}', 2),
    ),
    "network_receive_errors": (
        counter('network_receive_errors_total{port="mlx5_0:1"}', 660),
        counter('network_receive_errors_total{port="mlx5_0:1"}', 540),
    ),
    "network_out_of_order": (unordered(again=1.0), unordered(again=0.0)),
    "network_paused": (
        counter('network_pause_frames_total{port="mlx5_0:1"}', 66_000, minutes=12),
        counter('network_pause_frames_total{port="mlx5_0:1"}', 54_000, minutes=12),
    ),
    "nic_lost": (node_fault(11), node_fault(12)),
    "nic_trouble": (node_fault(13), node_fault(11)),
    "pcie_aer_fatal": (node_fault(23), node_fault(22)),
    "pcie_aer_nonfatal": (node_fault(22), node_fault(23)),
    "host_memory_uncorrected": (node_fault(32), node_fault(31)),
    "host_memory_corrected": (node_fault(31), node_fault(32)),
    "leak_detected": (node_fault(51), node_fault(52)),
    "coolant_flow": (node_fault(52), node_fault(53)),
    "coolant_temperature": (node_fault(53), node_fault(52)),
    "fan_failed": (node_fault(54), node_fault(55)),
    "power_supply_failed": (node_fault(55), node_fault(54)),
    "gpu_condition": (node_fault(61), node_fault(62)),
    "node_condition": (node_fault(62), node_fault(61)),
    "machine_check": (node_fault(42), node_fault(32)),
    "device_memory_uncorrected": (device_fault(1), device_fault(2)),
    "device_memory_worn_out": (device_fault(2), device_fault(1)),
    "bad_pages_near_limit": (
        Case(1, {"bad_pages": 231.0, "bad_pages_max": 256.0}),
        Case(1, {"bad_pages": 230.0, "bad_pages_max": 256.0}),
    ),
    "device_link_failed": (device_fault(3), device_fault(1)),
    "device_link_down": (
        Case(2, lambda _: {gpu(0, labels={"vendor": "amd"}): {'nvlink_up{link="3"}': 0.0}}),
        Case(2, lambda _: {gpu(0): {'nvlink_up{link="3"}': 0.0}}),
    ),
    "device_lost": (device_fault(4), device_fault(1)),
    "device_too_hot": (device_fault(5), device_fault(6)),
    "device_block_uncorrected": (device_fault(6), device_fault(1)),
    "device_reset": (device_fault(7), device_fault(8)),
    "device_reset_failed": (device_fault(8), device_fault(7)),
    "device_hung": (device_fault(9), device_fault(7)),
    "device_hung_repeatedly": (device_fault(9, 9, 9), device_fault(9, 9)),
    "device_bus_error": (device_fault(10), device_fault(9)),
    "device_isolate": (device_fault(11), device_fault(12)),
    "device_watch": (device_fault(12), device_fault(11)),
    "device_fault_unknown": (device_fault(99), device_fault(12)),
    "hardware_slowdown": (
        flat(2, clocks_event_reasons_bitmask=0x8),
        flat(5, clocks_event_reasons_bitmask=0x88),
    ),
    "reset_owed_by_mode": (
        flat(1, ecc_mode_enabled=0, ecc_mode_pending=1),
        flat(5, ecc_mode_enabled=1, ecc_mode_pending=1, mig_mode=0, mig_mode_pending=0),
    ),
    "power_brake": (
        flat(2, clocks_event_reasons_bitmask=0x80),
        flat(5, clocks_event_reasons_bitmask=0x104, hw_power_brake_seconds_total=7),
    ),
    "gpu_hung": (flat(5, **HUNG), flat(9, **{**HUNG, "power_watts": 600.0})),
    "telemetry_frozen": (still(moving=False), still(moving=True)),
    "values_frozen": (
        Case(5, missing={"gpu_power_watts": Missing.FROZEN}),
        Case(9, missing={"gpu_power_watts": Missing.BLANK}),
    ),
    "metric_family_lost": (family(1), family(2)),
    "gpu_silent": (silence(1), silence(0)),
    "version_drift": (versions("driver", 60, 1), versions("driver", 59, 1)),
    "library_drift": (versions("nccl", 60, 1), versions("nccl", 60, 2)),
    "temperature_forecast": (crossing("gpu_temperature_celsius", 29), crossing("gpu_temperature_celsius", 31)),
    "pool_overload_forecast": (
        crossing("pool_utilization_ratio", 359, POOL, 0.85),
        crossing("pool_utilization_ratio", 100, POOL, 0.75),
    ),
    "memory_forecast": (crossing("gpu_memory_used_ratio", 119), crossing("gpu_memory_used_ratio", 121)),
    "gpu_fault_predicted": (risk(0.5), risk(0.49)),
    "out_of_memory_predicted": (filling("out_of_memory", 12), filling("out_of_memory", 20)),
    "memory_leak_predicted": (filling("memory_leak", 12), filling("memory_leak", 20)),
    "fragmentation_predicted": (filling("fragmentation", 12), filling("fragmentation", 20)),
    "row_remap_forecast": (
        crossing("gpu_row_remap_uncorrectable_total", 10_000),
        crossing("gpu_row_remap_uncorrectable_total", 10_081),
    ),
}


def test_there_is_a_case_for_every_shipped_rule() -> None:
    assert set(CASES) == {rule.name for rule in load_rules()}


@pytest.mark.parametrize("name", CASES)
def test_it_fires(name: str) -> None:
    run = CASES[name][0].run()
    found = [finding for finding in run.last.active if finding.rule == name]
    assert len(found) == 1
    sentence = found[0].sentence
    assert "unknown" not in sentence
    assert "{" not in sentence
    where = {"pool": "pool default", "fleet": "the fleet"}.get(found[0].subject.kind.value, "node-1")
    assert where in sentence
    chinese = found[0].sentence_zh
    assert "{" not in chinese
    assert "未知" not in chinese
    assert {"pool": "资源池 default", "fleet": "整个集群"}.get(found[0].subject.kind.value, "node-1") in chinese


@pytest.mark.parametrize("name", CASES)
def test_it_does_not_fire(name: str) -> None:
    run = CASES[name][1].run()
    assert name not in {finding.rule for finding in run.opened}


def test_thresholds_that_were_asked_for() -> None:
    meaning = {rule.name: rule.meaning() for rule in load_rules()}
    assert "pool_utilization_ratio (mean over 15 min) > 90 %" in meaning["pool_overloaded"]
    assert "pool_utilization_ratio (mean over 15 min) < 30 %" in meaning["pool_underused"]
    assert "> 85 °C" in meaning["temperature_high"]
    assert "gpu_temperature_slowdown_celsius - 7" in meaning["temperature_high"]
    asked = {
        "pool_overloaded": ("scale_out", 0),
        "pool_underused": ("scale_in", 0),
        "allocator_fragmented": ("defragment", 10),
        "mig_fragmented": ("defragment", 10),
        "fleet_fragmented": ("defragment", 10),
        "temperature_high": ("throttle", 1),
        "memory_full": ("migrate", 15),
        "instance_memory_full": ("place_elsewhere", 2),
    }
    shipped = {rule.name: (rule.table.action, rule.table.for_ // 60_000) for rule in load_rules() if rule.name in asked}
    assert shipped == asked


@pytest.mark.parametrize(("hours", "told"), [(11, True), (22, False)])
def test_symbol_errors_of_one_link_count_within_half_a_day(hours: int, told: bool) -> None:
    """540 in all, 360 times those of the others throughout."""
    name = 'nvlink_symbol_errors_total{link="%s"}'

    def values(minute: int) -> Values:
        counted = 540.0 * minute / (60 * hours)
        return {name % n: counted if n == "2" else counted / 360 for n in "0123"}

    run = Case(60 * hours + 1, values, every=60).run()
    assert ("nvlink_symbol_errors_one_link" in run.active) is told


@pytest.mark.parametrize(("per_hour", "told"), [(24.0, True), (19.0, False)])
def test_nvlink_crc_errors_are_told_from_ten_times_the_usual(per_hour: float, told: bool) -> None:
    """Where it counted two an hour for two days."""
    assert ("nvlink_crc_grows" in grown(per_hour).run().active) is told


def test_pieces_alone_are_a_note_and_failing_allocations_a_warning() -> None:
    levels = {rule.name: rule.level for rule in load_rules()}
    assert (levels["allocator_fragmented"], levels["allocator_retries"]) == (AlertLevel.NOTE, AlertLevel.WARNING)


def test_an_elastic_pool_scales_out_without_waiting_work() -> None:
    run = pool(0.95, elastic=True).run()
    assert "pool_overloaded" in run.active
    assert "pool_overloaded" not in pool(0.95).run().active


def test_85_degrees_count_where_the_slowdown_threshold_is_unknown() -> None:
    assert "temperature_high" in flat(1, temperature_celsius=86).run().active
    assert flat(5, temperature_celsius=84).run().active == []


def test_whichever_comes_first_of_85_and_slowdown_less_7() -> None:
    late = flat(1, temperature_celsius=86, temperature_slowdown_celsius=95).run()
    (finding,) = late.last.active
    assert finding.threshold == 85
    early = flat(1, temperature_celsius=83, temperature_slowdown_celsius=89).run()
    assert early.last.active[0].threshold == 82


@pytest.mark.parametrize(("own", "warned"), [(0.49, False), (0.51, True)])
def test_what_no_sign_foretells_warns_of_nobody(own: float, warned: bool) -> None:
    (said,) = risk(0.55).predictions
    case = Case(predictions=(replace(said, raw=own),))
    assert ("gpu_fault_predicted" in case.run().active) is warned


def test_a_margin_pages_at_the_hardwares_slowdown_and_not_where_the_driver_begins() -> None:
    part = {"tlimit_slowdown_celsius": -2}
    assert "thermal_margin_at_slowdown" not in flat(5, thermal_margin_celsius=-1, **part).run().active
    hot = flat(1, thermal_margin_celsius=-2, **part).run().last.active
    (finding,) = (one for one in hot if one.alert_level is AlertLevel.PAGE)
    assert (finding.rule, finding.threshold) == ("thermal_margin_at_slowdown", -2)
    assert all(one.alert_level is not AlertLevel.PAGE for one in flat(5, thermal_margin_celsius=0).run().last.active)


def test_the_bit_of_thermal_slowdown_counts_where_the_seconds_counter_is_absent() -> None:
    assert "thermal_slowdown" in flat(0, clocks_event_reasons_bitmask=0x48).run().active
    assert "thermal_slowdown" not in flat(5, clocks_event_reasons_bitmask=0x88).run().active
    assert "thermal_slowdown" in flat(0, clocks_hw_thermal_slowdown=1.0).run().active, "AMD has the flag alone"
    assert "thermal_slowdown" not in flat(5, clocks_hw_thermal_slowdown=0.0).run().active


@pytest.mark.parametrize(
    ("model", "celsius", "reported", "limit"),
    [
        ("Tesla T4", 96.0, {}, 96.0),
        ("Tesla T4", 93.0, {}, 93.0),
        ("NVIDIA T4", 92.0, {}, None),
        ("Tesla T4", 96.0, {"temperature_slowdown_celsius": 99.0, "temperature_shutdown_celsius": 102.0}, None),
        ("a model nobody knows", 96.0, {}, None),
        ("a model nobody knows", 93.0, {"temperature_shutdown_celsius": 93.0}, 93.0),
    ],
)
def test_a_gpu_without_a_margin_has_the_limits_it_reports_else_its_models(
    model: str, celsius: float, reported: dict[str, float], limit: float | None
) -> None:
    run = Run()
    for minute in range(2):
        run.step(minute, {replace(gpu(), model=model): {"temperature_celsius": celsius, **reported}})
    found = {finding.rule: finding for finding in run.last.active}.get("temperature_limit_reached")
    assert (found.threshold if found else None) == limit
    assert found is None or found.severity is Severity.CRITICAL


def test_the_limits_of_models_are_those_that_the_simulator_has() -> None:
    from tocsin.sim.inventory import models as sim_models

    for name, model in sim_models().items():
        known = model_limit(name, "gpu_temperature_slowdown_celsius")
        assert known is None or model.slowdown_c is None or known == model.slowdown_c, name


@pytest.mark.parametrize(
    ("value", "action", "name"),
    [
        (1, "reset_gpu", "GPU reset"),
        (2, "reboot_node", "node reboot"),
        (3, "drain", "drain P2P"),
        (4, "drain", "drain and reset"),
        (5, "notify", "recover IMEX domain"),
        (6, "reset_gpu", "bus reset"),
        (7, "reboot_node", "system reboot"),
    ],
)
def test_the_drivers_verdict_names_the_action(value: int, action: str, name: str) -> None:
    (finding,) = flat(recovery_action=value).run().last.active
    assert finding.action == action
    assert finding.sentence.endswith(f": the driver asks for recovery action {value} ({name}).")
    assert "（" in finding.sentence_zh
    (by_event,) = event(EventKind.RECOVERY_ACTION, value).run().last.active
    assert (by_event.action, by_event.metric, by_event.value) == (action, "gpu_recovery_action", value)


def test_the_drivers_verdict_ends_when_it_says_none() -> None:
    run = event(EventKind.RECOVERY_ACTION, 2).run()
    run.step(1, events=[Event(EventKind.RECOVERY_ACTION, gpu().uuid, "node-1", instant(1), 0)])
    assert run.active == []


@pytest.mark.parametrize("number", [spec.code for spec in shipped_catalogue().specs() if spec.application])
def test_a_programs_fault_only_ever_notifies(number: int) -> None:
    run = code(number).run()
    assert {(f.action, f.category) for f in run.opened} == {(ActionKind.NOTIFY, Category.APPLICATION)}


def test_every_critical_xid_is_found_and_condemns_the_gpu() -> None:
    for spec in shipped_catalogue().specs():
        if spec.severity is Severity.CRITICAL:
            found = [(f.severity, f.action, f.category) for f in code(spec.code).run().opened]
            assert found == [(Severity.CRITICAL, ActionKind.DRAIN, spec.category)], spec


def test_everything_ships_in_observe() -> None:
    assert {rule.table.mode for rule in load_rules()} == {Mode.OBSERVE}


def test_a_healthy_day_is_silent() -> None:
    run = Run()
    for minute in range(0, 24 * 60, 5):
        wave = minute % 60
        values = {
            gpu(n): {
                "utilization_ratio": 0.6,
                "temperature_celsius": 60 + (wave + n) % 7,
                "power_watts": 400 + wave + n,
                "energy_joules_total": 1e6 + 400 * 60 * minute,
                "memory_used_ratio": 0.7,
                "pcie_link_generation": 5,
                "pcie_link_generation_max": 5,
                "pcie_replay_total": minute // 600,
                "recovery_action": 0,
            }
            for n in range(8)
        }
        run.step(minute, values)
    assert run.opened == []
