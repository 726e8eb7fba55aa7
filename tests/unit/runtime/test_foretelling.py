"""Rules that foretell failures: their signs count when their time is over, and poor ones become notes."""

from __future__ import annotations

from pathlib import Path

from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import DAY, HOUR, ManualClock
from tocsin.domain.entry import EntryKind
from tocsin.domain.finding import ActionKind, Category, Finding, Severity, Subject, SubjectKind
from tocsin.domain.sign_record import SignRecord
from tocsin.journal.journal import Journal
from tocsin.rules.load import load_rules
from tocsin.runtime.brain.foretelling import FORETELLING_PART, KEPT_MS, ForetellingRules
from tocsin.runtime.brain.recorder import finding_payload
from tocsin_testing.builders import T0

SIGN = "pcie_replays"
WINDOW_MS = load_rules().foretelling[SIGN]


def finding(
    rule: str, gpu: int, at_ms: int, severity: Severity = Severity.WARNING, host: str = "", simulated: bool = False
) -> Finding:
    subject = Subject(SubjectKind.GPU, f"GPU-{gpu}", host or f"node-{gpu}")
    return Finding(rule, subject, severity, Category.HARDWARE, ActionKind.NOTIFY, at_ms, at_ms, "", simulated=simulated)


def journal(tmp_path: Path) -> Journal:
    return Journal.open(tmp_path / "journal.db", ManualClock(T0))


def signs(count: int, followed: int) -> list[Finding]:
    """`count` signs an hour apart on as many GPUs; a fault comes an hour after each of the first `followed`."""
    made = [finding(SIGN, n, T0 + n * HOUR) for n in range(count)]
    made += [finding("xid_bus", n, T0 + (n + 1) * HOUR, Severity.CRITICAL) for n in range(followed)]
    return sorted(made, key=lambda one: one.started_ms)


def test_signs_that_nothing_follows_become_notes_once_their_time_is_over(tmp_path: Path) -> None:
    log = journal(tmp_path)
    rules = ForetellingRules(log, {SIGN: WINDOW_MS}, 0.2)
    rules.opened(signs(6, 0))
    fresh = finding(SIGN, 9, T0 + 7 * HOUR)
    assert rules.levelled([fresh], T0 + 7 * HOUR)[0].alert_level is AlertLevel.WARNING, "nothing is settled"
    late = T0 + 6 * HOUR + WINDOW_MS
    assert rules.levelled([fresh], late)[0].alert_level is AlertLevel.NOTE
    other = finding("gpu_silent", 9, T0)
    assert rules.levelled([other], late) == [other], "what foretells nothing is what it says"
    log.close()


def test_signs_that_are_borne_out_stay_warnings_and_a_fault_counts_no_sooner(tmp_path: Path) -> None:
    log = journal(tmp_path)
    rules = ForetellingRules(log, {SIGN: WINDOW_MS}, 0.2)
    rules.opened(signs(6, 4))
    assert rules.precision(SIGN, T0 + 8 * HOUR) is None
    assert rules.precision(SIGN, T0 + 6 * HOUR + WINDOW_MS) == 4 / 6
    log.close()


def test_the_record_is_told_with_what_becomes_of_it(tmp_path: Path) -> None:
    log = journal(tmp_path)
    rules = ForetellingRules(log, {SIGN: WINDOW_MS, "never_seen": WINDOW_MS}, 0.5)
    assert rules.records(T0) == []
    rules.opened(signs(6, 1))
    late = T0 + 6 * HOUR + WINDOW_MS
    (early,) = rules.records(T0 + 6 * HOUR)
    assert early.line == f"rule {SIGN}: 6 signs, and whether a failure follows is not known yet"
    rules.opened([finding(SIGN, 20, late)])
    (record,) = rules.records(late)
    assert record == SignRecord(SIGN, settled=6, right=1, open=1, precision=1 / 6, muted=True)
    assert record.line == f"rule {SIGN}: a failure followed 1 of 6 signs in 30 days, told as notes"
    good = ForetellingRules(log, {SIGN: WINDOW_MS}, 0.1)
    good.opened(signs(6, 1))
    assert [(one.muted, one.line[-1]) for one in good.records(late)] == [(False, "s")]
    log.close()


def test_the_record_is_a_fold_of_the_journal_and_of_its_checkpoint(tmp_path: Path) -> None:
    log = journal(tmp_path)
    rules = ForetellingRules(log, {SIGN: WINDOW_MS}, 0.2)
    for one in signs(6, 1):
        log.append(EntryKind.FINDING_OPENED, finding_payload(one))
        rules.opened([one])
    late = T0 + 6 * HOUR + WINDOW_MS
    assert ForetellingRules(log, {SIGN: WINDOW_MS}, 0.2).precision(SIGN, late) == rules.precision(SIGN, late) == 1 / 6
    log.save(log.head, {FORETELLING_PART: rules.state()})
    log.close()
    again = journal(tmp_path)
    assert ForetellingRules(again, {SIGN: WINDOW_MS}, 0.2).precision(SIGN, late) == 1 / 6
    again.close()


def test_a_rule_whose_failures_come_later_is_judged_later(tmp_path: Path) -> None:
    log = journal(tmp_path)
    rules = ForetellingRules(log, {SIGN: 2 * DAY, "slow": 7 * DAY}, 0.2)
    for number in range(6):
        rules.opened([finding(rule, number, T0) for rule in (SIGN, "slow")])
    rules.opened([finding("xid_bus", number, T0 + 5 * DAY, Severity.CRITICAL) for number in range(6)])
    assert rules.precision(SIGN, T0 + 6 * DAY) == 0.0
    assert rules.precision("slow", T0 + 6 * DAY) is None, "its time is not over"
    assert rules.precision("slow", T0 + 7 * DAY) == 1.0
    log.close()


def test_what_the_shipped_rules_foretell() -> None:
    foretelling = {rule.name: rule for rule in load_rules() if rule.table.foretells}
    assert SIGN in foretelling
    assert all(rule.level is AlertLevel.WARNING for rule in foretelling.values()), "a page is about what has happened"


def test_a_gpu_that_flaps_gives_one_sign_in_its_window(tmp_path: Path) -> None:
    log = journal(tmp_path)
    rules = ForetellingRules(log, {SIGN: WINDOW_MS}, 0.2)
    rules.opened(finding(SIGN, 1, T0 + n * HOUR) for n in range(40))
    assert len(rules.state()["open"]) == 1
    log.close()


def test_one_host_never_mutes_a_rule_for_the_fleet(tmp_path: Path) -> None:
    log = journal(tmp_path)
    rules = ForetellingRules(log, {SIGN: WINDOW_MS}, 0.5)
    for number in range(40):
        rules.opened([finding(SIGN, number, T0 + number * HOUR, host="node-bad")])
    late = T0 + 40 * HOUR + WINDOW_MS
    assert rules.precision(SIGN, late) is None, "one host alone"
    for number in range(4):
        at_ms = late + number * HOUR
        rules.opened([finding(SIGN, 100 + number, at_ms)])
        rules.opened([finding("xid_bus", 100 + number, at_ms + HOUR // 2, Severity.CRITICAL)])
    assert rules.precision(SIGN, late + 4 * HOUR + WINDOW_MS) == 4 / 5
    log.close()


def test_a_poor_record_ends_though_no_new_sign_settles(tmp_path: Path) -> None:
    log = journal(tmp_path)
    rules = ForetellingRules(log, {SIGN: WINDOW_MS}, 0.2)
    rules.opened(signs(6, 0))
    late = T0 + 6 * HOUR + WINDOW_MS
    assert rules.precision(SIGN, late) == 0.0
    assert rules.precision(SIGN, late + KEPT_MS) is None
    log.close()


def test_simulated_gpus_have_a_record_of_their_own(tmp_path: Path) -> None:
    log = journal(tmp_path)
    rules = ForetellingRules(log, {SIGN: WINDOW_MS}, 0.2)
    rules.opened(finding(SIGN, n, T0 + n * HOUR, simulated=True) for n in range(6))
    late = T0 + 6 * HOUR + WINDOW_MS
    real, made_up = finding(SIGN, 9, late), finding(SIGN, 10, late, simulated=True)
    levels = [one.alert_level for one in rules.levelled([real, made_up], late)]
    assert levels == [AlertLevel.WARNING, AlertLevel.NOTE]
    log.close()


def test_a_checkpoint_of_before_hosts_were_on_record_is_read(tmp_path: Path) -> None:
    log = journal(tmp_path)
    old = {"open": [(SIGN, "GPU-1", T0)], "hit": [(SIGN, "GPU-1", T0)], "settled": {SIGN: [(T0, False)]}}
    log.append(EntryKind.SERVICE_STARTED, {})
    log.save(log.head, {FORETELLING_PART: old})
    log.close()
    again = journal(tmp_path)
    rules = ForetellingRules(again, {SIGN: WINDOW_MS}, 0.2)
    assert rules.precision(SIGN, T0 + WINDOW_MS) is None
    assert len(rules.state()["settled"][SIGN]) == 2
    again.close()
