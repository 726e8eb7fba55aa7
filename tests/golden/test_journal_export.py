"""The exported journal, byte for byte, with an entry of every kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tocsin import __version__
from tocsin.actions.model.decision_json import dump_decision, dump_outcome
from tocsin.cli.main import cli
from tocsin.domain.clock import MINUTE, ManualClock, to_iso
from tocsin.domain.decision import Decision, Mode, Outcome, OutcomeStatus
from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.finding import ActionKind, Category, Severity, Subject, SubjectKind
from tocsin.journal.export import KINDS, MAX_REMEMBERED, CefLines
from tocsin.journal.journal import Journal
from tocsin_testing.builders import T0

GOLDEN = Path(__file__).parent / "journal"

DRAIN = Decision(
    rule="xid_fatal",
    subject=Subject(SubjectKind.GPU, "GPU-5d1f0b7c", "node-7", "train-a"),
    action=ActionKind.DRAIN,
    mode=Mode.PROPOSE,
    severity=Severity.CRITICAL,
    category=Category.HARDWARE,
    at_ms=T0,
    expires_ms=T0 + 60 * MINUTE,
    key="xid_fatal|gpu:GPU-5d1f0b7c|drain|1795000000000",
    sentence="Drain node-7: XID 79 on GPU-5d1f0b7c | it fell off the bus = lost.",
    findings=("0123456789abcdef",),
)
FINDING: Mapping[str, Any] = {
    "rule": "xid_fatal",
    "subject": {"kind": "gpu", "name": "GPU-5d1f0b7c", "host": "node-7", "pool": "train-a", "detail": ""},
    "severity": "critical",
    "sentence": "XID 79 on GPU-5d1f0b7c: fallen off the bus.",
}
ABOUT = {"decision": DRAIN.id, "key": DRAIN.key}
DONE = Outcome(DRAIN.id, OutcomeStatus.SUCCEEDED, "kubernetes", T0, "node-7 is empty")
COUNTS = {"settled": 20, "right": 20, "measured": 18, "reached": 18}
BY_HAND = {
    "id": "fedcba9876543210",
    "phase": "ended",
    "action": "cordon",
    "subject": {"kind": "host", "name": "node-7", "host": "node-7", "pool": "", "detail": ""},
    "reason": "XID 79",
    "manager": "https://10.0.0.1:6443",
    "by": "unix:anna@admin-1",
    "status": "succeeded",
    "detail": "ok: cordoned node-7",
}
SILENCE = {"id": "s1", "starts_ms": T0, "until_ms": T0 + 60 * MINUTE}
VERSION_CHANGE = {"component": "driver", "model": "H100", "before": "550.1", "after": "570.2", "hosts": ["node-7"]}
READ = {"who": "vera", "role": "viewer", "path": "/v1/gpus", "count": 2, "first_ms": T0, "last_ms": T0 + 5}
ENTRIES: list[tuple[EntryKind, Mapping[str, Any], str]] = [
    (EntryKind.SERVICE_STARTED, {"epoch": 1, "mode": "propose"}, "tocsin"),
    (EntryKind.FINDING_OPENED, {"id": "0123456789abcdef", "finding": FINDING}, "tocsin"),
    (
        EntryKind.INCIDENT_OPENED,
        {"id": "i1", "root": "0123456789abcdef", "members": 1, "sentence": "XID 79."},
        "tocsin",
    ),
    (EntryKind.INCIDENT_UPDATED, {"id": "i1", "root": "0123456789abcdef", "members": 2, "sentence": "Both."}, "tocsin"),
    (
        EntryKind.PREDICTION,
        {"id": "p1", "subject": "gpu:GPU-9", "target": "memory", "sentence": "Full soon."},
        "tocsin",
    ),
    (EntryKind.DECISION, dump_decision(DRAIN), "tocsin"),
    (EntryKind.VERDICT, {**ABOUT, "overall": "hold", "verdicts": []}, "tocsin"),
    (EntryKind.LOGIN, {"address": "192.0.2.7", "role": "operator", "until_ms": T0}, "ldap:anna"),
    (EntryKind.APPROVAL, ABOUT, "ldap:anna"),
    (
        EntryKind.EXECUTION_STARTED,
        {**ABOUT, "subject": "gpu:GPU-5d1f0b7c", "action": "drain", "executor": "kubernetes"},
        "tocsin",
    ),
    (EntryKind.EXECUTION_GOES_ON, {**ABOUT, "detail": "3 pods are left"}, "tocsin"),
    (EntryKind.VERIFICATION, {**ABOUT, "phase": "checked", "seen": True}, "tocsin"),
    (EntryKind.OUTCOME, {**ABOUT, "outcome": dump_outcome(DONE), "in_effect": True}, "tocsin"),
    (EntryKind.NOTIFICATION, {"key": "n1", "decision": DRAIN.id, "outcome": dump_outcome(DONE)}, "tocsin"),
    (EntryKind.REJECTION, {**ABOUT, "reason": "a \\ test\nof two lines"}, "oidc:olga|ops=1"),
    (EntryKind.PAUSE, {"reason": "power work"}, "ldap:anna"),
    (EntryKind.RESUME, {}, "ldap:anna"),
    (EntryKind.BREAKER_TRIPPED, {"causes": ["a|gpu:1"], "reason": "3 root causes within 1 h"}, "tocsin"),
    (EntryKind.BREAKER_RESET, {}, "ldap:anna"),
    (EntryKind.HOLD_OFF, {"subject": "host:node-7", "until_ms": T0, "reason": "repaired"}, "ldap:anna"),
    (EntryKind.EFFECT_ENDED, {"keys": [DRAIN.key], "reason": "the node has left the fleet"}, "tocsin"),
    (EntryKind.INJECTION, {"kind": "gsp_timeout", "gpu": "GPU-sim", "at_ms": T0}, "loopback"),
    (EntryKind.IMPORT_DONE, {"source": "history.csv"}, "tocsin"),
    (EntryKind.MODEL_IN_SERVICE, {"id": "m1", "reason": "won its trial"}, "tocsin"),
    (EntryKind.LOGIN_LOCKED, {"user": "anna", "address": "192.0.2.66", "seconds": 30.0}, "tocsin"),
    (EntryKind.MANUAL_ACTION, BY_HAND, "unix:anna@admin-1"),
    (EntryKind.LOGOUT, {}, "ldap:anna"),
    (EntryKind.INCIDENT_CLOSED, {"id": "i1"}, "tocsin"),
    (EntryKind.FINDING_CLEARED, {"id": "0123456789abcdef"}, "tocsin"),
    (EntryKind.SERVICE_STOPPED, {"epoch": 1}, "tocsin"),
    (EntryKind.CHECKPOINT, {"seq": 30, "sha256": "5e" * 32, "version": "0.1.0"}, "tocsin"),
    (
        EntryKind.FORECAST_MUTED,
        {"kind": "m|t", "settled": 25, "right": 1, "precision": 0.04, "sentence": "Muted."},
        "tocsin",
    ),
    (
        EntryKind.FORECAST_HEARD,
        {"kind": "m|t", "settled": 25, "right": 9, "precision": 0.36, "sentence": "Heard."},
        "tocsin",
    ),
    (EntryKind.ARCHIVED, {"first": 1, "last": 20, "hash": "6f" * 32, "file": "000000000001-000000000020.db"}, "tocsin"),
    (EntryKind.RULE_EARNED_ACT, {"rule": "hot", "sentence": "Rule hot acts alone.", **COUNTS}, "tocsin"),
    (EntryKind.RULE_FELL_BACK, {"rule": "hot", "sentence": "Rule hot waits for approval.", **COUNTS}, "tocsin"),
    (EntryKind.CAUSE_ACKNOWLEDGED, {**SILENCE, "subject": "card:i1", "causes": ["i1"], "reason": "mine"}, "ldap:anna"),
    (EntryKind.SNOOZED, {**SILENCE, "subject": "host:node-7", "level": "page", "reason": "bad fan"}, "ldap:anna"),
    (EntryKind.MAINTENANCE_PLANNED, {**SILENCE, "subject": "rack:r12", "reason": "new PDU"}, "ldap:anna"),
    (EntryKind.SILENCE_ENDED, {"id": "s1", "silence": "snooze", "subject": "host:node-7"}, "oidc:olga|ops=1"),
    (EntryKind.VERSIONS_CHANGED, {"changes": [VERSION_CHANGE]}, "tocsin"),
    (EntryKind.READS, {"reads": [READ], "left_out": 3}, "tocsin"),
]


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "journal.db"
    clock = ManualClock(T0)
    written = Journal.open(path, clock)
    for kind, payload, actor in ENTRIES:
        written.append(kind, payload, actor=actor, simulated=kind is EntryKind.INJECTION)
        clock.advance(MINUTE)
    written.close()
    return path


def exported(journal: Path, *options: str) -> str:
    result = CliRunner().invoke(cli, ["journal", "export", str(journal), *options], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.parametrize("form", ["jsonl", "cef"])
def test_every_kind_of_entry(journal: Path, form: str) -> None:
    golden = (GOLDEN / f"export.{form}").read_text(encoding="utf-8")
    assert exported(journal, "--format", form) == golden.replace("@VERSION@", __version__)


def test_every_kind_has_a_row_and_an_example() -> None:
    # Whoever adds a kind says there how a SIEM is to see it, and here what it looks like.
    assert set(KINDS) == set(EntryKind)
    assert {kind for kind, _, _ in ENTRIES} == set(EntryKind)


def test_json_lines_have_what_the_chain_covers(journal: Path) -> None:
    rows = [json.loads(line) for line in exported(journal).splitlines()]
    assert [row["previous_hash"] for row in rows[1:]] == [row["hash"] for row in rows[:-1]]
    assert rows[8] == {**rows[8], "seq": 9, "kind": "approval", "actor": "ldap:anna", "payload": ABOUT}


def test_spans_kinds_and_numbers(journal: Path) -> None:
    def sequence(*options: str) -> list[int]:
        return [json.loads(line)["seq"] for line in exported(journal, *options).splitlines()]

    since, until = to_iso(T0 + 2 * MINUTE), to_iso(T0 + 5 * MINUTE)
    assert sequence("--since", since, "--until", until) == [3, 4, 5]
    assert sequence("--kind", "approval", "--kind", "pause") == [9, 16]
    assert sequence("--after", "28") == list(range(29, len(ENTRIES) + 1))
    assert sequence("--kind", "approval", "--since", until) == [9]
    assert sequence("--kind", "approval", "--until", until) == []


def test_a_line_of_cef_knows_what_earlier_entries_said(journal: Path) -> None:
    (line,) = exported(journal, "--format", "cef", "--kind", "approval").splitlines()
    assert "suser=ldap:anna act=approve cat=drain dhost=node-7" in line
    assert line in exported(journal, "--format", "cef")
    (late,) = exported(journal, "--format", "cef", "--after", "8", "--kind", "approval").splitlines()
    assert late == line


def test_only_so_much_is_remembered() -> None:
    lines = CefLines()
    for number in range(MAX_REMEMBERED + 1):
        lines.note(Entry(number, 1, T0, "decision", "tocsin", {"id": str(number), "rule": "r"}, False, "", ""))
    first = Entry(0, 1, T0, "approval", "anna", {"decision": "0"}, False, "", "")
    last = Entry(0, 1, T0, "approval", "anna", {"decision": str(MAX_REMEMBERED)}, False, "", "")
    assert ["cs4=r" in lines.line(entry) for entry in (first, last)] == [False, True]


def test_a_file_appears_whole_and_is_not_written_over(journal: Path, tmp_path: Path) -> None:
    out = tmp_path / "journal.cef"
    arguments = ["journal", "export", str(journal), "--format", "cef", "--output", str(out)]
    first = CliRunner().invoke(cli, arguments)
    assert (first.exit_code, first.stdout) == (0, "")
    assert first.stderr == f"ok: {len(ENTRIES)} entries in {out}\n"
    assert out.read_text(encoding="utf-8") == exported(journal, "--format", "cef")
    assert [path.name for path in tmp_path.iterdir()] == ["journal.cef"]
    assert "exists; name a new file" in str(CliRunner().invoke(cli, arguments).exception)


@pytest.mark.parametrize(
    ("options", "says"),
    [(["--since", "yesterday"], "is no instant"), (["--kind", "aproval"], "is no kind of entry")],
)
def test_bad_options_are_named(journal: Path, options: list[str], says: str) -> None:
    assert says in str(CliRunner().invoke(cli, ["journal", "export", str(journal), *options]).exception)
