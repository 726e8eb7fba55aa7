"""One GPU over time: values, with events, findings and predictions drawn in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from statistics import median

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tocsin.client.models import (
    FindingOut,
    GpuDetail,
    GpuState,
    PeerBand,
    SeriesResponse,
)
from tocsin.dashboard import charts
from tocsin.dashboard.palette import SEVERITY_STATES, Palette
from tocsin.dashboard.text import Text, chart_unit, metric_label, metric_words, percent
from tocsin.domain.clock import from_iso, to_iso
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Severity
from tocsin.domain.prediction import Prediction, PredictionStatus

_PANEL = 132
"""Height of one metric's panel, pixels."""
_ABOVE = 15
"""Pixels between the first panel's heading and the names of events above it."""
_LANE = 24
"""Height of a reason for throttling."""
_GAP = 3.0
"""From so many usual steps on, nothing is drawn between two samples: what was not seen is not claimed."""
_DOT = 4
"""Diameter of a value that stands alone, pixels."""

Spans = Mapping[str, Sequence[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class Course:
    """What is drawn: values, the band of the peers, and what held the clocks down (spans by reason)."""

    series: SeriesResponse
    peers: PeerBand | None = None
    throttled: Spans = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Canvas:
    """What the drawing functions share: the figure, its span of time and the row of each metric."""

    chart: go.Figure
    rows: dict[str, int]
    start_ms: int
    now_ms: int
    end_ms: int
    text: Text
    palette: Palette


def figure(course: Course, detail: GpuDetail, now: str, text: Text, palette: Palette) -> go.Figure:
    """A panel for each metric of the series; the span grows past `now` as far as predictions reach, at most doubled.

    What held the clocks down has a panel of its own below, where anything did.
    """
    series = course.series
    metrics = list(series.metrics)
    headings = [_heading(name, text) for name in metrics]
    heights = [float(_PANEL)] * len(metrics)
    if course.throttled:
        headings.append(text("chart.throttle"))
        heights.append(_LANE * len(course.throttled) + 8.0)
    chart = make_subplots(
        rows=len(headings),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.22 / max(2, len(headings)),
        row_heights=heights,
        subplot_titles=headings,
    )
    start_ms, now_ms = from_iso(series.start), min(from_iso(now), from_iso(series.end))
    shown = [p for p in detail.predictions if p.status is PredictionStatus.CROSSING and p.metric in metrics]
    predictions = shown if from_iso(now) <= from_iso(series.end) else []
    end_ms = _end(predictions, start_ms, now_ms)
    rows = {name: row for row, name in enumerate(metrics, start=1)}
    canvas = Canvas(chart, rows, start_ms, now_ms, end_ms, text, palette)
    for name in metrics:
        _peers(canvas, course.peers, name)
        _values(canvas, series, name)
    _findings(canvas, [finding for finding in detail.findings if finding.severity is not Severity.INFO])
    for prediction in predictions:
        _prediction(canvas, prediction)
    if course.throttled:
        _throttled(canvas, course.throttled)
    _events(canvas, detail.events)
    _lay_out(canvas, headings, sum(heights))
    return chart


def _heading(name: str, text: Text) -> str:
    unit, _ = chart_unit(name)
    return f"{escape(metric_words(name, text))}" + (f", {unit}" if unit else "")


def _end(predictions: Sequence[Prediction], start_ms: int, now_ms: int) -> int:
    reach = [at_ms for p in predictions for at_ms in (p.eta_ms, p.eta_high_ms) if at_ms is not None]
    latest = min(max(reach, default=now_ms), now_ms + (now_ms - start_ms))
    return max(latest, now_ms) + (now_ms - start_ms) // 50


def runs(at_ms: Sequence[int], known: Sequence[bool]) -> list[list[int]]:
    """Places of `known` samples, in runs without a gap.

    A gap is longer than `_GAP` times the usual step of this very metric: one that is read every minute has none between
    its samples, however many buckets without a value lie between them.
    """
    places = [place for place, there in enumerate(known) if there]
    steps = [at_ms[after] - at_ms[before] for before, after in pairwise(places)]
    longest = _GAP * median(steps) if steps else 0.0
    found: list[list[int]] = []
    for place in places:
        if found and at_ms[place] - at_ms[found[-1][-1]] <= longest:
            found[-1].append(place)
        else:
            found.append([place])
    return found


def _peers(canvas: Canvas, band: PeerBand | None, name: str) -> None:
    """The middle 80 % of the peers as a band, their median as a thin line; both end where a gap begins.

    Each run of the band is a shape of its own: filled to another trace, Plotly joins what lies on both sides of a gap.
    """
    if band is None or name not in band.low:
        return
    _, factor = chart_unit(name)
    low, middle, high = band.low[name], band.middle[name], band.high[name]
    known = [None not in each for each in zip(low, middle, high, strict=True)]
    edge: list[tuple[str, float | None]] = []
    line: list[tuple[str, float | None]] = []
    for run in runs([from_iso(at) for at in band.at], known):
        there, back = [(band.at[place], place) for place in run], [(band.at[place], place) for place in reversed(run)]
        # A shape ends at the None behind it.
        end = (band.at[run[-1]], None)
        edge += [(at, (low[place] or 0.0) * factor) for at, place in there]
        edge += [*((at, (high[place] or 0.0) * factor) for at, place in back), end]
        line += [*((at, (middle[place] or 0.0) * factor) for at, place in there), end]
    palette = canvas.palette
    filled = {"fill": "toself", "fillcolor": palette.peer_fill, "line": {"width": 0}}
    for points, look in ((edge, filled), (line, {"line": {"color": palette.peers, "width": 1}})):
        x, y = [at for at, _ in points], [value for _, value in points]
        drawn = go.Scatter(x=x, y=y, mode="lines", hoverinfo="skip", showlegend=False, **look)
        canvas.chart.add_trace(drawn, row=canvas.rows[name], col=1)


def _throttled(canvas: Canvas, throttled: Spans) -> None:
    """A lane for each reason, with a bar wherever it held the clocks."""
    row = len(canvas.rows) + 1
    for lane, (name, held) in enumerate(throttled.items()):
        label = canvas.text(f"throttle.{name}")
        canvas.chart.add_trace(
            go.Bar(
                y=[label] * len(held),
                base=[to_iso(start) for start, _ in held],
                x=[end - start for start, end in held],
                orientation="h",
                width=0.62,
                marker={"color": canvas.palette.throttle[lane % 2], "line": {"width": 0}},
                hovertemplate=f"{escape(label)}<extra></extra>",
                showlegend=False,
            ),
            row=row,
            col=1,
        )
    canvas.chart.update_yaxes(autorange="reversed", showgrid=False, row=row, col=1)


def _values(canvas: Canvas, series: SeriesResponse, name: str) -> None:
    """The values as a line that ends where a gap begins; a value with a gap on both sides is a dot."""
    _, factor = chart_unit(name)
    values = series.metrics[name]
    x: list[str | None] = []
    y: list[float | None] = []
    dots: list[int] = []
    for run in runs([from_iso(at) for at in series.at], [value is not None for value in values]):
        # The line breaks at the None that follows each run.
        x += [*(series.at[place] for place in run), series.at[run[-1]]]
        y += [*((values[place] or 0.0) * factor for place in run), None]
        dots += [_DOT if len(run) == 1 else 0] * (len(run) + 1)
    canvas.chart.add_trace(
        go.Scatter(
            x=x,
            y=y,
            mode="lines+markers" if any(dots) else "lines",
            connectgaps=False,
            line={"color": canvas.palette.line, "width": 1.6},
            marker={"size": dots, "color": canvas.palette.line, "opacity": 1} if any(dots) else None,
            name=metric_label(name),
            hovertemplate="%{y:.1f}<extra></extra>",
            showlegend=False,
        ),
        row=canvas.rows[name],
        col=1,
    )


def _threshold(canvas: Canvas, name: str, value: float) -> None:
    _, factor = chart_unit(name)
    canvas.chart.add_hline(
        y=value * factor,
        row=canvas.rows[name],
        col=1,
        line={"color": canvas.palette.muted, "width": 1, "dash": "dash"},
        annotation={
            "text": f"{canvas.text('chart.threshold')} {value * factor:g}",
            "font": {"size": 10, "color": canvas.palette.muted},
        },
        annotation_position="bottom left",
    )


def merged(spans: Sequence[tuple[int, int, Severity]]) -> list[tuple[int, int, Severity]]:
    """Overlapping spans as one, of the worst severity among them: tints laid over each other would tell nothing."""
    result: list[tuple[int, int, Severity]] = []
    for start, end, severity in sorted(spans):
        if result and start <= result[-1][1]:
            first, last, worst = result[-1]
            result[-1] = (first, max(last, end), max(worst, severity, key=lambda each: each.rank))
        else:
            result.append((start, end, severity))
    return result


def _findings(canvas: Canvas, findings: Sequence[FindingOut]) -> None:
    """A finding on a drawn metric is a span and its threshold there; any other is a span over all panels."""
    spans: dict[int | str, list[tuple[int, int, Severity]]] = {}
    thresholds: set[tuple[str, float]] = set()
    for finding in findings:
        start = max(finding.started_ms, canvas.start_ms)
        end = canvas.now_ms if finding.active else min(canvas.now_ms, finding.last_ms)
        if start < end:
            spans.setdefault(canvas.rows.get(finding.metric, "all"), []).append((start, end, finding.severity))
            if finding.threshold is not None and finding.metric in canvas.rows:
                thresholds.add((finding.metric, finding.threshold))
    for row, found in spans.items():
        for start, end, severity in merged(found):
            colour = canvas.palette.states[SEVERITY_STATES[severity]]
            span_style = {"fillcolor": colour, "opacity": 0.14, "line_width": 0, "layer": "below"}
            canvas.chart.add_vrect(x0=to_iso(start), x1=to_iso(end), row=row, col=1, **span_style)
    for name, value in sorted(thresholds):
        _threshold(canvas, name, value)


def _prediction(canvas: Canvas, prediction: Prediction) -> None:
    """A dotted line to the expected crossing, and the interval as a span."""
    if prediction.eta_ms is None or prediction.threshold is None:
        return
    row, (_, factor) = canvas.rows[prediction.metric], chart_unit(prediction.metric)
    text, palette = canvas.text, canvas.palette
    _threshold(canvas, prediction.metric, prediction.threshold)
    if prediction.eta_low_ms is not None:
        canvas.chart.add_vrect(
            x0=to_iso(prediction.eta_low_ms),
            x1=to_iso(prediction.eta_high_ms or canvas.end_ms),
            row=row,
            col=1,
            fillcolor=palette.forecast,
            opacity=0.14,
            line_width=0,
            layer="below",
            annotation={
                "text": text("chart.interval", p=percent(prediction.coverage)),
                "font": {"size": 10, "color": palette.forecast},
            },
            annotation_position="bottom left",
        )
    if prediction.value is None:
        return
    canvas.chart.add_trace(
        go.Scatter(
            x=[to_iso(prediction.at_ms), to_iso(prediction.eta_ms)],
            y=[prediction.value * factor, prediction.threshold * factor],
            mode="lines+markers",
            line={"color": palette.forecast, "width": 2, "dash": "dot"},
            marker={"size": [0, 9], "symbol": "diamond", "color": palette.forecast},
            name=text("chart.forecast"),
            hovertext=escape(text.said(prediction.sentence, prediction.sentence_zh)),
            hoverinfo="text",
            showlegend=False,
        ),
        row=row,
        col=1,
    )


def _name(event: Event, text: Text) -> str:
    word = text.name("event", event.kind.value)
    return f"{word} {event.code}" if event.kind in {EventKind.XID, EventKind.SXID} else word


def grouped(events: Sequence[Event], apart_ms: int, text: Text) -> list[tuple[int, str]]:
    """Instant and words of each label: events closer than `apart_ms` share one, which names two and counts the rest."""
    groups: list[tuple[int, list[str]]] = []
    for event in sorted(events, key=lambda each: (each.at_ms, each.kind is not EventKind.XID)):
        at_ms, name = event.at_ms, _name(event, text)
        if not groups or at_ms - groups[-1][0] >= apart_ms:
            groups.append((at_ms, []))
        if name not in groups[-1][1]:
            groups[-1][1].append(name)
    return [
        (at_ms, ", ".join(names[:2]) + (f" +{len(names) - 2}" if len(names) > 2 else "")) for at_ms, names in groups
    ]


def _events(canvas: Canvas, events: Sequence[Event]) -> None:
    """Every event within the span is a line through all panels, named at the top; so is the present."""
    shown = [event for event in events if canvas.start_ms <= event.at_ms <= canvas.end_ms]
    colour = canvas.palette.words[GpuState.CRITICAL]
    for at_ms in dict.fromkeys(event.at_ms for event in shown):
        canvas.chart.add_vline(x=to_iso(at_ms), row="all", col=1, line={"color": colour, "width": 1.2})
    span = canvas.end_ms - canvas.start_ms
    for at_ms, words in grouped(shown, span // 6, canvas.text):
        canvas.chart.add_annotation(
            x=to_iso(at_ms),
            y=1.0,
            xref="x",
            yref="paper",
            text=escape(words),
            showarrow=False,
            xanchor="right" if 2 * (at_ms - canvas.start_ms) > span else "left",
            yanchor="bottom",
            yshift=_ABOVE,
            font={"size": 11, "color": colour},
        )
    line = {"color": canvas.palette.muted, "width": 1}
    canvas.chart.add_vline(x=to_iso(canvas.now_ms), row="all", col=1, line=line)


def _lay_out(canvas: Canvas, headings: Sequence[str], height: float) -> None:
    palette = canvas.palette
    layout = {"margin": {"l": 0, "r": 8, "t": 34 + _ABOVE, "b": 0}, "hovermode": "x unified", "barmode": "overlay"}
    charts.plain(canvas.chart, round(height) + 24 * len(headings) + 40, palette, **layout)
    charts.time_axis(canvas.chart, [canvas.start_ms, canvas.end_ms])
    for row in canvas.rows.values():
        canvas.chart.update_yaxes(nticks=5, row=row, col=1)
    for annotation in canvas.chart.layout.annotations:
        if annotation.text in headings:
            annotation.update(x=0, xanchor="left", font={"size": 12, "color": palette.muted})
