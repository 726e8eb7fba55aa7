"""Page: one GPU over time, and all that is known and said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from statistics import median

import streamlit as st

from tocsin.client.client import Client
from tocsin.client.models import (
    STATE_RANKS,
    FindingOut,
    FleetMap,
    GpuDetail,
    GpuSummary,
    PeerBand,
    PeerGroup,
    SeriesResponse,
)
from tocsin.client.whole_places import home_of, others, worst_of
from tocsin.dashboard import cells, charts, link, style, timeline
from tocsin.dashboard.access import api, is_tenant
from tocsin.dashboard.boundary import live
from tocsin.dashboard.fleet_data import MAPS
from tocsin.dashboard.frame import current_palette, current_text
from tocsin.dashboard.kept_answers import PageClient
from tocsin.dashboard.palette import SEVERITY_STATES, SYMBOLS
from tocsin.dashboard.text import (
    Text,
    chance,
    clock,
    decided,
    degrees,
    eta_text,
    gpu_label,
    markdown_safe,
    metric_words,
    percent,
    quantity,
    readable,
    seconds_between,
    watts,
    without_label,
)
from tocsin.domain.clock import HOUR, from_iso, optional_iso, to_iso
from tocsin.domain.diagnosis import Diagnosis, DiagnosisVerdict
from tocsin.domain.finding import Evidence
from tocsin.domain.metrics import METRICS
from tocsin.domain.phrase import word_in_chinese
from tocsin.domain.prediction import Prediction, PredictionStatus

# All that is said of one GPU: findings, predictions with what they rest on, diagnoses, events, decisions.

_SHOWN = 6
"""Entries of each list beside the chart."""
_FINE = (DiagnosisVerdict.HEALTHY, DiagnosisVerdict.UNCLEAR, DiagnosisVerdict.NOT_ENOUGH_DATA)
_QUIET = (PredictionStatus.NO_CROSSING, PredictionStatus.UNLIKELY, PredictionStatus.NOT_ENOUGH_DATA)


def _muted(words: str) -> str:
    return f'<span class="tc-muted">{escape(words)}</span>'


def _more(count: int, text: Text) -> list[str]:
    return [_muted(text("attention.more", n=count - _SHOWN))] if count > _SHOWN else []


def _section(heading: str, rows: Sequence[str], empty: str) -> None:
    st.html(style.title(heading) + ("".join(rows) or _muted(empty)))


def finding_row(finding: FindingOut, label: str, now: str, text: Text) -> str:
    """A finding in a line: active ones with their symbol, ended ones pale."""
    said = without_label(text.said(finding.sentence, finding.sentence_zh), label)
    what = f"<b>{escape(finding.rule)}</b> {escape(said)}"
    if finding.active:
        when = text("finding.since", age=text.duration(max(0.0, seconds_between(to_iso(finding.started_ms), now))))
        return style.row(style.sign(SEVERITY_STATES[finding.severity]), what, when)
    when = text("finding.ended", age=text.duration(max(0.0, seconds_between(to_iso(finding.last_ms), now))))
    return style.row('<span class="tc-sign tc-muted">○</span>', f'<span class="tc-muted">{what}</span>', when)


def prediction_row(prediction: Prediction, label: str, now: str, text: Text) -> str:
    """A prediction that warns: probability, instant with its interval, sentence, model."""
    said = text.said(prediction.sentence, prediction.sentence_zh)
    sure = "" if prediction.probability is None else chance(prediction.probability)
    eta = (prediction.eta_ms, prediction.eta_low_ms, prediction.eta_high_ms)
    parts = (sure, eta_text(text, now, *map(optional_iso, eta)))
    head = " · ".join(part for part in parts if part)
    model = f"{prediction.model} {prediction.model_version}"
    what = (
        f'<span class="tc-forecast">{escape(head)}</span><br>{escape(without_label(said, label))} '
        f'<span class="tc-muted">({escape(model)})</span>'
    )
    return style.row('<span class="tc-sign tc-forecast">↗</span>', what)


def _about(prediction: Prediction, text: Text) -> str:
    return metric_words(prediction.metric, text) if prediction.metric else text.name("target", prediction.target)


def quiet_rows(predictions: Sequence[Prediction], text: Text) -> list[str]:
    """One line for all predictions of a status that warns of nothing; the reason why, where data are lacking."""
    lines = []
    for status in _QUIET:
        if found := [prediction for prediction in predictions if prediction.status is status]:
            about = ", ".join(dict.fromkeys(_about(p, text) for p in found))
            why = text.said(found[0].reason, found[0].reason_zh)
            reason = f" ({why})" if why else ""
            what = f"{text.name('prediction', status.value)}: {about}{reason}"
            lines.append(style.row('<span class="tc-sign tc-muted">○</span>', _muted(what)))
    return lines


def _evidence(groups: Sequence[tuple[str, Sequence[Evidence], Sequence[str]]], title: str, text: Text) -> None:
    """What claims rest on, folded away: pairs of the claim's name and its evidence."""
    rows = []
    for name, pieces, chinese in groups:
        if pieces:
            rows.append(f"<b>{escape(name)}</b>")
            rows += [
                style.row(
                    '<span class="tc-sign">·</span>',
                    escape(readable(text.said(one.text, told))),
                    clock(to_iso(one.at_ms)),
                )
                for one, told in zip(pieces, [*chinese, *[""] * len(pieces)], strict=False)
            ]
    if rows:
        with st.expander(title):
            st.html("".join(rows))


def _findings(detail: GpuDetail, now: str, text: Text) -> None:
    label = gpu_label(detail.summary)
    shown = sorted(detail.findings, key=lambda f: (f.active, f.severity.rank, f.last_ms), reverse=True)
    rows = [finding_row(finding, label, now, text) for finding in shown[:_SHOWN]] + _more(len(shown), text)
    _section(text("gpu.findings"), rows, text("gpu.findings.none"))
    _evidence(
        [(one.rule, one.evidence, one.evidence_zh) for one in shown[:_SHOWN] if one.active],
        text("gpu.evidence.findings"),
        text,
    )


def _predictions(detail: GpuDetail, now: str, text: Text) -> None:
    label = gpu_label(detail.summary)
    warned = [p for p in detail.predictions if p.status in (PredictionStatus.CROSSING, PredictionStatus.LIKELY)]
    rows = [prediction_row(p, label, now, text) for p in warned] + quiet_rows(detail.predictions, text)
    _section(text("gpu.predictions"), rows, text("gpu.predictions.none"))
    _evidence(
        [(text.name("target", one.target), one.evidence, ()) for one in warned], text("gpu.evidence.predictions"), text
    )


def _diagnoses(diagnoses: Sequence[Diagnosis], text: Text) -> None:
    rows = []
    for one in sorted(diagnoses, key=lambda each: (each.verdict in _FINE, -each.score))[:_SHOWN]:
        said = text.said(one.sentence, one.sentence_zh)
        usual = text.said(one.remedy, word_in_chinese(one.remedy))
        remedy = f'<br><span class="tc-muted">{escape(usual)}</span>' if usual else ""
        mark = "○" if one.verdict in _FINE else "!"
        rows.append(style.row(f'<span class="tc-sign">{mark}</span>', escape(readable(said)) + remedy))
    _section(text("gpu.diagnoses"), rows, text("gpu.diagnoses.none"))


def _events(detail: GpuDetail, text: Text) -> None:
    newest = sorted(detail.events, key=lambda event: event.at_ms, reverse=True)
    rows = [
        style.row(
            '<span class="tc-sign">│</span>',
            f"<b>{escape(text.name('event', event.kind.value))} {event.code or ''}</b> {escape(event.message)}",
            clock(to_iso(event.at_ms)),
        )
        for event in newest[:_SHOWN]
    ]
    _section(text("gpu.events"), rows + _more(len(newest), text), text("gpu.events.none"))


def _decisions(detail: GpuDetail, text: Text) -> None:
    rows = [
        style.row(
            '<span class="tc-sign">›</span>',
            escape(decided(decision, text)),
            text.name("decision_state", decision.state.value),
        )
        for decision in detail.decisions[:_SHOWN]
    ]
    _section(text("gpu.decisions"), rows + _more(len(detail.decisions), text), text("gpu.decisions.none"))


def show(detail: GpuDetail, diagnoses: Sequence[Diagnosis], now: str, text: Text) -> None:
    """Draw all of it, one list below the other."""
    _findings(detail, now, text)
    _predictions(detail, now, text)
    _diagnoses(diagnoses, text)
    _events(detail, text)
    if not is_tenant():
        _decisions(detail, text)


# What held a GPU's clocks down, as spans of time.

REASONS = (
    "gpu_clocks_hw_thermal_slowdown",
    "gpu_clocks_hw_power_brake",
    "gpu_clocks_hw_slowdown",
    "gpu_clocks_sw_thermal_slowdown",
    "gpu_clocks_sw_power_cap",
    "gpu_clocks_reliability",
)
"""Metrics that are 1 while the clocks are held, the worst first. That a GPU is idle, or set so, is no throttling."""
_GAP = 3.0
"""A sample holds until the next, but no longer than so many usual steps: what was not seen is not claimed."""


def spans(at_ms: Sequence[int], values: Sequence[float | None]) -> list[tuple[int, int]]:
    """Spans in which `values` are above 0, as pairs of milliseconds; empty for fewer than two samples."""
    if len(at_ms) < 2:
        return []
    steps = [after - before for before, after in pairwise(at_ms)]
    longest = int(_GAP * median(steps))
    found: list[tuple[int, int]] = []
    for start, step, value in zip(at_ms, [*steps, int(median(steps))], values, strict=True):
        if value is None or value <= 0:
            continue
        end = start + min(step, longest)
        if found and found[-1][1] >= start:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def bands(series: SeriesResponse | None) -> Mapping[str, list[tuple[int, int]]]:
    """Spans of each reason that held the clocks at all."""
    if series is None:
        return {}
    at_ms = [from_iso(at) for at in series.at]
    found = {name: spans(at_ms, series.metrics.get(name, [None] * len(at_ms))) for name in REASONS}
    return {name: held for name, held in found.items() if held}


DEFAULT_METRICS = (
    "gpu_temperature_celsius",
    "gpu_utilization_ratio",
    "gpu_memory_used_ratio",
    "gpu_power_watts",
)
SPANS = {"1h": HOUR, "6h": 6 * HOUR, "24h": 24 * HOUR, "7d": 168 * HOUR, "30d": 720 * HOUR}
DEFAULT_SPAN = "6h"
NOBODY = "none"
_GONE = "gpu.gone"
_POINTS = 600
_PEER_POINTS = 120
_NOT_DRAWN = {"gpu_xid_last_code"}
"""Metrics that findings speak of and whose course tells nothing: the code is drawn as an event."""
_MOST_METRICS = 8
_PEER_MS = 60_000
"""How long a band of peers is kept: it moves slowly and costs the brain most."""


def _asked(fleet: FleetMap, text: Text) -> str:
    """The GPU of the URL, else the worst of the URL's host, else of the fleet."""
    asked = link.read("gpu")
    gone, instead = st.session_state.get(_GONE, ("", ""))
    if asked not in fleet.uuid:
        gone, instead = asked, worst_of(fleet, st.query_params.get("host", ""))
        st.session_state[_GONE] = (gone, instead)
        asked = instead
    if gone and instead == asked:
        # It stays until a person chooses: nobody should take another GPU for the one that they looked at.
        st.warning(text("gpu.unknown", uuid=markdown_safe(gone)))
    return asked


def _choose(fleet: FleetMap, text: Text) -> str:
    """Host and GPU, each by a list of its own; kept in the URL."""
    uuid = _asked(fleet, text)
    gpu = fleet.uuid.index(uuid)
    link.write("gpu", uuid)
    st.query_params.pop("host", None)
    members = [n for n, host in enumerate(fleet.host) if host == fleet.host[gpu]]
    st.session_state["chosen_host"], st.session_state["chosen_gpu"] = fleet.hosts[fleet.host[gpu]], uuid
    names = {fleet.uuid[n]: _short(fleet, n) for n in members}

    def other_host() -> None:
        st.session_state.pop(_GONE, None)
        link.write("gpu", worst_of(fleet, st.session_state["chosen_host"]))

    def other_gpu() -> None:
        st.session_state.pop(_GONE, None)
        link.write("gpu", st.session_state["chosen_gpu"])

    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        st.selectbox(text("gpu.host"), fleet.hosts, key="chosen_host", on_change=other_host, width=230)
        st.selectbox(
            text("gpu.choose"),
            list(names),
            key="chosen_gpu",
            format_func=lambda one: names.get(one, one),
            on_change=other_gpu,
            width=170,
        )
    return uuid


def _short(fleet: FleetMap, gpu: int) -> str:
    index = fleet.index[gpu]
    return f"{SYMBOLS[STATE_RANKS[fleet.state[gpu]]]} GPU {fleet.uuid[gpu][-8:] if index is None else index}"


def _facts(detail: GpuDetail) -> str:
    gpu = detail.summary
    return style.facts(
        [
            ("", gpu.model),
            ("", gpu.pool),
            ("", gpu.rack),
            ("PCI", detail.pci_bus_id),
            ("SN", detail.serial),
            ("MIG", gpu.mig_profile),
            ("", gpu.uuid),
        ]
    )


def _figures(gpu: GpuSummary, text: Text) -> str:
    age = "" if gpu.last_reading_age_s is None else text("reading.age", age=text.duration(gpu.last_reading_age_s))
    return style.kpis(
        [
            style.kpi(text("gpu.state"), text.name("state", gpu.state.value), age, gpu.state),
            style.kpi(text("gpu.temperature"), degrees(gpu.temperature_celsius), ""),
            style.kpi(text("gpu.utilization"), percent(gpu.utilization_ratio), ""),
            style.kpi(text("gpu.memory"), percent(gpu.memory_used_ratio), ""),
            style.kpi(text("gpu.power"), watts(gpu.power_watts), ""),
        ]
    )


def _wanted(detail: GpuDetail, text: Text) -> list[str]:
    """The usual metrics and those that findings and predictions speak of; a person may choose others."""
    about = [f.metric for f in detail.findings] + [p.metric for p in detail.predictions]
    # A rule about each part of a GPU names the label alone, such as {pid}: no series has that name.
    spoken = [name for name in about if name in detail.values or "{" not in name]
    wanted = list(dict.fromkeys([*DEFAULT_METRICS, *(name for name in spoken if name and name not in _NOT_DRAWN)]))[:5]
    moving = [name for name in detail.values if name not in METRICS or not METRICS[name].static]
    options = list(dict.fromkeys([*wanted, *moving]))
    chosen = link.pick_many("metrics", text("gpu.metrics"), options, lambda name: metric_words(name, text), wanted)
    return chosen[:_MOST_METRICS]


def _range(now_ms: int, text: Text) -> tuple[int, int]:
    """The span of time: its length, and its end, which is now unless somebody went back."""
    words = {name: text(f"unit.{name[-1]}", n=name[:-1]) for name in SPANS}
    span = SPANS[link.pick("span", text("gpu.span"), list(SPANS), DEFAULT_SPAN, words.__getitem__)]
    asked = link.read("until")
    end_ms = min(now_ms, _instant(asked, now_ms))

    def go(by_ms: int) -> None:
        later = end_ms + by_ms
        link.write("until", "" if later >= now_ms else to_iso(later))

    st.button("◀", key="earlier", help=text("gpu.earlier"), on_click=go, args=(-span // 2,))
    st.button("▶", key="later", help=text("gpu.later"), on_click=go, args=(span // 2,), disabled=not asked)
    st.button(text("gpu.now"), key="now", on_click=go, args=(now_ms,), disabled=not asked)
    return end_ms - span, end_ms


def _instant(words: str, default: int) -> int:
    try:
        return from_iso(words) if words else default
    except ValueError:
        return default


def _peers(
    client: Client, uuid: str, by: str, metrics: Sequence[str], start_ms: int, end_ms: int, text: Text
) -> PeerBand | None:
    """The band of the peers, asked anew once a minute."""
    if by == NOBODY or not metrics:
        return None
    key = (uuid, by, tuple(metrics), start_ms // _PEER_MS, end_ms // _PEER_MS)
    if (kept := st.session_state.get("peers.kept")) is None or kept[0] != key:
        kept = (key, client.peers(uuid, metrics, PeerGroup(by), start_ms, end_ms, _PEER_POINTS))
        st.session_state["peers.kept"] = kept
    band: PeerBand = kept[1]
    if not band.peers:
        st.caption(text("gpu.peers.none"))
        return None
    return band


def _legend(course: timeline.Course, text: Text) -> str:
    palette = current_palette()
    pairs = [(palette.line, text("chart.this"))]
    if course.peers is not None:
        by = text(f"peers.{course.peers.by.value}")
        pairs.append((palette.peers, text("chart.peers", n=course.peers.peers, group=course.peers.group, by=by)))
    return style.legend([*pairs, (palette.forecast, text("chart.forecast"))])


def _course(client: Client, detail: GpuDetail, now: str, text: Text) -> None:
    uuid = detail.summary.uuid
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        start_ms, end_ms = _range(from_iso(now), text)
        with st.popover(text("gpu.metrics"), icon=":material/tune:"):
            metrics = _wanted(detail, text)
            # Peers are others' GPUs, too.
            groups = [NOBODY, *(group.value for group in PeerGroup if not is_tenant())]
            by = link.pick(
                "peers", text("gpu.peers"), groups, groups[min(1, len(groups) - 1)], lambda name: text(f"peers.{name}"),
                show_label=True,
            )  # fmt: skip
    series = client.series(uuid, metrics, start_ms, end_ms + 1, _POINTS) if metrics else None
    if series is None or all(value is None for values in series.metrics.values() for value in values):
        st.info(text("gpu.no_series"))
        return
    held = [name for name in REASONS if name in detail.values]
    throttled = bands(client.series(uuid, held, start_ms, end_ms + 1, _POINTS) if held else None)
    band = _peers(client, uuid, by, metrics, start_ms, end_ms, text)
    course = timeline.Course(series, band, throttled)
    st.html(_legend(course, text))
    alt = text("gpu.chart", gpu=gpu_label(detail.summary), start=clock(series.start), end=clock(series.end))
    charts.show(timeline.figure(course, detail, now, text, current_palette()), "timeline", alt)


def _values(detail: GpuDetail, text: Text) -> None:
    name = text("column.name")
    with st.expander(text("gpu.values", n=len(detail.values))):
        rows = [
            [escape(metric_words(key, text)), *map(escape, quantity(key, value)), f"<code>{escape(key)}</code>"]
            for key, value in sorted(detail.values.items())
        ]
        head = [text("column.metric"), text("column.value"), text("column.unit"), name]
        st.html(style.table(head, rows, numbers=[1]))
    if detail.missing:
        with st.expander(text("gpu.missing", n=len(detail.missing))):
            rows = [
                [escape(metric_words(key, text)), escape(text.name("missing", reason)), f"<code>{escape(key)}</code>"]
                for key, reason in sorted(detail.missing.items())
            ]
            st.html(style.table([text("column.metric"), text("column.reason"), name], rows))


def _of_all(client: PageClient, text: Text) -> tuple[Client, FleetMap]:
    """The cell that has the GPU of the URL, else the one that is chosen here, and its map; a choice of cells where no
    GPU is asked for leads to the worst of that cell."""
    asked = link.read("gpu")
    found = cells.whereabouts(client, asked, st.query_params.get("host", ""))
    home = home_of(found)
    st.session_state["gpu.cell"] = home

    def other_cell() -> None:
        st.session_state.pop(_GONE, None)
        if worst := found[st.session_state["gpu.cell"]].worst:
            link.write("gpu", worst)

    st.segmented_control(
        text("cells.name"), list(found), key="gpu.cell", required=True, on_change=other_cell,
        label_visibility="collapsed",
    )  # fmt: skip
    if had := others(found, home):
        st.caption(text("gpu.past", cells=", ".join(had)))
    there = client.at(home)
    return there, MAPS.look(there)


@live()
def render() -> None:
    """Draw the page."""
    text = current_text()
    with api(text) as own:
        client, fleet = _of_all(own, text) if cells.spans() else (own, MAPS.look(own))
        if not fleet.uuid:
            st.info(f"{text('no_gpus')} {text('no_gpus.remedy')}")
            return
        chooser, facts = st.columns([4, 5], vertical_alignment="bottom")
        with chooser:
            uuid = _choose(fleet, text)
        now, detail = client.summary().now, client.gpu(uuid)
        diagnoses = [one for one in client.diagnoses(detail.summary.host) if uuid in one.gpus]
        facts.html(_facts(detail))
        st.html(_figures(detail.summary, text))
        left, right = st.columns([5, 3], gap="medium")
        with left:
            _course(client, detail, now, text)
        with right:
            show(detail, diagnoses, now, text)
        _values(detail, text)


if __name__ == "__main__":
    render()
