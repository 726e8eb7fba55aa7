"""Tickets: one for each fault, found before it is opened, followed, with the evidence attached, resolved at the end.

What is asked of the ticket system is a file of templates ([tickets](../../docs/tickets.md)); what it answers is a
stranger's word.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import httpx2

from tocsin.actions.model.sentences import named
from tocsin.actions.notifications.channel import (
    Channel,
    ChannelDependencies,
    Delivery,
    Message,
    no_mention,
    text_of,
)
from tocsin.actions.notifications.delivery import HttpAnswer, HttpRequest, Receiver, by_status, to_json
from tocsin.actions.notifications.ticket_template import (
    Attaching,
    Request,
    TicketTemplate,
    Words,
    at_path,
    filled,
    filled_json,
    filled_path,
    load_template,
)
from tocsin.config.notify import ChannelSettings, TicketSettings
from tocsin.domain.clock import DAY, to_iso
from tocsin.domain.decision import Decision
from tocsin.domain.errors import InputError, TocsinError
from tocsin.domain.finding import SubjectKind
from tocsin.domain.words import clean, clip

MOST_ATTACHING = 3
"""Tries to attach the evidence; then the ticket goes on without it, and says so. Own choice."""
MOST_BEGUN = 8
"""Tickets that are remembered between two tries, with their evidence. Own choice."""
ARCHIVE_TYPE = "application/x-tar"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""A ticket's name as it may stand in a path: Jira's keys, ServiceNow's sys_id, numbers."""
_ID = re.compile(r"[0-9a-f]{16}")
_HEADER = re.compile(r"[ -~]*")
TEST_CONTENT = b"A file attached by `tocsin notify test`.\n"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The file for a ticket; without `content` there is none, and `why` says so."""

    name: str = ""
    content: bytes = field(default=b"", repr=False)
    why: str = ""
    why_zh: str = ""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest() if self.content else ""

    def said(self, language: str) -> str:
        """The sentence for the ticket."""
        size, chinese = len(self.content), language == "zh"
        if not self.content:
            return f"无：{self.why_zh or self.why}" if chinese else f"none: {self.why}"
        return (
            f"{self.name}，{size} 字节，SHA-256 {self.sha256}"
            if chinese
            else (f"{self.name}, {size} bytes, SHA-256 {self.sha256}")
        )


@dataclass(slots=True)
class _Begun:
    """How far telling a message has come, for the next try. `asked` is True once a ticket may have been opened."""

    evidence: Evidence
    ticket: str = ""
    shown: str = ""
    asked: bool = False
    told: bool = False
    attaching: int = 0
    resolving: int = 0


class _FailedError(Exception):
    """A request came to nothing; what it came to."""

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery


class TicketChannel:
    """One ticket for each incident, under the incident's id; a notification without one has a ticket of its own.

    A ticket of that id that is open already is gone on with: after a crash, or where the answer to its opening was
    lost, none is opened twice.
    """

    batch = 1
    keyed = True
    refresh_seconds: float | None = None

    def __init__(self, dependencies: ChannelDependencies, asked: TicketSettings, template: TicketTemplate) -> None:
        settings = dependencies.settings
        self.name = settings.name
        self._dependencies = dependencies
        self._asked = asked
        self._template = template
        self._begun: dict[str, _Begun] = {}
        self._headers = _headers(template.headers, settings, asked.values)
        self._attach_headers = self._headers | _headers(template.attach_headers, settings, asked.values)
        secrets = (settings.key, _basic(settings)) if settings.key else ()
        seconds, clock = settings.timeout_seconds, dependencies.clock
        self._receiver = Receiver(settings.endpoint, seconds, settings.ca_file, secrets=secrets, clock=clock)

    def ticket_of(self, decision: Decision) -> str:
        return decision.incident or decision.id

    def send(self, messages: Sequence[Message]) -> Delivery:
        (message,) = messages
        step = f"{message.key}|{message.phase}|{message.first.key}"
        begun = self._begun.pop(step, None) or _Begun(self._evidence(message))
        words = self._words(message, begun.evidence)
        try:
            delivery = self._resolve(message, begun, words) if message.resolved else self._tell(message, begun, words)
        except _FailedError as failed:
            if failed.delivery.again:
                self._begun[step] = begun
                for old in list(self._begun)[:-MOST_BEGUN]:
                    del self._begun[old]
            return failed.delivery
        return delivery

    def close(self) -> None:
        self._receiver.close()

    def _tell(self, message: Message, begun: _Begun, words: dict[str, str]) -> Delivery:
        done = ""
        if not begun.told:
            known = message.reference or begun.ticket
            found = known or self._find(words)
            if not found:
                begun.asked = True
                found, begun.shown = self._open(words)
                done = "opened"
            elif begun.asked:
                # The answer to an earlier try was lost, and not what it asked for.
                done = "opened"
            elif self._template.comment is not None:
                self._ask("comment", self._template.comment, words | {"ticket": found})
                done = "told"
            begun.ticket, begun.told = found, True
        ticket = begun.ticket
        shown = f"{done or 'told'} {begun.shown or ticket}"
        refused = self._attach(begun, words | {"ticket": ticket}) if begun.evidence.content else ""
        if refused:
            shown = f"{shown}; without the evidence: {refused}"
        return Delivery(True, shown, 1, reference=ticket, called=begun.shown, partial=bool(refused))

    def _find(self, words: Words) -> str:
        """The name of the open ticket; empty where there is none."""
        answer = self._ask("find", self._template.find, words)
        return self._name_in("find", answer, self._template.find.ticket, absent=True)

    def _open(self, words: Words) -> tuple[str, str]:
        """The ticket's name, and what people call it where that is another one."""
        request = self._template.open
        answer = self._ask("open", request, words)
        return self._name_in("open", answer, request.ticket), self._number_in(answer)

    def _attach(self, begun: _Begun, words: Words) -> str:
        """Attach the evidence; why it was refused for good, or too often."""
        attach, evidence = self._template.attach, begun.evidence
        if attach is None:
            return "the template attaches nothing"
        begun.attaching += 1
        try:
            self._ask("attach", attach, words, evidence)
        except _FailedError as failed:
            if failed.delivery.again and begun.attaching < MOST_ATTACHING:
                raise
            return failed.delivery.detail
        return ""

    def _resolve(self, message: Message, begun: _Begun, words: Words) -> Delivery:
        ticket = message.reference or self._find(words)
        if not ticket:
            return Delivery(True, "no open ticket is found: nothing to resolve", 1)
        words = {**words, "ticket": ticket}
        state = self._template.state
        if state is not None and not begun.resolving:
            answer = self._ask("state", state, words)
            if str(self._at("state", answer, state.field)) in state.over:
                return Delivery(True, f"{ticket} was resolved already", 1, reference=ticket)
        for number, request in enumerate(self._template.resolve[begun.resolving :], begun.resolving):
            self._ask(f"resolve.{number}", request, words)
            begun.resolving = number + 1
        return Delivery(True, f"resolved {ticket}", 1, reference=ticket)

    # ------------------------------------------------------------------ one request

    def _ask(self, name: str, request: Request, words: Words, evidence: Evidence | None = None) -> HttpAnswer:
        """The answer of success. Raises `_FailedError`."""
        answer = self._receiver.ask(self._request(request, words, evidence))
        delivery = answer if isinstance(answer, Delivery) else by_status(answer)
        if isinstance(answer, Delivery) or not delivery.ok:
            raise _FailedError(replace(delivery, detail=f"{name}: {delivery.detail}"))
        return answer

    def _request(self, request: Request, words: Words, evidence: Evidence | None) -> HttpRequest:
        path, headers = filled_path(request.path, words), dict(self._headers)
        query = {name: filled(text, words) for name, text in request.query.items()}
        body = b""
        if evidence is not None and isinstance(request, Attaching):
            body, kind = _sent_as(request, evidence)
            headers = self._attach_headers | {"content-type": kind}
        elif request.body is not None:
            body = to_json(filled_json(request.body, words))
            headers["content-type"] = "application/json; charset=utf-8"
        return HttpRequest(body, headers, query, request.method, path)

    def _at(self, name: str, answer: HttpAnswer, path: str) -> object:
        try:
            return at_path(answer.json(), path)
        except KeyError:
            detail = f"{name}: answered {answer.status} without {path}: {clip(clean(answer.text), 200)}"
            raise _FailedError(Delivery(False, detail, 1, certain=False, again=False)) from None

    def _name_in(self, name: str, answer: HttpAnswer, path: str, *, absent: bool = False) -> str:
        found = self._at(name, answer, path)
        if found is None and absent:
            return ""
        ticket = str(found) if isinstance(found, str | int) and not isinstance(found, bool) else ""
        if not _NAME.fullmatch(ticket):
            detail = f"{name}: answered {answer.status} with no ticket's name at {path}: {clip(clean(str(found)), 80)}"
            raise _FailedError(Delivery(False, detail, 1, certain=False, again=False))
        return ticket

    def _number_in(self, answer: HttpAnswer) -> str:
        path = self._template.open.number
        try:
            found = at_path(answer.json(), path) if path else ""
        except KeyError:
            found = ""
        return clip(clean(found), 64) if isinstance(found, str) else ""

    # ------------------------------------------------------------------ what is said

    def _id(self, decision: Decision) -> str:
        """The ticket's id: letters and digits, whatever the incident is called."""
        ticket = self.ticket_of(decision)
        return ticket if _ID.fullmatch(ticket) else hashlib.sha256(ticket.encode(errors="replace")).hexdigest()[:16]

    def _words(self, message: Message, evidence: Evidence) -> dict[str, str]:
        decision, settings = message.first, self._dependencies.settings
        text = text_of(message, self._dependencies.links, settings.language)
        links = self._dependencies.links
        facts = "\n".join(f"{label}: {value}" for label, value in text.facts)
        told = {
            "title": text.title,
            "sentence": text.body or text.title,
            "facts": facts,
            "text": text.plain(),
            "rule": decision.rule,
            "subject": named(decision.subject),
            "host": decision.subject.host,
            "pool": decision.subject.pool,
            "category": decision.category,
            "severity": decision.severity,
            "level": message.level,
            "card": decision.incident,
            "decision": decision.id,
            "at": to_iso(message.at_ms),
            "evidence": evidence.said(settings.language),
        }
        words = {name: self._template.neutral(no_mention(_tidy(value))) for name, value in told.items()}
        words |= {"runbook": links.runbook(decision), "console": links.console}
        words |= {name: by_level[message.level] for name, by_level in self._template.by_level.items()}
        return {
            **words, **self._asked.values, "id": self._id(decision), "file": evidence.name, "sha256": evidence.sha256,
        }  # fmt: skip

    def _evidence(self, message: Message) -> Evidence:
        """What is attached to the ticket that `message` may open."""
        decision, make = message.first, self._dependencies.evidence
        name = self._id(decision)
        if message.resolved or message.reference:
            return Evidence(why="it goes with the first message of a ticket", why_zh="随工单的第一条消息附上")
        if message.test:
            return Evidence(f"tocsin-test-{name}.txt", TEST_CONTENT)
        if not self._asked.evidence or make is None:
            return Evidence(why="it is not asked for", why_zh="未启用")
        if decision.subject.kind is not SubjectKind.GPU:
            return Evidence(why="this is about no single GPU", why_zh="与单个 GPU 无关")
        try:
            content = make(decision.subject.name, round(self._asked.evidence_days * DAY), self._asked.evidence_owners)
        except TocsinError as error:
            return Evidence(why=clip(clean(str(error)), 200))
        if len(content) > self._asked.evidence_bytes:
            size = len(content)
            why_zh = f"共 {size} 字节；可用 tocsin evidence 手动生成"
            return Evidence(why=f"it has {size} bytes; tocsin evidence makes it by hand", why_zh=why_zh)
        return Evidence(f"tocsin-evidence-{name}.tar", content)


def _tidy(text: str) -> str:
    """Every line of `text` cleaned, with its bound."""
    return (
        "\n".join(clip(clean(line), 3_000) for line in text.split("\n")) if "\n" in text else clip(clean(text), 3_000)
    )


def _sent_as(request: Attaching, evidence: Evidence) -> tuple[bytes, str]:
    """The body with the file, and its type."""
    kind = ARCHIVE_TYPE if evidence.name.endswith(".tar") else "text/plain"
    if request.send == "raw":
        return evidence.content, kind
    made = httpx2.Request("POST", "http://-", files={request.field: (evidence.name, evidence.content, kind)})
    return made.read(), made.headers["content-type"]


def _basic(settings: ChannelSettings) -> str:
    return base64.b64encode(settings.key.encode()).decode()


def _headers(texts: Words, settings: ChannelSettings, values: Words) -> dict[str, str]:
    words = {**values, "secret": settings.key, "basic": _basic(settings)}
    made = {name.lower(): filled(text, words) for name, text in texts.items()}
    for name, text in made.items():
        if not re.fullmatch(r"[a-z0-9-]+", name) or not _HEADER.fullmatch(text):
            # The value may be a secret.
            raise InputError(f"header {name}", "(not shown)", "has letters that no header may have", "use plain ASCII")
    return made


def build(dependencies: ChannelDependencies) -> Channel:
    """The channel that `dependencies` describe; raises InputError where its template cannot be used."""
    asked = dependencies.settings.ticket
    if asked is None:
        name = dependencies.settings.name
        raise InputError("notify.channels", name, "has no table `ticket`", "name its template there")
    return TicketChannel(dependencies, asked, load_template(asked.template, asked.values))
