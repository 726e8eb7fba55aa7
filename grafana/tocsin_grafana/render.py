"""Boards as dashboards of Grafana, through its own library of types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.runtime import UnknownDataquery
from grafana_foundation_sdk.models import common as shapes
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    GridPos,
    SpecialValueMap,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from tocsin_grafana import prom
from tocsin_grafana.annotations import marks
from tocsin_grafana.spec import Backend, Board, Panel, Query
from tocsin_grafana.variables import variables

COLUMNS = 24
SOURCE = "${datasource}"
SHORT = {"prometheus": "prom", "influxdb": "flux"}
_REFRESH = "30s"


def uid(board: str, backend: Backend) -> str:
    """The dashboard's own name in links."""
    return f"tocsin-{SHORT[backend]}-{board}"


def render(board: Board, backend: Backend) -> dict[str, Any]:
    """`board` as the JSON that Grafana imports."""
    made = (
        dashboard.Dashboard(f"Tocsin / {board.title}")
        .uid(uid(board.name, backend))
        .description(board.text)
        .tags(["tocsin", f"tocsin-{SHORT[backend]}"])
        .editable()
        .timezone("browser")
        .time(board.span, "now")
        .refresh(_REFRESH)
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(
            dashboard.DashboardLink("Tocsin")
            .type(DashboardLinkType.DASHBOARDS)
            .tags([f"tocsin-{SHORT[backend]}"])
            .as_dropdown(False)
            .include_vars(True)
            .keep_time(True)
        )
        .variables(variables(board.scope, backend))
    )
    number = 0
    for title, panels in _placed(board, backend):
        made.with_row(dashboard.Row(title).id(number := number + 1).grid_pos(panels[0][1]))
        for panel, place in panels[1:]:
            assert panel is not None
            made.with_panel(_panel(panel, backend).id(number := number + 1).grid_pos(place))
    document: dict[str, Any] = json.loads(json.dumps(made.build(), cls=JSONEncoder))
    document["annotations"] = {"list": marks(backend)}
    return document


def _placed(board: Board, backend: Backend) -> Iterator[tuple[str, list[tuple[Panel | None, GridPos]]]]:
    """Rows with their panels, each where it goes: from left to right, in lines as high as their highest panel."""
    y = 0
    for row in board.rows:
        panels = [panel for panel in row.panels if panel.queries(backend)]
        if not panels:
            continue
        places: list[tuple[Panel | None, GridPos]] = [(None, GridPos(h=1, w=COLUMNS, x=0, y=y))]
        x, y, high = 0, y + 1, 0
        for panel in panels:
            if x + panel.width > COLUMNS:
                x, y, high = 0, y + high, 0
            places.append((panel, GridPos(h=panel.height, w=panel.width, x=x, y=y)))
            x, high = x + panel.width, max(high, panel.height)
        y += high
        yield row.title, places


def _panel(panel: Panel, backend: Backend) -> Any:
    made = {
        "timeseries": _timeseries,
        "stat": _stat,
        "table": _table,
        "timeline": _timeline,
        "bars": _bars,
    }[panel.kind](panel)
    made = made.title(panel.title).description(panel.text).unit(panel.unit)
    made = made.datasource(DataSourceRef(type_val=backend, uid=SOURCE))
    if panel.steps:
        steps = [Threshold(value=step.value, color=step.color) for step in panel.steps]
        made = made.thresholds(dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
    if panel.states:
        made = made.mappings([_states(panel.states)])
    if panel.least is not None:
        made = made.min(panel.least)
    if panel.most is not None:
        made = made.max(panel.most)
    if backend == "influxdb" and panel.kind != "table":
        made = made.display_name("${__field.labels.series}") if panel.kind != "stat" else made
    if panel.link:
        made = made.data_links([_link(panel, backend)])
    for place, query in enumerate(panel.queries(backend)):
        made = made.with_target(_target(query, chr(ord("A") + place), panel, backend))
    return _merged(made, panel, backend) if panel.kind == "table" else made


def _states(states: dict[int, tuple[str, str]]) -> ValueMap | SpecialValueMap:
    options = {
        str(value): ValueMappingResult(text=text, color=color, index=place)
        for place, (value, (text, color)) in enumerate(states.items())
    }
    return ValueMap(options=options)


def _link(panel: Panel, backend: Backend) -> Any:
    columns = "fields" if panel.kind == "table" else "field.labels"
    chosen = f"&var-host=${{__data.{columns}.host}}" if columns == "fields" else f"&var-host=${{__{columns}.host}}"
    if panel.link == "gpu":
        gpu = "${__data.fields.gpu_uuid}" if columns == "fields" else "${__field.labels.gpu_uuid}"
        chosen += f"&var-gpu={gpu}"
    url = f"/d/{uid(panel.link, backend)}?${{__url_time_range}}&var-datasource={SOURCE}{chosen}"
    return dashboard.DashboardLink(f"Open the {panel.link}").url(url)


def _target(query: Query, name: str, panel: Panel, backend: Backend) -> Any:
    if backend == "influxdb":
        return _Flux(name, query.text)
    made = prometheus.Dataquery().expr(prom.in_cell(query.text)).ref_id(name)
    made = made.instant() if query.instant else made.range()
    shape = PromQueryFormat.TABLE if panel.kind == "table" else PromQueryFormat.TIME_SERIES
    made = made.format(shape).datasource(DataSourceRef(type_val=backend, uid=SOURCE))
    return made.legend_format(query.legend) if query.legend else made


class _Flux:
    """A query of Grafana's InfluxDB plugin in language Flux, of which the library has no type."""

    def __init__(self, name: str, text: str) -> None:
        source = {"type": "influxdb", "uid": SOURCE}
        self._query = UnknownDataquery({"refId": name, "query": text, "datasource": source})

    def build(self) -> UnknownDataquery:
        return self._query


def _merged(made: Any, panel: Panel, backend: Backend) -> Any:
    """A table of several queries as one, with columns named and in order."""
    renamed: dict[str, object] = {}
    if backend == "prometheus":
        several = len(panel.prometheus) > 1
        made = made.with_transformation(DataTransformerConfig(id_val="merge", options={}))
        renamed = {
            f"Value #{chr(ord('A') + place)}" if several else "Value": query.name
            for place, query in enumerate(panel.prometheus)
        }
    hidden = dict.fromkeys((*panel.hidden, *(("Time",) if backend == "prometheus" else ())), True)
    options = {"excludeByName": hidden, "renameByName": renamed, "indexByName": {}}
    made = made.with_transformation(DataTransformerConfig(id_val="organize", options=options))
    for column, unit in panel.units.items():
        made = made.override_by_name(column, [DynamicConfigValue(id_val="unit", value=unit)])
    return made


def _timeseries(panel: Panel) -> Any:
    legend = (
        common.VizLegendOptions()
        .display_mode(shapes.LegendDisplayMode.LIST)
        .placement(shapes.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs([])
    )
    made = timeseries.Panel().legend(legend).fill_opacity(30 if panel.stack else 5).line_width(1)
    made = made.show_points(shapes.VisibilityMode.NEVER).span_nulls(False)
    made = made.tooltip(
        common.VizTooltipOptions().mode(shapes.TooltipDisplayMode.MULTI).sort(shapes.SortOrder.DESCENDING)
    )
    if panel.stack:
        made = made.stacking(common.StackingConfig().mode(shapes.StackingMode.NORMAL).group("A"))
    if panel.steps:
        made = made.thresholds_style(common.GraphThresholdsStyleConfig().mode(shapes.GraphThresholdsStyleMode.DASHED))
    return made


def _last() -> Any:
    return common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)


def _stat(panel: Panel) -> Any:
    made = stat.Panel().reduce_options(_last()).graph_mode(shapes.BigValueGraphMode.NONE)
    made = made.text_mode(
        shapes.BigValueTextMode.VALUE_AND_NAME if len(panel.prometheus) > 1 else shapes.BigValueTextMode.AUTO
    )
    coloured = shapes.BigValueColorMode.BACKGROUND if panel.steps or panel.states else shapes.BigValueColorMode.NONE
    return made.color_mode(coloured)


def _table(_panel: Panel) -> Any:
    return table.Panel().show_header(True).cell_height(shapes.TableCellHeight.SM).filterable(True)


def _timeline(_panel: Panel) -> Any:
    legend = common.VizLegendOptions().show_legend(False).display_mode(shapes.LegendDisplayMode.LIST)
    made = statetimeline.Panel().merge_values(True).show_value(shapes.VisibilityMode.AUTO).row_height(0.8)
    return made.legend(legend.placement(shapes.LegendPlacement.BOTTOM).calcs([])).fill_opacity(80)


def _bars(_panel: Panel) -> Any:
    made = bargauge.Panel().reduce_options(_last()).orientation(shapes.VizOrientation.HORIZONTAL)
    made = made.display_mode(shapes.BarGaugeDisplayMode.BASIC).show_unfilled(True)
    return made.color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
