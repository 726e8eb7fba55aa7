"""The part of docs/alerts.md that is made from the alerts."""

from __future__ import annotations

from tocsin_grafana.alert import Alert
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
        parts.append(f"\n## {TITLES[name]}\n\nFile `grafana/alerts/{name}.yaml`.\n")
        parts += [_one(alert) for alert in alerts]
    return "".join(parts) + f"\n{END}{tail}"


def _one(alert: Alert) -> str:
    wait = "at once" if alert.held == "0s" else f"for {alert.held}"
    words = alert.description.replace("|", "\\|")
    return (
        f"\n### {alert.name}\n\n"
        f"{alert.severity}, {alert.tier}, {wait}. {alert.source}\n\n"
        f"Says: `{words.replace('`', '')}`\n\n"
        f"What to do: {alert.remedy}\n"
    )
