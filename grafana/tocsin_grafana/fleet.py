"""The board of the whole fleet."""

from __future__ import annotations

from tocsin_grafana import flux, prom
from tocsin_grafana.parts import BLUE, GREEN, ORANGE, RECOVERY, RED, YELLOW, fullness, heat, margin, steps
from tocsin_grafana.spec import Board, Panel, Query, Row, help_of

TEMP, MARGIN, USED = "gpu_temperature_celsius", "gpu_thermal_margin_celsius", "gpu_memory_used_ratio"
BUSY, POWER = "gpu_utilization_ratio", "gpu_power_watts"
_HOTTEST = 20


def _number(
    title: str, text: str, promql: str, fluxql: str = "", unit: str = "short", width: int = 3, **more: object
) -> Panel:
    flux_queries = (Query(fluxql),) if fluxql else ()
    return Panel(
        title,
        text,
        "stat",
        (Query(promql, instant=True),),
        flux_queries,
        unit,
        width,
        4,
        **more,  # type: ignore[arg-type]
    )


def _now() -> Row:
    where = flux.FLEET
    bad = steps((None, GREEN), (1, RED))
    return Row(
        "Now",
        (
            _number(
                "GPUs that report",
                "Whole GPUs with a reading; one that is lost or silent is not among them.",
                f"count({prom.of(TEMP, prom.FLEET)})",
                flux.now(flux.gpus([TEMP], where), "count"),
            ),
            _number(
                "Hosts",
                "Hosts with at least one GPU that reports.",
                f"count(count by (host) ({prom.of(TEMP, prom.FLEET)}))",
                flux.gpus([TEMP], where) + '  |> last()\n  |> group()\n  |> distinct(column: "host")\n  |> count()\n',
            ),
            _number(
                "Mean utilisation",
                help_of(BUSY),
                f"avg({prom.of(BUSY, prom.FLEET)})",
                flux.now(flux.gpus([BUSY], where), "mean"),
                "percentunit",
            ),
            _number(
                "Memory in use",
                "Mean over the GPUs. " + help_of(USED),
                f"avg({prom.of(USED, prom.FLEET)})",
                flux.now(flux.gpus([USED], where), "mean"),
                "percentunit",
                steps=fullness(),
            ),
            _number(
                "Power",
                "All GPUs together. " + help_of(POWER),
                f"sum({prom.of(POWER, prom.FLEET)})",
                flux.now(flux.gpus([POWER], where), "sum"),
                "watt",
            ),
            _number(
                "Hottest GPU",
                "Red from the level of rule temperature_high on.",
                f"max({prom.of(TEMP, prom.FLEET)})",
                flux.now(flux.gpus([TEMP], where), "max"),
                "celsius",
                steps=heat(),
            ),
            _number(
                "Least thermal margin",
                help_of(MARGIN) + " Colours from rules thermal_margin_low and thermal_margin_gone.",
                f"min({prom.of(MARGIN, prom.FLEET)})",
                flux.now(flux.gpus([MARGIN], where), "min"),
                "celsius",
                steps=margin(),
            ),
            _number(
                "Critical incidents",
                "Incidents with a critical root cause, as the brain sees them now; InfluxDB counts the critical "
                "findings of the chosen span.",
                'sum(tocsin_incidents_active{severity="critical"})',
                flux.stream(flux.WORDS, "gpu_finding", ["severity"])
                + '  |> last()\n  |> filter(fn: (r) => r._value == "critical")\n  |> group()\n  |> count()\n',
                steps=bad,
            ),
        ),
    )


def _load() -> Row:
    where = flux.FLEET
    return Row(
        "Load",
        (
            Panel(
                "Utilisation by pool",
                "Mean over the whole GPUs of a pool; InfluxDB shows the chosen pools together. " + help_of(BUSY),
                "timeseries",
                (Query(f"avg by (pool) ({prom.of(BUSY, prom.FLEET)})", "{{pool}}"),),
                (Query(flux.across(flux.gpus([BUSY], where), "mean", "mean utilisation")),),
                "percentunit",
                least=0,
                most=1,
            ),
            Panel(
                "Power by pool",
                "Sum over the whole GPUs of a pool; InfluxDB shows the chosen pools together. " + help_of(POWER),
                "timeseries",
                (Query(f"sum by (pool) ({prom.of(POWER, prom.FLEET)})", "{{pool}}"),),
                (Query(flux.across(flux.gpus([POWER], where), "sum", "power")),),
                "watt",
                least=0,
                stack=True,
            ),
            Panel(
                "Memory in use by pool",
                "Mean over the whole GPUs of a pool. " + help_of(USED),
                "timeseries",
                (Query(f"avg by (pool) ({prom.of(USED, prom.FLEET)})", "{{pool}}"),),
                (Query(flux.across(flux.gpus([USED], where), "mean", "memory in use")),),
                "percentunit",
                width=8,
                steps=fullness(),
                least=0,
                most=1,
            ),
            Panel(
                "Tensor pipes and SMs at work",
                "Mean over the fleet of what utilisation hides: how much of the GPU works.",
                "timeseries",
                (
                    Query(f"avg({prom.of('gpu_tensor_active_ratio', prom.FLEET)})", "tensor pipes"),
                    Query(f"avg({prom.of('gpu_sm_active_ratio', prom.FLEET)})", "SMs"),
                    Query(f"avg({prom.of('gpu_dram_active_ratio', prom.FLEET)})", "memory"),
                ),
                (
                    Query(flux.across(flux.gpus(["gpu_tensor_active_ratio"], where), "mean", "tensor pipes")),
                    Query(flux.across(flux.gpus(["gpu_sm_active_ratio"], where), "mean", "SMs")),
                    Query(flux.across(flux.gpus(["gpu_dram_active_ratio"], where), "mean", "memory")),
                ),
                "percentunit",
                width=8,
                least=0,
                most=1,
            ),
            Panel(
                "Free GPUs",
                "Idle GPUs, and how many of them the next jobs cannot use where they are (docs/fragmentation.md).",
                "timeseries",
                (
                    Query("max(tocsin_fleet_free_gpus)", "free"),
                    Query("max(tocsin_fleet_fragmented_gpus)", "fragmented"),
                    Query("max(tocsin_fleet_stranded_gpus)", "stranded"),
                ),
                width=8,
                least=0,
            ),
        ),
    )


def _worst(title: str, text: str, metric: str, unit: str, name: str, *, most: bool, **more: object) -> Panel:
    pick = "topk" if most else "bottomk"
    return Panel(
        title,
        text,
        "table",
        (Query(f"{pick}({_HOTTEST}, {prom.of(metric, prom.FLEET)})", instant=True, name=name),),
        (
            Query(
                flux.rows(
                    flux.gpus([metric], flux.FLEET),
                    ["host", "gpu_uuid"],
                    flux.field(metric),
                    descending=most,
                    most=_HOTTEST,
                )
            ),
        ),
        units={name: unit, flux.field(metric): unit},
        link="gpu",
        hidden=("__name__", "instance", "job", "simulated", "model"),
        width=8,
        **more,  # type: ignore[arg-type]
    )


def _health() -> Row:
    verdict = "gpu_recovery_action"
    xid = "tocsin_xids_total"
    return Row(
        "Health",
        (
            Panel(
                "GPUs by state",
                "What the brain knows of each GPU: the worst of its findings, or that it is silent or lost.",
                "timeseries",
                (Query("sum by (state) (tocsin_fleet_gpus)", "{{state}}"),),
                width=8,
                stack=True,
                least=0,
            ),
            Panel(
                "XIDs in the chosen span",
                help_of(xid) + " Also those whose count began within the span.",
                "bars",
                (Query(f"sum by (xid) ({prom.growth(xid, prom.POOL)})", "XID {{xid}}", instant=True),),
                (
                    Query(
                        flux.stream(flux.WORDS, "gpu_event", ["message"], 'r.kind == "xid"', flux.FLEET)
                        + '  |> group(columns: ["code"])\n  |> count()\n'
                        '  |> map(fn: (r) => ({_value: r._value, series: "XID " + r.code}))\n'
                        '  |> group(columns: ["series"])\n'
                    ),
                ),
                width=8,
                steps=steps((None, ORANGE)),
            ),
            Panel(
                "GPUs that lose speed",
                "GPUs that spent time below full clocks within five minutes, by what held them down.",
                "timeseries",
                (
                    Query(_slow("gpu_power_cap_seconds_total"), "power limit"),
                    Query(_slow("gpu_thermal_violation_seconds_total"), "temperature"),
                    Query(_slow("gpu_hw_power_brake_seconds_total"), "power brake"),
                ),
                width=8,
                least=0,
            ),
            _worst("Hottest GPUs", "A click opens the GPU.", TEMP, "celsius", "Core", most=True),
            _worst("Least margin", help_of(MARGIN), MARGIN, "celsius", "Margin", most=False),
            Panel(
                "What the driver asks for",
                help_of(verdict) + " Only GPUs with a verdict are listed.",
                "table",
                (Query(f"{prom.of(verdict, prom.FLEET)} > 0", instant=True, name="Verdict"),),
                (
                    Query(
                        flux.rows(flux.gpus([verdict], flux.FLEET), ["host", "gpu_uuid"], flux.field(verdict))
                        + f"  |> filter(fn: (r) => r.{flux.field(verdict)} > 0.0)\n"
                    ),
                ),
                link="gpu",
                width=8,
                states=RECOVERY,
                hidden=("__name__", "instance", "job", "simulated", "model"),
            ),
        ),
    )


def _slow(metric: str) -> str:
    return f"count(increase({prom.of(metric, prom.FLEET)}[5m]) > 1) or vector(0)"


def _hosts() -> Row:
    columns = {
        "GPUs": ("count", TEMP, "short"),
        "Utilisation": ("avg", BUSY, "percentunit"),
        "Memory": ("avg", USED, "percentunit"),
        "Power": ("sum", POWER, "watt"),
        "Hottest": ("max", TEMP, "celsius"),
    }
    metrics = [BUSY, USED, POWER, TEMP]
    units = {
        flux.field(name): unit
        for name, unit in zip(metrics, ("percentunit", "percentunit", "watt", "celsius"), strict=True)
    }
    each = (
        flux.gpus(metrics, flux.FLEET)
        + '  |> last()\n  |> group(columns: ["host", "_field"])\n  |> mean()\n  |> group()\n'
        '  |> pivot(rowKey: ["host"], columnKey: ["_field"], valueColumn: "_value")\n'
        f'  |> sort(columns: ["{flux.field(TEMP)}"], desc: true)\n'
    )
    return Row(
        "Hosts",
        (
            Panel(
                "Host by host",
                "One row for each host; InfluxDB shows means over its GPUs. A click opens the host.",
                "table",
                tuple(
                    Query(f"{fn} by (host, pool) ({prom.of(metric, prom.FLEET)})", instant=True, name=name)
                    for name, (fn, metric, _) in columns.items()
                ),
                (Query(each),),
                units={name: unit for name, (_, _, unit) in columns.items()} | units,
                link="node",
                width=24,
                height=10,
            ),
        ),
    )


def _ahead() -> Row:
    return Row(
        "Ahead",
        (
            Panel(
                "GPUs with a warning, by what is predicted",
                "Predictions in force that warn; the board of predictions has them one by one.",
                "timeseries",
                (Query('sum by (target) (tocsin_predictions_active{status=~"crossing|likely"})', "{{target}}"),),
                (
                    Query(
                        flux.counted(
                            flux.stream(
                                flux.MINUTE,
                                "gpu_prediction",
                                ["sentence"],
                                'r.subject_kind == "gpu"',
                            ),
                            "target",
                        )
                    ),
                ),
                width=12,
                least=0,
            ),
            Panel(
                "Decisions that wait for a person",
                "Proposed actions that nobody has answered yet; the board of actions has more.",
                "timeseries",
                (Query("max(tocsin_decisions_approvable)", "waiting"),),
                width=12,
                steps=steps((None, BLUE), (1, YELLOW)),
                least=0,
            ),
        ),
    )


def board() -> Board:
    """The fleet at a glance, with the way down to hosts and GPUs."""
    return Board(
        "fleet",
        "Fleet",
        "How the GPUs of the chosen pools are: load, heat, errors, and what is predicted. Hosts and GPUs open by a "
        "click.",
        "fleet",
        (_now(), _load(), _health(), _hosts(), _ahead()),
    )
