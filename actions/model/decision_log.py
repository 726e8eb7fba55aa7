"""Journal and ledger as one: what is appended is taken into the state at once, by one thread at a time."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol

from tocsin.actions.model.codec import dump_decision, dump_outcome, dump_verdicts
from tocsin.actions.model.ledger import LEDGER_KINDS, Ledger
from tocsin.actions.model.ledger_entry import LedgerEntry
from tocsin.actions.model.scope import base_key
from tocsin.domain.decision import Decision, DecisionState, Outcome, Verdict
from tocsin.journal.chain import Entry
from tocsin.journal.kinds import EntryKind


class JournalPort(Protocol):
    """What the loop needs of a journal."""

    def append(
        self, kind: EntryKind, payload: Mapping[str, object], *, actor: str = "tocsin", simulated: bool = False
    ) -> Entry:
        """Add one entry; durable on return."""
        ...

    def entries(
        self, after: int = 0, kinds: Collection[str] | None = None, limit: int | None = None
    ) -> Iterator[Entry]:
        """Entries in order."""
        ...


class DecisionLog:
    """Writes what happens to decisions; hold `lock` across a question and the entry that rests on its answer."""

    def __init__(self, journal: JournalPort) -> None:
        self._journal = journal
        self.lock = threading.RLock()
        self.ledger = Ledger()
        for entry in journal.entries(kinds=LEDGER_KINDS):
            self.ledger.apply(entry)

    def records(self) -> list[LedgerEntry]:
        """All listed decisions."""
        with self.lock:
            return list(self.ledger.records.values())

    def note(
        self, kind: EntryKind, payload: Mapping[str, object], *, actor: str = "tocsin", simulated: bool = False
    ) -> None:
        """Append an entry and take it in."""
        with self.lock:
            self.ledger.apply(self._journal.append(kind, payload, actor=actor, simulated=simulated))

    def about(self, kind: EntryKind, decision: Decision, actor: str = "tocsin", **payload: Any) -> None:
        """Append an entry about one decision."""
        content = {"decision": decision.id, "key": decision.key, **payload}
        self.note(kind, content, actor=actor, simulated=decision.simulated)

    def decided(self, decision: Decision) -> None:
        """A decision, or its new mode."""
        self.note(EntryKind.DECISION, dump_decision(decision), simulated=decision.simulated)

    def judged(self, record: LedgerEntry, verdicts: tuple[Verdict, ...], overall: str, **more: Any) -> None:
        """What the guards said."""
        self.about(EntryKind.VERDICT, record.decision, overall=overall, verdicts=dump_verdicts(verdicts), **more)

    def closed(self, record: LedgerEntry, state: DecisionState, reason: str, renew: bool) -> None:
        """A decision ended without having run."""
        self.judged(record, record.verdicts, str(record.overall), state=str(state), reason=reason, renew=renew)

    def started(self, decision: Decision, executor: str, before: Mapping[str, float]) -> None:
        """An execution begins, with what the readings show `before`; nothing else ever begins under the key."""
        self.about(
            EntryKind.EXECUTION_STARTED,
            decision,
            subject=base_key(decision.subject),
            action=str(decision.action),
            executor=executor,
            before=dict(before),
        )

    def ended(self, record: LedgerEntry, outcome: Outcome, *, in_effect: bool, renew: bool = False) -> None:
        """How an execution ended; `in_effect` where its effect lasts."""
        content = dump_outcome(outcome)
        self.about(EntryKind.OUTCOME, record.decision, outcome=content, in_effect=in_effect, renew=renew)
