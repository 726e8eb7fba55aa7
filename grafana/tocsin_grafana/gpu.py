"""The board of one GPU."""

from __future__ import annotations

from tocsin_grafana import flux, prom
from tocsin_grafana.parts import (
    RECOVERY,
    THROTTLES,
    YES_NO,
    fullness,
    heat,
    lines,
    margin,
    rates,
    several,
    shares,
    told,
    words,
)
from tocsin_grafana.spec import Board, Panel, Query, Row, help_of, unit_of

_ACTIVE = {
    "gpu_utilization_ratio": "utilisation",
    "gpu_sm_active_ratio": "SMs",
    "gpu_sm_occupancy_ratio": "warp slots",
    "gpu_tensor_active_ratio": "tensor pipes",
    "gpu_dram_active_ratio": "memory",
}
_MEMORY = {
    "gpu_memory_used_bytes": "in use",
    "gpu_memory_reserved_bytes": "held by the driver",
    "gpu_memory_total_bytes": "size",
}
_HEAT = {
    "gpu_temperature_celsius": "core",
    "gpu_memory_temperature_celsius": "memory",
    "gpu_temperature_slowdown_celsius": "slowdown",
    "gpu_temperature_max_operating_celsius": "most in operation",
}
_POWER = {
    "gpu_power_watts": "power",
    "gpu_power_limit_enforced_watts": "limit in force",
    "gpu_power_limit_default_watts": "limit after a reset",
}
_CLOCKS = {"gpu_sm_clock_hertz": "SM", "gpu_sm_clock_max_hertz": "SM at most", "gpu_memory_clock_hertz": "memory"}
_ECC = {
    "gpu_ecc_corrected_volatile_total": "corrected",
    "gpu_ecc_uncorrected_volatile_total": "uncorrectable",
    "gpu_ecc_sram_uncorrected_volatile_total": "uncorrectable in SRAM",
}
_REMAPPED = {
    "gpu_row_remap_correctable_total": "for corrected errors",
    "gpu_row_remap_uncorrectable_total": "for uncorrectable errors",
}


def _number(metric: str, title: str, fn: str = "max", **more: object) -> Panel:
    return Panel(
        title,
        help_of(metric),
        "stat",
        (Query(f"{fn}({prom.of(metric, prom.GPU)})", instant=True),),
        (Query(flux.now(flux.gpus([metric], flux.GPU), fn)),),
        unit_of(metric),
        3,
        4,
        **more,  # type: ignore[arg-type]
    )


def _grown(title: str, text: str, named: dict[str, str], width: int = 8) -> Panel:
    """Counters of errors as steps over time: their totals, since a rate of rare things shows nothing."""
    return Panel(
        title,
        text,
        "timeseries",
        tuple(Query(f"sum({prom.of(metric, prom.GPU)})", name) for metric, name in named.items()),
        tuple(Query(flux.across(flux.gpus([metric], flux.GPU), "sum", name, "last")) for metric, name in named.items()),
        "short",
        width,
        least=0,
    )


def _xids() -> Panel:
    return Panel(
        "XIDs",
        help_of("gpu_xid_events_total") + " docs/xid.md says what a number means, as does `tocsin xid`.",
        "timeseries",
        (Query(prom.of("gpu_xid_events_total", prom.GPU), "XID {{xid}}"),),
        (Query(flux.shown(flux.gpus(["gpu_xid_events_total"], flux.GPU), '"XID " + r.xid', "last")),),
        "short",
        8,
        least=0,
    )


def _links() -> Panel:
    return Panel(
        "NVLinks",
        help_of("gpu_nvlink_up"),
        "timeline",
        (Query(prom.of("gpu_nvlink_up", prom.GPU), "link {{link}}"),),
        (Query(flux.shown(flux.gpus(["gpu_nvlink_up"], flux.GPU), '"link " + r.link', "last")),),
        states={0: ("down", "red"), 1: ("up", "green")},
    )


def _now() -> Row:
    return Row(
        "Now",
        (
            _number("gpu_utilization_ratio", "Utilisation"),
            _number("gpu_memory_used_ratio", "Memory in use", steps=fullness()),
            _number("gpu_temperature_celsius", "Core", steps=heat()),
            _number("gpu_thermal_margin_celsius", "Margin", "min", steps=margin()),
            _number("gpu_power_watts", "Power"),
            _number("gpu_recovery_action", "Driver asks for", states=RECOVERY),
            _number("gpu_row_remap_pending", "Remap waits for a reset", states=YES_NO),
            _number("gpu_row_remap_failure", "Remap failed", states=YES_NO),
        ),
    )


def _work() -> Row:
    busy = "How busy the GPU is, and how much of it works."
    return Row(
        "Work",
        (
            several("Activity", busy, "gpu", _ACTIVE, least=0, most=1),
            several("Memory", help_of("gpu_memory_used_bytes"), "gpu", _MEMORY, least=0),
            lines("gpu_processes", "Processes", "gpu", 8, least=0),
            rates("gpu_pcie_receive_bytes_total", "PCIe received", "gpu", 8),
            rates("gpu_nvlink_receive_bytes_total", "NVLink received", "gpu", 8),
        ),
    )


def _heat() -> Row:
    return Row(
        "Heat, power and clocks",
        (
            several("Temperatures", "Core and memory with the levels of this part.", "gpu", _HEAT, steps=heat()),
            several("Power and its limits", help_of("gpu_power_watts"), "gpu", _POWER, least=0),
            several("Clocks", help_of("gpu_sm_clock_hertz"), "gpu", _CLOCKS, least=0),
            shares("Time below full clocks", "Share of the time, by what held it down.", "gpu", THROTTLES),
        ),
    )


def _errors() -> Row:
    return Row(
        "Errors",
        (
            _xids(),
            _grown("Memory errors", "Errors since the driver was loaded.", _ECC),
            _grown("Remapped rows", "Rows of memory that spare ones stand in for.", _REMAPPED),
            _grown("PCIe replays", help_of("gpu_pcie_replay_total"), {"gpu_pcie_replay_total": "replays"}),
            rates("gpu_nvlink_recovery_errors_total", "NVLink recoveries", "gpu", 8, label="link"),
            rates("gpu_nvlink_replay_errors_total", "NVLink replays", "gpu", 8, label="link"),
            _links(),
            rates("gpu_pcie_errors_total", "PCIe errors", "gpu", 12, label="kind"),
        ),
    )


def _statements(*fields: str) -> str:
    return flux.stream(flux.MINUTE, "gpu_prediction", fields, flux.SUBJECT)


def _predicted() -> Row:
    probability, lead = (
        f'{metric}{{gpu_uuid=~"$gpu"}}'
        for metric in ("tocsin_prediction_probability_ratio", "tocsin_prediction_lead_seconds")
    )
    return Row(
        "Ahead",
        (
            Panel(
                "Probability by what is predicted",
                help_of("tocsin_prediction_probability_ratio"),
                "timeseries",
                (Query(probability, "{{target}} {{part}}"),),
                (Query(flux.shown(_statements("probability"), "r.target", "last")),),
                "percentunit",
                least=0,
                most=1,
            ),
            told(
                "Time left, with its interval",
                help_of("tocsin_prediction_lead_seconds"),
                {"{{target}} {{bound}}": lead},
                12,
                unit="s",
            ),
            words(
                "What was said of it",
                "The predictions in words, the newest first.",
                _statements("sentence", "status"),
                ["_time", "target", "status", "sentence"],
            ),
        ),
    )


def board() -> Board:
    """Everything of one GPU."""
    return Board(
        "gpu",
        "GPU",
        "Everything that is known of one GPU, from its work to its errors and what is predicted of it.",
        "gpu",
        (_now(), _work(), _heat(), _errors(), _predicted()),
    )
