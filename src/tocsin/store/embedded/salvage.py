"""Mending the SQLite file of the embedded store before it is opened: whatever was done to it, the brain starts.

The file is looked at as a whole: its header, its tables, its trees and indexes, and how much of the write-ahead log
SQLite takes. Of a file that is damaged a copy is kept as ``NAME.damaged``, and all rows that are what was written go to
a new file. What is lost is counted in table ``damaged``.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from tocsin.at_rest.database import connect
from tocsin.at_rest.keys import HEADER_BYTES, RING, is_header
from tocsin.domain.atomic_file import make_private, sync_folder
from tocsin.store.embedded.chunks import BODY, Ask, Chunks, DamagedChunk, is_height
from tocsin.store.embedded.database import MIGRATIONS, PAGE_BYTES, as_text, is_damage, prepare, seal
from tocsin.store.embedded.gpus import GPU_COLUMNS, LOST
from tocsin.store.embedded.segments import SUFFIX, variants_of
from tocsin.store.embedded.sums import ROWS, row_sum

log = structlog.get_logger()

Shape = Mapping[str, tuple[object, ...]]

_HEADER = 100
_MAGIC = b"SQLite format 3\0"
_MODES = (b"\x02\x02", b"\x01\x01")
"""At 18 of the header: WAL, or a rollback journal in a copy."""
_FIXED = {20: (b"\0\x40\x20\x20",), 56: (b"\0\0\0\x01", b"\0\0\0\0")}
"""What the header has elsewhere: no bytes spared, fixed fractions, UTF-8 or, in a file of one log, nothing yet."""
_NEWEST_VERSION = 255
_PAGES = tuple(1 << power for power in range(9, 17))
_LEAP = 10_000
"""How far numbers go on behind those that are known, where those given out last may be lost."""
_FAILED = (sqlite3.Error, UnicodeDecodeError)
"""A statement fails with the second where its message quotes text of a damaged schema."""
_EVERYTHING = Ask(-(2**63), 2**63 - 1, whole=True, variants=True)


@dataclass
class Loss:
    """What could not be had of a file: why it was not whole, and rows by table."""

    problem: str
    frames: int = 0
    rows: dict[str, int] = field(default_factory=dict)

    def add(self, table: str, rows: int = 1) -> None:
        self.rows[table] = self.rows.get(table, 0) + rows


def mend(path: Path) -> None:
    """Make the file at `path` one that can be opened and read; whoever calls is alone with it.

    A file that is none of ours, or of a newer version, stays as it is. Raises OSError, sqlite3.Error where the machine
    and not the file is at fault.
    """
    if not path.exists() or path.stat().st_size == 0:
        return
    header = _header_again(path)
    if not is_header(header) and not _may_be_ours(header):
        return
    commits = _commits(_beside(path, "-wal"))
    problem, taken = _problem(path, header)
    if problem:
        log.error("store is damaged and is made anew of what can be read", store=str(path), problem=problem[:300])
        loss = Loss(problem, taken)
        _remake(path, header, loss)
        taken = loss.frames
    lost = sum(1 for number in commits if number > taken)
    if lost and taken >= 0:
        with closing(connect(path)) as db:
            db.execute("BEGIN")
            _record(db, "wal", lost, f"{lost} transactions of the write-ahead log could not be read")
            db.commit()


def remember(path: Path) -> None:
    """Keep the first page of a file that is whole: where its tables begin stands there alone.

    Nobody may have the file open: to close it here would end the locks that SQLite holds on it in this process.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER)
        # Of an encrypted file its first bytes alone are in the clear, and are what nothing else holds.
        sealed = is_header(header)
        page = header[:HEADER_BYTES] if sealed else header + file.read(max(_page_size(header) - _HEADER, 0))
    kept = _beside(path, ".head")
    if _first_page(path) != page:
        make_private(kept)
        kept.write_bytes(page + zlib.crc32(page).to_bytes(4, "big"))


def _first_page(path: Path) -> bytes:
    """What `remember` kept; empty where that is not whole."""
    try:
        kept = _beside(path, ".head").read_bytes()
    except OSError:
        return b""
    return kept[:-4] if zlib.crc32(kept[:-4]).to_bytes(4, "big") == kept[-4:] else b""


def _header_again(path: Path) -> bytes:
    """The first bytes of a file; those of an encrypted one are put back where they were damaged."""
    with path.open("rb") as file:
        header = file.read(_HEADER)
    kept = _first_page(path)
    if header.startswith((_MAGIC, kept)) or not is_header(kept) or _is_ours(header) or not _is_ours(kept):
        return header
    log.error("the first bytes of an encrypted store were damaged", store=str(path))
    with path.open("r+b") as file:
        file.write(kept)
    return kept + header[HEADER_BYTES:]


def _is_ours(header: bytes) -> bool:
    """Whether a key of this process made these first bytes."""
    return any(key.made(header) for key in RING.held())


def _page_size(header: bytes) -> int:
    size = int.from_bytes(header[16:18], "big")
    return 65_536 if size == 1 else size


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


# ---------------------------------------------------------------------- what is wrong


def _may_be_ours(header: bytes) -> bool:
    """Whether it was a store once; a text that somebody gave for one is not touched."""
    alike = sum(one == other for one, other in zip(header, _MAGIC, strict=False))
    whole = _fixed(header) == len(_FIXED)
    return alike == len(_MAGIC) or whole or (alike >= len(_MAGIC) // 2 and _fixed(header) > 0) or not any(header)


def _is_wrong(header: bytes) -> bool:
    """Whether the header of a plain file is not one of ours."""
    return _fixed(header) < len(_FIXED) or not header.startswith(_MAGIC) or header[18:20] not in _MODES


def _fixed(header: bytes) -> int:
    return sum(header[at : at + 4] in texts for at, texts in _FIXED.items())


def _problem(path: Path, header: bytes) -> tuple[str, int]:
    """Why the file must be made anew, empty where it is whole; and how many frames of the log SQLite took.

    -1 frames where nothing was lost whatever the log holds: the file is of another version, and stays as it is.
    """
    if not is_header(header) and _is_wrong(header):
        return "its header is not as written", 0
    try:
        with closing(connect(path)) as db:
            db.text_factory = as_text
            (version,) = db.execute("PRAGMA user_version").fetchone()
            shape = _shape(db)
            if not shape.keys() & _shape_of(len(MIGRATIONS)).keys():
                return ("its tables are gone" if version and not shape else ""), -1
            true = next((n for n in range(len(MIGRATIONS), 0, -1) if _has(shape, _shape_of(n))), 0)
            if version > len(MIGRATIONS) and (shape != _shape_of(len(MIGRATIONS)) or not true):
                return ("its version is not as written", 0) if version > _NEWEST_VERSION else ("", -1)
            if not true:
                return "its tables are not as written", _frames(db)
            frames = _frames(db)
            if version != true:
                log.error("the version of the store was damaged", store=str(path), found=version, true=true)
                db.execute(f"PRAGMA user_version = {true}")
            return (_first_bad(db) if true == len(MIGRATIONS) else _integrity(db)), frames
    except _FAILED as error:
        if not _is_content(error):
            raise
        return str(error), 0


def _is_content(error: Exception) -> bool:
    """Whether what the file holds made a statement fail, and not the machine."""
    if isinstance(error, UnicodeDecodeError):
        return True
    return is_damage(error) or getattr(error, "sqlite_errorcode", 1) & 0xFF == sqlite3.SQLITE_ERROR


def _frames(db: sqlite3.Connection) -> int:
    _busy, frames, _done = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return int(frames)


def _integrity(db: sqlite3.Connection) -> str:
    found = str(db.execute("PRAGMA integrity_check(1)").fetchone()[0])
    return "" if found == "ok" else found


def _first_bad(db: sqlite3.Connection) -> str:
    """What is wrong with the trees, or with a row without which nothing else can be read."""
    if found := _integrity(db):
        return found
    for table in ("gpu", "segment"):
        for *values, kept in db.execute(f"SELECT {ROWS[table]}, sum FROM {table}"):
            if row_sum(values) != kept:
                return f"a row of table {table} is not as written"
    for (body,) in db.execute("SELECT body FROM chunk_names"):
        with suppress(ValueError):
            json.loads(body)
            continue
        return "a row of table chunk_names is not as written"
    return ""


def _shape(db: sqlite3.Connection) -> dict[str, tuple[object, ...]]:
    """Columns of each table and index; of those alone that stay."""
    found: dict[str, tuple[object, ...]] = {}
    for name, kind in db.execute("SELECT name, type FROM sqlite_schema WHERE name NOT LIKE 'sqlite@_%' ESCAPE '@'"):
        if str(name).startswith(("reading", "metric")):
            continue
        asked = "table_xinfo" if kind == "table" else "index_xinfo"
        found[name] = tuple(tuple(row) for row in db.execute(f"SELECT * FROM pragma_{asked}(?)", (name,)))
    return found


def _shape_of(version: int) -> Shape:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        for script in MIGRATIONS[:version]:
            db.executescript(script)
        return _shape(db)


def _has(shape: Shape, wanted: Shape) -> bool:
    return all(shape.get(name) == columns for name, columns in wanted.items())


def _commits(wal: Path) -> list[int]:
    """Numbers, from 1, of the frames in a write-ahead log that end a transaction of the newest run of the log."""
    try:
        data = wal.read_bytes()
    except OSError:
        return []
    if len(data) < 56:
        return []
    size = int.from_bytes(data[8:12], "big")
    if size not in _PAGES:
        return [1]
    heads = [struct.unpack(">II8s", data[at : at + 16]) for at in range(32, len(data) - size - 23, size + 24)]
    runs = [run for _, _, run in heads[:3]]
    run = data[16:24] if data[16:24] in runs else max(runs, key=runs.count, default=b"")
    return [number for number, (_, pages, which) in enumerate(heads, start=1) if which == run and pages]


# ---------------------------------------------------------------------- making anew


def _remake(path: Path, header: bytes, loss: Loss) -> None:
    """Put a new file with all that can be had in place of `path`, of which a copy is kept."""
    aside, fresh = _beside(path, ".damaged"), _beside(path, ".fresh")
    for old in (aside, _beside(aside, "-wal"), _beside(aside, "-shm"), fresh, _beside(fresh, "-journal")):
        old.unlink(missing_ok=True)
    for suffix in ("", "-wal"):
        if _beside(path, suffix).exists():
            make_private(_beside(aside, suffix))
            shutil.copyfile(_beside(path, suffix), _beside(aside, suffix))
    make_private(fresh)
    if not is_header(header):
        _mend_first_page(aside, header, _first_page(path))
    with closing(connect(fresh, sealed=is_header(header), page_bytes=PAGE_BYTES)) as new:
        new.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        new.execute("PRAGMA synchronous = OFF")
        prepare(new, str(fresh))
        new.execute("BEGIN")
        try:
            with closing(connect(aside)) as old_db:
                old_db.text_factory = as_text
                loss.frames = max(loss.frames, _frames(old_db))
                _copy(old_db, new, loss)
        except _FAILED as error:
            if not _is_content(error):
                raise
            loss.problem += f"; {error}"
        _settle(new, path, loss)
        new.execute("COMMIT")
    with fresh.open("rb") as file:
        os.fsync(file.fileno())
    for suffix in ("-wal", "-shm"):
        # The log first: applied to the new file it would destroy it. Its copy stays.
        _beside(path, suffix).unlink(missing_ok=True)
    fresh.replace(path)
    sync_folder(path.absolute().parent)


def _mend_first_page(path: Path, header: bytes, kept: bytes) -> None:
    """Give the copy the first page that was kept; without one, what is the same in the header of every file of ours."""
    size = path.stat().st_size
    if kept and size >= len(kept) == _page_size(kept):
        with path.open("r+b") as file:
            # As many pages as there are now, and none of them free: which those are is not needed any more.
            file.write(kept[:28] + (size // len(kept)).to_bytes(4, "big") + bytes(8) + kept[40:])
        return
    page = _page_size(header)
    if page not in _PAGES or size % page:
        page = next((p for p in (16_384, 4_096) if size % p == 0), 16_384)
    modes = header[18:20] if header[18:20] in _MODES else _MODES[0]
    with path.open("r+b") as file:
        file.write(_MAGIC + (1 if page == 65_536 else page).to_bytes(2, "big") + modes)
        for at, texts in _FIXED.items():
            file.seek(at)
            file.write(texts[0])
        file.seek(44)
        file.write(b"\0\0\0\x04")


def _copy(old: sqlite3.Connection, new: sqlite3.Connection, loss: Loss) -> None:
    sealed = "sum" in _columns(old, "chunk")
    for table in ("gpu", "segment", "event", "finding", "prediction"):
        names = [name for name in _columns(new, table) if name in _columns(old, table)]
        marks = ", ".join("?" * len(names))
        own = [names.index(name) for name in ROWS[table].replace(" ", "").split(",") if name in names]
        for row in _rows(old, table, names, loss):
            if not sealed or row_sum([row[at] for at in own]) == row[names.index("sum")]:
                with suppress(sqlite3.IntegrityError):
                    new.execute(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", row)
                    continue
            loss.add(table)
    if "damaged" in _tables(old):
        for row in _rows(old, "damaged", ["place", "number", "rows", "problem", "content"], loss):
            with suppress(sqlite3.IntegrityError):
                new.execute("INSERT INTO damaged (place, number, rows, problem, content) VALUES (?, ?, ?, ?, ?)", row)
    _copy_chunks(old, new, loss, sealed)
    if not sealed:
        # All of it, chunks were packed with theirs.
        seal(new)


def _copy_chunks(old: sqlite3.Connection, new: sqlite3.Connection, loss: Loss, sealed: bool) -> None:
    """Chunks that are what was written, packed again: what says where they lie is then right as well."""
    if "chunk" not in _tables(old):
        return
    reader, writer = Chunks(), Chunks()
    columns = [name for name in BODY.replace(" ", "").split(",") if sealed or name not in ("sum", "rest")]
    for number, names, *body in _rows(old, "chunk", ["id", "names", *columns], loss):
        try:
            block = reader.unpacked(old, names, body, _EVERYTHING, sealed=sealed)
            new.execute(_EMPTY, (number,))
            writer.replace(new, int(str(number)), block)
        except (DamagedChunk, sqlite3.IntegrityError, ValueError) as error:
            new.execute("DELETE FROM chunk WHERE id = ?", (number,))
            _record(new, "chunk", int(str(body[1])) if is_height(body[1]) else 1, str(error))
            loss.rows.setdefault("chunk", 0)


_EMPTY = """
INSERT INTO chunk (id, bucket_ms, first_ms, last_ms, first_gpu, last_gpu, height, names, keys, body)
VALUES (?, 0, 0, 0, 0, 0, 0, 0, x'', x'')
"""


def _rows(db: sqlite3.Connection, table: str, names: Sequence[str], loss: Loss) -> Iterator[tuple[object, ...]]:
    """The rows of `table` that can be read, found from both ends and by every index."""
    if table not in _tables(db):
        return
    numbers: set[int] = set()
    whole = False
    indexes = [name for (name,) in db.execute("SELECT name FROM pragma_index_list(?)", (table,))]
    ways = [f"{table} NOT INDEXED ORDER BY rowid", f"{table} NOT INDEXED ORDER BY rowid DESC"]
    ways += [f'{table} INDEXED BY "{name}"' for name in indexes if not name.startswith("sqlite_")]
    for way in ways:
        try:
            numbers.update(int(number) for (number,) in db.execute(f"SELECT rowid FROM {way}"))
            whole = True
        except _FAILED:
            continue
    if not whole:
        loss.add(table)
    for number in sorted(numbers):
        try:
            row = db.execute(f"SELECT {', '.join(names)} FROM {table} WHERE rowid = ?", (number,)).fetchone()
        except _FAILED:
            row = None
        if row is None:
            loss.add(table)
        else:
            yield row


def _tables(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}


def _columns(db: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in db.execute(f"PRAGMA table_info({table})")]


# ---------------------------------------------------------------------- what must hold of the new file


def _settle(db: sqlite3.Connection, path: Path, loss: Loss) -> None:
    _keep_files(db, _beside(path, ".segments"), loss)
    _keep_numbers(db, loss)
    for table in ("event", "finding", "prediction", "gpu", "segment", "chunk", "chunk_names", "damaged", "file"):
        if rows := loss.rows.get(table, 0):
            _record(db, table, rows, f"{loss.problem}: rows of table {table} could not be read")
    if not loss.rows:
        _record(db, "file", 1, loss.problem)


def _keep_files(db: sqlite3.Connection, folder: Path, loss: Loss) -> None:
    """Put files that no row names aside: those of rows that are lost, which a sweep would remove."""
    if not folder.is_dir():
        return
    named = {name for (name,) in db.execute("SELECT name FROM segment")}
    kept = named | {variants_of(Path(name)).name for name in named}
    lost = [one for one in folder.iterdir() if one.name.endswith(SUFFIX) and one.name not in kept]
    for one in lost:
        aside = _beside(folder, ".damaged")
        aside.mkdir(exist_ok=True)
        one.replace(aside / one.name)
    if lost:
        log.error("segments that no row names are set aside", files=len(lost), folder=str(_beside(folder, ".damaged")))
        loss.add("file", len(lost))


_TOPS = (("last_gpu", "chunk"), ("last_gpu", "segment"), ("id", "gpu"))


def _keep_numbers(db: sqlite3.Connection, loss: Loss) -> None:
    """No number of a GPU, chunk or segment that was given out may be given out again."""
    tops = [db.execute(f"SELECT COALESCE(MAX({column}), 0) FROM {table}").fetchone()[0] for column, table in _TOPS]
    there = {number for (number,) in db.execute("SELECT id FROM gpu")}
    highest = min(max(tops), max(there, default=0) + _LEAP)
    gone = [number for number in range(1, highest + 1) if number not in there]
    if loss.rows.get("gpu"):
        # The highest numbers may have been of rows that are lost: one stands for them all.
        gone.append(highest + _LEAP)
    for number in gone:
        row = (f"lost-{number}", "", None, "", "", "", "", "", "", "", "{}", LOST)
        marks = ", ".join("?" * (len(row) + 2))
        db.execute(f"INSERT INTO gpu (id, {GPU_COLUMNS}) VALUES ({marks})", (number, *row, row_sum(row)))
    _newest(db)
    (chunk,) = db.execute(
        "SELECT COALESCE(MAX(n), 0) FROM (SELECT MAX(id) AS n FROM chunk UNION ALL SELECT MAX(newest) FROM segment)"
    ).fetchone()
    (segment,) = db.execute("SELECT COALESCE(MAX(id), 0) FROM segment").fetchone()
    for table, number in (("chunk", chunk), ("segment", segment)):
        db.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
        db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, number + _LEAP))


def _newest(db: sqlite3.Connection) -> None:
    """Each GPU's newest instant: of the chunks, else as it was, but not behind the segments."""
    newest: dict[int, int] = {}
    chunks = Chunks()
    for block in chunks.read(db, Ask(-(2**63), 2**63 - 1, names=frozenset())):
        for gpu, at_ms in zip(block.gpu.tolist(), block.at_ms.tolist(), strict=True):
            newest[gpu] = max(newest.get(gpu, at_ms), at_ms)
    (last,) = db.execute("SELECT MAX(last_ms) FROM segment").fetchone()
    for number, at_ms in db.execute("SELECT id, last_ms FROM gpu WHERE simulated >= 0").fetchall():
        before = None if at_ms is None or last is None else min(int(at_ms), last)
        db.execute("UPDATE gpu SET last_ms = ? WHERE id = ?", (newest.get(number, before), number))


def _record(db: sqlite3.Connection, place: str, rows: int, problem: str) -> None:
    db.execute("INSERT INTO damaged (place, number, rows, problem) VALUES (?, 0, ?, ?)", (place, rows, problem[:300]))
