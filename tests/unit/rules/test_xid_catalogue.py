"""The XID catalogue against what NVIDIA and the trade say of single numbers."""

from __future__ import annotations

import pytest

from tocsin.domain.finding import ActionKind, Category, Severity
from tocsin.rules.load import parse_rules
from tocsin.rules.xid import shipped_catalogue, xid
from tocsin_testing import builders
from tocsin_testing.rule_runs import Run, instant


def test_it_has_every_number_from_1_to_176_once() -> None:
    assert [spec.code for spec in shipped_catalogue().specs()] == list(range(1, 177))


@pytest.mark.parametrize(
    ("code", "xid_class", "severity", "action"),
    [
        (13, "application", Severity.WARNING, ActionKind.NOTIFY),
        (31, "application", Severity.WARNING, ActionKind.NOTIFY),
        (43, "application", Severity.WARNING, ActionKind.NOTIFY),
        (45, "application", Severity.WARNING, ActionKind.NOTIFY),
        (48, "memory", Severity.CRITICAL, ActionKind.DRAIN),
        (63, "memory", Severity.WARNING, ActionKind.NOTIFY),
        (64, "memory", Severity.CRITICAL, ActionKind.RESET_GPU),
        (74, "nvlink", Severity.CRITICAL, ActionKind.DRAIN),
        (79, "bus", Severity.CRITICAL, ActionKind.REBOOT_NODE),
        (94, "memory", Severity.WARNING, ActionKind.NOTIFY),
        (95, "memory", Severity.CRITICAL, ActionKind.RESET_GPU),
        (119, "firmware", Severity.CRITICAL, ActionKind.RESET_GPU),
        (149, "nvlink", Severity.CRITICAL, ActionKind.DRAIN),
        (154, "verdict", Severity.INFO, ActionKind.NOTIFY),
    ],
)
def test_known_numbers(code: int, xid_class: str, severity: Severity, action: ActionKind) -> None:
    spec = xid(code)
    assert (spec.xid_class, spec.severity, spec.action) == (xid_class, severity, action)


def test_what_dcgm_fails_on_is_critical() -> None:
    assert {xid(code).severity for code in (48, 74, 79, 95, 119, 120, 140)} == {Severity.CRITICAL}


def test_what_the_kubernetes_device_plugin_takes_for_application_errors_condemns_nothing_here() -> None:
    assert {xid(code).action for code in (13, 31, 43, 45, 68)} == {ActionKind.NOTIFY}


def test_no_program_fault_is_critical_or_asks_for_more_than_a_word() -> None:
    programs = [spec for spec in shipped_catalogue().specs() if spec.application]
    assert {(spec.action, spec.category) for spec in programs} == {(ActionKind.NOTIFY, Category.APPLICATION)}
    assert Severity.CRITICAL not in {spec.severity for spec in programs}


def test_every_row_says_something_and_where_it_is_from() -> None:
    for spec in shipped_catalogue().specs():
        assert spec.name
        assert len(spec.help) > 10
        assert not spec.help.endswith(".")
        assert spec.provenance == ("catalogue" if spec.code <= 161 else "inferred")
        assert 0 <= spec.cause_rank <= 99


def test_causes_come_before_effects() -> None:
    order = [79, 54, 149, 74, 145, 119, 48, 64, 95, 94, 63, 31, 45]
    ranks = [xid(code).cause_rank for code in order]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == len(ranks)


def test_an_unknown_number_is_a_warning_to_look_at() -> None:
    spec = xid(9999)
    assert (spec.xid_class, spec.severity, spec.action) == ("unknown", Severity.WARNING, ActionKind.NOTIFY)


def test_a_rule_file_corrects_the_catalogue_with_its_reason() -> None:
    ruleset = parse_rules('defaults = true\n[[xid]]\ncode = 63\nseverity = "critical"\nreason = "site policy"', "x")
    spec = ruleset.xids.of(63)
    assert (spec.severity, spec.xid_class, spec.provenance) == (Severity.CRITICAL, "memory", "override: site policy")
    assert xid(63).severity is Severity.WARNING, "the shipped catalogue stays as it is"


def test_a_correction_changes_which_rule_a_number_falls_under() -> None:
    text = 'defaults = true\n[[xid]]\ncode = 63\nseverity = "critical"\nreason = "site policy"'
    run = Run(parse_rules(text, "x"))
    run.step(0, events=[builders.xid(63, at_ms=instant(0))])
    assert run.active == ["xid_memory"]


def test_an_action_of_the_catalogue() -> None:
    condition = 'all = [{ kind = "xid", classes = ["bus", "application"] }]'
    made = parse_rules(
        '[[rules]]\nname = "r"\nseverity = "warning"\ncategory = "hardware"\naction = "catalogue"\n'
        f'alert = "{{where}}"\n{condition}\n',
        "x",
    )
    for code, action in ((79, ActionKind.REBOOT_NODE), (31, ActionKind.NOTIFY)):
        run = Run(made)
        run.step(0, events=[builders.xid(code, at_ms=instant(0))])
        assert [finding.action for finding in run.last.active] == [action]
