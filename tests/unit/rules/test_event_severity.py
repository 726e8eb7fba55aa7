"""What an event says of its own weight decides which rule it falls under, not the worst that its number can mean."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tocsin.client.wire import to_json
from tocsin.collector.kernel_log.parser import KernelEvent, KernelLogParser, KernelRecord
from tocsin.domain.batch import Batch
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import ActionKind, Finding, Severity, SubjectKind
from tocsin.queries.scoreboard import is_hardware
from tocsin.rules.engine import Inputs, RuleEngine
from tocsin.rules.incidents import collapse
from tocsin.rules.load import load_rules
from tocsin.rules.schema import RuleSet
from tocsin.rules.xid_nvlink import SubCode, decode, sub_codes
from tocsin.store.embedded.database import MIGRATIONS
from tocsin.store.embedded.store import SqliteStore
from tocsin_testing.builders import T0, gpu, xid
from tocsin_testing.rule_runs import rules

DATA = Path(__file__).parents[2] / "data" / "kernel_log"
CRITICAL, WARNING, INFO = Severity.CRITICAL, Severity.WARNING, Severity.INFO
HEAD = "NVRM: Xid (PCI:0000:05:00): "
LINK74 = "74, NVLink: fatal error detected on link 2"
SWITCH = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): "
BER = "149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001 0x0 0x0 0x0 0x0)"
RXPIPE = "145, pid=7, name=x, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x1 0x0 0x100000 0x4)"
DOWN = "149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 0x0 0x0 0x0 0x0)"


def heard(*lines: str, driver: str = "") -> list[KernelEvent]:
    parser = KernelLogParser(driver)
    return [event for n, line in enumerate(lines) for event in parser.feed(KernelRecord(line, T0, n))]


def events_of(*lines: str, driver: str = "") -> list[Event]:
    made = []
    for n, one in enumerate(heard(*lines, driver=driver)):
        owner = "" if one.kind is EventKind.SXID else gpu().uuid
        event = Event(one.kind, owner, "node-1", T0 + n, one.code, one.message, "kmsg")
        made.append(replace(event, severity=one.severity, remedy=one.remedy))
    return made


def judged(events: list[Event], ruleset: RuleSet | None = None) -> list[Finding]:
    return list(RuleEngine(ruleset or load_rules()).step(Inputs(T0 + 1_000, (), events)).active)


def short(findings: list[Finding]) -> list[tuple[str, Severity, ActionKind]]:
    return [(finding.rule, finding.severity, finding.action) for finding in findings]


FATAL = [("xid_nvlink", CRITICAL, ActionKind.DRAIN)]
NONFATAL = [("xid_nvlink_nonfatal", WARNING, ActionKind.NOTIFY)]


@pytest.mark.parametrize(
    ("line", "severity", "remedy", "expected"),
    [
        (BER, WARNING, "ignore", NONFATAL),
        (RXPIPE, WARNING, "ignore", NONFATAL),
        (DOWN, CRITICAL, "reset_gpu", FATAL),
        ("149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x0 0x0 0x0 0x0)", CRITICAL, "reset_gpu", FATAL),
        # The driver's word stands against a milder decode, and for a sub-code that no table has.
        (BER.replace("Nonfatal", "Fatal"), CRITICAL, "ignore", FATAL),
        ("149, NETIR_NEW_UNIT Nonfatal XC0 i0 Link 03 (0x0000001f 0x1)", WARNING, "", NONFATAL),
        ("149, NETIR_NEW_UNIT Fatal XC0 i0 Link 03 (0x0000001f 0x1)", CRITICAL, "", FATAL),
        # Without a word or a sub-code the number alone speaks.
        ("149, something went wrong", None, "", FATAL),
        (LINK74 + "(0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)", INFO, "ignore", []),
        (LINK74 + "(0x2, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)", WARNING, "follow_others", NONFATAL),
        (LINK74 + "(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)", CRITICAL, "reset_gpu", FATAL),
        (LINK74 + "(0x100, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)", CRITICAL, "check_mechanicals", FATAL),
        # A harmless bit beside one that the catalogue does not name is not known to be harmless.
        (LINK74 + "(0x5, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)", None, "", FATAL),
        (LINK74, None, "", FATAL),
    ],
)  # fmt: skip
def test_lines_of_the_driver(
    line: str, severity: Severity | None, remedy: str, expected: list[tuple[str, Severity, ActionKind]]
) -> None:
    (event,) = events_of(HEAD + line)
    assert (event.severity, event.remedy) == (severity, remedy)
    assert short(judged([event])) == expected


def word(row: SubCode) -> int:
    return int(row.from_r575.replace("-", "0"), 2)


@pytest.mark.parametrize(
    "row", sub_codes(), ids=lambda row: f"{row.xid}-{row.unit}-{row.error_status:x}-{row.immediate}"
)
def test_every_row_of_the_table(row: SubCode) -> None:
    unit = row.unit.split("/")[0]
    decoded = decode(row.xid, (word(row), row.error_status), unit=unit, driver=580)
    assert decoded is not None
    event = replace(xid(row.xid), severity=decoded.rating, remedy=decoded.immediate)
    if row.severity != "non_fatal":
        assert short(judged([event])) == FATAL
    elif row.immediate == row.investigate == "ignore":
        assert judged([event]) == []
    else:
        assert short(judged([event])) == NONFATAL


def test_a_flag_that_no_row_has_is_not_called_harmless() -> None:
    row = next(row for row in sub_codes() if row.xid == 146 and row.severity == "non_fatal")
    unit = row.unit.split("/")[0]
    known = decode(row.xid, (word(row), row.error_status), unit=unit, driver=580)
    named = [one.error_status for one in sub_codes() if one.matches(word(row), v2=True)]
    free = next(bit for bit in range(32) if not any(status >> bit & 1 for status in named))
    more = decode(row.xid, (word(row), row.error_status | 1 << free), unit=unit, driver=580)
    assert known is not None and known.rating is not None  # noqa: PT018
    assert more is not None and more.known and more.rating is None  # noqa: PT018


def test_the_published_log_as_a_whole() -> None:
    lines = (DATA / "published_nvlink5.log").read_text(encoding="utf-8").splitlines()
    events = events_of(*lines[:2])
    (finding,) = judged(events)
    assert (finding.rule, finding.value) == ("xid_nvlink_nonfatal", 149)
    assert finding.sentence == (
        "node-1 GPU-00000000: XID 149, not fatal: NVLink unit NETIR reported a link event, mostly a link "
        "that went down. NVIDIA's catalogue says IGNORE."
    )
    assert [item.name for item in finding.evidence] == ["xid:149", "xid:145", "burst"]
    assert "investigate_link_si_and_cables" in finding.evidence[0].text
    rest = {finding.rule for finding in judged(events_of(*lines))}
    assert rest == {"xid_nvlink_nonfatal", "xid_nvlink", "driver_recovery_action"}


def test_the_worst_of_one_number_speaks_and_the_mild_one_has_a_finding_of_its_own() -> None:
    events = events_of(HEAD + DOWN, HEAD + BER)
    by_rule = {finding.rule: finding for finding in judged(events)}
    assert set(by_rule) == {"xid_nvlink", "xid_nvlink_nonfatal"}
    assert "says RESET_GPU" in by_rule["xid_nvlink"].sentence
    assert "link-fatal" in by_rule["xid_nvlink"].evidence[0].text
    (incident,) = collapse(by_rule.values(), events)
    assert incident.root.rule == "xid_nvlink", "149 is nearest to the cause only where it is fatal"


def test_a_mild_149_is_not_the_root_of_a_fatal_145() -> None:
    fatal = replace(xid(145, gpu(1), T0 + 5), severity=CRITICAL, remedy="reset_gpu")
    events = [*events_of(HEAD + BER), fatal]
    (incident,) = collapse(judged(events), events)
    assert (incident.root.rule, incident.root.value, len(incident.members)) == ("xid_nvlink", 145, 2)


def test_the_catalogues_action_is_that_of_the_event() -> None:
    own = rules(
        '[[rules]]\nname = "r"\nseverity = "warning"\ncategory = "hardware"\naction = "catalogue"\nalert = "{code}"\n'
        'all = [{ kind = "xid", codes = [149] }]'
    )
    assert [finding.action for finding in judged([xid(149)], own)] == [ActionKind.DRAIN]
    assert [finding.action for finding in judged(events_of(HEAD + BER), own)] == [ActionKind.NOTIFY]
    counted = rules(
        '[[rules]]\nname = "r"\nseverity = "warning"\ncategory = "hardware"\naction = "catalogue"\nalert = "{code}"\n'
        'all = [{ kind = "event_count", event = "xid", codes = [149], within = "1h" }]'
    )
    assert [finding.action for finding in judged([xid(149)], counted)] == [ActionKind.DRAIN]
    assert [finding.action for finding in judged(events_of(HEAD + BER), counted)] == [ActionKind.NOTIFY]


@pytest.mark.parametrize(
    ("corrections", "line", "expected"),
    [
        ('[[xid]]\ncode = 149\nseverity = "critical"\nreason = "x"', HEAD + BER, FATAL),
        ('[[xid]]\ncode = 149\nseverity = "warning"\nreason = "x"', HEAD + DOWN, NONFATAL),
        ('[[xid]]\ncode = 149\ncause_rank = 3\nreason = "x"', HEAD + BER, NONFATAL),
    ],
)
def test_what_a_site_corrects_comes_before_the_sub_code(
    corrections: str, line: str, expected: list[tuple[str, Severity, ActionKind]]
) -> None:
    assert short(judged(events_of(line), rules(f"defaults = true\nrules = []\n{corrections}"))) == expected


PARTITION = [("nvswitch_partition_fatal", CRITICAL, ActionKind.NOTIFY)]
LESSER = [("nvswitch_error", WARNING, ActionKind.NOTIFY)]


@pytest.mark.parametrize(
    ("line", "expected", "words"),
    [
        ("99999, Fatal, Link 3 something new", PARTITION, "unknown number, not in the catalogue; the switch"),
        ("99999, Non-fatal, Link 3 something new", LESSER, "A number that is not in the catalogue"),
        ("12028, Non-fatal, Link 32 egress", LESSER, "SXid 12028"),
        ("12028, Fatal, Link 32 egress", PARTITION, "the switch itself called it fatal"),
        ("20034, Fatal, Link 3 LTSSM Fault Up", PARTITION, "A link that was up has gone down"),
        ("23001, Fatal, Link 3 ingress", [("nvswitch_fabric_fatal", CRITICAL, ActionKind.DRAIN)], "SXid 23001"),
    ],
)  # fmt: skip
def test_the_word_of_a_switch_counts(line: str, expected: list[tuple[str, Severity, ActionKind]], words: str) -> None:
    events = events_of(SWITCH + line)
    (finding,) = judged(events)
    assert short([finding]) == expected
    assert words in finding.sentence
    assert finding.subject.kind is SubjectKind.HOST


def test_an_unknown_fatal_sxid_is_the_cause_of_the_links_that_fail_with_it() -> None:
    events = [*events_of(SWITCH + "99999, Fatal, Link 3 x"), xid(74, gpu(1), T0 + 9)]
    (incident,) = collapse(judged(events), events)
    assert incident.root.rule == "nvswitch_partition_fatal"


def test_a_class_that_a_site_gives_comes_before_the_word_of_the_switch() -> None:
    own = rules('defaults = true\nrules = []\n[[sxid]]\ncode = 99999\nclass = "notable"\nreason = "x"')
    assert short(judged(events_of(SWITCH + "99999, Fatal, Link 3 x"), own)) == LESSER


def test_the_scoreboard_goes_by_the_event() -> None:
    assert is_hardware(xid(149))
    assert is_hardware(events_of(HEAD + DOWN)[0])
    assert not is_hardware(events_of(HEAD + BER)[0])


def test_the_api_shows_both() -> None:
    (event,) = events_of(HEAD + BER)
    shown = to_json(event)
    assert (shown["severity"], shown["remedy"]) == ("warning", "ignore")
    bare = to_json(xid(149))
    assert (bare["severity"], bare["remedy"]) == (None, "")


def test_the_name_of_an_event_is_not_changed_by_what_it_weighs() -> None:
    assert replace(xid(149), severity=INFO, remedy="ignore").id == xid(149).id


def test_an_embedded_store_of_the_version_before_is_brought_over(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as db:
        for script in MIGRATIONS[:2]:
            db.executescript(script)
        old = xid(149)
        row = (old.id, "xid", old.gpu, old.host, old.at_ms, old.code, old.message, old.source, 0)
        db.execute("INSERT INTO event VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        db.execute("PRAGMA user_version = 2")
        db.commit()
    store = SqliteStore(path)
    new = replace(xid(149, at_ms=T0 + 1), severity=WARNING, remedy="ignore")
    store.write(Batch(events=[new]))
    assert store.events(T0, T0 + 2) == [old, new]
    store.close()
