"""The board of the whole fleet."""

from __future__ import annotations

from tocsin_grafana import flux, prom
from tocsin_grafana.parts import BLUE, GREEN, ORANGE, RECOVERY, RED, YELLOW, fullness, heat, margin, split, steps, told
from tocsin_grafana.spec import Board, Panel, Query, Row, help_of, unit_of

TEMP, MARGIN, USED = "gpu_temperature_celsius", "gpu_thermal_margin_celsius", "gpu_memory_used_ratio"
BUSY, POWER = "gpu_utilization_ratio", "gpu_power_watts"
_LISTED = 20
_IN_FLUX = {"avg": "mean"}
"""Names of functions that Flux calls otherwise than PromQL."""
_NO_COLUMNS = ("__name__", "instance", "job", "simulated", "model")


def _number(title: str, text: str, promql: str, fluxql: str, unit: str = "short", **more: object) -> Panel:
    return Panel(
        title,
        text,
        "stat",
        (Query(promql, instant=True),),
        (Query(fluxql),),
        unit,
        3,
        4,
        **more,  # type: ignore[arg-type]
    )


def _newest(title: str, text: str, fn: str, metric: str, **more: object) -> Panel:
    """The newest values of all chosen GPUs, taken together by `fn`."""
    together = flux.now(flux.gpus([metric], flux.FLEET), _IN_FLUX.get(fn, fn))
    return _number(title, text, f"{fn}({prom.of(metric, prom.FLEET)})", together, unit_of(metric), **more)


def _hosts_that_report() -> Panel:
    return _number(
        "Hosts",
        "Hosts with at least one GPU that reports.",
        f"count(count by (host) ({prom.of(TEMP, prom.FLEET)}))",
        flux.gpus([TEMP], flux.FLEET) + '  |> last()\n  |> group()\n  |> distinct(column: "host")\n  |> count()\n',
    )


def _critical() -> Panel:
    return _number(
        "Critical incidents",
        "Incidents with a critical root cause, as the brain sees them now; InfluxDB counts the critical "
        "findings of the chosen span.",
        'sum(tocsin_incidents_active{severity="critical"})',
        flux.stream(flux.WORDS, "gpu_finding", ["severity"])
        + '  |> last()\n  |> filter(fn: (r) => r._value == "critical")\n  |> group()\n  |> count()\n',
        steps=steps((None, GREEN), (1, RED)),
    )


def _now() -> Row:
    reporting = flux.now(flux.gpus([TEMP], flux.FLEET), "count")
    whole = "Whole GPUs with a reading; one that is lost or silent is not among them."
    rules = " Colours from rules thermal_margin_low and thermal_margin_gone."
    return Row(
        "Now",
        (
            _number("GPUs that report", whole, f"count({prom.of(TEMP, prom.FLEET)})", reporting),
            _hosts_that_report(),
            _newest("Mean utilisation", help_of(BUSY), "avg", BUSY),
            _newest("Memory in use", f"Mean over the GPUs. {help_of(USED)}", "avg", USED, steps=fullness()),
            _newest("Power", f"All GPUs together. {help_of(POWER)}", "sum", POWER),
            _newest("Hottest GPU", "Red from the level of rule temperature_high on.", "max", TEMP, steps=heat()),
            _newest("Least thermal margin", help_of(MARGIN) + rules, "min", MARGIN, steps=margin()),
            _critical(),
        ),
    )


def _by_pool(title: str, text: str, fn: str, metric: str, line: str, **more: object) -> Panel:
    """A metric over time, a line for each pool; in InfluxDB one line for all of them."""
    together = flux.across(flux.gpus([metric], flux.FLEET), _IN_FLUX.get(fn, fn), line)
    return Panel(
        title,
        f"{text} {help_of(metric)}",
        "timeseries",
        (Query(f"{fn} by (pool) ({prom.of(metric, prom.FLEET)})", "{{pool}}"),),
        (Query(together),),
        unit_of(metric),
        least=0,
        **more,  # type: ignore[arg-type]
    )


def _at_work() -> Panel:
    named = {
        "gpu_tensor_active_ratio": "tensor pipes",
        "gpu_sm_active_ratio": "SMs",
        "gpu_dram_active_ratio": "memory",
    }
    return Panel(
        "Tensor pipes and SMs at work",
        "Mean over the fleet of what utilisation hides: how much of the GPU works.",
        "timeseries",
        tuple(Query(f"avg({prom.of(metric, prom.FLEET)})", name) for metric, name in named.items()),
        tuple(Query(flux.across(flux.gpus([metric], flux.FLEET), "mean", name)) for metric, name in named.items()),
        "percentunit",
        width=8,
        least=0,
        most=1,
    )


def _load() -> Row:
    mean, total = (f"{what} over the whole GPUs of a pool" for what in ("Mean", "Sum"))
    together = "; InfluxDB shows the chosen pools together."
    free = {name: f"max(tocsin_fleet_{name}_gpus)" for name in ("free", "fragmented", "stranded", "unusable")}
    return Row(
        "Load",
        (
            _by_pool("Utilisation by pool", mean + together, "avg", BUSY, "mean utilisation", most=1),
            _by_pool("Power by pool", total + together, "sum", POWER, "power", stack=True),
            _by_pool(
                "Memory in use by pool",
                f"{mean}.",
                "avg",
                USED,
                "memory in use",
                width=8,
                steps=fullness(),
                most=1,
            ),
            _at_work(),
            told(
                "Free GPUs",
                "Idle GPUs, and how many of them the next jobs cannot use where they are (docs/fragmentation.md).",
                free,
            ),
        ),
    )


def _worst(title: str, text: str, metric: str, name: str, *, most: bool) -> Panel:
    """The GPUs with the highest values of a metric, or with the lowest."""
    pick = "topk" if most else "bottomk"
    field, base = flux.field(metric), flux.gpus([metric], flux.FLEET)
    return Panel(
        title,
        text,
        "table",
        (Query(f"{pick}({_LISTED}, {prom.of(metric, prom.FLEET)})", instant=True, name=name),),
        (Query(flux.rows(base, ["host", "gpu_uuid"], field, descending=most, most=_LISTED)),),
        units=dict.fromkeys((name, field), unit_of(metric)),
        link="gpu",
        hidden=_NO_COLUMNS,
        width=8,
    )


def _xids() -> Panel:
    counted = "tocsin_xids_total"
    by_code = (
        '  |> group(columns: ["code"])\n  |> count()\n'
        '  |> map(fn: (r) => ({_value: r._value, series: "XID " + r.code}))\n'
        '  |> group(columns: ["series"])\n'
    )
    return Panel(
        "XIDs in the chosen span",
        help_of(counted) + " Also those whose count began within the span.",
        "bars",
        (Query(f"sum by (xid) ({prom.growth(counted, prom.POOL)})", "XID {{xid}}", instant=True),),
        (Query(flux.stream(flux.WORDS, "gpu_event", ["message"], 'r.kind == "xid"', flux.FLEET) + by_code),),
        width=8,
        steps=steps((None, ORANGE)),
    )


def _asked_for() -> Panel:
    verdict = "gpu_recovery_action"
    listed = flux.rows(flux.gpus([verdict], flux.FLEET), ["host", "gpu_uuid"], flux.field(verdict))
    return Panel(
        "What the driver asks for",
        help_of(verdict) + " Only GPUs with a verdict are listed.",
        "table",
        (Query(f"{prom.of(verdict, prom.FLEET)} > 0", instant=True, name="Verdict"),),
        (Query(f"{listed}  |> filter(fn: (r) => r.{flux.field(verdict)} > 0.0)\n"),),
        link="gpu",
        width=8,
        states=RECOVERY,
        hidden=_NO_COLUMNS,
    )


def _slow(metric: str) -> str:
    return f"count(increase({prom.of(metric, prom.FLEET)}[5m]) > 1) or vector(0)"


def _health() -> Row:
    slow = {
        "power limit": _slow("gpu_power_cap_seconds_total"),
        "temperature": _slow("gpu_thermal_violation_seconds_total"),
        "power brake": _slow("gpu_hw_power_brake_seconds_total"),
    }
    return Row(
        "Health",
        (
            split(
                "tocsin_fleet_gpus",
                "GPUs by state",
                "state",
                "What the brain knows of each GPU: the worst of its findings, or that it is silent or lost.",
            ),
            _xids(),
            told(
                "GPUs that lose speed",
                "GPUs that spent time below full clocks within five minutes, by what held them down.",
                slow,
            ),
            _worst("Hottest GPUs", "A click opens the GPU.", TEMP, "Core", most=True),
            _worst("Least margin", help_of(MARGIN), MARGIN, "Margin", most=False),
            _asked_for(),
        ),
    )


def _hosts() -> Row:
    columns = {
        "GPUs": ("count", TEMP, "short"),
        "Utilisation": ("avg", BUSY, unit_of(BUSY)),
        "Memory": ("avg", USED, unit_of(USED)),
        "Power": ("sum", POWER, unit_of(POWER)),
        "Hottest": ("max", TEMP, unit_of(TEMP)),
    }
    metrics = [BUSY, USED, POWER, TEMP]
    each = (
        flux.gpus(metrics, flux.FLEET)
        + '  |> last()\n  |> group(columns: ["host", "_field"])\n  |> mean()\n  |> group()\n'
        '  |> pivot(rowKey: ["host"], columnKey: ["_field"], valueColumn: "_value")\n'
        f'  |> sort(columns: ["{flux.field(TEMP)}"], desc: true)\n'
    )
    table = Panel(
        "Host by host",
        "One row for each host; InfluxDB shows means over its GPUs. A click opens the host.",
        "table",
        tuple(
            Query(f"{fn} by (host, pool) ({prom.of(metric, prom.FLEET)})", instant=True, name=name)
            for name, (fn, metric, _) in columns.items()
        ),
        (Query(each),),
        units={name: unit for name, (_, _, unit) in columns.items()}
        | {flux.field(metric): unit_of(metric) for metric in metrics},
        link="node",
        width=24,
        height=10,
    )
    return Row("Hosts", (table,))


def _ahead() -> Row:
    stored = flux.stream(flux.MINUTE, "gpu_prediction", ["sentence"], 'r.subject_kind == "gpu"')
    return Row(
        "Ahead",
        (
            Panel(
                "GPUs with a warning, by what is predicted",
                "Predictions in force that warn; the board of predictions has them one by one.",
                "timeseries",
                (Query('sum by (target) (tocsin_predictions_active{status=~"crossing|likely"})', "{{target}}"),),
                (Query(flux.counted(stored, "target")),),
                least=0,
            ),
            told(
                "Decisions that wait for a person",
                "Proposed actions that nobody has answered yet; the board of actions has more.",
                {"waiting": "max(tocsin_decisions_approvable)"},
                12,
                steps=steps((None, BLUE), (1, YELLOW)),
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
