"""Alerts about GPUs, from what agents export."""

from __future__ import annotations

from tocsin.domain.metrics import METRICS
from tocsin_grafana.alert import EXPECTED_GPU, ONE_GPU, WHERE, Alert, Case, Severity, Tier, per_gpu
from tocsin_grafana.rulebook import held, level, offset, share_of

RULE = "Rule {} of src/tocsin/rules/defaults.toml."
WINDOW = "Own choice: an hour, so that an alert ends after the work is done; the finding in Tocsin goes on for a day."
DRAIN = "Drain the host, then reset the GPU or replace it, as the runbook of action drain says."


def _known(metric: str) -> str:
    return METRICS[metric].name


def _gpu(
    name: str,
    expr: str,
    rule: str,
    severity: Severity,
    tier: Tier,
    summary: str,
    description: str,
    remedy: str,
    fires: dict[str, str],
    rests: dict[str, str],
    shown: str = "",
    wait: str = "",
    at: str = "30m",
    more: dict[str, str] | None = None,
    source: str = "",
) -> Alert:
    """An alert whose series are named by the labels of one GPU."""
    return Alert(
        name,
        expr,
        wait or held(rule),
        severity,
        tier,
        summary,
        description,
        remedy,
        source or RULE.format(rule),
        Case(_series(fires), at, EXPECTED_GPU | (more or {}), shown),
        Case(_series(rests), at),
    )


def _series(values: dict[str, str]) -> dict[str, str]:
    """Series of one GPU; a name may bring labels of its own behind a bar."""
    found = {}
    for name, text in values.items():
        metric, _, own = name.partition("|")
        found[f"{_known(metric)}{{{ONE_GPU}{',' + own if own else ''}}}"] = text
    return found


def alerts() -> list[Alert]:
    """From the gravest to the mildest."""
    return [*_repair(), *_heat(), *_links(), *_other()]


def _any(*metrics: str) -> str:
    return " or ".join(f"{_known(metric)} >= 1" for metric in metrics)


def _repair() -> list[Alert]:
    failed = ("gpu_row_remap_failure", "gpu_memory_unrepairable", "gpu_ecc_sram_threshold_exceeded")
    pending = ("gpu_row_remap_pending", "gpu_retired_pages_pending")
    ecc = ("gpu_ecc_uncorrected_volatile_total", "gpu_ecc_sram_uncorrected_volatile_total")
    return [
        _gpu(
            "GpuRecoveryAction",
            per_gpu(f"gpu_recovery_action >= {level('driver_recovery_action', 'gpu_recovery_action'):g}"),
            "driver_recovery_action",
            "critical",
            "cause",
            "The driver asks for a recovery action on {{ $labels.host }}",
            WHERE + ": the driver's verdict is {{ $value | humanize }} (1 GPU reset, 2 node reboot, 3 drain peers, "
            "4 drain and reset, 5 recover the IMEX domain, 6 bus reset, 7 system reboot).",
            "Do what it asks for once the work has left the GPU; it outranks every other table.",
            {"gpu_recovery_action": "0x10 1x30"},
            {"gpu_recovery_action": "0x40"},
            "1",
        ),
        _gpu(
            "GpuMemoryBeyondRepair",
            per_gpu(_any(*failed)),
            "row_remap_failed",
            "critical",
            "cause",
            "Memory of a GPU on {{ $labels.host }} can no longer be repaired",
            WHERE + ": a row remap failed, memory is beyond repair, or SRAM errors passed the level for replacement.",
            "Drain the host and have the GPU replaced.",
            {"gpu_row_remap_failure": "0x10 1x30", "gpu_memory_unrepairable": "0x40"},
            {"gpu_row_remap_failure": "0x40", "gpu_memory_unrepairable": "0x40"},
        ),
        _gpu(
            "GpuRowRemapPending",
            per_gpu(_any(*pending)),
            "row_remap_pending",
            "warning",
            "symptom",
            "A memory repair on {{ $labels.host }} waits for a GPU reset",
            WHERE + ": a row or page waits to be remapped or retired.",
            "Reset the GPU at the next chance; until then the damaged row stays in use.",
            {"gpu_row_remap_pending": "0x10 1x30"},
            {"gpu_row_remap_pending": "0x10 1 0x30"},
            wait="2m",
            source=RULE.format("row_remap_pending") + " It asks for two readings, which is two minutes here.",
        ),
        _gpu(
            "GpuRowsRemapped",
            per_gpu(f"increase({_known('gpu_row_remap_uncorrectable_total')}[24h]) > 0"),
            "row_remap_pending",
            "warning",
            "symptom",
            "Rows of a GPU on {{ $labels.host }} were remapped for uncorrectable errors",
            WHERE + ": {{ $value | humanize }} rows within a day. Spare rows are finite.",
            "Watch the GPU: row_remap_forecast says when its spare rows run out. Plan a replacement when they do.",
            {"gpu_row_remap_uncorrectable_total": "2x10 3x60"},
            {"gpu_row_remap_uncorrectable_total": "2x80"},
            "1.008",
            wait="0s",
            at="60m",
            source="Own choice: any in a day; NVIDIA remaps a row only after an uncorrectable error (docs/xid.md).",
        ),
        _gpu(
            "GpuEccUncorrectable",
            per_gpu(" or ".join(f"increase({_known(metric)}[24h]) > 0" for metric in ecc)),
            "ecc_uncorrectable",
            "critical",
            "cause",
            "Uncorrectable memory errors on {{ $labels.host }}",
            WHERE + ": {{ $value | humanize }} within a day.",
            "The program that met them has failed. " + DRAIN,
            {ecc[0]: "0x10 2x60", ecc[1]: "0x80"},
            {ecc[0]: "5x80", ecc[1]: "0x80"},
            "2",
            at="60m",
        ),
    ]


def _heat() -> list[Alert]:
    hot, core = level("temperature_high", "gpu_temperature_celsius"), "gpu_temperature_celsius"
    slow, near = offset("temperature_high", core)
    memory, memory_most = (
        "gpu_memory_temperature_celsius",
        offset("memory_temperature_high", "gpu_memory_temperature_celsius")[0],
    )
    return [
        _gpu(
            "GpuTemperatureHigh",
            per_gpu(f"{core} > {hot:g} or {core} > {_known(slow)} - {-near:g}"),
            "temperature_high",
            "warning",
            "symptom",
            "A GPU on {{ $labels.host }} runs hot",
            WHERE
            + f": core at {{{{ $value | humanize }}}} °C; the level is {hot:g} °C, or {-near:g} °C below slowdown.",
            "Look at fans, inlet air and neighbours; action throttle lowers the power limit.",
            {core: "60x10 88x30"},
            {core: "60x10 88 60x30"},
            "88",
        ),
        _gpu(
            "GpuThermalMarginLow",
            per_gpu(f"gpu_thermal_margin_celsius <= {level('thermal_margin_low'):g}"),
            "thermal_margin_low",
            "warning",
            "symptom",
            "A GPU on {{ $labels.host }} is near its slowdown",
            WHERE + ": {{ $value | humanize }} °C left to the most in operation.",
            "Look at the cooling before it slows down.",
            {"gpu_thermal_margin_celsius": "20x10 2x30"},
            {"gpu_thermal_margin_celsius": "20x10 3x30"},
            "2",
        ),
        _gpu(
            "GpuThermalMarginGone",
            per_gpu(f"gpu_thermal_margin_celsius <= {level('thermal_margin_gone'):g}"),
            "thermal_margin_gone",
            "critical",
            "symptom",
            "A GPU on {{ $labels.host }} slows down for heat",
            WHERE + ": thermal margin {{ $value | humanize }} °C.",
            "Take work away from it and look at the cooling.",
            {"gpu_thermal_margin_celsius": "20x10 -1x30"},
            {"gpu_thermal_margin_celsius": "20x10 1x30"},
            "-1",
            wait="1m",
            source=RULE.format("thermal_margin_gone") + " It asks for two readings, which is a minute here.",
        ),
        _gpu(
            "GpuMemoryTemperatureHigh",
            per_gpu(f"{memory} > {_known(memory_most)}"),
            "memory_temperature_high",
            "warning",
            "symptom",
            "The memory of a GPU on {{ $labels.host }} runs hot",
            WHERE + ": {{ $value | humanize }} °C, above what this part may have in operation.",
            "Look at the cooling; memory that is too hot fails sooner.",
            {memory: "70x10 101x30", memory_most: "95x40"},
            {memory: "70x10 94x30", memory_most: "95x40"},
            "101",
        ),
        _gpu(
            "GpuThermalSlowdown",
            per_gpu(f"increase(gpu_hw_thermal_slowdown_seconds_total[5m]) > {level('thermal_slowdown'):g}"),
            "thermal_slowdown",
            "critical",
            "symptom",
            "Hardware slows a GPU on {{ $labels.host }} down for heat",
            WHERE + ": {{ $value | humanizeDuration }} of hardware slowdown within five minutes.",
            "Take work away from it and look at the cooling at once.",
            {"gpu_hw_thermal_slowdown_seconds_total": "0x10 0+10x30"},
            {"gpu_hw_thermal_slowdown_seconds_total": "50x40"},
            "50s",
        ),
        _gpu(
            "GpuPowerBrake",
            per_gpu(
                "increase(gpu_hw_power_brake_seconds_total[5m]) > "
                f"{level('power_brake', 'gpu_hw_power_brake_seconds_total'):g}"
            ),
            "power_brake",
            "critical",
            "cause",
            "An outside signal brakes a GPU on {{ $labels.host }}",
            WHERE + ": {{ $value | humanizeDuration }} under the external power brake within five minutes.",
            "It is a fault of supply or rack, which no reboot mends: look at the power supplies.",
            {"gpu_hw_power_brake_seconds_total": "0x10 0+6x30"},
            {"gpu_hw_power_brake_seconds_total": "7x40"},
            "30s",
            wait="1m",
            source=RULE.format("power_brake") + " It asks for three readings, which is a minute here.",
        ),
    ]


def _links() -> list[Alert]:
    recover = "increase(gpu_nvlink_recovery_errors_total[1h]) > 0"
    replay = level("pcie_replays")
    busy = level("pcie_width_reduced", "gpu_utilization_ratio")
    return [
        _gpu(
            "GpuNvlinkRecovery",
            f"max by (gpu_uuid, gpu_index, host, pool, simulated, link) ({recover}) and on (gpu_uuid) "
            f"(count by (gpu_uuid) (max by (gpu_uuid, link) ({recover})) == 1)",
            "nvlink_recovery_one_link",
            "warning",
            "symptom",
            "One NVLink of a GPU on {{ $labels.host }} recovers again and again",
            WHERE
            + ": link {{ $labels.link }} recovered {{ $value | humanize }} times within an hour, its others did not.",
            "Look at that link: cable, connector or port. XID 74 or 149 may follow.",
            {
                'gpu_nvlink_recovery_errors_total|link="4"': "0x10 3x80",
                'gpu_nvlink_recovery_errors_total|link="5"': "0x90",
            },
            {
                'gpu_nvlink_recovery_errors_total|link="4"': "0x10 3x80",
                'gpu_nvlink_recovery_errors_total|link="5"': "0x10 3x80",
            },
            "3",
            at="65m",
            more={"link": "4"},
        ),
        _gpu(
            "GpuNvlinkRecoverySeveralLinks",
            f"count by ({'gpu_uuid, gpu_index, host, pool, simulated'}) "
            f"(max by (gpu_uuid, gpu_index, host, pool, simulated, link) ({recover})) > 1",
            "nvlink_recovery_one_link",
            "warning",
            "symptom",
            "Several NVLinks of a GPU on {{ $labels.host }} recover",
            WHERE + ": {{ $value | humanize }} links recovered within an hour.",
            "Look at what they share: the GPU, its baseboard or the switch, not a single cable.",
            {
                'gpu_nvlink_recovery_errors_total|link="4"': "0x10 3x80",
                'gpu_nvlink_recovery_errors_total|link="5"': "0x10 3x80",
            },
            {
                'gpu_nvlink_recovery_errors_total|link="4"': "0x10 3x80",
                'gpu_nvlink_recovery_errors_total|link="5"': "0x90",
            },
            "2",
            at="65m",
            source=RULE.format("nvlink_recovery_one_link") + " It is about one link; several at once are own choice.",
        ),
        _gpu(
            "GpuPcieReplays",
            per_gpu(f"rate(gpu_pcie_replay_total[10m]) * 60 > {replay:g}"),
            "pcie_replays",
            "warning",
            "symptom",
            "PCIe of a GPU on {{ $labels.host }} replays",
            WHERE + f": {{{{ $value | humanize }}}} replays a minute; the level is {replay:g}.",
            "Look at riser, slot and cable; loss of the bus may follow.",
            {"gpu_pcie_replay_total": "0x10 0+20x40"},
            {"gpu_pcie_replay_total": "0x10 0+10x40"},
            "20",
        ),
        _gpu(
            "GpuPcieWidthReduced",
            per_gpu(f"gpu_pcie_link_width < gpu_pcie_link_width_max and gpu_utilization_ratio > {busy:g}"),
            "pcie_width_reduced",
            "warning",
            "cause",
            "PCIe of a GPU on {{ $labels.host }} has lost lanes",
            WHERE + ": {{ $value | humanize }} lanes under load, fewer than GPU and slot have.",
            "Reseat the GPU or its riser; until then its copies are slower.",
            {"gpu_pcie_link_width": "16x5 8x40", "gpu_pcie_link_width_max": "16x50", "gpu_utilization_ratio": "0.9x50"},
            {"gpu_pcie_link_width": "8x50", "gpu_pcie_link_width_max": "16x50", "gpu_utilization_ratio": "0.1x50"},
            "8",
        ),
    ]


def _other() -> list[Alert]:
    full = level("memory_full")
    factor = share_of("gpu_hung", "gpu_power_watts")
    busy, resting = level("gpu_hung", "gpu_utilization_ratio"), level("gpu_hung", "gpu_sm_active_ratio")
    hung = {
        "gpu_utilization_ratio": "1x40",
        "gpu_sm_active_ratio": "0x40",
        "gpu_power_watts": "120x40",
        "gpu_power_limit_default_watts": "700x40",
    }
    return [
        _gpu(
            "GpuHung",
            per_gpu(
                f"gpu_utilization_ratio > {busy:g} and gpu_sm_active_ratio < {resting:g} "
                f"and gpu_power_watts < {factor:g} * gpu_power_limit_default_watts"
            ),
            "gpu_hung",
            "critical",
            "cause",
            "A GPU on {{ $labels.host }} hangs",
            WHERE + ": it claims to be busy ({{ $value | humanizePercentage }}), yet no SM works and it draws little.",
            "End the program; if that does not help, drain the host and reset the GPU.",
            hung,
            hung | {"gpu_power_watts": "500x40"},
            "100%",
        ),
        _gpu(
            "GpuMemoryFull",
            per_gpu(f'gpu_memory_used_ratio{{mig_uuid=""}} > {full:g}'),
            "memory_full",
            "info",
            "symptom",
            "The memory of a GPU on {{ $labels.host }} is nearly full",
            WHERE + ": {{ $value | humanizePercentage }} in use.",
            "A program that allocates all memory at its start is no trouble; one that grows is.",
            {"gpu_memory_used_ratio": "0.5x5 0.95x40"},
            {"gpu_memory_used_ratio": "0.5x20 0.95x20"},
            "95%",
            source=RULE.format("memory_full")
            + " It is a warning there; info here, since frameworks fill memory by design.",
        ),
    ]
