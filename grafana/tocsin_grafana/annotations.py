"""What happened, above every panel: actions, incidents, pauses and driver errors."""

from __future__ import annotations

from typing import Any

from tocsin_grafana import flux, prom
from tocsin_grafana.spec import Backend

TOLD = ("execution_started", "outcome", "incident_opened", "pause", "resume", "breaker_tripped", "breaker_reset")
"""Kinds of journal entries that are worth a mark."""
EXTRAS = frozenset({"step", "tagKeys", "titleFormat", "textFormat"})
"""Keys of an annotation of Grafana's Prometheus plugin that its published library of types does not know."""


def marks(backend: Backend) -> list[dict[str, Any]]:
    """Marks from Grafana's own store, where the brain writes its journal, and from the data source itself."""
    return [_grafana(), *(_prometheus() if backend == "prometheus" else _influxdb())]


def _base(name: str, backend: str, uid: str, colour: str, **more: Any) -> dict[str, Any]:
    source = {"type": backend, "uid": uid}
    return {
        "name": name,
        "datasource": source,
        "enable": True,
        "hide": False,
        "iconColor": colour,
        "builtIn": 0,
        **more,
    }


def _grafana() -> dict[str, Any]:
    target = {"limit": 200, "matchAny": False, "tags": ["tocsin"], "type": "tags"}
    return _base("Journal, written by the brain", "grafana", "-- Grafana --", "purple", target=target, type="tags")


def _prometheus() -> list[dict[str, Any]]:
    kinds = "|".join(TOLD)
    entries = f'sum by (kind) (increase(tocsin_journal_entries_total{{kind=~"{kinds}"}}[1m])) > 0'
    xids = "(tocsin_xids_total unless tocsin_xids_total offset 1m or increase(tocsin_xids_total[1m])) > 0"
    source = "${datasource}"
    return [
        _base(
            "Journal, by counts",
            "prometheus",
            source,
            "blue",
            expr=prom.in_cell(entries),
            step="60s",
            titleFormat="Tocsin: {{kind}}",
            textFormat="Entries of this kind within a minute.",
            tagKeys="kind",
        ),
        _base(
            "Paused",
            "prometheus",
            source,
            "orange",
            expr=prom.in_cell("max(tocsin_paused) == 1"),
            step="60s",
            titleFormat="Actions are paused",
            textFormat="A person has paused all actions.",
            tagKeys="",
        ),
        _base(
            "XIDs",
            "prometheus",
            source,
            "red",
            expr=prom.in_cell(xids),
            step="60s",
            titleFormat="XID {{xid}}",
            textFormat="{{host}} GPU {{gpu_index}}",
            tagKeys="host,pool",
        ),
    ]


def _influxdb() -> list[dict[str, Any]]:
    events = flux.stream(flux.WORDS, "gpu_event", ["message"], 'r.kind == "xid"')
    events += '  |> map(fn: (r) => ({_time: r._time, text: r.host + " XID " + r.code + " " + r._value}))\n'
    told = " or ".join(f'r.kind == "{kind}"' for kind in TOLD)
    entries = flux.stream(flux.WORDS, "tocsin_entry", ["text"], f"({told})")
    entries += "  |> map(fn: (r) => ({_time: r._time, text: r._value}))\n"
    return [
        _base("Journal", "influxdb", "${datasource}", "blue", target={"refId": "Anno", "query": entries}),
        _base("XIDs", "influxdb", "${datasource}", "red", target={"refId": "Anno", "query": events}),
    ]
