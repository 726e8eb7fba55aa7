"""Alerts as files: rules for Prometheus, their tests for promtool, an example for Alertmanager."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from tocsin_grafana import alerts_ahead, alerts_dcgm, alerts_gpu, alerts_service, alerts_xid
from tocsin_grafana.alert import Alert, Case, filled

HEAD = "# Made by `make grafana` from the metric table and the shipped rules; edit grafana/tocsin_grafana instead.\n"
DOCS = "https://docs.example.com/tocsin"
"""Where the documentation can be read, unless another place is named."""


def files() -> Mapping[str, list[Alert]]:
    """Alerts by the name of their file."""
    return {
        "gpu": alerts_gpu.alerts(),
        "xid": alerts_xid.alerts(),
        "forecast": alerts_ahead.alerts(),
        "service": alerts_service.alerts(),
        "dcgm_exporter": alerts_dcgm.alerts(),
    }


def _dump(document: Any) -> str:
    return HEAD + yaml.safe_dump(document, sort_keys=False, width=1_000_000, allow_unicode=True)


def rules(name: str, alerts: Sequence[Alert], docs: str) -> str:
    """One file of rules."""
    listed = [
        {
            "alert": alert.name,
            "expr": alert.expr,
            **({} if alert.held == "0s" else {"for": alert.held}),
            "labels": alert.labels,
            "annotations": alert.annotations(docs),
        }
        for alert in alerts
    ]
    return _dump({"groups": [{"name": f"tocsin_{name}", "rules": listed}]})


def tests(name: str, alerts: Sequence[Alert], docs: str) -> str:
    """Its tests: each alert once where it must fire, once where it must not."""
    made = []
    for alert in alerts:
        labels = {**alert.labels, **alert.fires.labels}
        told = {key: filled(text, labels, alert.fires.shown) for key, text in alert.annotations(docs).items()}
        made.append(_test(f"{alert.name} fires", alert, alert.fires, [{"exp_labels": labels, "exp_annotations": told}]))
        made.append(_test(f"{alert.name} rests", alert, alert.rests, []))
    return _dump({"rule_files": [f"../{name}.yaml"], "evaluation_interval": "1m", "tests": made})


def _test(title: str, alert: Alert, case: Case, expected: list[dict[str, Any]]) -> dict[str, Any]:
    series = [{"series": name, "values": values} for name, values in case.series.items()]
    looked = {"eval_time": case.at, "alertname": alert.name, "exp_alerts": expected}
    return {"name": title, "interval": "1m", "input_series": series, "alert_rule_test": [looked]}
