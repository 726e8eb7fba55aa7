"""One decision in full: where it stands, what stands in its way, what was weighed, what happened, what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import streamlit as st

from tocsin.client.models import JournalEntryOut, VerdictOut
from tocsin.client.models_decisions import DecisionStory, TimelineItem
from tocsin.dashboard import link, style
from tocsin.dashboard.decision_control import Hand, decide_buttons
from tocsin.dashboard.format import clock, effect_words, plain_sentence, readable, seconds_between, short_clock
from tocsin.dashboard.palette import RULING_SYMBOLS, SEVERITY_STATES, Palette
from tocsin.dashboard.text import Text
from tocsin.domain.clock import SECOND, from_iso, to_iso
from tocsin.domain.decision import DecisionState, Mode, Ruling
from tocsin.domain.finding import ActionKind
from tocsin.domain.subject import SubjectKind

_STEPS = frozenset(
    {
        "decision",
        "verdict",
        "approval",
        "rejection",
        "execution_started",
        "execution_goes_on",
        "outcome",
        "notification",
    }
)
"""Kinds of entries that the table of words has a line for."""


def show(story: DecisionStory, now: str, hand: Hand, palette: Palette) -> None:
    """Draw all of it, the most important first."""
    text, item = hand.text, story.decision
    with st.container(border=True, gap="small"):
        mark = style.sign(SEVERITY_STATES[item.severity])
        st.html(style.row(mark, f"<b>{escape(plain_sentence(item.sentence))}</b>") + _facts(item, now, text))
        st.html(style.row("", f'<span class="tc-stand">{escape(standing(story, now, text))}</span>'))
        decide_buttons(item, hand)
        _links(item, text)
        steps = style.title(text("steps.title")) + _steps(story.entries, now, text)
        parts = (_obstacles(story, now, text, palette), _effect(story, text), _weighed(item, text), steps)
        st.html('<div class="tc-gap"></div>'.join(part for part in parts if part))
        _guards(story, text, palette)


def _facts(item: TimelineItem, now: str, text: Text) -> str:
    age = text("decision.made", age=text.duration(max(0.0, seconds_between(item.at, now))))
    pairs = [
        (text("decisions.action"), text.name("action", item.action.value)),
        (text("decisions.rule"), item.rule),
        (text("decisions.pool"), item.subject.pool),
        ("", text("mode", mode=text.name("mode", item.mode.value))),
        ("", age),
    ]
    left = seconds_between(now, item.expires)
    if item.state in (DecisionState.HELD, DecisionState.APPROVED) and left > 0:
        pairs.append(("", text("decision.expires", time=text.duration(left))))
    return style.facts(pairs)


def standing(story: DecisionStory, now: str, text: Text) -> str:
    """Where the decision stands, as one line."""
    item, state = story.decision, story.decision.state
    if state is DecisionState.HELD:
        return _standing_held(item, text)
    if state is DecisionState.APPROVED:
        return text("stand.approved", who=item.approved_by)
    if state is DecisionState.EXECUTING:
        return text("stand.executing", executor=_started(story.entries).get("executor", ""))
    if state is DecisionState.VERIFYING:
        left = _until_checked(story, now)
        when = text("stand.soon") if left <= 0 else text("stand.in", time=text.duration(left))
        return text("stand.verifying", when=when)
    if state is DecisionState.REJECTED:
        head = text("stand.rejected", who=item.rejected_by) if item.rejected_by else text("stand.denied")
        return _with(head, item.reason)
    if state is DecisionState.EXPIRED:
        return _with(text("stand.expired"), item.reason)
    ended = text.name("outcome", item.outcome.status.value) if item.outcome else ""
    return _with(_with(text(f"stand.{state.value}"), ended), item.outcome.detail if item.outcome else "")


def _standing_held(item: TimelineItem, text: Text) -> str:
    if item.mode is Mode.OBSERVE:
        return text("stand.observed")
    if not item.approvable:
        return text("stand.held")
    return text("stand.waiting_held") if set(item.held_by) - {"approval"} else text("stand.waiting")


def _with(head: str, detail: str) -> str:
    return f"{head}: {readable(detail)}" if detail else head


def _started(entries: Sequence[JournalEntryOut]) -> Mapping[str, object]:
    return next((e.payload for e in entries if e.kind == "execution_started"), {})


def _due(story: DecisionStory) -> JournalEntryOut | None:
    return next((e for e in story.entries if e.kind == "verification" and e.payload.get("phase") == "due"), None)


def _until_checked(story: DecisionStory, now: str) -> float:
    """Seconds until the effect is looked at; 0 where that is due, or the execution has not ended."""
    due = _due(story)
    if due is None:
        return 0.0
    return max(0.0, seconds_between(now, to_iso(from_iso(due.at) + int(story.settle_s * SECOND))))


def _links(item: TimelineItem, text: Text) -> None:
    with st.container(horizontal=True, gap="small"):
        if item.subject.kind is SubjectKind.GPU:
            parameters = link.target(gpu=item.subject.name)
            st.page_link(
                link.GPU_PAGE, label=text("decision.show_gpu"), icon=":material/arrow_forward:", query_params=parameters
            )
        if item.undone_by:
            parameters = link.target(decision=item.undone_by)
            st.page_link(
                link.DECISIONS_PAGE, label=text("decision.other"), icon=":material/undo:", query_params=parameters
            )


def _runbook(base: str, kind: str, name: str, text: Text) -> str:
    """A link to a page of the runbooks, or its place in them where nobody said where they are."""
    path = f"{kind}/{name}.md"
    if not base.startswith(("http://", "https://")):
        return f'<span class="tc-muted">runbooks/{escape(path)}</span>'
    address = escape(f"{base.rstrip('/')}/{path}", quote=True)
    label = escape(f"{text('why.runbook')}: {name}")
    return f'<a href="{address}" target="_blank" rel="noopener" aria-label="{label}">{escape(text("why.runbook"))}</a>'


def _ruling(ruling: Ruling, palette: Palette) -> str:
    return f'<span class="tc-sign" style="color:{palette.ruling(ruling)}">{RULING_SYMBOLS[ruling]}</span>'


def _obstacles(story: DecisionStory, now: str, text: Text, palette: Palette) -> str:
    """One line for each guard that does not allow it; nothing for what has ended."""
    item = story.decision
    if item.outcome or item.state in (DecisionState.EXECUTING, DecisionState.VERIFYING):
        return ""
    if not item.verdicts:
        return style.note(text("why.none"))
    lines = []
    for verdict in item.verdicts:
        if verdict.ruling is Ruling.ALLOW:
            continue
        what = f"<b>{escape(text.name('guard', verdict.guard))}</b> {escape(readable(verdict.reason))} "
        what += _runbook(story.runbooks_url, "guards", verdict.guard, text)
        until = text("decision.until", time=f"{short_clock(verdict.until, now)} UTC") if verdict.until else ""
        lines.append(style.row(_ruling(verdict.ruling, palette), what, until))
    body = "".join(lines) or style.note(text("why.nothing"))
    return style.title(text("why.title")) + body


def _weighed(item: TimelineItem, text: Text) -> str:
    """What each choice was expected to lose, as bars; where nothing was compared, why not."""
    if item.action is ActionKind.NOTIFY or item.asked_by:
        return ""
    if not item.alternatives:
        return style.title(text("weighed.title")) + style.note(text("weighed.none", rule=item.rule))
    most = max(one.gpu_hours for one in item.alternatives) or 1.0
    rows = []
    for one in item.alternatives:
        name = text("weighed.wait") if one.action is ActionKind.NOTIFY else text.name("action", one.action.value)
        chosen = f" ({text('weighed.chosen')})" if one.chosen else ""
        kind = "tc-loss tc-chosen" if one.chosen else "tc-loss"
        rows.append(
            f'<div class="{kind}"><span>{escape(name + chosen)}</span>'
            f'<i style="width:{60 * one.gpu_hours / most:.0f}%"></i><b>{one.gpu_hours:.3g}</b></div>'
        )
    return style.title(text("weighed.title")) + "".join(rows) + style.note(_saving(item, text))


def _saving(item: TimelineItem, text: Text) -> str:
    wait = next((one.gpu_hours for one in item.alternatives if one.action is ActionKind.NOTIFY), None)
    chosen = next((one.gpu_hours for one in item.alternatives if one.chosen), None)
    if wait is None or chosen is None:
        return ""
    key = "weighed.saves" if chosen < wait else "weighed.costs"
    return text(key, hours=f"{wait - chosen if chosen < wait else wait:.3g}")


def _effect(story: DecisionStory, text: Text) -> str:
    """What was measured of it: degrees, watts, and one against the other."""
    item = story.decision
    if item.outcome is None:
        pending = item.state is DecisionState.VERIFYING
        words = text("effect.pending", time=text.duration(story.settle_s))
        return style.title(text("effect.title")) + style.note(words) if pending else ""
    cards = [_measured(name, value, text) for name, value in item.outcome.effect.items()]
    body = style.kpis(cards) if cards else style.note(text("effect.none"))
    return style.title(text("effect.title")) + body


def _measured(name: str, value: float, text: Text) -> str:
    return style.kpi(*effect_words(name, value, text))


def _steps(entries: Sequence[JournalEntryOut], now: str, text: Text) -> str:
    """What the journal says of it, verdicts that follow each other as one line."""
    lines: list[str] = []
    last = ""
    for entry in entries:
        if entry.kind == "verdict" and last == "verdict":
            continue
        last = entry.kind
        words = _step(entry, text)
        detail = str(entry.payload.get("detail") or entry.payload.get("reason") or "")
        what = escape(words) + (f' <span class="tc-muted">{escape(readable(detail))}</span>' if detail else "")
        lines.append(style.row("", what, f"{short_clock(entry.at, now)} · #{entry.seq}"))
    return "".join(lines)


def _step(entry: JournalEntryOut, text: Text) -> str:
    payload = entry.payload
    if entry.kind == "verification":
        if payload.get("phase") == "due":
            return text("steps.due")
        seen = payload.get("seen")
        return text("steps.blind" if seen is None else "steps.seen" if seen else "steps.unseen")
    if entry.kind == "decision" and entry.actor != "tocsin":
        return text("steps.decision.asked", who=entry.actor)
    outcome = payload.get("outcome")
    status = str(outcome.get("status", "")) if isinstance(outcome, dict) else ""
    executor = str(payload.get("executor", ""))
    values = {"who": entry.actor, "executor": executor, "status": text.name("outcome", status)}
    return text(f"steps.{entry.kind}", **values) if entry.kind in _STEPS else entry.kind


def _guard_rows(story: DecisionStory, verdicts: Sequence[VerdictOut], text: Text, palette: Palette) -> list[list[str]]:
    return [
        [
            f"{_ruling(one.ruling, palette)} {escape(text.name('ruling', one.ruling.value))}",
            escape(text.name("guard", one.guard)),
            escape(readable(one.reason)),
            clock(one.until) if one.until else "",
            _runbook(story.runbooks_url, "guards", one.guard, text),
        ]
        for one in verdicts
    ]


def _guards(story: DecisionStory, text: Text, palette: Palette) -> None:
    item = story.decision
    counts = {ruling: sum(v.ruling is ruling for v in item.verdicts) for ruling in Ruling}
    label = text("decision.guards", allow=counts[Ruling.ALLOW], hold=counts[Ruling.HOLD], deny=counts[Ruling.DENY])
    with st.expander(label):
        head = [text(f"column.{name}") for name in ("says", "guard", "why", "until")] + [""]
        st.html(style.table(head, _guard_rows(story, item.verdicts, text, palette)))
        action = text.name("action", item.action.value)
        st.html(style.row("", f"{escape(action)} {_runbook(story.runbooks_url, 'actions', item.action.value, text)}"))
