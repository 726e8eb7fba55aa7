"""What changed lately, a line each: cards, actions with their ends, controls, silences, new hosts, versions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tocsin.actions.model.ledger_entry import DecisionStatus
from tocsin.actions.model.scope import base_key
from tocsin.client.models_changes import Change, ChangeKind, Changes
from tocsin.domain.clock import HOUR, to_iso
from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.finding import ActionKind, Subject, SubjectKind
from tocsin.domain.versions import COMPONENTS
from tocsin.journal.page import Wanted
from tocsin.queries.card_life import CauseRecord, read_record, record_of
from tocsin.queries.card_words import Names, Words, action_words, clock, headline
from tocsin.queries.change_words import ended, place, say
from tocsin.queries.live import LiveBrain

MOST_ENTRIES = 2_000
"""Entries of the journal that are looked at (own choice): a storm must not make every open page slow."""
MOST_HOSTS_NAMED = 3

_LINES: Mapping[str, ChangeKind] = {
    EntryKind.REJECTION: ChangeKind.ACTION,
    EntryKind.MANUAL_ACTION: ChangeKind.ACTION,
    EntryKind.SERVICE_STARTED: ChangeKind.CONTROL,
    EntryKind.PAUSE: ChangeKind.CONTROL,
    EntryKind.RESUME: ChangeKind.CONTROL,
    EntryKind.BREAKER_TRIPPED: ChangeKind.CONTROL,
    EntryKind.BREAKER_RESET: ChangeKind.CONTROL,
    EntryKind.RULE_EARNED_ACT: ChangeKind.CONTROL,
    EntryKind.RULE_FELL_BACK: ChangeKind.CONTROL,
    EntryKind.MODEL_IN_SERVICE: ChangeKind.CONTROL,
    EntryKind.HOLD_OFF: ChangeKind.SILENCE,
    EntryKind.CAUSE_ACKNOWLEDGED: ChangeKind.SILENCE,
    EntryKind.SNOOZED: ChangeKind.SILENCE,
    EntryKind.MAINTENANCE_PLANNED: ChangeKind.SILENCE,
    EntryKind.SILENCE_ENDED: ChangeKind.SILENCE,
}
"""Kinds of entries that are a line by themselves."""
_CAUSES = frozenset({EntryKind.INCIDENT_OPENED, EntryKind.INCIDENT_UPDATED, EntryKind.INCIDENT_CLOSED})
_EXECUTIONS = frozenset({EntryKind.EXECUTION_STARTED, EntryKind.OUTCOME})
KINDS = frozenset({*_LINES, *_CAUSES, *_EXECUTIONS, EntryKind.VERSIONS_CHANGED})
"""Kinds of entries that are read."""


@dataclass(frozen=True)
class ChangeInputs:
    """What the list is made of. `entries` are of the kinds `KINDS` in [`start_ms`, `end_ms`], in order; those about
    causes begin earlier, so that a card is told alike however long the span is.

    `ended` are causes that are over, `standing` those that are open, both by the id of their incident; `joined` are new
    hosts with the instant of their first GPU. `mode_before` is that of the start before the first of `entries`, empty
    where none is known. `cut` says that older entries of the span were left out.
    """

    entries: Sequence[Entry]
    statuses: Iterable[DecisionStatus]
    ended: Mapping[str, CauseRecord]
    standing: Mapping[str, CauseRecord]
    joined: Mapping[str, int]
    names: Names
    start_ms: int
    end_ms: int
    mode_before: str = ""
    cut: bool = False


def changes(inputs: ChangeInputs, limit: int) -> Changes:
    """The newest `limit` changes of the span, and how many there are in all."""
    told = _Told(inputs)
    for entry in inputs.entries:
        told.apply(entry)
    lines = told.lines()
    return Changes(
        start=to_iso(inputs.start_ms),
        end=to_iso(inputs.end_ms),
        total=len(lines),
        at_least=inputs.cut,
        items=[Change(at=to_iso(at), kind=kind, text=said[0], text_zh=said[1]) for at, kind, said in lines[:limit]],
    )


_Line = tuple[int, ChangeKind, Words]


class _Told:
    """Collects lines from entries, in the order of the journal."""

    def __init__(self, inputs: ChangeInputs) -> None:
        self._in = inputs
        self._statuses = {one.decision.id: one for one in inputs.statuses}
        self._lines: list[_Line] = []
        self._executions: dict[str, _Line] = {}
        self._records: dict[str, CauseRecord] = {}
        self._where: dict[str, str] = {}
        self._at: dict[str, set[str]] = defaultdict(set)
        self._worst: dict[str, tuple[str, CauseRecord]] = {}
        self._mode = inputs.mode_before
        first_ms = min([inputs.start_ms, *(entry.at_ms for entry in inputs.entries[:1])])
        told = {str(one.payload.get("id", "")) for one in inputs.entries if one.kind == EntryKind.INCIDENT_OPENED}
        for name, record in {**inputs.ended, **inputs.standing}.items():
            self._records[name] = record
            stood = record.opened_ms < inputs.start_ms and (name in inputs.standing or record.ended_ms >= first_ms)
            if stood and name not in told:
                self._stands(name, record)

    def apply(self, entry: Entry) -> None:
        """Take one entry in."""
        if entry.kind in _CAUSES:
            self._cause(entry)
        elif entry.kind in _EXECUTIONS:
            self._execution(entry)
        elif entry.kind == EntryKind.VERSIONS_CHANGED:
            self._versions(entry)
        elif (kind := _LINES.get(entry.kind)) is not None and (said := _SAID[EntryKind(entry.kind)](self, entry)):
            self._lines.append((entry.at_ms, kind, said))

    def lines(self) -> list[_Line]:
        """All lines, newest first."""
        own = (line for line in self._lines if line[0] >= self._in.start_ms)
        made = [*self._hosts(), *self._executions.values(), *own]
        made.sort(key=lambda line: line[0])
        return made[::-1]

    def _hosts(self) -> list[_Line]:
        joined = sorted(self._in.joined.items(), key=lambda one: (one[1], one[0]))
        if len(joined) <= MOST_HOSTS_NAMED:
            return [(at_ms, ChangeKind.NODE, say("joined", host=host)) for host, at_ms in joined]
        first = ", ".join(host for host, _ in joined[:MOST_HOSTS_NAMED])
        return [(joined[-1][1], ChangeKind.NODE, say("joined_many", n=len(joined), hosts=f"{first}, …"))]

    # ------------------------------------------------------------------ cards: the causes of one place are one

    def _cause(self, entry: Entry) -> None:
        name = str(entry.payload.get("id", ""))
        if entry.kind == EntryKind.INCIDENT_CLOSED:
            self._ends(entry, name)
            return
        record = read_record(entry.payload.get("card"))
        if record is not None:
            before = [self._records[one] for one in self._at[record.where] | ({name} & self._where.keys())]
            if before and record.gravity > max(one.gravity for one in before):
                self._card(entry.at_ms, say("worse", what=headline(record.trouble, self._in.names)))
            elif not before and entry.kind == EntryKind.INCIDENT_OPENED:
                self._card(entry.at_ms, say("opened", what=headline(record.trouble, self._in.names)))
            self._stands(name, record)
        elif entry.kind == EntryKind.INCIDENT_OPENED:
            # Entries of older versions have a sentence alone, in English.
            sentence = self._in.names.plain(str(entry.payload.get("sentence", "")))
            self._card(entry.at_ms, (sentence, sentence))

    def _stands(self, name: str, record: CauseRecord) -> None:
        """An open incident, of which `record` is the newest; where it was alone its card moves with it."""
        left = self._where.get(name, record.where)
        self._at[left].discard(name)
        moved = not self._at[left] or self._worst[left][0] == name
        found = [self._worst[place] for place in {record.where, *([left] if moved else [])} if place in self._worst]
        if not self._at[left]:
            self._worst.pop(left, None)
        self._records[name], self._where[name] = record, record.where
        self._at[record.where].add(name)
        # Of those as bad the older heads the card, as it is now.
        known = [one for one in found if one[0] != name or one[1].gravity > record.gravity]
        self._worst[record.where] = max([*known, (name, record)], key=lambda one: one[1].gravity)

    def _ends(self, entry: Entry, name: str) -> None:
        record = self._records.get(name)
        where = self._where.pop(name, None) or (record.where if record is not None else "")
        self._at[where].discard(name)
        if record is None or self._at[where]:
            return
        _, worst = self._worst.pop(where, (name, record))
        if not entry.payload.get("into"):
            self._card(entry.at_ms, say("resolved", what=headline(worst.trouble, self._in.names)))

    def _card(self, at_ms: int, said: Words) -> None:
        self._lines.append((at_ms, ChangeKind.CARD, said))

    # ------------------------------------------------------------------ actions: one line each, at its end if it ended

    def _execution(self, entry: Entry) -> None:
        decision = str(entry.payload.get("decision", ""))
        what = self._action(decision, entry)
        if what is None:
            return
        outcome = entry.payload.get("outcome")
        said = say("runs", what=what)
        if isinstance(outcome, dict):
            said = say("ended", what=what, end=ended(str(outcome.get("status", ""))))
        self._executions[decision] = (entry.at_ms, ChangeKind.ACTION, said)

    def _action(self, decision: str, entry: Entry) -> Words | None:
        """The action and its subject; None for a notification, and where neither is known any more."""
        status = self._statuses.get(decision)
        if status is None:
            action, key = (str(entry.payload.get(name, "")) for name in ("action", "subject"))
            return self._on(action, key) if action else None
        if status.decision.action is ActionKind.NOTIFY:
            return None
        return self._on(status.decision.action, base_key(status.decision.subject), status.decision.subject.host)

    def _on(self, action: str, key: str, host: str = "") -> Words:
        english, chinese = self._subject(key, host)
        done = action_words(action)
        return f"{done[0]} {english}".strip(), f"{done[1]} {chinese}".strip()

    def _subject(self, key: str, host: str = "") -> Words:
        kind, _, name = key.partition(":")
        if kind not in set(SubjectKind):
            return key, key
        return self._in.names.subject(Subject(SubjectKind(kind), name, host))

    # ------------------------------------------------------------------ entries that are a line by themselves

    def _rejected(self, entry: Entry) -> Words | None:
        what = self._action(str(entry.payload.get("decision", "")), entry)
        return None if what is None else say("rejected", who=entry.actor, what=what)

    def _by_hand(self, entry: Entry) -> Words | None:
        if entry.payload.get("phase") != "ended":
            return None
        subject = entry.payload.get("subject")
        key = f"{subject.get('kind', '')}:{subject.get('name', '')}" if isinstance(subject, dict) else ""
        done = self._on(str(entry.payload.get("action", "")), key)
        end = ended(str(entry.payload.get("status", "")))
        return say("by_hand", who=entry.actor, what=say("ended", what=done, end=end))

    def _started(self, entry: Entry) -> Words:
        before, self._mode = self._mode, str(entry.payload.get("mode", ""))
        changed = before and before != self._mode
        return say("mode" if changed else "started", mode=self._mode, before=before)

    def _paused(self, entry: Entry) -> Words:
        reason = str(entry.payload.get("reason", ""))
        return say("paused", who=entry.actor, why=(f": {reason}", f"：{reason}") if reason else "")

    def _given_back(self, entry: Entry) -> Words | None:
        # A person's no leaves the subject alone too, and has its own line.
        if "released" not in entry.payload:
            return None
        return say("given_back", who=entry.actor, what=self._subject(str(entry.payload.get("subject", ""))))

    def _silenced(self, entry: Entry) -> Words:
        keys = {EntryKind.CAUSE_ACKNOWLEDGED: "acknowledged", EntryKind.SNOOZED: "snoozed"}
        until_ms = entry.payload.get("until_ms")
        until = clock(until_ms, self._in.end_ms) if isinstance(until_ms, int) else "?"
        what = place(str(entry.payload.get("subject", "")))
        return say(keys.get(EntryKind(entry.kind), "planned"), who=entry.actor, what=what, until=until)

    def _versions(self, entry: Entry) -> None:
        rows = entry.payload.get("changes")
        for row in rows if isinstance(rows, list) else ():
            component = COMPONENTS.get(str(row.get("component", "")))
            hosts = [str(host) for host in row.get("hosts") or ()]
            if component is None or not hosts or not row.get("before"):
                # A host that is new has a line of its own.
                continue
            first = ", ".join(hosts[:MOST_HOSTS_NAMED]) + (", …" if len(hosts) > MOST_HOSTS_NAMED else "")
            what = component.name, component.chinese
            versions = {"before": str(row.get("before", "")), "after": str(row.get("after", ""))}
            key = "version" if len(hosts) == 1 else "version_many"
            self._lines.append(
                (entry.at_ms, ChangeKind.NODE, say(key, what=what, hosts=first, n=len(hosts), **versions))
            )

    def _silence_ended(self, entry: Entry) -> Words:
        return say("silence_ended", who=entry.actor, what=place(str(entry.payload.get("subject", ""))))


_SAID: Mapping[EntryKind, Callable[[_Told, Entry], Words | None]] = {
    EntryKind.REJECTION: _Told._rejected,
    EntryKind.MANUAL_ACTION: _Told._by_hand,
    EntryKind.SERVICE_STARTED: _Told._started,
    EntryKind.PAUSE: _Told._paused,
    EntryKind.RESUME: lambda _, entry: say("resumed", who=entry.actor),
    EntryKind.BREAKER_TRIPPED: lambda _, __: say("tripped"),
    EntryKind.BREAKER_RESET: lambda _, entry: say("reset", who=entry.actor),
    EntryKind.RULE_EARNED_ACT: lambda _, entry: say("earned", rule=entry.payload.get("rule", "")),
    EntryKind.RULE_FELL_BACK: lambda _, entry: say("fell_back", rule=entry.payload.get("rule", "")),
    EntryKind.MODEL_IN_SERVICE: lambda _, entry: say("model", version=entry.payload.get("version", "")),
    EntryKind.HOLD_OFF: _Told._given_back,
    EntryKind.CAUSE_ACKNOWLEDGED: _Told._silenced,
    EntryKind.SNOOZED: _Told._silenced,
    EntryKind.MAINTENANCE_PLANNED: _Told._silenced,
    EntryKind.SILENCE_ENDED: _Told._silence_ended,
}


def changes_now(brain: LiveBrain, hours: int, limit: int) -> Changes:
    """What changed in the last `hours` of a running brain."""
    now_ms, journal = brain.clock.now_ms(), brain.journal
    start_ms = now_ms - hours * HOUR
    found = journal.newest(MOST_ENTRIES, Wanted(kinds=KINDS, start_ms=start_ms))
    cut = len(found) == MOST_ENTRIES
    # Those about causes go on to where the span begins without a gap.
    until_ms = found[-1].at_ms if cut else start_ms
    earlier = journal.newest(MOST_ENTRIES, Wanted(kinds=_CAUSES, end_ms=until_ms))
    started = any(entry.kind == EntryKind.SERVICE_STARTED for entry in found)
    before = journal.newest(1, Wanted(kinds={EntryKind.SERVICE_STARTED}, end_ms=start_ms)) if started else []
    return changes(
        ChangeInputs(
            entries=[*earlier[::-1], *found[::-1]],
            statuses=brain.statuses(),
            ended={one.id: one for one in brain.card_life.ended.values()},
            standing={one.id: record_of(one) for one in brain.incidents},
            joined=brain.owners.joined(start_ms),
            names=Names(brain.memory.latest()),
            start_ms=start_ms,
            end_ms=now_ms,
            mode_before=str(before[0].payload.get("mode", "")) if before else "",
            cut=cut,
        ),
        limit,
    )
