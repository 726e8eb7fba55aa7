"""The journal for other systems: one line an entry."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Literal

from tocsin.domain.clock import to_iso
from tocsin.journal.cef import CefLines
from tocsin.journal.chain import Entry
from tocsin.journal.reader import read_entries

Format = Literal["jsonl", "cef"]


def as_jsonl(entry: Entry) -> str:
    """`entry` as one line of JSON with all that its hash covers, without a line end."""
    row = {
        "seq": entry.seq,
        "epoch": entry.epoch,
        "at": to_iso(entry.at_ms),
        "at_ms": entry.at_ms,
        "kind": entry.kind,
        "actor": entry.actor,
        "simulated": entry.simulated,
        "payload": entry.payload,
        "previous_hash": entry.previous_hash,
        "hash": entry.hash,
    }
    return json.dumps(row, ensure_ascii=False, allow_nan=False)


def export(
    path: Path,
    form: Format,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    after: int = 0,
    kinds: Collection[str] | None = None,
) -> Iterator[str]:
    """Lines of the entries in [`since_ms`, `until_ms`) with `seq` above `after`, in order.

    The journal's clock may step back, so all entries are looked at. Raises InputError where `path` is no journal.
    """
    cef = CefLines()
    # CEF also takes in the entries that are left out: later ones name what those were about.
    for entry in read_entries(path, after=after if form == "jsonl" else 0, kinds=kinds if form == "jsonl" else None):
        early = since_ms is not None and entry.at_ms < since_ms
        late = until_ms is not None and entry.at_ms >= until_ms
        wanted = not early and not late and entry.seq > after and (not kinds or entry.kind in kinds)
        if form == "jsonl" and wanted:
            yield as_jsonl(entry)
        elif form == "cef" and wanted:
            yield cef.line(entry)
        elif form == "cef":
            cef.note(entry)
