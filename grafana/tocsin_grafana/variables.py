"""What can be chosen on a dashboard. Nothing names a site: data sources, buckets, pools and hosts are looked up."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    VariableHide,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from tocsin_grafana.prom import CELL
from tocsin_grafana.spec import Backend

ANCHOR = "gpu_temperature_celsius"
"""The metric that names pools, hosts and GPUs: every source and every model reports it."""
_INFO = 'from(bucket: "${bucket}_10m")\n  |> range(start: -2d)\n  |> filter(fn: (r) => '
_ALL = VariableOption(text="All", value="$__all", selected=True)


def variables(scope: str, backend: Backend) -> list[Any]:
    """The choices of a dashboard of this scope."""
    source = dashboard.DatasourceVariable("datasource").label("Data source").type(backend)
    chosen = _prometheus(scope) if backend == "prometheus" else _influxdb(scope)
    return [source, *chosen]


def _query(name: str, label: str, query: Any, backend: Backend) -> Any:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(DataSourceRef(type_val=backend, uid="${datasource}"))
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.NATURAL_ASC)
    )


def _several(variable: Any) -> Any:
    return variable.multi(True).include_all(True).current(_ALL)


def _prometheus(scope: str) -> list[Any]:
    def values(name: str, label: str, query: str) -> Any:
        return _query(name, label, {"query": query, "refId": f"tocsin-{name}", "qryType": 1}, "prometheus")

    cell = _several(values("cell", "Cell", f"label_values({ANCHOR}, cell)")).all_value(".*")
    pool = _several(values("pool", "Pool", f"label_values({ANCHOR}{{{CELL}}}, pool)")).all_value(".*")
    host = values("host", "Host", f'label_values({ANCHOR}{{{CELL},pool=~"$pool"}}, host)')
    gpu = values("gpu", "GPU", f'label_values({ANCHOR}{{{CELL},host=~"$host",mig_uuid=""}}, gpu_uuid)')
    return {"fleet": [cell, pool], "host": [cell, pool, host], "gpu": [cell, pool, host, gpu]}[scope]


def _influxdb(scope: str) -> list[Any]:
    buckets = (
        "buckets()\n"
        "  |> filter(fn: (r) => r.name !~ /^_/ and r.name !~ /_(1m|10m)$/)\n"
        '  |> rename(columns: {name: "_value"})\n'
        '  |> keep(columns: ["_value"])'
    )
    pools = (
        f'{_INFO}r._measurement == "gpu_info" and r._field == "pool")\n'
        '  |> last()\n  |> group()\n  |> distinct()\n  |> keep(columns: ["_value"])'
    )
    hosts = (
        f'{_INFO}r._measurement == "gpu_info" and r._field == "pool")\n'
        "  |> last()\n  |> filter(fn: (r) => r._value =~ /^${pool:regex}$/)\n"
        '  |> group()\n  |> distinct(column: "host")\n  |> keep(columns: ["_value"])'
    )
    gpus = (
        f'{_INFO}r._measurement == "gpu_info" and r._field == "pool" and r.host == "${{host}}")\n'
        '  |> last()\n  |> group()\n  |> distinct(column: "gpu_uuid")\n  |> keep(columns: ["_value"])'
    )
    bucket = _query("bucket", "Bucket", {"query": buckets, "refId": "tocsin-bucket"}, "influxdb")
    detail = (
        dashboard.CustomVariable("detail")
        .label("Detail")
        .description("As the readings came, by the minute, or by ten minutes: the older the span, the coarser.")
        .values("as taken : ,1 min : _1m,10 min : _10m")
        .current(VariableOption(text="as taken", value="", selected=True))
    )
    pool = _several(_query("pool", "Pool", {"query": pools, "refId": "tocsin-pool"}, "influxdb"))
    host = _query("host", "Host", {"query": hosts, "refId": "tocsin-host"}, "influxdb")
    gpu = _query("gpu", "GPU", {"query": gpus, "refId": "tocsin-gpu"}, "influxdb")
    if scope == "fleet":
        return [bucket, detail, pool, _several(host).hide(VariableHide.HIDE_VARIABLE)]
    return [bucket, detail, pool, host] if scope == "host" else [bucket, detail, pool, host, gpu]
