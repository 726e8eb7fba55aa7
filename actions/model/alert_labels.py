"""The labels of a notification as an alert: what Alertmanager groups, routes and silences it by."""

from __future__ import annotations

from collections.abc import Mapping

from tocsin.domain.decision import Decision, NotifyParameters
from tocsin.domain.finding import SubjectKind
from tocsin.domain.words import clean, clip

LABEL_LIMIT = 256
"""Characters of a label's value; own choice, Alertmanager knows no bound but that of the body."""


def labels_of(decision: Decision, more: Mapping[str, str]) -> dict[str, str]:
    """What identifies the alert: the same fault has the same labels for as long as it lasts."""
    subject = decision.subject
    parameters = decision.parameters
    escalated = isinstance(parameters, NotifyParameters) and bool(parameters.escalates)
    known = {
        "alertname": "TocsinActionFailed" if escalated else alertname(decision.rule),
        "severity": str(decision.severity),
        "level": str(decision.alert_level),
        "rule": decision.rule,
        "category": str(decision.category),
        "gpu": subject.name if subject.kind is SubjectKind.GPU else "",
        "host": subject.name if subject.kind is SubjectKind.HOST else subject.host,
        "pool": subject.name if subject.kind is SubjectKind.POOL else subject.pool,
        "part": subject.detail,
        "simulated": "true" if decision.simulated else "false",
    }
    values = {name: clip(clean(value), LABEL_LIMIT) for name, value in {**known, **more}.items()}
    return {name: value for name, value in values.items() if value}


def alertname(rule: str) -> str:
    """`gpu_silent` as TocsinGpuSilent."""
    return "Tocsin" + "".join(word[:1].upper() + word[1:] for word in clean(rule).replace("_", " ").split())
