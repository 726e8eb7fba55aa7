"""The same alerts for sites that have dcgm-exporter and no agent, on the names of DCGM up to 4.5."""

from __future__ import annotations

from tocsin.domain.metrics import BY_DCGM_NAME
from tocsin_grafana.alert import DRAIN, Alert
from tocsin_grafana.alerts_xid import among, codes
from tocsin_grafana.by_rule import Exporter
from tocsin_grafana.rulebook import level

XIDS = "DCGM_EXP_XID_ERRORS_COUNT"
"""A gauge of dcgm-exporter's own: XIDs within its window, by code. The field of the last XID hides repeats."""
_HOST = "{{ $labels.Hostname }}{{ $labels.hostname }}"
DCGM = Exporter(
    {XIDS, *BY_DCGM_NAME},
    f"{_HOST} GPU {{{{ $labels.gpu }}}}",
    {"UUID": "GPU-1", "gpu": "3", "Hostname": "n1", "modelName": "NVIDIA H100"},
)


def _each(expr: str, *more: str) -> str:
    """`expr` with the labels that name a GPU, and `more`."""
    return f"max by ({', '.join(['UUID', 'gpu', 'Hostname', 'hostname', 'modelName', *more])}) ({expr})"


def _xid(name: str, rule: str, headline: str) -> Alert:
    numbers = codes(rule)
    one = f'xid="{numbers[0]}"'
    return DCGM.alert(
        name, rule, "critical", "cause",
        expr=_each(f"{XIDS}{{{among(numbers)}}} > 0", "xid"),
        summary=f"{headline} on {_HOST}",
        says="XID {{ $labels.xid }}, {{ $value | humanize }} times within the exporter's window.",
        remedy=DRAIN,
        fires={f"{XIDS}|{one}": "0x10 1x30"}, rests={f'{XIDS}|xid="13"': "0x10 4x30"}, shown="1",
        more={"xid": str(numbers[0])},
    )  # fmt: skip


_XIDS = (
    _xid("DcgmXidBus", "xid_bus", "A GPU fell off the bus"),
    _xid("DcgmXidMemory", "xid_memory", "Uncorrectable memory error"),
    _xid("DcgmXidNvlink", "xid_nvlink", "NVLink failed"),
    _xid("DcgmXidFirmware", "xid_firmware", "Firmware of a GPU stopped answering"),
)

_MEMORY = (
    DCGM.alert(
        "DcgmRecoveryAction", "driver_recovery_action", "critical", "cause",
        expr=_each("DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION >= 1"),
        summary=f"The driver asks for a recovery action on {_HOST}",
        says="verdict {{ $value | humanize }} (docs/metrics.md, gpu_recovery_action).",
        remedy="Do what it asks for once the work has left the GPU.",
        fires="0x10 2x30", rests="0x40", shown="2",
    ),
    DCGM.alert(
        "DcgmRowRemapFailed", "row_remap_failed", "critical", "cause",
        expr=_each("DCGM_FI_DEV_ROW_REMAP_FAILURE >= 1"),
        summary=f"Memory can no longer be repaired on {_HOST}",
        says="a row remap failed.",
        remedy="Drain the host and have the GPU replaced.",
        fires="0x10 1x30", rests="0x40",
    ),
    DCGM.alert(
        "DcgmRowRemapPending", "row_remap_pending", "warning", "symptom",
        expr=_each("DCGM_FI_DEV_ROW_REMAP_PENDING >= 1"),
        summary=f"A memory repair waits for a GPU reset on {_HOST}",
        says="a row waits to be remapped.",
        remedy="Reset the GPU at the next chance.",
        fires="0x10 1x30", rests="0x10 1 0x30", wait="2m",
    ),
    DCGM.alert(
        "DcgmRowsRemapped", "row_remap_pending", "warning", "symptom",
        expr=_each("increase(DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS[24h]) > 0"),
        summary=f"Rows were remapped for uncorrectable errors on {_HOST}",
        says="{{ $value | humanize }} rows within a day.",
        remedy="Watch the GPU; spare rows are finite.",
        fires="0x10 2x60", rests="2x70", shown="2", wait="0s", at="60m",
        source="Own choice: any in a day.",
    ),
    DCGM.alert(
        "DcgmEccUncorrectable", "ecc_uncorrectable", "critical", "cause",
        expr=_each("increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[24h]) > 0"),
        summary=f"Uncorrectable memory errors on {_HOST}",
        says="{{ $value | humanize }} within a day.",
        remedy=DRAIN,
        fires="0x10 1x60", rests="3x70", shown="1", at="60m",
    ),
)  # fmt: skip

_HOT, _REPLAYS = level("temperature_high", "gpu_temperature_celsius"), level("pcie_replays")
_SLOW_NS = level("thermal_slowdown") * 1e9
_ENERGY, _TEMPERATURE, _POWER = (
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_POWER_USAGE",
)
_STANDS = {_ENERGY: "900x90", _TEMPERATURE: "33x90", _POWER: "310x90"}
_STILL = " and ".join(f"changes({field}[1h]) == 0" for field in _STANDS)

_REST = (
    DCGM.alert(
        "DcgmTemperatureHigh", "temperature_high", "warning", "symptom",
        expr=_each(f"{_TEMPERATURE} > {_HOT:g}"),
        summary=f"A GPU runs hot on {_HOST}",
        says=f"core at {{{{ $value | humanize }}}} °C; the level is {_HOT:g} °C.",
        remedy="Look at fans, inlet air and neighbours.",
        fires="60x10 88x30", rests="60x10 84x30", shown="88",
    ),
    DCGM.alert(
        "DcgmThermalMarginLow", "thermal_margin_low", "warning", "symptom",
        expr=_each(f"DCGM_FI_DEV_GPU_TEMP_LIMIT <= {level('thermal_margin_low'):g}"),
        summary=f"A GPU is near its slowdown on {_HOST}",
        says="{{ $value | humanize }} °C left.",
        remedy="Look at the cooling before it slows down.",
        fires="20x10 1x30", rests="20x40", shown="1",
    ),
    DCGM.alert(
        "DcgmThermalSlowdown", "thermal_slowdown", "critical", "symptom",
        expr=_each(f"increase(DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS[5m]) > {_SLOW_NS:g}"),
        summary=f"Hardware slows a GPU down for heat on {_HOST}",
        says="more than a second of hardware slowdown in five minutes.",
        remedy="Take work away from it and look at the cooling at once.",
        fires="0x10 0+10000000000x30", rests="50000000000x40",
    ),
    DCGM.alert(
        "DcgmPowerBrake", "power_brake", "critical", "cause",
        expr=_each("increase(DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS[5m]) > 0"),
        summary=f"An outside signal brakes a GPU on {_HOST}",
        says="time under the external power brake.",
        remedy="It is a fault of supply or rack: look at the power supplies.",
        fires="0x10 0+5000000000x30", rests="5000000000x40", wait="1m",
    ),
    DCGM.alert(
        "DcgmPcieReplays", "pcie_replays", "warning", "symptom",
        expr=_each(f"rate(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[10m]) * 60 > {_REPLAYS:g}"),
        summary=f"PCIe replays on {_HOST}",
        says=f"{{{{ $value | humanize }}}} a minute; the level is {_REPLAYS:g}.",
        remedy="Look at riser, slot and cable.",
        fires="0x10 0+20x40", rests="0x50", shown="20",
    ),
    DCGM.alert(
        "DcgmNvlinkRecovery", "nvlink_recovery_one_link", "warning", "symptom",
        expr=_each("increase(DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL[24h]) > 1.5"),
        summary=f"NVLinks recover on {_HOST}",
        says="{{ $value | humanize }} recoveries within a day, all links together.",
        remedy="Look at cables and connectors.",
        fires="0x10 3x1480", rests="0x10 1x1480", shown="3", wait="0s", at="24h5m",
    ),
    DCGM.alert(
        "DcgmTelemetryFrozen", "telemetry_frozen", "warning", "symptom",
        expr=_each(f"count_over_time({_TEMPERATURE}[1h]) >= 6 and {_TEMPERATURE} offset 1h and {_STILL}"),
        summary=f"Readings of a GPU do not move on {_HOST}",
        says="energy, temperature and power have not changed for an hour.",
        remedy="Restart dcgm-exporter and its host engine.",
        fires=_STANDS, rests=_STANDS | {_ENERGY: "900+310x90"}, at="80m",
    ),
)  # fmt: skip


def alerts() -> list[Alert]:
    """What dcgm-exporter can tell with the counters of deploy/dcgm-exporter/tocsin-counters.csv."""
    return [*_XIDS, *_MEMORY, *_REST]
