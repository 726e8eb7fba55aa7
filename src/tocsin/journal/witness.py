"""How far the journal has come, kept where the journal is not: a journal that was restored or cut is found by it.

The journal writes first and the witness follows. So a process that is killed, or a witness that was away, leaves the
witness behind the journal, which is in order; a witness that is ahead of the journal has seen what the journal lost.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Protocol

import structlog
from pydantic import Field, TypeAdapter, ValidationError

from tocsin.domain.atomic_file import write_atomically
from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.errors import TocsinError
from tocsin.journal.port import JournalPast, LiveJournal

log = structlog.get_logger()

MOST_JOURNALS = 64
"""Journals that one witness knows; of more the one that was met first is dropped."""
MAX_NUMBER = 2**62
"""Largest number of an entry or an epoch; SQLite has 63 bits."""
MOST_BYTES = 64 * 1024
"""Longest file of a witness that is read."""
RETRY_SECONDS = 5.0
"""Time between two tries while the witness is away."""
HOLD_SECONDS = 1.0
"""Longest that an entry of `AWAITED` waits for the witness; while it is away nothing waits."""
AWAITED = frozenset(
    {
        EntryKind.EXECUTION_STARTED,
        EntryKind.PAUSE,
        EntryKind.HOLD_OFF,
        EntryKind.MAINTENANCE_PLANNED,
        EntryKind.BREAKER_TRIPPED,
        EntryKind.REJECTION,
    }
)
"""What must not be lost by a restore: the witness has it before anything is done that rests on it."""

NO_WITNESS = "nothing would notice a journal restored from an old copy, which repeats its actions: set journal.witness"


@dataclass(frozen=True, slots=True)
class Seen:
    """The newest entry of a journal that a witness has seen."""

    epoch: Annotated[int, Field(ge=0, le=MAX_NUMBER)]
    seq: Annotated[int, Field(ge=0, le=MAX_NUMBER)]
    hash: Annotated[str, Field(max_length=64)]


class WitnessAway(TocsinError):
    """The witness cannot be asked or written now; nothing is known of what it has seen."""


class Witness(Protocol):
    """A place outside the journal's folder. Both methods may block, and raise WitnessAway."""

    name: str
    pace_seconds: float
    """Time between two writes that nothing waits for."""

    def read(self) -> Mapping[str, Seen]:
        """What it has seen, by journal: the hash of its first entry."""

    def write(self, journal: str, seen: Seen) -> None:
        """Replace what it has of `journal`; durable on return."""


_SEEN = TypeAdapter(Seen)


def load_seen(raw: object) -> Seen:
    """Of JSON; raises ValueError where it is none."""
    try:
        return _SEEN.validate_python(raw)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


class FileWitness:
    """A small file, on another volume than the journal's. Its folder must exist: an absent one is a volume that is not
    mounted, and no witness that has seen nothing."""

    pace_seconds = 0.2

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = str(path)

    def read(self) -> Mapping[str, Seen]:
        try:
            if not self._path.parent.is_dir():
                raise WitnessAway(f"{self._path.parent} is no folder: make it, or mount its volume")
            with self._path.open("rb") as file:
                text = file.read(MOST_BYTES + 1)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise WitnessAway(f"{self._path}: {error.strerror or error}") from None
        try:
            if len(text) > MOST_BYTES:
                raise ValueError(f"is longer than {MOST_BYTES} bytes")
            return {str(name): load_seen(raw) for name, raw in json.loads(text)["journals"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            remedy = "restore it, or remove it once you know that the journal is the newest"
            raise WitnessAway(f"{self._path} cannot be read ({error}); {remedy}") from None

    def write(self, journal: str, seen: Seen) -> None:
        known = {name: asdict(one) for name, one in self.read().items() if name != journal}
        kept = dict([*known.items(), (journal, asdict(seen))][-MOST_JOURNALS:])
        try:
            write_atomically(self._path, json.dumps({"journals": kept}), 0o600)
        except OSError as error:
            raise WitnessAway(f"{self._path}: {error.strerror or error}") from None


def problem_of(journal: JournalPast, seen: Mapping[str, Seen]) -> str:
    """Why `journal` is not what a witness has seen or its continuation; empty where it is.

    A witness that has seen nothing has nothing to say. Raises InputError where there is none.
    """
    first = next(journal.entries(limit=1), None)
    known = None if first is None else seen.get(first.hash)
    if not seen:
        return ""
    if known is None:
        newest = max(seen.values(), key=lambda one: (one.epoch, one.seq))
        return f"another journal is known, up to entry {newest.seq} of epoch {newest.epoch}, and this one is not"
    found = next(journal.entries(after=max(known.seq - 1, 0), limit=1), None)
    if found is None:
        return f"entry {known.seq} of epoch {known.epoch} was seen, and this journal ends before it"
    return "" if found.hash == known.hash else f"entry {known.seq} is not the one that was seen"


class Standing(StrEnum):
    """What a witness says of the journal."""

    UNASKED = "unasked"
    """It has not answered yet."""
    CURRENT = "current"
    OLDER = "older"
    """It has seen what the journal does not have; it is left as it is until a person resumes."""


class WitnessKeeper:
    """Compares the journal with one witness as soon as that answers, and then keeps the witness up to date.

    A thread of its own does all that may block. `on_failure` is told of each try that the witness did not answer.
    """

    def __init__(self, journal: LiveJournal, witness: Witness, on_failure: Callable[[], None] = lambda: None) -> None:
        self.witness = witness
        self.standing = Standing.UNASKED
        self.problem = ""
        self.trouble = ""
        """Why the witness is away; empty while it answers."""
        self._journal = journal
        self._on_failure = on_failure
        self._turn = threading.Condition()
        last = next(journal.entries(after=max(journal.head - 1, 0), limit=1), None)
        self._newest = None if last is None else Seen(last.epoch, last.seq, last.hash)
        self._written: Seen | None = None
        self._urgent = 0
        self._stopping = False
        self._said = False
        self._on_older: Callable[[str], None] | None = None
        self._identity = ""
        self._thread = threading.Thread(target=self._run, name="journal witness", daemon=True)

    def start(self, seconds: float) -> str:
        """Ask the witness, for `seconds` at most; why the journal must not act on its own, empty where it may."""
        self._thread.start()
        with self._turn:
            self._turn.wait_for(lambda: self.standing is not Standing.UNASKED or bool(self.trouble), seconds)
            if self.standing is Standing.UNASKED:
                log.warning("journal witness is away", witness=self.witness.name, problem=self.trouble or "no answer")
            self._said = self.standing is Standing.OLDER
            return self.reason()

    def listen(self, on_older: Callable[[str], None]) -> None:
        """Tell `on_older` the reason where the witness answers later than `start` waited, by the keeper's thread."""
        with self._turn:
            self._on_older = on_older
            late = self.standing is Standing.OLDER and not self._said
        if late:
            on_older(self.reason())

    def reason(self) -> str:
        """What people are told where the journal is older than the witness; empty where it is not."""
        if self.standing is not Standing.OLDER:
            return ""
        return (
            f"the journal is not what its witness {self.witness.name} has seen: {self.problem}; it was restored or "
            "cut: find out what was done since then, and resume"
        )

    def behind(self) -> int:
        """Entries that the witness has not seen yet."""
        with self._turn:
            return (self._newest.seq if self._newest else 0) - (self._written.seq if self._written else 0)

    def appended(self, entries: Sequence[Entry]) -> None:
        """Take note of `entries`, which are on disk; returns once the witness has what it must have first."""
        with self._turn:
            # Two that appended at once may come here in either order.
            if self._newest is None or entries[-1].seq > self._newest.seq:
                self._newest = Seen(entries[-1].epoch, entries[-1].seq, entries[-1].hash)
            if self.standing is Standing.OLDER and any(entry.kind == EntryKind.RESUME for entry in entries):
                # A person has taken over: from here on this journal is the one that counts.
                self.standing, self.problem = Standing.CURRENT, ""
                self._urgent = self._newest.seq
            if any(entry.kind in AWAITED for entry in entries):
                self._urgent = self._newest.seq
            self._turn.notify_all()
            if self._urgent == self._newest.seq and self.standing is Standing.CURRENT and not self.trouble:
                seq = self._newest.seq
                if not self._turn.wait_for(lambda: self._has(seq) or bool(self.trouble), HOLD_SECONDS):
                    self._failed(f"no answer within {HOLD_SECONDS:g} s")

    def close(self) -> None:
        """Give the witness the newest entry, and end; safe to repeat."""
        with self._turn:
            self._stopping = True
            self._turn.notify_all()
        if self._thread.is_alive():
            self._thread.join(HOLD_SECONDS)

    def _has(self, seq: int) -> bool:
        return self._written is not None and self._written.seq >= seq

    def _failed(self, problem: str) -> None:
        if not self.trouble:
            log.warning("journal witness is away", witness=self.witness.name, problem=problem)
        self.trouble = problem
        self._on_failure()
        self._turn.notify_all()

    def _run(self) -> None:
        while self._next():
            try:
                if self.standing is Standing.UNASKED:
                    self._ask()
                else:
                    self._tell()
            except (TocsinError, OSError, ValueError) as error:
                with self._turn:
                    self._failed(str(error))
                    if self._stopping:
                        return
                    self._turn.wait_for(lambda: self._stopping, RETRY_SECONDS)

    def _next(self) -> bool:
        """Wait for something to do; False at the end."""
        with self._turn:
            self._turn.wait_for(lambda: self._stopping or self._due())
            if self._written is not None and self._has(self._urgent):
                self._turn.wait_for(lambda: self._stopping or not self._has(self._urgent), self.witness.pace_seconds)
            return self._due() and (not self._stopping or self.standing is Standing.CURRENT)

    def _due(self) -> bool:
        if self.standing is Standing.UNASKED:
            return True
        return self.standing is Standing.CURRENT and self._newest is not None and self._newest != self._written

    def _ask(self) -> None:
        found = problem_of(self._journal, self.witness.read())
        with self._turn:
            self.problem, self.trouble = found, ""
            self.standing = Standing.OLDER if found else Standing.CURRENT
            self._turn.notify_all()
            listener = self._on_older if found else None
        if listener is not None:
            listener(self.reason())

    def _tell(self) -> None:
        with self._turn:
            newest = self._newest
        if newest is None:
            return
        if not self._identity:
            self._identity = next(self._journal.entries(limit=1)).hash
        self.witness.write(self._identity, newest)
        with self._turn:
            self._written, self.trouble = newest, ""
            self._turn.notify_all()


def in_words(keepers: Sequence[WitnessKeeper]) -> str:
    """What people should know of the journal's witnesses; empty where all is in order."""
    if not keepers:
        return NO_WITNESS
    said = [keeper.reason() for keeper in keepers]
    said += [f"journal witness {one.witness.name} is away: {one.trouble}" for one in keepers if one.trouble]
    return "; ".join(one for one in said if one)
