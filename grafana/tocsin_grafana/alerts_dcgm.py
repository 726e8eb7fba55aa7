"""The same alerts for sites that have dcgm-exporter and no agent, on the names of DCGM up to 4.5."""

from __future__ import annotations

from tocsin.domain.metrics import BY_DCGM_NAME
from tocsin_grafana.alert import Alert, Case, Severity, Tier
from tocsin_grafana.alerts_gpu import DRAIN, RULE
from tocsin_grafana.alerts_xid import codes
from tocsin_grafana.rulebook import held, level

_BY = "UUID, gpu, Hostname, hostname, modelName"
_ONE = 'UUID="GPU-1",gpu="3",Hostname="n1",modelName="NVIDIA H100"'
_EXPECTED = {"UUID": "GPU-1", "gpu": "3", "Hostname": "n1", "modelName": "NVIDIA H100"}
_WHERE = "{{ $labels.Hostname }}{{ $labels.hostname }} GPU {{ $labels.gpu }}"
XIDS = "DCGM_EXP_XID_ERRORS_COUNT"
"""A gauge of dcgm-exporter's own: XIDs within its window, by code. The field of the last XID hides repeats."""


def dcgm(metric: str) -> str:
    """A field's name in dcgm-exporter; raises KeyError for one that the metric table does not have."""
    assert metric in BY_DCGM_NAME or metric == XIDS, metric
    return metric


def _alert(
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
    source: str = "",
    more: dict[str, str] | None = None,
) -> Alert:
    def series(values: dict[str, str]) -> dict[str, str]:
        found = {}
        for key, text in values.items():
            metric, _, own = key.partition("|")
            found[f"{dcgm(metric)}{{{_ONE}{',' + own if own else ''}}}"] = text
        return found

    by = f"{_BY}, xid" if more else _BY
    return Alert(
        name, f"max by ({by}) ({expr})", wait or held(rule), severity, tier,
        summary + " on {{ $labels.Hostname }}{{ $labels.hostname }}", f"{_WHERE}: {description}", remedy,
        source or RULE.format(rule), Case(series(fires), at, _EXPECTED | (more or {}), shown), Case(series(rests), at),
    )  # fmt: skip


def alerts() -> list[Alert]:
    """What dcgm-exporter can tell with the counters of deploy/dcgm-exporter/tocsin-counters.csv."""
    return [*_xids(), *_memory(), *_rest()]


def _xids() -> list[Alert]:
    kinds = {
        "Bus": ("xid_bus", "A GPU fell off the bus"),
        "Memory": ("xid_memory", "Uncorrectable memory error"),
        "Nvlink": ("xid_nvlink", "NVLink failed"),
        "Firmware": ("xid_firmware", "Firmware of a GPU stopped answering"),
    }
    made = []
    for name, (rule, headline) in kinds.items():
        numbers = codes(rule)
        one = str(numbers[0])
        made.append(
            _alert(
                f"DcgmXid{name}", f'{XIDS}{{xid=~"{"|".join(map(str, numbers))}"}} > 0', rule, "critical", "cause",
                headline,
                "XID {{ $labels.xid }}, {{ $value | humanize }} times within the exporter's window.", DRAIN,
                {f'{XIDS}|xid="{one}"': "0x10 1x30"}, {f'{XIDS}|xid="13"': "0x10 4x30"}, "1", more={"xid": one},
            )
        )  # fmt: skip
    return made


def _memory() -> list[Alert]:
    return [
        _alert(
            "DcgmRecoveryAction", "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION >= 1", "driver_recovery_action", "critical",
            "cause",
            "The driver asks for a recovery action",
            "verdict {{ $value | humanize }} (docs/metrics.md, gpu_recovery_action).",
            "Do what it asks for once the work has left the GPU.",
            {"DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION": "0x10 2x30"}, {"DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION": "0x40"}, "2",
        ),
        _alert(
            "DcgmRowRemapFailed", "DCGM_FI_DEV_ROW_REMAP_FAILURE >= 1", "row_remap_failed", "critical", "cause",
            "Memory can no longer be repaired", "a row remap failed.", "Drain the host and have the GPU replaced.",
            {"DCGM_FI_DEV_ROW_REMAP_FAILURE": "0x10 1x30"}, {"DCGM_FI_DEV_ROW_REMAP_FAILURE": "0x40"},
        ),
        _alert(
            "DcgmRowRemapPending", "DCGM_FI_DEV_ROW_REMAP_PENDING >= 1", "row_remap_pending", "warning", "symptom",
            "A memory repair waits for a GPU reset", "a row waits to be remapped.", "Reset the GPU at the next chance.",
            {"DCGM_FI_DEV_ROW_REMAP_PENDING": "0x10 1x30"}, {"DCGM_FI_DEV_ROW_REMAP_PENDING": "0x10 1 0x30"}, wait="2m",
        ),
        _alert(
            "DcgmRowsRemapped", "increase(DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS[24h]) > 0", "row_remap_pending",
            "warning",
            "symptom", "Rows were remapped for uncorrectable errors", "{{ $value | humanize }} rows within a day.",
            "Watch the GPU; spare rows are finite.", {"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": "0x10 2x60"},
            {"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": "2x70"}, "2", "0s", "60m",
            "Own choice: any in a day.",
        ),
        _alert(
            "DcgmEccUncorrectable", "increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[24h]) > 0", "ecc_uncorrectable", "critical",
            "cause", "Uncorrectable memory errors", "{{ $value | humanize }} within a day.", DRAIN,
            {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "0x10 1x60"}, {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "3x70"}, "1", "", "60m",
        ),
    ]  # fmt: skip


def _rest() -> list[Alert]:
    hot = level("temperature_high", "gpu_temperature_celsius")
    nano = 1e9
    slow = level("thermal_slowdown") * nano
    replay = level("pcie_replays")
    still = " and ".join(
        f"changes({dcgm(name)}[1h]) == 0"
        for name in ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE")
    )
    standing = {
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "900x90",
        "DCGM_FI_DEV_GPU_TEMP": "33x90",
        "DCGM_FI_DEV_POWER_USAGE": "310x90",
    }
    return [
        _alert(
            "DcgmTemperatureHigh", f"DCGM_FI_DEV_GPU_TEMP > {hot:g}", "temperature_high", "warning", "symptom",
            "A GPU runs hot", f"core at {{{{ $value | humanize }}}} °C; the level is {hot:g} °C.",
            "Look at fans, inlet air and neighbours.", {"DCGM_FI_DEV_GPU_TEMP": "60x10 88x30"},
            {"DCGM_FI_DEV_GPU_TEMP": "60x10 84x30"}, "88",
        ),
        _alert(
            "DcgmThermalMarginLow", f"DCGM_FI_DEV_GPU_TEMP_LIMIT <= {level('thermal_margin_low'):g}",
            "thermal_margin_low",
            "warning", "symptom", "A GPU is near its slowdown", "{{ $value | humanize }} °C left.",
            "Look at the cooling before it slows down.", {"DCGM_FI_DEV_GPU_TEMP_LIMIT": "20x10 1x30"},
            {"DCGM_FI_DEV_GPU_TEMP_LIMIT": "20x40"}, "1",
        ),
        _alert(
            "DcgmThermalSlowdown",
            f"increase(DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS[5m]) > {slow:g}", "thermal_slowdown",
            "critical",
            "symptom", "Hardware slows a GPU down for heat", "more than a second of hardware slowdown in five minutes.",
            "Take work away from it and look at the cooling at once.",
            {"DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS": "0x10 0+10000000000x30"},
            {"DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS": "50000000000x40"},
        ),
        _alert(
            "DcgmPowerBrake", "increase(DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS[5m]) > 0",
            "power_brake",
            "critical", "cause", "An outside signal brakes a GPU", "time under the external power brake.",
            "It is a fault of supply or rack: look at the power supplies.",
            {"DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS": "0x10 0+5000000000x30"},
            {"DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS": "5000000000x40"}, wait="1m",
        ),
        _alert(
            "DcgmPcieReplays", f"rate(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[10m]) * 60 > {replay:g}", "pcie_replays",
            "warning",
            "symptom", "PCIe replays", f"{{{{ $value | humanize }}}} a minute; the level is {replay:g}.",
            "Look at riser, slot and cable.", {"DCGM_FI_DEV_PCIE_REPLAY_COUNTER": "0x10 0+20x40"},
            {"DCGM_FI_DEV_PCIE_REPLAY_COUNTER": "0x50"}, "20",
        ),
        _alert(
            "DcgmNvlinkRecovery", "increase(DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL[1h]) > 0",
            "nvlink_recovery_one_link", "warning", "symptom", "NVLinks recover",
            "{{ $value | humanize }} recoveries within an hour, all links together.", "Look at cables and connectors.",
            {"DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": "0x10 3x80"},
            {"DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": "3x90"}, "3", "0s", "65m",
        ),
        _alert(
            "DcgmTelemetryFrozen",
            f"count_over_time(DCGM_FI_DEV_GPU_TEMP[1h]) >= 6 and DCGM_FI_DEV_GPU_TEMP offset 1h and {still}",
            "telemetry_frozen", "warning", "symptom", "Readings of a GPU do not move",
            "energy, temperature and power have not changed for an hour.", "Restart dcgm-exporter and its host engine.",
            standing, standing | {"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "900+310x90"}, at="80m",
        ),
    ]  # fmt: skip
