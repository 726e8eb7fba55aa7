"""Panels that several boards share, made from rows of the metric table."""

from __future__ import annotations

from collections.abc import Sequence

from tocsin_grafana import flux, prom
from tocsin_grafana.rulebook import level
from tocsin_grafana.spec import Panel, Query, Step, help_of, unit_of

GREEN, YELLOW, ORANGE, RED, BLUE, GREY = "green", "yellow", "orange", "red", "blue", "text"
YES_NO = {0: ("no", GREEN), 1: ("yes", RED)}
RECOVERY = {
    0: ("none", GREEN),
    1: ("GPU reset", RED),
    2: ("node reboot", RED),
    3: ("drain peers", ORANGE),
    4: ("drain and reset", RED),
    5: ("recover IMEX", ORANGE),
    6: ("bus reset", RED),
    7: ("system reboot", RED),
}
"""The driver's verdicts, as the metric table has them."""


def steps(*pairs: tuple[float | None, str]) -> tuple[Step, ...]:
    """Thresholds from the lowest to the highest."""
    return tuple(Step(value, colour) for value, colour in pairs)


def heat() -> tuple[Step, ...]:
    """Colours of a core temperature: red from the shipped rule's level on."""
    high = level("temperature_high", "gpu_temperature_celsius")
    return steps((None, GREEN), (high - 10, YELLOW), (high, RED))


def margin() -> tuple[Step, ...]:
    """Colours of a thermal margin, where less is worse."""
    gone, low = level("thermal_margin_gone"), level("thermal_margin_low")
    return steps((None, RED), (gone + 1, ORANGE), (low + 1, GREEN))


def fullness() -> tuple[Step, ...]:
    """Colours of memory in use."""
    full = level("memory_full")
    return steps((None, GREEN), (full - 0.1, YELLOW), (full, RED))


def lines(
    metric: str, title: str, scope: str, width: int = 12, height: int = 8, text: str = "", **more: object
) -> Panel:
    """A metric over time, a line for each GPU of the host, or one for the GPU."""
    where = {"host": prom.HOST, "gpu": prom.GPU}[scope]
    chosen = {"host": flux.HOST, "gpu": flux.GPU}[scope]
    legend = prom.BY_INDEX if scope == "host" else title
    name = flux.NAMED if scope == "host" else f'"{title}"'
    return Panel(
        title,
        text or help_of(metric),
        "timeseries",
        (Query(prom.of(metric, where), legend),),
        (Query(flux.shown(flux.gpus([metric], chosen), name)),),
        unit_of(metric),
        width,
        height,
        **more,  # type: ignore[arg-type]
    )


def rates(
    metric: str,
    title: str,
    scope: str,
    width: int = 12,
    height: int = 8,
    label: str = "",
    text: str = "",
    **more: object,
) -> Panel:
    """A counter's change per second over time; `label` splits it by its variants."""
    where = {"host": prom.HOST, "gpu": prom.GPU}[scope]
    chosen = {"host": flux.HOST, "gpu": flux.GPU}[scope]
    by = "gpu_uuid, gpu_index" if scope == "host" else label or "gpu_uuid"
    legend = prom.BY_INDEX if scope == "host" else (f"{{{{{label}}}}}" if label else title)
    name = flux.NAMED if scope == "host" else (f"r.{label}" if label else f'"{title}"')
    return Panel(
        title,
        text or f"{help_of(metric)} Shown as change per second.",
        "timeseries",
        (Query(prom.rate(metric, where, by), legend),),
        (Query(flux.rate(flux.gpus([metric], chosen), name)),),
        unit_of(metric, rate=True),
        width,
        height,
        least=0,
        **more,  # type: ignore[arg-type]
    )


def several(
    title: str, text: str, scope: str, named: dict[str, str], width: int = 12, height: int = 8, **more: object
) -> Panel:
    """Several metrics of one GPU or host in one panel: metric to name of its line."""
    where = {"host": prom.HOST, "gpu": prom.GPU}[scope]
    chosen = {"host": flux.HOST, "gpu": flux.GPU}[scope]
    first = next(iter(named))
    legend = " {{gpu_index}}" if scope == "host" else ""
    return Panel(
        title,
        text,
        "timeseries",
        tuple(Query(prom.of(metric, where), name + legend) for metric, name in named.items()),
        tuple(
            Query(
                flux.shown(flux.gpus([metric], chosen), f'"{name}"' if scope == "gpu" else f'"{name} " + {flux.NAMED}')
            )
            for metric, name in named.items()
        ),
        unit_of(first),
        width,
        height,
        **more,  # type: ignore[arg-type]
    )


def shares(title: str, text: str, scope: str, named: dict[str, str], width: int = 12, height: int = 8) -> Panel:
    """Counters of seconds as shares of the time, each metric a line."""
    where = {"host": prom.HOST, "gpu": prom.GPU}[scope]
    chosen = {"host": flux.HOST, "gpu": flux.GPU}[scope]
    return Panel(
        title,
        text,
        "timeseries",
        tuple(Query(f"max({prom.rate(metric, where)})", name) for metric, name in named.items()),
        tuple(Query(flux.rate(flux.gpus([metric], chosen), f'"{name}"')) for metric, name in named.items()),
        "percentunit",
        width,
        height,
        least=0,
    )


def told(title: str, text: str, named: dict[str, str], width: int = 8, **more: object) -> Panel:
    """What Prometheus alone knows, mostly of Tocsin itself: name of a line to its query."""
    return Panel(
        title,
        text,
        "timeseries",
        tuple(Query(promql, name) for name, promql in named.items()),
        width=width,
        least=0,
        **more,  # type: ignore[arg-type]
    )


def split(metric: str, title: str, by: str, text: str = "", where: str = "") -> Panel:
    """A gauge of Tocsin's own as a stack, a band for each value of the label `by`."""
    chosen = f"{metric}{{{where}}}" if where else metric
    return told(title, text or help_of(metric), {f"{{{{{by}}}}}": f"sum by ({by}) ({chosen})"}, stack=True)


def words(title: str, text: str, points: str, columns: Sequence[str], **more: object) -> Panel:
    """What InfluxDB alone knows: points with sentences, the newest first."""
    return Panel(
        title,
        text,
        "table",
        influxdb=(Query(flux.list_of(points, columns)),),
        **more,  # type: ignore[arg-type]
    )


THROTTLES = {
    "gpu_power_cap_seconds_total": "power limit",
    "gpu_sw_thermal_slowdown_seconds_total": "software thermal",
    "gpu_hw_thermal_slowdown_seconds_total": "hardware thermal",
    "gpu_hw_power_brake_seconds_total": "power brake",
    "gpu_sync_boost_seconds_total": "sync boost",
    "gpu_board_limit_seconds_total": "board limit",
    "gpu_reliability_seconds_total": "voltage",
}
"""Counters of time below full clocks, by what holds them down."""
