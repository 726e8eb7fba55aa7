"""What needs attention, as a list: what is wrong, how likely what comes is, when, and what waiting costs."""

from __future__ import annotations

from html import escape

import streamlit as st

from tocsin.client.models import Attention, AttentionItem, GpuState
from tocsin.dashboard import link, style
from tocsin.dashboard.text import Text, chance, eta_text, gpu_at, markdown_safe, money, seconds_between, without_label
from tocsin.domain.finding import SubjectKind

SHOWN = 20
"""Items that are asked for: about two screens of the list."""
_NAME_WIDTH = 152
_REPEATED = 60
"""A sentence that begins like the prediction is that of a rule on predictions: it tells nothing more."""


def label_of(item: AttentionItem, text: Text) -> str:
    """What the item is about: host and index of a GPU, a host, a pool or the fleet."""
    subject = item.subject
    if subject.kind is SubjectKind.GPU:
        return gpu_at(subject.host, item.index, subject.name)
    if subject.kind is SubjectKind.HOST:
        return subject.name
    return text(f"subject.{subject.kind.value}", name=subject.name)


def cost_text(item: AttentionItem, text: Text) -> str:
    """What waiting costs: money where a price is set, else GPU-hours; empty where nobody knows."""
    if item.cost_money is not None:
        return money(item.cost_money, item.currency)
    if item.cost_gpu_hours is None:
        return ""
    hours = item.cost_gpu_hours
    if hours < 0.1:
        return text("attention.hours", n="< 0.1")
    return text("attention.hours", n=f"{hours:,.0f}" if hours >= 10 else f"{hours:.1f}")


def _sentence(item: AttentionItem, text: Text) -> str:
    if item.sentence:
        return item.sentence
    return text(f"attention.{item.state.value}") if item.state in (GpuState.LOST, GpuState.STALE) else ""


def _clamped(head: str, words: str) -> str:
    """`head`, which is HTML, and `words` on three lines at most; the whole of it under the mouse."""
    return f'<div class="tc-clamp" title="{escape(words, quote=True)}">{head}{escape(words)}</div>'


def body(item: AttentionItem, now: str, text: Text) -> str:
    """The item in HTML: what is, what is expected, and a line of figures."""
    label = label_of(item, text)
    lines = []
    ahead = text.said(item.prediction, item.prediction_zh)
    found = _sentence(item, text)
    repeated = without_label(item.prediction, label)[:_REPEATED]
    if found and not (repeated and without_label(found, label).startswith(repeated)):
        lines.append(_clamped("", without_label(found, label)))
    if ahead:
        sure = "" if item.probability is None else f"{chance(item.probability)} · "
        head = escape((sure + eta_text(text, now, item.eta, item.eta_low, item.eta_high)).removesuffix(" · "))
        lines.append(_clamped(f'<span class="tc-forecast">↗ {head}</span> ', without_label(ahead, label)))
    facts = [f"<b>{escape(text.name('level', item.level.value))}</b>"] if item.level is not None else []
    if item.since is not None:
        facts.append(escape(text("finding.since", age=text.duration(max(0.0, seconds_between(item.since, now))))))
    if item.others:
        facts.append(escape(text("attention.more", n=item.others)))
    if item.subjects > 1:
        facts.append(escape(text("attention.subjects", n=item.subjects)))
    if cost := cost_text(item, text):
        facts.append(f"{escape(text('attention.cost'))} <b>{escape(cost)}</b>")
    if facts:
        lines.append(f'<div class="tc-meta">{" · ".join(facts)}</div>')
    return f'<div class="tc-item">{"".join(lines)}</div>'


def _item(item: AttentionItem, now: str, text: Text) -> None:
    label = label_of(item, text)
    with st.container(horizontal=True, wrap=False, vertical_alignment="top", gap="xsmall"):
        st.html(style.sign(item.state), width="content")
        host = item.subject.host if item.subject.kind is SubjectKind.HOST else ""
        uuid = item.subject.name if item.subject.kind is SubjectKind.GPU else ""
        if host or uuid:
            st.page_link(
                link.GPU_PAGE,
                label=markdown_safe(label),
                query_params=link.target(gpu=uuid, host=host),
                width=_NAME_WIDTH,
            )
        else:
            st.html(f'<span class="tc-name">{escape(label)}</span>', width=_NAME_WIDTH)
        st.html(body(item, now, text))


def show(found: Attention, now: str, text: Text) -> None:
    """Draw the list in a frame of its own, which scrolls, so that the page does not."""
    if not found.items:
        st.success(text("attention.none"), icon=":material/check_circle:")
        return
    with st.container(key="attention", border=False):
        for item in found.items:
            _item(item, now, text)
        if found.total > len(found.items):
            st.caption(text("attention.more", n=found.total - len(found.items)))
