"""The record of what a person does by hand: in the brain's journal, or in one of the person's own where none takes it.

Nothing is done that is not on record first. Both journals are chains of hashes: `tocsin journal verify` and
`tocsin journal export` read either.
"""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tocsin.domain.clock import Clock
from tocsin.domain.errors import Conflict, InputError, TocsinError, Unavailable
from tocsin.domain.subject import Subject

if TYPE_CHECKING:
    from tocsin.client.client import Client
    from tocsin.client.models_manual import ManualAction

LOCK_SECONDS = 10.0
"""How long another command that writes to the same journal is waited for."""
LONGEST = 4000
"""Characters of a detail that are kept."""


def default_path(environ: Mapping[str, str] | None = None) -> Path:
    """The person's own journal. Raises InputError where no folder of the person's is known."""
    environ = os.environ if environ is None else environ
    if environ.get("XDG_STATE_HOME"):
        return Path(environ["XDG_STATE_HOME"]) / "tocsin" / "by-hand.db"
    try:
        return Path.home() / ".local" / "state" / "tocsin" / "by-hand.db"
    except RuntimeError:
        remedy = "name a file in journal.by_hand (TOCSIN_JOURNAL__BY_HAND)"
        raise InputError("journal.by_hand", "", "no home folder is known", remedy) from None


def account(environ: Mapping[str, str] | None = None) -> str:
    """Who runs this command, as the system knows it: ``unix:anna@host``, with the person behind sudo in brackets."""
    environ = os.environ if environ is None else environ
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    behind = environ.get("SUDO_USER", "")
    return f"unix:{name}@{socket.gethostname()}" + (f" (sudo {behind})" if behind and behind != name else "")


@dataclass(frozen=True, slots=True)
class Deed:
    """What is done: `id` is that of its decision, `manager` the cluster."""

    id: str
    action: str
    subject: Subject
    reason: str
    manager: str
    parameters: Mapping[str, str] = field(default_factory=dict)


class ManualRecord:
    """Puts deeds on record. `brain` makes a client, `say` is told where a record went that the brain refused."""

    def __init__(
        self, brain: Callable[[], Client], path: Path | None, clock: Clock, say: Callable[[str], object]
    ) -> None:
        self._brain = brain
        self._path = path
        self._clock = clock
        self._say = say
        self._by = account()
        self._away = False

    def begun(self, deed: Deed) -> None:
        """Before anything is done. Raises InputError, Conflict or JournalBroken where it can be put nowhere."""
        self._put(self._entry(deed, "begun"))

    def ended(self, deed: Deed, ok: bool, detail: str) -> None:
        """Once it is over; what cannot be put on record any more is said."""
        entry = self._entry(deed, "ended").model_copy(
            update={"status": "succeeded" if ok else "failed", "detail": detail[:LONGEST]}
        )
        try:
            self._put(entry)
        except TocsinError as error:
            self._say(f"warning: how it ended is not on record: {error}")

    def _entry(self, deed: Deed, phase: Literal["begun", "ended"]) -> ManualAction:
        from tocsin.client.models import SubjectOut
        from tocsin.client.models_manual import ManualAction

        subject = deed.subject
        return ManualAction(
            id=deed.id,
            phase=phase,
            action=deed.action,
            subject=SubjectOut(kind=subject.kind, name=subject.name, host=subject.host, pool=subject.pool),
            reason=deed.reason[:LONGEST],
            parameters={name: value[:LONGEST] for name, value in deed.parameters.items()},
            manager=deed.manager,
            by=self._by,
        )

    def _put(self, entry: ManualAction) -> None:
        if self._away or not self._told_brain(entry):
            self._keep(entry)

    def _told_brain(self, entry: ManualAction) -> bool:
        try:
            with self._brain() as client:
                client.record_manual(entry)
            return True
        except Unavailable:
            self._away = True
        except TocsinError as error:
            self._away = True
            self._say(f"the brain does not take the record ({error}); it is kept in {self._own_path()}")
        return False

    def _own_path(self) -> Path:
        return self._path or default_path()

    def _keep(self, entry: ManualAction) -> None:
        import stamina

        from tocsin.journal.journal import Journal
        from tocsin.journal.kinds import EntryKind

        path = self._own_path()
        patience = stamina.retry_context(
            on=Conflict, timeout=LOCK_SECONDS, attempts=None, wait_initial=0.05, wait_max=0.5
        )
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            for attempt in patience:
                with attempt:
                    journal = Journal.open(path, self._clock)
        except OSError as error:
            raise _unusable(path, error) from None
        try:
            journal.append(EntryKind.MANUAL_ACTION, entry.model_dump(mode="json"), actor=self._by)
        finally:
            journal.close()


def _unusable(path: Path, error: OSError) -> InputError:
    problem = f"cannot be written ({error.strerror or error}), and nothing is done that is not on record"
    remedy = "name a file that may be written (TOCSIN_JOURNAL__BY_HAND)"
    return InputError("journal.by_hand", str(path), problem, remedy)
