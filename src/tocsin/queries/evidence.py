"""The evidence of one GPU for its vendor: what the journal, the store and the rules have of it, as a sealed archive."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tocsin import __version__
from tocsin.actions.model.ledger_entry import DecisionStatus
from tocsin.domain.clock import to_iso
from tocsin.domain.entry import Entry
from tocsin.domain.errors import InputError
from tocsin.domain.finding import SubjectKind
from tocsin.domain.names_in_text import NameFinder
from tocsin.domain.reading import Gpu, Reading
from tocsin.journal.bundle import pack
from tocsin.journal.export import as_jsonl
from tocsin.journal.page import Wanted
from tocsin.queries.evidence_privacy import Screen, secrets_of, words_of
from tocsin.queries.evidence_tables import Window, peer_table, telemetry_table, windows_of, xid_table
from tocsin.queries.evidence_text import Told, readme, versions_of
from tocsin.queries.live import LiveBrain
from tocsin.queries.scoreboard import is_hardware

MOST_FAULTS = 20
"""Newest faults around which telemetry is given."""
MOST_EVENTS = 5_000
MOST_ENTRIES = 5_000
MOST_PEERS = 32
MOST_READINGS = 20_000
"""Readings of the GPU that are looked at: some 100 metrics each."""
MOST_SECONDS = 20.0
"""For the search in the journal, which may be long."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Which GPU, which span [`start_ms`, `end_ms`), and whether owners are named."""

    gpu: Gpu
    start_ms: int
    end_ms: int
    with_owners: bool


def evidence(brain: LiveBrain, asked: Asked, monotonic: Callable[[], float]) -> bytes:
    """The archive. Raises StoreUnavailable, and InputError where a secret of the settings would be told."""
    gpu, left_out = asked.gpu, list[str]()
    events = brain.store.events(asked.start_ms, asked.end_ms, gpu.uuid)
    if len(events) > MOST_EVENTS:
        left_out.append(f"{len(events) - MOST_EVENTS} earlier events of xids.csv")
    events = events[-MOST_EVENTS:]
    every = [event for event in events if is_hardware(event)]
    if len(every) > MOST_FAULTS:
        left_out.append(f"telemetry around {len(every) - MOST_FAULTS} earlier faults")
    faults = every[-MOST_FAULTS:]
    windows = windows_of(faults)
    readings = _readings(brain, gpu, windows, left_out)
    screen = _screen(brain, asked, readings)
    tried = [status for status in brain.statuses() if _is_about(status, asked)]
    entries = _entries(brain, asked, tried, monotonic, left_out)
    lines = [_line(entry, screen) for entry in entries]
    telemetry, rows_left = telemetry_table(readings, faults, screen)
    if rows_left:
        left_out.append(f"{rows_left} later rows of telemetry.csv")
    peers = _peers(brain, gpu)
    withheld = sum('"withheld"' in line for line in lines)
    told = Told(
        gpu, asked.start_ms, asked.end_ms, brain.clock.now_ms(), every, tried, len(lines), withheld, len(peers),
        bool(brain.journal.key), asked.with_owners, left_out,
    )  # fmt: skip
    files = {
        "README.txt": readme(told),
        "gpu.json": _json(_identity(gpu)),
        "journal.jsonl": "".join(f"{line}\n" for line in lines).encode(),
        "xids.csv": xid_table(events, screen),
        "telemetry.csv": telemetry,
        "peers.csv": peer_table(brain.store, readings, peers, windows),
        "versions.json": _json({"tocsin": __version__, **versions_of(gpu)}),
    }
    _refuse_secrets(files, screen)
    return pack(files, brain.journal.key)


def _is_about(status: DecisionStatus, asked: Asked) -> bool:
    subject = status.decision.subject
    mine = asked.gpu.uuid if subject.kind is SubjectKind.GPU else asked.gpu.host
    return subject.name == mine and asked.start_ms <= status.updated_ms and status.decision.at_ms < asked.end_ms


def _readings(brain: LiveBrain, gpu: Gpu, windows: Sequence[Window], left_out: list[str]) -> list[Reading]:
    found: list[Reading] = []
    for window in windows:
        for reading in brain.store.readings(window.start_ms, window.end_ms, [gpu.uuid]):
            if len(found) >= MOST_READINGS:
                left_out.append(f"telemetry from {to_iso(reading.at_ms)} on")
                return found
            found.append(reading)
    return found


def _screen(brain: LiveBrain, asked: Asked, readings: Sequence[Reading]) -> Screen:
    newest = brain.memory.reading(asked.gpu.uuid)
    owners = [owner for one in (*readings, *([newest] if newest else [])) for owner in one.owners]
    return Screen(asked.with_owners, NameFinder(words_of(owners)), secrets_of(brain.settings))


def _entries(
    brain: LiveBrain,
    asked: Asked,
    tried: Sequence[DecisionStatus],
    monotonic: Callable[[], float],
    left_out: list[str],
) -> list[Entry]:
    """Entries that name the GPU, and those of the decisions about it, in order."""
    journal, until = brain.journal, monotonic() + MOST_SECONDS
    wanted = Wanted(text=asked.gpu.uuid, start_ms=asked.start_ms, end_ms=asked.end_ms)
    numbers = sorted({seq for status in tried for seq in status.steps})[-MOST_ENTRIES:]
    found = {entry.seq: entry for entry in journal.numbered(numbers)}
    before: int | None = None
    while True:
        page = journal.page(before, 500, wanted)
        found |= {entry.seq: entry for entry in page.entries}
        before = page.next_before
        if before is None:
            break
        if len(found) >= MOST_ENTRIES or monotonic() > until:
            left_out.append(f"journal entries below number {before}")
            break
    return [found[seq] for seq in sorted(found)][-MOST_ENTRIES:]


def _line(entry: Entry, screen: Screen) -> str:
    why = screen.against_entry(entry)
    if not why:
        return as_jsonl(entry)
    row = json.loads(as_jsonl(entry))
    kept = ("seq", "epoch", "at", "at_ms", "kind", "simulated", "previous_hash", "hash")
    return json.dumps({**{name: row[name] for name in kept}, "withheld": why}, ensure_ascii=False)


def _peers(brain: LiveBrain, gpu: Gpu) -> list[Gpu]:
    """GPUs of the same model, those of the host where there are any."""
    like = [one for one in brain.gpus if one != gpu and one.model == gpu.model and one.is_mig == gpu.is_mig]
    here = [one for one in like if one.host == gpu.host]
    return (here or like)[:MOST_PEERS]


def _identity(gpu: Gpu) -> dict[str, object]:
    return {
        "uuid": gpu.uuid, "model": gpu.model, "serial": gpu.serial, "pci_bus_id": gpu.pci_bus_id, "host": gpu.host,
        "index": gpu.index, "parent": gpu.parent, "mig_profile": gpu.mig_profile, "pool": gpu.pool, "rack": gpu.rack,
        "simulated": gpu.simulated,
    }  # fmt: skip


def _json(document: object) -> bytes:
    return (json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _refuse_secrets(files: dict[str, bytes], screen: Screen) -> None:
    for name, content in files.items():
        if screen.holds_secret(content.decode("utf-8", "replace")):
            remedy = "change that secret: it is part of a name of the fleet"
            raise InputError("evidence", name, "would hold a secret of the settings", remedy)
