"""Flux of the panels: one stream of a bucket, then what is made of it.

Every stream begins with the same three lines, so that tests can ask a double of InfluxDB whether it finds anything.
Series are named by a column `series`, which the panels show.
"""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.domain.metrics import METRICS

RAW = "${bucket}${detail}"
MINUTE = "${bucket}_1m"
WORDS = "${bucket}_10m"
FLEET = "r.host =~ /^${host:regex}$/"
HOST = 'r.host == "${host}"'
GPU = 'r.gpu_uuid == "${gpu}"'
SUBJECT = 'r.subject == "${gpu}"'
WHOLE = "not exists r.mig_uuid"
NAMED = 'r.host + " " + strings.substring(v: r.gpu_uuid, start: 4, end: 12)'
"""Host and the first digits of the UUID: a short name of a GPU that is still unique within a host."""


def stream(bucket: str, measurement: str, fields: Sequence[str], *where: str) -> str:
    """The points of some fields in the time range of the dashboard."""
    named = " or ".join(f'r._field == "{name}"' for name in fields)
    conditions = " and ".join([f'r._measurement == "{measurement}"', f"({named})", *where])
    return (
        f'from(bucket: "{bucket}")\n'
        "  |> range(start: v.timeRangeStart, stop: v.timeRangeStop)\n"
        f"  |> filter(fn: (r) => {conditions})\n"
    )


def field(metric: str) -> str:
    """Its name in line protocol. Raises KeyError for one that is not in the table."""
    return METRICS[metric].field


def gpus(metrics: Sequence[str], *where: str) -> str:
    """Readings of whole GPUs."""
    return stream(RAW, "gpu", [field(name) for name in metrics], WHOLE, *where)


def shown(base: str, name: str, fn: str = "mean", *then: str) -> str:
    """`base` over time, one line for each value of the expression `name`."""
    steps = [
        f"aggregateWindow(every: v.windowPeriod, fn: {fn}, createEmpty: false)",
        *then,
        f"map(fn: (r) => ({{_time: r._time, _value: r._value, series: {name}}}))",
        'group(columns: ["series"])',
    ]
    imported = 'import "strings"\n' if "strings." in name else ""
    return imported + base + "".join(f"  |> {step}\n" for step in steps)


def across(base: str, fn: str, series: str, each: str = "mean") -> str:
    """`base` over time, all GPUs together by `fn`: first each over the window, then all of a window."""
    steps = [
        f"aggregateWindow(every: v.windowPeriod, fn: {each}, createEmpty: false)",
        'group(columns: ["_time"])',
        f"{fn}()",
        "group()",
        f'map(fn: (r) => ({{_time: r._time, _value: r._value, series: "{series}"}}))',
        'group(columns: ["series"])',
        'sort(columns: ["_time"])',
    ]
    return base + "".join(f"  |> {step}\n" for step in steps)


def rate(base: str, name: str) -> str:
    """Change per second of counters, one line for each value of the expression `name`."""
    return shown(base, name, "last", "derivative(unit: 1s, nonNegative: true)")


def now(base: str, fn: str) -> str:
    """One number: the newest value of each series, taken together by `fn`."""
    return base + f"  |> last()\n  |> group()\n  |> {fn}()\n"


def rows(base: str, keys: Sequence[str], order: str, *, descending: bool = True, most: int = 50) -> str:
    """A table: the newest values of each series, fields as columns, a row for each combination of `keys`."""
    columns = ", ".join(f'"{key}"' for key in keys)
    steps = [
        "last()",
        "group()",
        f'pivot(rowKey: [{columns}], columnKey: ["_field"], valueColumn: "_value")',
        f'sort(columns: ["{order}"], desc: {str(descending).lower()})',
        f"limit(n: {most})",
    ]
    return base + "".join(f"  |> {step}\n" for step in steps)


def list_of(base: str, columns: Sequence[str], most: int = 100) -> str:
    """A table of points, the newest first: fields and tags as columns."""
    kept = ", ".join(f'"{column}"' for column in columns)
    steps = [
        'pivot(rowKey: ["_time"], columnKey: ["_field"], valueColumn: "_value")',
        "group()",
        f"keep(columns: [{kept}])",
        'sort(columns: ["_time"], desc: true)',
        f"limit(n: {most})",
    ]
    return base + "".join(f"  |> {step}\n" for step in steps)


def counted(base: str, tag: str) -> str:
    """How many points there are in each window, one line for each value of a tag."""
    steps = [
        f'group(columns: ["{tag}", "_start", "_stop"])',
        "aggregateWindow(every: v.windowPeriod, fn: count, createEmpty: true)",
        f"map(fn: (r) => ({{_time: r._time, _value: r._value, series: r.{tag}}}))",
        'group(columns: ["series"])',
    ]
    return base + "".join(f"  |> {step}\n" for step in steps)
