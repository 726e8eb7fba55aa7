"""Decisions in words."""

from __future__ import annotations

from tocsin.actions.model.catalogue import ACTIONS, Scope
from tocsin.domain.clock import DAY, HOUR, MINUTE, SECOND, to_minute
from tocsin.domain.finding import ActionKind, Subject, SubjectKind
from tocsin.domain.phrase import Phrase, in_chinese, say
from tocsin.domain.prediction import Prediction


def duration(milliseconds: int) -> str:
    """A span in its two largest units, for example ``3 h 10 min``; a negative one counts as nothing."""
    rest = max(0, milliseconds)
    parts: list[str] = []
    for size, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (SECOND, "s")):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return " ".join(parts[:2]) or "0 s"


def named(subject: Subject) -> str:
    """The subject as people call it."""
    if subject.kind is SubjectKind.FLEET:
        return "the fleet"
    part = f" ({subject.detail})" if subject.detail else ""
    if subject.kind is SubjectKind.GPU:
        return f"{subject.name}{part}" + (f" on {subject.host}" if subject.host else "")
    return f"{subject.kind} {subject.name}{part}"


def joined(*parts: str) -> str:
    """Clauses as one sentence."""
    return "; ".join(part.strip().rstrip(".") for part in parts if part.strip()) + "."


def eta_clause(prediction: Prediction | None, now_ms: int) -> Phrase | None:
    """When the crossing is expected, with its interval; None without a prediction and where it is there already."""
    if prediction is None or prediction.eta_ms is None or prediction.eta_ms <= now_ms:
        return None
    at = to_minute(prediction.eta_ms)
    if prediction.eta_low_ms is None or prediction.coverage is None:
        return say("crossing expected at {at}", at=at)
    low = to_minute(prediction.eta_low_ms)
    high = "beyond the horizon" if prediction.eta_high_ms is None else to_minute(prediction.eta_high_ms)
    template = "crossing expected at {at} ({share} interval: {low} to {high})"
    return say(template, at=at, share=f"{prediction.coverage:.0%}", low=low, high=high)


def in_english(*clauses: Phrase | None) -> str:
    """What there is of `clauses`, with semicolons between."""
    return "; ".join(str(clause) for clause in clauses if clause is not None)


def cause_in_chinese(cause: str, *clauses: Phrase | None) -> str:
    """`cause`, a sentence in Chinese, with what there is of `clauses`; empty without it."""
    said = [cause.strip().rstrip("。"), *filter(None, map(in_chinese, clauses))]
    return f"{'；'.join(said)}。" if cause else ""


def action_sentence(action: ActionKind, subject: Subject, cause: str, eta: str, why: str = "", told: str = "") -> str:
    """What is to be done to what, why, by when, and why this. `cause` may begin with the name of `subject`.

    `told` is what is said of `subject` alone, where `cause` speaks of more.
    """
    said = cause.strip().rstrip(".")
    if _is_of_host(action, subject, said):
        subject = Subject(SubjectKind.HOST, subject.host)
        said = said.removeprefix(f"Host {subject.name}: ").removeprefix(f"{subject.name} ")
    return joined(f"{ACTIONS[action].verb} {_named_once(subject, said, told)}", eta, why)


def deed(action: ActionKind, subject: Subject, cause: str, told: str = "") -> str:
    """The action and what it is done to, as people call it: `cause` or `told` may begin with the name of `subject`."""
    if _is_of_host(action, subject, cause):
        what = named(Subject(SubjectKind.HOST, subject.host))
    else:
        what = _called(subject, cause) or _called(subject, told) or named(subject)
    return f"{ACTIONS[action].verb.lower()} {what}"


def _called(subject: Subject, sentence: str) -> str:
    """The host and index by which `sentence` names a GPU; empty where it does not."""
    return sentence.partition(":")[0] if _is_named(subject, sentence) else ""


def _is_of_host(action: ActionKind, subject: Subject, cause: str) -> bool:
    """Whether it is the host that is drained or rebooted, whichever of its GPUs is the cause."""
    about_host = _is_named(subject, cause) or cause.startswith(f"Host {subject.host}: ")
    return ACTIONS[action].scope is Scope.HOST and bool(subject.host) and about_host


def _is_named(subject: Subject, cause: str) -> bool:
    """Whether `cause` names a GPU by host and index, as people do."""
    return bool(subject.host) and cause.startswith(f"{subject.host} GPU ")


def _named_once(subject: Subject, cause: str, told: str) -> str:
    """Subject and cause; a cause that names its GPU by host and index needs no UUID before it."""
    if subject.kind is SubjectKind.GPU and _is_named(subject, cause):
        return cause
    for name in (named(subject), subject.name):
        cause = cause.removeprefix(f"{name}: ")
    return f"{_called(subject, told) or named(subject)}: {cause}"
