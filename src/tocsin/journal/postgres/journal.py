"""Writing the journal of a cell in PostgreSQL, and following it while another brain writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from threading import Event, Lock
from typing import Any, NoReturn

from tocsin.domain.clock import Clock
from tocsin.domain.entry import GENESIS, Entry, EntryKind, canonical
from tocsin.domain.errors import BudgetSpent, Unavailable
from tocsin.journal import checkpoint as checkpoints
from tocsin.journal.checkpoint import Checkpoint
from tocsin.journal.files import Anchor, JournalBroken, Row, load_key, new_key, write_key
from tocsin.journal.journal import chained
from tocsin.journal.port import Draft, NotLeading
from tocsin.journal.postgres.connections import CellDatabase, DatabaseAway, NoRoom, jsonb
from tocsin.journal.postgres.lease import DatabaseLease
from tocsin.journal.postgres.packed import CHUNK_ENTRIES, pack
from tocsin.journal.postgres.past import PostgresPast, about_of, head_of
from tocsin.journal.postgres.schema import prepare
from tocsin.journal.verify import problem_of_row

WRITE_SHARE = 1 / 3
"""Part of the lease's duration that one try to write may take."""
RETRY_SECONDS = 0.2
"""Time between two tries while the database is away."""
FOLLOWED_AT_ONCE = 1_000
CHUNKS_AT_ONCE = 50
"""Chunks that one round of archiving packs: some 50,000 entries."""
_APPEND = (
    "SELECT append(%s, %s, %s, %s, %s, %s, %s::text[], %s::smallint[], %s::text[], %s::text[], %s::text[], "
    "%s::text[], %s, %s)"
)
_APPEND_TAKING = (
    "WITH appended AS MATERIALIZED (%s AS refused) SELECT refused, CASE WHEN refused = '' THEN "
    '(SELECT bool_and("%s".take(%%s, %%s, value)) FROM jsonb_array_elements(%%s::jsonb)) END FROM appended'
)
"""Where what is to be taken is not there, the whole statement is undone, and the entry with it."""
_NOTE = "INSERT INTO note VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET content = excluded.content"


class JournalReplaced(Unavailable):
    """What was followed is no longer in the database: an older or another journal was put in its place."""


def _no_listener(_entries: Sequence[Entry]) -> None:
    """Nobody is told."""


class FollowedJournal(PostgresPast):
    """The journal as a brain on standby has it: everything is read, nothing written.

    `head` is as far as `follow` came; `holder` says who writes.
    """

    leads = False

    def __init__(self, database: CellDatabase, holder: Callable[[], str]) -> None:
        super().__init__(database)
        self.key = b""
        self.epoch = 0
        self.checkpoint: Checkpoint | None = None
        self.on_append: Callable[[Sequence[Entry]], None] = _no_listener
        self._holder = holder
        with self.steady() as ask:
            known = head_of(ask)[0]
            self._head, self._hash = known.seq, known.hash
            self.checkpoint = load_checkpoint(self, ask("SELECT content FROM fold"))

    @property
    def head(self) -> int:
        return self._head

    def entries(
        self, after: int = 0, kinds: Collection[str] | None = None, limit: int | None = None
    ) -> Iterator[Entry]:
        """Up to `head`: what is folded ends where `follow` goes on."""
        return takewhile(lambda entry: entry.seq <= self._head, super().entries(after, kinds, limit))

    def follow(self) -> list[Entry]:
        """What was appended since, some 1,000 entries at most; `head` is moved behind it. Raises JournalReplaced."""
        before = self._head
        found = list(super().entries(max(before - 1, 0), limit=FOLLOWED_AT_ONCE + 1))
        if before:
            if not found or (found[0].seq, found[0].hash) != (before, self._hash):
                raise JournalReplaced(f"entry {before} is not in the journal as it was followed; it is read anew")
            del found[0]
        if found:
            self._head, self._hash = found[-1].seq, found[-1].hash
        return found

    def append(self, *_args: object, **_more: object) -> Entry:
        self.must_lead()

    def append_many(self, drafts: Sequence[Draft], **_more: object) -> list[Entry]:
        if drafts:
            self.must_lead()
        return []

    def folded(self, part: str) -> tuple[int, Any]:
        return folded(self.checkpoint, part)

    def save(self, *_args: object) -> None:
        self.must_lead()

    def read_note(self, name: str) -> str:
        return read_note(self, name)

    def keep_note(self, *_args: object) -> None:
        self.must_lead()

    def archive(self, *_args: object) -> str:
        return ""

    def close(self) -> None:
        self.database.close()

    def must_lead(self) -> NoReturn:
        holder = self._holder()
        who = f"{holder} is the active one" if holder else "nobody is the active one yet"
        raise NotLeading(f"this brain is on standby: {who}; ask there")


class PostgresJournal(PostgresPast):
    """The one writer of a cell's journal, for as long as `lease` is this process's; safe to use from several threads.

    The database takes an entry only from the holder of the lease, in its epoch, before it has run out, and only behind
    the entry that this process believes to be the newest. Where it does not, the lease is lost for good: whatever this
    process has folded is out of date, and it must begin anew.

    A connection that breaks leaves open whether an entry was taken. It is sent again until that is known, for as long
    as the lease may still be held; then append raises. If it was taken after all, the next one does not fit behind it.
    """

    leads = True

    def __init__(self, database: CellDatabase, clock: Clock, lease: DatabaseLease, key: bytes) -> None:
        super().__init__(database)
        self.key = key
        self.lease = lease
        self.epoch = lease.epoch
        self.checkpoint: Checkpoint | None = None
        self.on_append: Callable[[Sequence[Entry]], None] = _no_listener
        self.fleet: tuple[str, str] | None = None
        """Schema of the fleet of which starts of actions take their part, and the name of this cell in it."""
        self._clock = clock
        self._lock = Lock()
        self._line = database.line(max(1.0, lease.seconds * WRITE_SHARE))
        self._never = Event()
        with self.steady() as ask:
            anchor, _ = head_of(ask)
        self._head, self._hash = anchor.seq, anchor.hash

    @classmethod
    def open(
        cls, database: CellDatabase, clock: Clock, lease: DatabaseLease, key_file: Path | None = None
    ) -> PostgresJournal:
        """The journal behind `database` for writing, in the epoch of `lease`, which must be held.

        Its head is sealed with the key in `key_file`, which is made where there is none and the head has no seal yet.
        Raises JournalBroken where its chain or its seal does not hold, and InputError where the key cannot be had.
        """
        if not lease.held():
            raise NotLeading(f"the lease of {database.name} is not held")
        prepare(database)
        past = PostgresPast(database)
        with past.steady() as ask:
            anchor, seal = head_of(ask)
            found = load_checkpoint(past, ask("SELECT content FROM fold"))
        key, first = _key_of(key_file, seal)
        result = past.verify(b"" if first else key, after=found.seq if found else 0)
        if not result.ok:
            raise JournalBroken(
                f"journal {database.name}: {result.problem}; restore a backup, nothing is appended to it"
            )
        opened = cls(database, clock, lease, key)
        if first and key_file is not None:
            # The seal first: a key on disk means that there is one. The head is where it was when it was checked.
            seal_head(database, anchor, key)
            write_key(key_file, key)
        opened.checkpoint = found
        return opened

    @property
    def head(self) -> int:
        return self._head

    def must_lead(self) -> None:
        if self.lease.lost:
            self._lost("lease")

    def follow(self) -> list[Entry]:
        return []

    def append(
        self, kind: EntryKind, payload: Mapping[str, object], *, actor: str = "tocsin", simulated: bool = False
    ) -> Entry:
        return self.append_many([(kind, payload, simulated)], actor=actor)[0]

    def append_many(self, drafts: Sequence[Draft], *, actor: str = "tocsin") -> list[Entry]:
        if not drafts:
            return []
        with self._lock:
            entries = self._added(drafts, actor, None)
        self.on_append(entries)
        return entries

    def folded(self, part: str) -> tuple[int, Any]:
        return folded(self.checkpoint, part)

    def save(self, seq: int, parts: Mapping[str, Any]) -> None:
        text, payload = checkpoints.as_text(Checkpoint(seq, parts))
        with self._lock:
            entries = self._added([(EntryKind.CHECKPOINT, payload, False)], "tocsin", text)
        self.on_append(entries)
        self.checkpoint = Checkpoint(seq, {})

    def read_note(self, name: str) -> str:
        return read_note(self, name)

    def keep_note(self, name: str, text: str) -> None:
        with self._lock:
            self._line.ask(_NOTE, (name, text))

    def archive(self, keep: int) -> str:
        """Pack the oldest entries of the months before the newest `keep` entries; a month that is packed whole goes.

        Raises JournalBroken where the chain does not hold: nothing is changed then.
        """
        with self.steady() as ask:
            first = int(ask("SELECT coalesce(max(last), 0) + 1 FROM packed")[0][0])
        needed = self.checkpoint.seq if self.checkpoint else self.head
        due = min(self.head - keep, needed - 1, self._last_of_past_months())
        last = first - 1
        for _ in range(CHUNKS_AT_ONCE):
            if last + CHUNK_ENTRIES > due:
                break
            last = self._pack(last + 1)
        if last >= first:
            self.append(EntryKind.ARCHIVED, {"first": first, "last": last, "file": "packed"})
        months = self._drop_months()
        said = [f"entries {first} to {last} are packed"] if last >= first else []
        return ", ".join([*said, f"{months} months of the table are gone"] if months else said)

    def _drop_months(self) -> int:
        with self._lock:
            try:
                return int(self._line.ask("SELECT drop_packed_months()")[0][0])
            except DatabaseAway:
                # Somebody reads them for long: they go at a later look.
                return 0

    def _last_of_past_months(self) -> int:
        """Number of the newest entry that comes before every one of the month that the newest entry is of."""
        with self.steady() as ask:
            query = (
                "SELECT coalesce(min(seq), 1) - 1 FROM entry WHERE seq > (SELECT coalesce(max(last), 0) FROM packed) "
                "AND at_ms >= (SELECT (extract(epoch FROM date_trunc('month', to_timestamp(max(at_ms) / 1000.0) "
                "AT TIME ZONE 'UTC')) * 1000)::bigint FROM entry)"
            )
            return int(ask(query)[0][0])

    def _pack(self, first: int) -> int:
        rows: list[Row] = list(self.rows(first - 1, CHUNK_ENTRIES))
        count, previous = first - 1, next(self.rows(first - 2, 1))[-1] if first > 1 else GENESIS
        for row in rows:
            if problem := problem_of_row(row, count, previous):
                raise JournalBroken(f"journal {self.name} is not archived: {problem}; restore a backup")
            count, previous = row[0], row[-1]
        values = (self.epoch, self.lease.identity, first, count, previous, pack(rows))
        with self._lock:
            refused = self._line.ask("SELECT pack(%s, %s, %s, %s, %s, %s)", values)[0][0]
        if refused:
            self._lost(str(refused))
        return count

    def close(self) -> None:
        with self._lock:
            self._line.close()
            self.database.close()

    def _added(self, drafts: Sequence[Draft], actor: str, fold: str | None) -> list[Entry]:
        """The entries, once the database has them. To be called with the lock."""
        self.must_lead()
        entries = chained(drafts, actor, self._clock.now_ms(), self.epoch, self._head, self._hash)
        newest = Anchor(entries[-1].seq, entries[-1].hash)
        seal = newest.seal(self.key) if self.key else ""
        values = (*self._place(entries, actor), *_columns(entries), seal, fold)
        refused = self._sent(*self._with_takings(values, entries), newest)
        if refused:
            self._lost(refused)
        self._head, self._hash = newest.seq, newest.hash
        return entries

    def _place(self, entries: Sequence[Entry], actor: str) -> tuple[object, ...]:
        return (self.epoch, self.lease.identity, self._head, self._hash, entries[0].at_ms, actor)

    def _with_takings(self, values: tuple[object, ...], entries: Sequence[Entry]) -> tuple[str, tuple[object, ...]]:
        """The statement that appends, with what the entries take of the fleet's budget, and its values."""
        takings = [one.payload["takes"] for one in entries if "takes" in one.payload]
        if self.fleet is None or not takings:
            return _APPEND, values
        schema, cell = self.fleet
        return _APPEND_TAKING % (_APPEND, schema), (*values, cell, self.epoch, jsonb(takings))

    def _sent(self, query: str, values: Sequence[object], newest: Anchor) -> str:
        """Why the database refuses them; empty where it has them. Raises BudgetSpent."""
        until = self._clock.monotonic() + self.lease.seconds
        while True:
            try:
                refused = str(self._line.ask(query, values)[0][0])
            except NoRoom as error:
                raise BudgetSpent(str(error)) from None
            except DatabaseAway:
                if not self.lease.held() or self._clock.monotonic() > until:
                    raise
                self._never.wait(RETRY_SECONDS)
                continue
            # An earlier try whose answer was lost may have come through: then the end is what this one was to make it.
            return "" if refused == "head" and self._is_end(newest) else refused

    def _is_end(self, newest: Anchor) -> bool:
        with self.steady() as ask:
            return head_of(ask)[0] == newest

    def _lost(self, why: str) -> NoReturn:
        if why == "late" and not self.lease.lost:
            # It ran out and nobody has taken it: a renewal makes it good again.
            raise NotLeading(f"the lease of {self.name} has run out; nothing is done until it is renewed")
        self.lease.lose()
        raise NotLeading(f"another brain writes {self.name} now, or it was restored; this one begins anew")


def _columns(entries: Sequence[Entry]) -> tuple[list[Any], ...]:
    return (
        [entry.kind for entry in entries],
        [int(entry.simulated) for entry in entries],
        [canonical(entry.payload) for entry in entries],
        [entry.previous_hash for entry in entries],
        [entry.hash for entry in entries],
        [about_of(entry.kind, entry.payload) for entry in entries],
    )


def _key_of(key_file: Path | None, seal: str) -> tuple[bytes, bool]:
    """The key, and whether it is new."""
    if key_file is None:
        return b"", False
    if key_file.exists() or seal:
        # The other brains of the cell have it: a second one would seal what they then cannot read.
        return load_key(key_file), False
    return new_key(), True


def must_have_key(database: CellDatabase, key_file: Path | None) -> None:
    """Raise InputError where the head is sealed and `key_file` is not here: found before this brain is needed."""
    with database.steady() as ask:
        seal = head_of(ask)[1]
    if key_file is not None and seal:
        load_key(key_file)


def seal_head(database: CellDatabase, anchor: Anchor, key: bytes) -> None:
    """Seal the head where it is still `anchor`. Raises NotLeading where it has moved, and Unavailable."""
    line = database.line()
    try:
        query = "UPDATE head SET seal = %s WHERE seq = %s AND hash = %s RETURNING seq"
        if not line.ask(query, (anchor.seal(key), anchor.seq, anchor.hash)):
            raise NotLeading(f"the end of {database.name} has moved; try again while no brain runs")
    finally:
        line.close()


def load_checkpoint(past: PostgresPast, fold: Sequence[tuple[Any, ...]]) -> Checkpoint | None:
    """The checkpoint of the journal; None where there is none that counts here."""
    data = str(fold[0][0]).encode() if fold else b""
    if not data or len(data) > checkpoints.MOST_BYTES:
        return None
    return checkpoints.named_by(past.newest_of(EntryKind.CHECKPOINT, checkpoints.LOOKED_AT), data)


def folded(found: Checkpoint | None, part: str) -> tuple[int, Any]:
    """What `LiveJournal.folded` gives of a checkpoint."""
    if found is None or part not in found.parts:
        return 0, None
    return found.seq, found.parts[part]


def read_note(past: PostgresPast, name: str) -> str:
    """The note of the cell; empty where there is none."""
    with past.database.steady() as ask:
        found = ask("SELECT content FROM note WHERE name = %s", (name,))
    return str(found[0][0]) if found else ""
