"""Alerts about GPUs, from what agents export."""

from __future__ import annotations

from tocsin.domain.metrics import METRICS
from tocsin_grafana.alert import DRAIN, EXPECTED_GPU, GPU_LABELS, WHERE, Alert, per_gpu
from tocsin_grafana.by_rule import Exporter
from tocsin_grafana.rulebook import level, offset, share_of

AGENT = Exporter(METRICS, WHERE, EXPECTED_GPU)

_FAILED = ("gpu_row_remap_failure", "gpu_memory_unrepairable", "gpu_ecc_sram_threshold_exceeded")
_PENDING = ("gpu_row_remap_pending", "gpu_retired_pages_pending")
_ECC, _SRAM = "gpu_ecc_uncorrected_volatile_total", "gpu_ecc_sram_uncorrected_volatile_total"

_REPAIR = (
    AGENT.alert(
        "GpuRecoveryAction", "driver_recovery_action", "critical", "cause",
        expr=per_gpu(f"gpu_recovery_action >= {level('driver_recovery_action', 'gpu_recovery_action'):g}"),
        summary="The driver asks for a recovery action on {{ $labels.host }}",
        says="the driver's verdict is {{ $value | humanize }} (1 GPU reset, 2 node reboot, 3 drain peers, "
        "4 drain and reset, 5 recover the IMEX domain, 6 bus reset, 7 system reboot).",
        remedy="Do what it asks for once the work has left the GPU; it outranks every other table.",
        fires="0x10 1x30", rests="0x40", shown="1",
    ),
    AGENT.alert(
        "GpuMemoryBeyondRepair", "row_remap_failed", "critical", "cause",
        expr=per_gpu(" or ".join(f"{metric} >= 1" for metric in _FAILED)),
        summary="Memory of a GPU on {{ $labels.host }} can no longer be repaired",
        says="a row remap failed, memory is beyond repair, or SRAM errors passed the level for replacement.",
        remedy="Drain the host and have the GPU replaced.",
        fires={_FAILED[0]: "0x10 1x30", _FAILED[1]: "0x40"},
        rests={_FAILED[0]: "0x40", _FAILED[1]: "0x40"},
    ),
    AGENT.alert(
        "GpuRowRemapPending", "row_remap_pending", "warning", "symptom",
        expr=per_gpu(" or ".join(f"{metric} >= 1" for metric in _PENDING)),
        summary="A memory repair on {{ $labels.host }} waits for a GPU reset",
        says="a row or page waits to be remapped or retired.",
        remedy="Reset the GPU at the next chance; until then the damaged row stays in use.",
        fires={_PENDING[0]: "0x10 1x30"}, rests={_PENDING[0]: "0x10 1 0x30"},
        wait="2m", note="It asks for two readings, which is two minutes here.",
    ),
    AGENT.alert(
        "GpuRowsRemapped", "row_remap_pending", "warning", "symptom",
        expr=per_gpu("increase(gpu_row_remap_uncorrectable_total[24h]) > 0"),
        summary="Rows of a GPU on {{ $labels.host }} were remapped for uncorrectable errors",
        says="{{ $value | humanize }} rows within a day. Spare rows are finite.",
        remedy="Watch the GPU: row_remap_forecast says when its spare rows run out. Plan a replacement when they do.",
        fires="2x10 3x60", rests="2x80", shown="1.008", wait="0s", at="60m",
        source="Own choice: any in a day; NVIDIA remaps a row only after an uncorrectable error (docs/xid.md).",
    ),
    AGENT.alert(
        "GpuEccUncorrectable", "ecc_uncorrectable", "critical", "cause",
        expr=per_gpu(" or ".join(f"increase({metric}[24h]) > 0" for metric in (_ECC, _SRAM))),
        summary="Uncorrectable memory errors on {{ $labels.host }}",
        says="{{ $value | humanize }} within a day.",
        remedy=f"The program that met them has failed. {DRAIN}",
        fires={_ECC: "0x10 2x60", _SRAM: "0x80"}, rests={_ECC: "5x80", _SRAM: "0x80"}, shown="2", at="60m",
    ),
)  # fmt: skip

_CORE, _MEMORY, _BRAKE = (
    "gpu_temperature_celsius",
    "gpu_memory_temperature_celsius",
    "gpu_hw_power_brake_seconds_total",
)
_HOT = level("temperature_high", _CORE)
_SLOWDOWN, _OFF = offset("temperature_high", _CORE)
_MEMORY_MOST, _ = offset("memory_temperature_high", _MEMORY)

_HEAT = (
    AGENT.alert(
        "GpuTemperatureHigh", "temperature_high", "warning", "symptom",
        expr=per_gpu(f"{_CORE} > {_HOT:g} or {_CORE} > {_SLOWDOWN} - {-_OFF:g}"),
        summary="A GPU on {{ $labels.host }} runs hot",
        says=f"core at {{{{ $value | humanize }}}} °C; the level is {_HOT:g} °C, or {-_OFF:g} °C below slowdown.",
        remedy="Look at fans, inlet air and neighbours; action throttle lowers the power limit.",
        fires={_CORE: "60x10 88x30"}, rests={_CORE: "60x10 88 60x30"}, shown="88",
    ),
    AGENT.alert(
        "GpuThermalMarginLow", "thermal_margin_low", "warning", "symptom",
        expr=per_gpu(f"gpu_thermal_margin_celsius <= {level('thermal_margin_low'):g}"),
        summary="A GPU on {{ $labels.host }} is near its slowdown",
        says="{{ $value | humanize }} °C left to the most in operation.",
        remedy="Look at the cooling before it slows down.",
        fires="20x10 2x30", rests="20x10 3x30", shown="2",
    ),
    AGENT.alert(
        "GpuThermalMarginGone", "thermal_margin_gone", "warning", "symptom",
        expr=per_gpu(f"gpu_thermal_margin_celsius <= {level('thermal_margin_gone'):g}"),
        summary="A GPU on {{ $labels.host }} is at its maximum operating temperature",
        says="thermal margin {{ $value | humanize }} °C: the driver begins to slow it down.",
        remedy="Look at the cooling; GpuThermalSlowdown follows where hardware slows it down.",
        fires="20x10 -1x30", rests="20x10 1x30", shown="-1",
        wait="1m", note="It asks for two readings, which is a minute here.",
    ),
    AGENT.alert(
        "GpuMemoryTemperatureHigh", "memory_temperature_high", "warning", "symptom",
        expr=per_gpu(f"{_MEMORY} > {_MEMORY_MOST}"),
        summary="The memory of a GPU on {{ $labels.host }} runs hot",
        says="{{ $value | humanize }} °C, above what this part may have in operation.",
        remedy="Look at the cooling; memory that is too hot fails sooner.",
        fires={_MEMORY: "70x10 101x30", _MEMORY_MOST: "95x40"},
        rests={_MEMORY: "70x10 94x30", _MEMORY_MOST: "95x40"}, shown="101",
    ),
    AGENT.alert(
        "GpuThermalSlowdown", "thermal_slowdown", "critical", "symptom",
        expr=per_gpu(f"increase(gpu_hw_thermal_slowdown_seconds_total[5m]) > {level('thermal_slowdown'):g}"),
        summary="Hardware slows a GPU on {{ $labels.host }} down for heat",
        says="{{ $value | humanizeDuration }} of hardware slowdown within five minutes.",
        remedy="Take work away from it and look at the cooling at once.",
        fires="0x10 0+10x30", rests="50x40", shown="50s",
    ),
    AGENT.alert(
        "GpuPowerBrake", "power_brake", "critical", "cause",
        expr=per_gpu(f"increase({_BRAKE}[5m]) > {level('power_brake', _BRAKE):g}"),
        summary="An outside signal brakes a GPU on {{ $labels.host }}",
        says="{{ $value | humanizeDuration }} under the external power brake within five minutes.",
        remedy="It is a fault of supply or rack, which no reboot mends: look at the power supplies.",
        fires="0x10 0+6x30", rests="7x40", shown="30s",
        wait="1m", note="It asks for three readings, which is a minute here.",
    ),
)  # fmt: skip

_RECOVERS = "increase(gpu_nvlink_recovery_errors_total[24h]) > 1.5"
"""Twice or more: `increase` of a day reaches out to the ends of the day, so that two are not always 2."""
_ONE_LINK, _TWO_LINKS = (
    {
        'gpu_nvlink_recovery_errors_total|link="4"': "0x10 3x1480",
        'gpu_nvlink_recovery_errors_total|link="5"': other,
    }
    for other in ("0x90", "0x10 3x1480")
)
_REPLAYS = level("pcie_replays")
_WIDTH, _WIDTH_MOST, _BUSY = "gpu_pcie_link_width", "gpu_pcie_link_width_max", "gpu_utilization_ratio"

_LINKS = (
    AGENT.alert(
        "GpuNvlinkRecovery", "nvlink_recovery_one_link", "warning", "symptom",
        expr=f"max by ({GPU_LABELS}, link) ({_RECOVERS}) and on (gpu_uuid) "
        f"(count by (gpu_uuid) (max by (gpu_uuid, link) ({_RECOVERS})) == 1)",
        summary="One NVLink of a GPU on {{ $labels.host }} recovers again and again",
        says="link {{ $labels.link }} recovered {{ $value | humanize }} times within a day, its others did not.",
        remedy="Look at that link: cable, connector or port. XID 74 or 149 may follow.",
        fires=_ONE_LINK, rests=_TWO_LINKS, shown="3", at="24h5m", more={"link": "4"},
    ),
    AGENT.alert(
        "GpuNvlinkRecoverySeveralLinks", "nvlink_recovery_one_link", "warning", "symptom",
        expr=f"count by ({GPU_LABELS}) (max by ({GPU_LABELS}, link) ({_RECOVERS})) > 1",
        summary="Several NVLinks of a GPU on {{ $labels.host }} recover",
        says="{{ $value | humanize }} links recovered twice within a day.",
        remedy="Look at what they share: the GPU, its baseboard or the switch, not a single cable.",
        fires=_TWO_LINKS, rests=_ONE_LINK, shown="2", at="24h5m",
        note="It is about one link; several at once are own choice.",
    ),
    AGENT.alert(
        "GpuPcieReplays", "pcie_replays", "warning", "symptom",
        expr=per_gpu(f"rate(gpu_pcie_replay_total[10m]) * 60 > {_REPLAYS:g}"),
        summary="PCIe of a GPU on {{ $labels.host }} replays",
        says=f"{{{{ $value | humanize }}}} replays a minute; the level is {_REPLAYS:g}.",
        remedy="Look at riser, slot and cable; loss of the bus may follow.",
        fires="0x10 0+20x40", rests="0x10 0+10x40", shown="20",
    ),
    AGENT.alert(
        "GpuPcieWidthReduced", "pcie_width_reduced", "warning", "cause",
        expr=per_gpu(f"{_WIDTH} < {_WIDTH_MOST} and {_BUSY} > {level('pcie_width_reduced', _BUSY):g}"),
        summary="PCIe of a GPU on {{ $labels.host }} has lost lanes",
        says="{{ $value | humanize }} lanes under load, fewer than GPU and slot have.",
        remedy="Reseat the GPU or its riser; until then its copies are slower.",
        fires={_WIDTH: "16x5 8x40", _WIDTH_MOST: "16x50", _BUSY: "0.9x50"},
        rests={_WIDTH: "8x50", _WIDTH_MOST: "16x50", _BUSY: "0.1x50"}, shown="8",
    ),
)  # fmt: skip

_ACTIVE, _POWER, _LIMIT = "gpu_sm_active_ratio", "gpu_power_watts", "gpu_power_limit_default_watts"
_HANGS = {_BUSY: "1x40", _ACTIVE: "0x40", _POWER: "120x40", _LIMIT: "700x40"}

_LOAD = (
    AGENT.alert(
        "GpuHung", "gpu_hung", "critical", "cause",
        expr=per_gpu(
            f"{_BUSY} > {level('gpu_hung', _BUSY):g} and {_ACTIVE} < {level('gpu_hung', _ACTIVE):g} "
            f"and {_POWER} < {share_of('gpu_hung', _POWER):g} * {_LIMIT}"
        ),
        summary="A GPU on {{ $labels.host }} hangs",
        says="it claims to be busy ({{ $value | humanizePercentage }}), yet no SM works and it draws little.",
        remedy="End the program; if that does not help, drain the host and reset the GPU.",
        fires=_HANGS, rests=_HANGS | {_POWER: "500x40"}, shown="100%",
    ),
    AGENT.alert(
        "GpuMemoryFull", "memory_full", "info", "symptom",
        expr=per_gpu(f'gpu_memory_used_ratio{{mig_uuid=""}} > {level("memory_full"):g}'),
        summary="The memory of a GPU on {{ $labels.host }} is nearly full",
        says="{{ $value | humanizePercentage }} in use.",
        remedy="A program that allocates all memory at its start is no trouble; one that grows is.",
        fires="0.5x5 0.95x40", rests="0.5x20 0.95x20", shown="95%",
        note="It is a warning there; info here, since frameworks fill memory by design.",
    ),
)  # fmt: skip


def alerts() -> list[Alert]:
    """From the gravest to the mildest."""
    return [*_REPAIR, *_HEAT, *_LINKS, *_LOAD]
