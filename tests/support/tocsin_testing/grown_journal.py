"""A journal of as many entries as years make, written quickly: one finding after the other, acted on and over."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from tocsin.actions.model.decision_json import dump_decision, dump_outcome
from tocsin.domain.clock import MINUTE, ManualClock
from tocsin.domain.decision import Decision, Mode, Outcome, OutcomeStatus
from tocsin.domain.entry import GENESIS, EntryKind, canonical, digest
from tocsin.domain.finding import ActionKind, Category, Finding, Severity, Subject, SubjectKind
from tocsin.journal.files import COLUMNS, Anchor
from tocsin.journal.journal import Journal
from tocsin.runtime.brain.recorder import finding_payload
from tocsin_testing.builders import T0

N, GPU, HOST = "@n@", "@gpu@", "@host@"
GPUS = 8_000
STEP_MS = 2 * MINUTE
"""Between two findings: a fleet of 8,000 GPUs with 720 a day."""


def _lifecycle() -> list[tuple[EntryKind, str]]:
    """What is journalled of one fault, as stored texts with marks where each has its own."""
    subject = Subject(SubjectKind.GPU, GPU, HOST)
    finding = Finding(
        "gpu_fell_off", subject, Severity.CRITICAL, Category.HARDWARE, ActionKind.CORDON, T0, T0, f"GPU {GPU} is lost."
    )
    key = f"gpu_fell_off|{GPU}|{N}"
    decision = Decision(
        rule=finding.rule, subject=subject, action=ActionKind.CORDON, mode=Mode.ACT, severity=finding.severity,
        category=finding.category, at_ms=T0, expires_ms=T0 + STEP_MS, key=key, sentence=finding.sentence,
        findings=(N,), incident=N,
    )  # fmt: skip
    outcome = Outcome(key, OutcomeStatus.SUCCEEDED, "kubernetes", T0, "cordoned")
    about = {"decision": N, "key": key}
    verdicts = [
        {"guard": guard, "ruling": "allow", "reason": "", "until_ms": None} for guard in ("mode", "fresh_data", "share")
    ]
    opened: dict[str, object] = {"id": N, "root": N, "members": 1, "subjects": [GPU], "sentence": "", "opened_ms": T0}
    start: dict[str, object] = {"subject": f"gpu:{GPU}", "action": "cordon", "executor": "kubernetes", "before": {}}
    found: list[tuple[EntryKind, dict[str, object]]] = [
        (EntryKind.FINDING_OPENED, {**finding_payload(finding), "id": N}),
        (EntryKind.INCIDENT_OPENED, opened),
        (EntryKind.DECISION, {**dump_decision(decision), "id": N}),
        (EntryKind.VERDICT, {**about, "overall": "allow", "verdicts": verdicts, "cause": N}),
        (EntryKind.EXECUTION_STARTED, {**about, **start}),
        (EntryKind.OUTCOME, {**about, "outcome": dump_outcome(outcome), "in_effect": False, "renew": False}),
        (EntryKind.FINDING_CLEARED, {"id": N}),
        (EntryKind.INCIDENT_CLOSED, {"id": N}),
    ]  # fmt: skip
    return [(kind, canonical(payload)) for kind, payload in found]


def _rows(entries: int) -> Iterator[tuple[object, ...]]:
    previous, seq, number, steps = GENESIS, 0, 0, _lifecycle()
    while seq < entries:
        number += 1
        name, gpu, at_ms = f"{number:016x}", f"GPU-{number % GPUS:012d}", T0 + number * STEP_MS
        for kind, text in steps[: entries - seq]:
            seq += 1
            payload = text.replace(N, name).replace(GPU, gpu).replace(HOST, f"node-{number % GPUS // 8}")
            own = digest(previous, seq, 1, at_ms, str(kind), "tocsin", False, payload)
            yield (seq, 1, at_ms, str(kind), "tocsin", 0, payload, previous, own)
            previous = own


def grown(path: Path, entries: int) -> int:
    """Write a journal of `entries` to the new file `path`; the instant of its newest one."""
    Journal.open(path, ManualClock(T0)).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN")
        db.executemany(f"INSERT INTO entry ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", _rows(entries))
        db.execute("COMMIT")
        seq, own, at_ms = db.execute("SELECT seq, hash, at_ms FROM entry ORDER BY seq DESC LIMIT 1").fetchone()
    Anchor(seq, own).write(path)
    return int(at_ms)
