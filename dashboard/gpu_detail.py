"""Page: one GPU over time, and all that is known and said of it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import streamlit as st

from tocsin.client.client import Client
from tocsin.client.models import GpuDetail, GpuSummary, SeriesResponse
from tocsin.client.models_now import STATE_RANKS, FleetMap, PeerBand, PeerGroup
from tocsin.dashboard import charts, gpu_said, link, style, throttle, timeline
from tocsin.dashboard.access import REFRESH_SECONDS, api
from tocsin.dashboard.fleet_data import MAPS
from tocsin.dashboard.format import clock, degrees, gpu_label, markdown_safe, metric_words, percent, quantity, watts
from tocsin.dashboard.frame import current_palette, current_text
from tocsin.dashboard.palette import SYMBOLS
from tocsin.dashboard.text import Text
from tocsin.domain.clock import HOUR, from_iso, to_iso
from tocsin.domain.metrics import METRICS

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


def worst_of(fleet: FleetMap, host: str = "") -> str:
    """UUID of the GPU in the worst state, the likeliest to fail among these; on `host` alone where it is known."""
    place = fleet.hosts.index(host) if host in fleet.hosts else -1
    chosen = [n for n in range(len(fleet.uuid)) if place < 0 or fleet.host[n] == place]
    return fleet.uuid[max(chosen, key=lambda n: (fleet.state[n], fleet.risk[n] or 0.0, -n))]


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

    uuids = list(names)

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
            uuids,
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
    known = [
        ("", gpu.model),
        ("", gpu.pool),
        ("", gpu.rack),
        ("PCI", detail.pci_bus_id),
        ("SN", detail.serial),
        ("MIG", gpu.mig_profile),
        ("", gpu.uuid),
    ]
    return style.facts(known)


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
    spoken = [f.metric for f in detail.findings] + [p.metric for p in detail.predictions]
    wanted = list(dict.fromkeys([*DEFAULT_METRICS, *(name for name in spoken if name and name not in _NOT_DRAWN)]))[:5]
    moving = [name for name in detail.values if name not in METRICS or not METRICS[name].static]
    options = list(dict.fromkeys([*wanted, *moving]))
    chosen = link.pick_many("metrics", text("gpu.metrics"), options, lambda name: metric_words(name, text), wanted)
    return chosen[:_MOST_METRICS]


def _range(now_ms: int, text: Text) -> tuple[int, int]:
    """The span of time: its length, and its end, which is now unless somebody went back."""
    span = SPANS[link.pick("span", text("gpu.span"), list(SPANS), DEFAULT_SPAN, lambda name: _span_words(name, text))]
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


def _span_words(name: str, text: Text) -> str:
    return text(f"unit.{name[-1]}", n=name[:-1])


def _peers(
    client: Client, uuid: str, by: str, metrics: Sequence[str], start_ms: int, end_ms: int, text: Text
) -> PeerBand | None:
    """The band of the peers, asked anew once a minute."""
    if by == NOBODY or not metrics:
        return None
    key = (uuid, by, tuple(metrics), start_ms // _PEER_MS, end_ms // _PEER_MS)
    kept = st.session_state.get("peers.kept")
    if kept is None or kept[0] != key:
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


def _drawn(series: SeriesResponse | None) -> bool:
    return series is not None and any(value is not None for values in series.metrics.values() for value in values)


def _course(client: Client, detail: GpuDetail, now: str, text: Text) -> None:
    uuid = detail.summary.uuid
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        start_ms, end_ms = _range(from_iso(now), text)
        with st.popover(text("gpu.metrics"), icon=":material/tune:"):
            metrics = _wanted(detail, text)
            groups = [NOBODY, *(group.value for group in PeerGroup)]
            by = link.pick(
                "peers", text("gpu.peers"), groups, PeerGroup.NODE.value, lambda name: text(f"peers.{name}"),
                show_label=True,
            )  # fmt: skip
    series = client.series(uuid, metrics, start_ms, end_ms + 1, _POINTS) if metrics else None
    if series is None or not _drawn(series):
        st.info(text("gpu.no_series"))
        return
    held = [name for name in throttle.REASONS if name in detail.values]
    throttled = throttle.bands(client.series(uuid, held, start_ms, end_ms + 1, _POINTS) if held else None)
    band = _peers(client, uuid, by, metrics, start_ms, end_ms, text)
    course = timeline.Course(series, band, throttled)
    st.html(_legend(course, text))
    label = gpu_label(detail.summary)
    alt = text("gpu.chart", gpu=label, start=clock(series.start), end=clock(series.end))
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


@st.fragment(run_every=REFRESH_SECONDS)
def render() -> None:
    """Draw the page."""
    text = current_text()
    with api(text) as client:
        fleet = MAPS.look(client)
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
            gpu_said.show(detail, diagnoses, now, text)
        _values(detail, text)
