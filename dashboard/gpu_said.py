"""All that is said of one GPU: findings, predictions with what they rest on, diagnoses, events, decisions."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import streamlit as st

from tocsin.client.models import DiagnosisOut, EvidenceOut, FindingOut, GpuDetail, PredictionOut
from tocsin.dashboard import style
from tocsin.dashboard.format import (
    chance,
    clock,
    eta_text,
    gpu_label,
    metric_words,
    plain_sentence,
    readable,
    seconds_between,
    without_label,
)
from tocsin.dashboard.palette import SEVERITY_STATES
from tocsin.dashboard.text import Text
from tocsin.domain.diagnosis import Verdict
from tocsin.domain.prediction import PredictionStatus

_SHOWN = 6
"""Entries of each list beside the chart."""
_FINE = (Verdict.HEALTHY, Verdict.UNCLEAR, Verdict.NOT_ENOUGH_DATA)
_QUIET = (PredictionStatus.NO_CROSSING, PredictionStatus.UNLIKELY, PredictionStatus.NOT_ENOUGH_DATA)


def _muted(words: str) -> str:
    return f'<span class="tc-muted">{escape(words)}</span>'


def _more(count: int, text: Text) -> list[str]:
    return [_muted(text("attention.more", n=count - _SHOWN))] if count > _SHOWN else []


def _section(heading: str, rows: Sequence[str], empty: str) -> None:
    st.html(style.title(heading) + ("".join(rows) or _muted(empty)))


def finding_row(finding: FindingOut, label: str, now: str, text: Text) -> str:
    """A finding in a line: active ones with their symbol, ended ones pale."""
    what = f"<b>{escape(finding.rule)}</b> {escape(without_label(finding.sentence, label))}"
    if finding.active:
        when = text("finding.since", age=text.duration(max(0.0, seconds_between(finding.started, now))))
        return style.row(style.sign(SEVERITY_STATES[finding.severity]), what, when)
    when = text("finding.ended", age=text.duration(max(0.0, seconds_between(finding.last, now))))
    return style.row('<span class="tc-sign tc-muted">○</span>', f'<span class="tc-muted">{what}</span>', when)


def prediction_row(prediction: PredictionOut, label: str, now: str, text: Text) -> str:
    """A prediction that warns: probability, instant with its interval, sentence, model."""
    said = text.said(prediction.sentence, prediction.sentence_zh)
    parts = ["" if prediction.probability is None else chance(prediction.probability)]
    parts.append(eta_text(text, now, prediction.eta, prediction.eta_low, prediction.eta_high))
    head = " · ".join(part for part in parts if part)
    model = f"{prediction.model} {prediction.model_version}"
    what = (
        f'<span class="tc-forecast">{escape(head)}</span><br>{escape(without_label(said, label))} '
        f'<span class="tc-muted">({escape(model)})</span>'
    )
    return style.row('<span class="tc-sign tc-forecast">↗</span>', what)


def _about(prediction: PredictionOut, text: Text) -> str:
    return metric_words(prediction.metric, text) if prediction.metric else text.name("target", prediction.target)


def quiet_rows(predictions: Sequence[PredictionOut], text: Text) -> list[str]:
    """One line for all predictions of a status that warns of nothing; the reason why, where data are lacking."""
    lines = []
    for status in _QUIET:
        found = [prediction for prediction in predictions if prediction.status is status]
        if found:
            about = ", ".join(dict.fromkeys(_about(p, text) for p in found))
            reason = f" ({found[0].reason})" if found[0].reason else ""
            what = f"{text.name('prediction', status.value)}: {about}{reason}"
            lines.append(style.row('<span class="tc-sign tc-muted">○</span>', _muted(what)))
    return lines


def _evidence(groups: Sequence[tuple[str, Sequence[EvidenceOut]]], title: str) -> None:
    """What claims rest on, folded away: pairs of the claim's name and its evidence."""
    rows = []
    for name, pieces in groups:
        if pieces:
            rows.append(f"<b>{escape(name)}</b>")
            rows += [
                style.row('<span class="tc-sign">·</span>', escape(readable(one.text)), clock(one.at)) for one in pieces
            ]
    if rows:
        with st.expander(title):
            st.html("".join(rows))


def _findings(detail: GpuDetail, now: str, text: Text) -> None:
    label = gpu_label(detail.summary)
    shown = sorted(detail.findings, key=lambda f: (f.active, f.severity.rank, f.last), reverse=True)
    rows = [finding_row(finding, label, now, text) for finding in shown[:_SHOWN]] + _more(len(shown), text)
    _section(text("gpu.findings"), rows, text("gpu.findings.none"))
    _evidence([(one.rule, one.evidence) for one in shown[:_SHOWN] if one.active], text("gpu.evidence.findings"))


def _predictions(detail: GpuDetail, now: str, text: Text) -> None:
    label = gpu_label(detail.summary)
    warned = [p for p in detail.predictions if p.status in (PredictionStatus.CROSSING, PredictionStatus.LIKELY)]
    rows = [prediction_row(p, label, now, text) for p in warned] + quiet_rows(detail.predictions, text)
    _section(text("gpu.predictions"), rows, text("gpu.predictions.none"))
    _evidence([(text.name("target", one.target), one.evidence) for one in warned], text("gpu.evidence.predictions"))


def _diagnoses(diagnoses: Sequence[DiagnosisOut], text: Text) -> None:
    rows = []
    for one in sorted(diagnoses, key=lambda each: (each.verdict in _FINE, -each.score))[:_SHOWN]:
        said = text.said(one.sentence, one.sentence_zh)
        remedy = f'<br><span class="tc-muted">{escape(one.remedy)}</span>' if one.remedy else ""
        mark = "○" if one.verdict in _FINE else "!"
        rows.append(style.row(f'<span class="tc-sign">{mark}</span>', escape(readable(said)) + remedy))
    _section(text("gpu.diagnoses"), rows, text("gpu.diagnoses.none"))


def _events(detail: GpuDetail, text: Text) -> None:
    newest = sorted(detail.events, key=lambda event: event.at, reverse=True)
    rows = [
        style.row(
            '<span class="tc-sign">│</span>',
            f"<b>{escape(text.name('event', event.kind.value))} {event.code or ''}</b> {escape(event.message)}",
            clock(event.at),
        )
        for event in newest[:_SHOWN]
    ]
    _section(text("gpu.events"), rows + _more(len(newest), text), text("gpu.events.none"))


def _decisions(detail: GpuDetail, text: Text) -> None:
    rows = [
        style.row(
            '<span class="tc-sign">›</span>',
            escape(plain_sentence(decision.sentence)),
            text.name("decision_state", decision.state.value),
        )
        for decision in detail.decisions[:_SHOWN]
    ]
    _section(text("gpu.decisions"), rows + _more(len(detail.decisions), text), text("gpu.decisions.none"))


def show(detail: GpuDetail, diagnoses: Sequence[DiagnosisOut], now: str, text: Text) -> None:
    """Draw all of it, one list below the other."""
    _findings(detail, now, text)
    _predictions(detail, now, text)
    _diagnoses(diagnoses, text)
    _events(detail, text)
    _decisions(detail, text)
