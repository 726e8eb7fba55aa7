"""The part of docs/alerts.md that is made from the alerts."""

from __future__ import annotations

from tocsin_grafana.alert import Alert, filled
from tocsin_grafana.rules_yaml import files

BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"
TITLES = {
    "gpu": "GPUs",
    "xid": "XIDs",
    "forecast": "Forecasts",
    "service": "Telemetry, and Tocsin itself",
    "dcgm_exporter": "With dcgm-exporter alone",
}


def page(before: str) -> str:
    """`before` with the generated part renewed."""
    head, _, rest = before.partition(BEGIN)
    _, _, tail = rest.partition(END)
    parts = [f"{head}{BEGIN}\n"]
    for name, alerts in files().items():
        parts.append(f"\n## {TITLES[name]}\n\nFile `grafana/alerts/{name}.yaml`.\n\n")
        parts.append("| alert | severity | tier | holds for | told |\n|---|---|---|---|---|\n")
        parts += [_row(alert) for alert in alerts]
        parts += [_section(alert) for alert in alerts]
    return "".join(parts) + f"\n{END}{tail}"


def _row(alert: Alert) -> str:
    wait = "at once" if alert.held == "0s" else alert.held
    labels = {**alert.labels, **alert.fires.labels}
    told = filled(alert.summary, labels, alert.fires.shown)
    return f"| [{alert.name}](#{alert.name.lower()}) | {alert.severity} | {alert.tier} | {wait} | {told} |\n"


def _section(alert: Alert) -> str:
    labels = {**alert.labels, **alert.fires.labels}
    said = filled(alert.description, labels, alert.fires.shown)
    return (
        f"\n### {alert.name}\n\n"
        f"{filled(alert.remedy, labels, alert.fires.shown)}\n\n"
        f"- Says, for example: {said}\n"
        f"- Level: {alert.source}\n"
        f"- Expression: `{alert.expr}`\n"
    )
