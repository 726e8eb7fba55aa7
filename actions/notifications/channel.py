"""What a channel is: the messages that it is handed and their words, what it offers, what it is built from.

A message in words is cleaned of everything that is not text and clipped, in English or with Chinese labels.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, cast, runtime_checkable

from tocsin.actions.model.sentences import named
from tocsin.config.notify import ChannelSettings
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import Clock, SystemClock, to_iso
from tocsin.domain.decision import Decision, NotifyParameters
from tocsin.domain.finding import ActionKind, Severity
from tocsin.domain.grouping import grouped
from tocsin.domain.words import clean, clip
from tocsin.plugins import Kind, load

MOST_RULES = 10
"""Rules that a summary names; own choice."""
MOST_SUBJECTS = 5
"""Subjects that it names for each rule; own choice."""
SENTENCE_LIMIT = 2_500
"""Characters of a sentence: below the 3,000 of a Slack section, room for the label."""

_WORDS = {
    "en": {
        Severity.INFO: "INFO",
        Severity.WARNING: "WARNING",
        Severity.CRITICAL: "CRITICAL",
        AlertLevel.NOTE: "NOTE",
        AlertLevel.WARNING: "WARNING",
        AlertLevel.PAGE: "PAGE",
        "resolved": "RESOLVED",
        "test": "TEST",
        "simulated": "simulated",
        "more": "{} more notifications",
        "ended": "{} notifications",
        "rule": "rule",
        "subject": "subject",
        "pool": "pool",
        "intended": "intended",
        "approve": "to approve",
        "decision": "notification",
        "at": "at",
        "runbook": "runbook",
        "console": "dashboard",
        "severities": "severities",
        "and": "and {} more",
    },
    "zh": {
        Severity.INFO: "提示",
        Severity.WARNING: "警告",
        Severity.CRITICAL: "严重",
        AlertLevel.NOTE: "记录",
        AlertLevel.WARNING: "警告",
        AlertLevel.PAGE: "紧急",
        "resolved": "已恢复",
        "test": "测试",
        "simulated": "模拟",
        "more": "另有 {} 条通知",
        "ended": "{} 条通知",
        "rule": "规则",
        "subject": "对象",
        "pool": "资源池",
        "intended": "拟执行",
        "approve": "批准",
        "decision": "通知",
        "at": "时间",
        "runbook": "运维手册",
        "console": "控制台",
        "severities": "级别",
        "and": "等另外 {} 个",
    },
}


@dataclass(frozen=True, slots=True)
class Delivery:
    """How a delivery ended.

    `certain` is False where it failed but the receiver may have taken it. `again` is False where the same message would
    be refused again. `rest_seconds` is how long the receiver asks to be left alone, 0 where it does not say.
    `reference` is the name that the receiver gave to what it took, such as a ticket's, `called` what people call that;
    empty where it gives none.
    `partial` says that it was taken but for a part, which `detail` names and which is not tried again.
    """

    ok: bool
    detail: str
    attempts: int
    certain: bool = True
    again: bool = True
    rest_seconds: float = 0.0
    reference: str = ""
    called: str = ""
    partial: bool = False


class Phase(StrEnum):
    """What is told of a fault."""

    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Message:
    """One message about one notification, or about several that go together.

    `key` names it for good: the same message sent again, and the one about its end, have the same. `decisions` are the
    notifications, the gravest first. `at_ms` is when the first was decided, or when the last ended. `gathered` says
    that it tells of pages beyond the budget of its receiver, `lowered` that the one page for these was sent before.
    `reference` is the name that the receiver gave to an earlier message of this key; empty where none is known.
    """

    key: str
    decisions: tuple[Decision, ...]
    at_ms: int
    phase: Phase = Phase.FIRING
    test: bool = False
    gathered: bool = False
    lowered: bool = False
    reference: str = ""

    @property
    def level(self) -> AlertLevel:
        """The level of the gravest of them."""
        level = max((decision.alert_level for decision in self.decisions), key=lambda one: one.rank)
        return AlertLevel.WARNING if self.lowered and level is AlertLevel.PAGE else level

    @property
    def first(self) -> Decision:
        """The gravest notification."""
        return self.decisions[0]

    @property
    def summary(self) -> bool:
        """Whether it stands for several."""
        return len(self.decisions) > 1

    @property
    def resolved(self) -> bool:
        return self.phase is Phase.RESOLVED

    @property
    def severity(self) -> Severity:
        """The gravest of them."""
        return self.first.severity

    @property
    def simulated(self) -> bool:
        """Whether all are of a simulated fleet: the mark must never hide a real one."""
        return all(decision.simulated for decision in self.decisions)

    @property
    def id(self) -> str:
        """16 hexadecimal digits made from the key; of a single notification its decision's id."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16]


def message_of(decisions: Sequence[Decision], phase: Phase, at_ms: int | None = None) -> Message:
    """The message about `decisions`, at least one; `at_ms` is needed for an end."""
    gravest = tuple(sorted(decisions, key=urgency))
    keys = sorted(decision.key for decision in gravest)
    key = keys[0] if len(keys) == 1 else "summary|" + hashlib.sha256("\n".join(keys).encode()).hexdigest()[:32]
    first_ms = min(decision.at_ms for decision in gravest)
    return Message(key, gravest, first_ms if at_ms is None else at_ms, phase)


def urgency(decision: Decision) -> tuple[int, int, str]:
    """Sorts the gravest first, then the oldest."""
    return (-decision.severity.rank, decision.at_ms, decision.key)


@dataclass(frozen=True, slots=True)
class Links:
    """Base URLs of the runbooks and of the dashboard; empty: none."""

    runbooks: str = ""
    console: str = ""

    def runbook(self, decision: Decision) -> str:
        """The page about what is intended, or about the breaker; empty without a base."""
        parameters = decision.parameters
        intended = parameters.intended if isinstance(parameters, NotifyParameters) else None
        page = "guards/breaker.md" if decision.rule == "breaker" else f"actions/{intended or ActionKind.NOTIFY}.md"
        return f"{self.runbooks.rstrip('/')}/{page}" if self.runbooks else ""


@dataclass(frozen=True, slots=True)
class MessageText:
    """A message for people, on its way to a receiver's format. `facts` and `links` are (label, value)."""

    title: str
    body: str
    facts: tuple[tuple[str, str], ...]
    links: tuple[tuple[str, str], ...]

    def plain(self) -> str:
        """All of it, a line each."""
        facts = " · ".join(f"{label}: {value}" for label, value in self.facts)
        return "\n".join(filter(None, (self.title, self.body, facts, *(f"{name}: {url}" for name, url in self.links))))


def clip_bytes(text: str, limit: int) -> str:
    """The same for `limit` bytes of UTF-8, never within a character."""
    raw = text.encode()
    return text if len(raw) <= limit else raw[: max(0, limit - 3)].decode(errors="ignore").rstrip() + "..."


def no_mention(text: str) -> str:
    """`text` in which no chat room finds a person or a crowd to call."""
    return text.replace("@", "\uff20")


def text_of(message: Message, links: Links, language: str) -> MessageText:
    """`message` in words."""
    words = _WORDS[language]
    mark = f"[{words['simulated']}] " if message.simulated else ""
    sign = words[message.level]
    if message.resolved:
        sign = words["resolved"]
    if message.test:
        sign = words["test"]
    found = [(words["console"], links.console)] if links.console else []
    runbook = links.runbook(message.first)
    if runbook and not message.summary:
        found.insert(0, (words["runbook"], runbook))
    if message.summary:
        about, body, facts = _several(message, language)
    else:
        about, body, facts = _single(message, language)
    return MessageText(clip(clean(f"{mark}Tocsin {sign}: {about}"), 150), body, facts, tuple(found))


def _single(message: Message, language: str) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    decision = message.first
    words = _WORDS[language]
    parameters = decision.parameters if isinstance(decision.parameters, NotifyParameters) else NotifyParameters()
    known = {
        "rule": decision.rule,
        "subject": named(decision.subject),
        "pool": decision.subject.pool,
        "intended": str(parameters.intended or ""),
        "approve": f"tocsin approve {parameters.proposes}" if parameters.proposes and not message.resolved else "",
        "decision": decision.id,
        "at": to_iso(message.at_ms),
    }
    facts = tuple((words[name], clip(clean(value), 200)) for name, value in known.items() if value)
    forecast = decision.parameters.context.forecast_zh if language == "zh" else ""
    said = parameters.sentence_zh if language == "zh" and parameters.sentence_zh else f"{decision.sentence} {forecast}"
    body = clip(clean(said), SENTENCE_LIMIT)
    return f"{decision.rule}, {named(decision.subject)}", body, facts


def _several(message: Message, language: str) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    words = _WORDS[language]
    count = words["ended" if message.resolved else "more"].format(len(message.decisions))
    severities = Counter(decision.severity for decision in message.decisions)
    split = ", ".join(f"{severities[one]} {words[one]}" for one in reversed(Severity) if severities[one])
    rules = grouped((decision.rule, named(decision.subject)) for decision in message.decisions)
    lines = [
        f"{clip(clean(rule), 100)}: {len(subjects)} ({_listed(subjects, MOST_SUBJECTS, language)})"
        for rule, subjects in list(rules.items())[:MOST_RULES]
    ]
    if len(rules) > MOST_RULES:
        lines.append(words["and"].format(len(rules) - MOST_RULES))
    body = clip("\n".join(lines), SENTENCE_LIMIT)
    return count, body, ((words["severities"], split), (words["at"], to_iso(message.at_ms)))


def _listed(names: Iterable[str], most: int, language: str) -> str:
    every = [clip(clean(name), 80) for name in names]
    rest = [_WORDS[language]["and"].format(len(every) - most)] if len(every) > most else []
    return ", ".join([*every[:most], *rest])


class Channel(Protocol):
    """Sends messages to one receiver, one try a call; expected failures come back as a delivery.

    `batch` is how many messages go into one request. `keyed` says that the receiver knows a message by its key: then an
    end is told for each, else ends may be told together. `refresh_seconds` is set where the receiver forgets what is
    not told again.
    """

    name: str
    batch: int
    keyed: bool
    refresh_seconds: float | None

    def send(self, messages: Sequence[Message]) -> Delivery:
        """Deliver up to `batch` messages as one; calls come from one thread at a time."""

    def close(self) -> None:
        """Let go of connections; safe to repeat, also while another thread sends."""


@runtime_checkable
class TicketDesk(Protocol):
    """A channel whose receiver keeps tickets: work for the day, and no calls to people.

    It gets each notification by itself, none in a summary, and its messages count as no pages. All those of one ticket
    are one message to it, which ends once all of them are over.
    """

    def ticket_of(self, decision: Decision) -> str:
        """The key of the ticket that `decision` belongs to."""


class Notifier(Protocol):
    """Tells people; expected failures come back as a delivery, they are not raised."""

    name: str

    def notify(self, decision: Decision) -> Delivery:
        """One try to deliver `decision`; the loop tries again at a later step."""


EvidenceMaker = Callable[[str, int, bool], bytes]
"""The evidence bundle of a GPU by its UUID, over the last so many milliseconds, with owners named or not. Raises
TocsinError where it cannot be made."""


@dataclass(frozen=True, slots=True)
class ChannelDependencies:
    """What a channel is built from; `press_key` seals what comes back by a message's buttons, empty: none may.
    `evidence` is None where there is no brain that has any."""

    settings: ChannelSettings
    links: Links = field(default_factory=Links)
    clock: Clock = field(default_factory=SystemClock)
    press_key: str = field(default="", repr=False)
    evidence: EvidenceMaker | None = None


Factory = Callable[[ChannelDependencies], Channel]
"""What a plug-in of kind `channel` is: a class or a function."""


def build_channel(dependencies: ChannelDependencies) -> Channel:
    """The channel that its settings describe; raises InputError where a file that they name cannot be read."""
    return cast("Factory", load(Kind.CHANNEL, dependencies.settings.kind, "notify.channels.kind"))(dependencies)
