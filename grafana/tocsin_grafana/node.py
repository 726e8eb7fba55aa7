"""The board of one host."""

from __future__ import annotations

from tocsin_grafana import flux, prom
from tocsin_grafana.parts import THROTTLES, fullness, heat, lines, margin, rates, shares, told
from tocsin_grafana.spec import Board, Panel, Query, Row, help_of

_TABLE = {
    "gpu_utilization_ratio": ("Utilisation", "percentunit"),
    "gpu_memory_used_ratio": ("Memory", "percentunit"),
    "gpu_temperature_celsius": ("Core", "celsius"),
    "gpu_power_watts": ("Power", "watt"),
    "gpu_row_remap_pending": ("Remap waits", "short"),
    "gpu_recovery_action": ("Driver asks for", "short"),
}
_HOST_LOAD = {
    "host_cpu_utilization_ratio": "CPU busy",
    "host_cpu_iowait_ratio": "waits for storage",
    "host_memory_used_ratio": "memory in use",
    "host_io_pressure_ratio": "storage pressure",
}


def _gpus() -> Panel:
    units = dict(_TABLE.values())
    units |= {flux.field(metric): unit for metric, (_, unit) in _TABLE.items()}
    return Panel(
        "GPUs of the host",
        "The newest values of each GPU. A click opens the GPU.",
        "table",
        tuple(
            Query(f"sum by (host, gpu_index, gpu_uuid) ({prom.of(metric, prom.HOST)})", instant=True, name=name)
            for metric, (name, _) in _TABLE.items()
        ),
        (Query(flux.rows(flux.gpus(list(_TABLE), flux.HOST), ["host", "gpu_uuid"], "temperature_celsius")),),
        units=units,
        link="gpu",
        width=24,
        height=9,
    )


def _host_load() -> Panel:
    return Panel(
        "The host itself",
        "CPU, waits and memory of the node, where the agent runs with companion host_load: a GPU that starves "
        "waits for one of them.",
        "timeseries",
        tuple(Query(f"max({prom.of(metric, prom.HOST)})", name) for metric, name in _HOST_LOAD.items()),
        tuple(Query(flux.across(flux.gpus([metric], flux.HOST), "max", name)) for metric, name in _HOST_LOAD.items()),
        "percentunit",
        least=0,
        most=1,
    )


def _agent() -> Panel:
    on_host = f"max by (instance) (sgn({prom.of('gpu_memory_total_bytes', prom.HOST)}))"
    return told(
        "The agent's readings",
        help_of("tocsin_missing_readings") + " The agent of the host is found by its GPUs' target.",
        {"{{reason}}": f"sum by (reason) (tocsin_missing_readings * on (instance) group_left () {on_host})"},
        12,
    )


def _work() -> Row:
    return Row(
        "Work",
        (
            lines("gpu_utilization_ratio", "Utilisation", "host", 8, least=0, most=1),
            lines("gpu_sm_active_ratio", "SMs at work", "host", 8, least=0, most=1),
            lines("gpu_memory_used_ratio", "Memory in use", "host", 8, steps=fullness(), least=0, most=1),
        ),
    )


def _heat() -> Row:
    held = "Share of the time in which the GPU that is worst off was held down, by what held it."
    return Row(
        "Heat and power",
        (
            lines("gpu_temperature_celsius", "Core temperature", "host", 8, steps=heat()),
            lines("gpu_memory_temperature_celsius", "Memory temperature", "host", 8),
            lines("gpu_thermal_margin_celsius", "Thermal margin", "host", 8, steps=margin()),
            lines("gpu_power_watts", "Power", "host", 8, least=0),
            lines("gpu_sm_clock_hertz", "SM clock", "host", 8, least=0),
            shares("Time below full clocks", held, "host", THROTTLES, 8),
        ),
    )


def _links() -> Row:
    return Row(
        "Links",
        (
            lines("gpu_pcie_receive_bytes_per_second", "PCIe received", "host", 8, least=0),
            lines("gpu_pcie_transmit_bytes_per_second", "PCIe sent", "host", 8, least=0),
            rates("gpu_pcie_replay_total", "PCIe replays", "host", 8),
            rates("gpu_nvlink_receive_bytes_total", "NVLink received", "host", 8),
            rates("gpu_nvlink_transmit_bytes_total", "NVLink sent", "host", 8),
            rates("gpu_nvlink_recovery_errors_total", "NVLink recoveries", "host", 8),
        ),
    )


def _network() -> Row:
    return Row(
        "Network",
        (
            lines("network_utilization_ratio", "Busiest network port", "host", 8, least=0, most=1),
            lines("network_resends_per_second", "Packets sent again", "host", 8, least=0),
            lines("network_ports_down", "Network ports down", "host", 8, least=0),
        ),
    )


def board() -> Board:
    """All GPUs of one host side by side."""
    return Board(
        "node",
        "Node",
        "The GPUs of one host side by side: what differs from its neighbours is what to look at.",
        "host",
        (
            Row("GPUs", (_gpus(),)),
            _work(),
            _heat(),
            _links(),
            _network(),
            Row("Host and agent", (_host_load(), _agent())),
        ),
    )
