"""Catalogues, lore and overrides as `tocsin xid` shows them."""

from __future__ import annotations

import csv
from importlib import resources
from pathlib import Path

import pytest

from tocsin.domain.errors import InputError
from tocsin.domain.event import EventKind
from tocsin.domain.finding import ActionKind, Severity
from tocsin.rules.load import load_rules, parse_rules
from tocsin.rules.sxid import CLASSES, shipped_sxids
from tocsin.rules.xid import shipped_catalogue
from tocsin.rules.xid_explain import (
    PEERS,
    PROVENANCE,
    WORDS,
    explain_sxid,
    explain_xid,
    sequences,
    stances,
    verdict_since,
)
from tocsin_testing.builders import Event
from tocsin_testing.rule_runs import Run, instant, rule


def test_every_number_has_an_explanation_without_a_gap() -> None:
    for spec in shipped_catalogue().specs():
        made = explain_xid(shipped_catalogue(), spec.code).as_json()
        assert made["xid"] == spec.code
        assert {"name", "class", "severity", "means", "action", "driver_catalogue", "provenance"} <= made.keys()
        assert {spec.vendor_action, spec.investigate or "ignore"} <= set(WORDS), spec.code
        assert spec.provenance in PROVENANCE


def test_the_sxid_catalogue_is_complete_and_consistent() -> None:
    specs = shipped_sxids().specs()
    by_class = {name: [spec.code for spec in specs if spec.sxid_class == name] for name in CLASSES}
    assert {name: len(codes) for name, codes in by_class.items()} == {
        "fabric": 21,
        "partition": 42,
        "non_fatal": 25,
        "notable": 5,
        "unknown": 0,
    }
    assert {12020, 22003, 22011, 23001, 23017, 10003} <= set(by_class["fabric"])
    assert {11001, 20034, 24007, 19047} <= set(by_class["partition"])
    assert {11012, 12028, 20001, 20012} <= set(by_class["non_fatal"])
    for spec in specs:
        assert spec.name
        assert len(spec.help) > 10
        assert not spec.help.endswith(".")
        assert spec.vendor_action in WORDS
        assert spec.provenance == "fabric_manager_guide"
        assert (spec.severity is Severity.CRITICAL) is spec.fatal
    assert {spec.action for spec in specs if spec.sxid_class != "fabric"} == {ActionKind.NOTIFY}


def test_sxids_come_between_causes_and_effects() -> None:
    xids, sxids = shipped_catalogue(), shipped_sxids()
    order = [xids.of(79), sxids.of(22003), xids.of(149), sxids.of(20034), xids.of(74), xids.of(145), xids.of(45)]
    assert [spec.cause_rank for spec in order] == sorted({spec.cause_rank for spec in order})


def test_an_unknown_sxid_is_a_warning_to_look_at() -> None:
    spec = shipped_sxids().of(99_999)
    assert (spec.sxid_class, spec.severity, spec.action) == ("unknown", Severity.WARNING, ActionKind.NOTIFY)


def test_stances_are_those_of_the_projects() -> None:
    says = {stance.project: stance.says for stance in stances(79)}
    assert says["DCGM health"] == "FAIL"
    assert says["NVSentinel"] == "RESTART_BM"
    ignored = [code for code in range(1, 177) if any(s.project == "Kubernetes device plugin" for s in stances(code))]
    assert ignored == [13, 31, 43, 45, 68, 109]
    failing = [
        code for code in range(1, 177) if any(s.project == "DCGM health" and s.says == "FAIL" for s in stances(code))
    ]
    assert set(failing) >= {48, 74, 79, 95, 119, 120, 140}
    assert stances(999) == []
    assert verdict_since(79) == "R565"
    assert verdict_since(999) == ""


def test_the_table_of_stances_has_no_other_columns() -> None:
    text = resources.files("tocsin.rules").joinpath("xid_peers.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    assert set(rows[0]) == {"code", "verdict_since", *PEERS}
    assert {int(row["code"]) for row in rows} <= {spec.code for spec in shipped_catalogue().specs()}


def test_sequences_name_known_numbers() -> None:
    known = shipped_catalogue()
    for one in sequences():
        assert one.codes
        assert all(code in known for code in (*one.codes, *one.then))
        assert one.meaning
        assert one.handling
        assert one.provenance


@pytest.mark.parametrize(
    ("code", "field", "remedy"), [(999, "code", "1 to 176"), (20034, "code", "--sxid"), (177, "code", "1 to 176")]
)
def test_an_unknown_number_is_an_error(code: int, field: str, remedy: str) -> None:
    with pytest.raises(InputError) as raised:
        explain_xid(shipped_catalogue(), code)
    assert raised.value.field == field
    assert remedy in raised.value.remedy


def test_an_unknown_sxid_names_the_nearest() -> None:
    with pytest.raises(InputError, match="nearest known is 20034"):
        explain_sxid(shipped_sxids(), 20_035)


def test_words_need_a_code_that_has_them() -> None:
    with pytest.raises(InputError, match="no sub-codes"):
        explain_xid(shipped_catalogue(), 79, (1,))
    made = explain_xid(shipped_catalogue(), 149, (0x004505C6, 0), driver=570)
    assert (made.immediate, made.do_now, made.look_into) == (
        "workflow_nvlink5_err",
        "reset_gpu",
        "investigate_link_si",
    )


OVERRIDES = """
[[xid]]
code = 63
severity = "critical"
class = "memory"
reason = "site policy"

[[sxid]]
code = 20012
class = "partition"
severity = "critical"
reason = "bad cables"
"""


def overrides(folder: Path, text: str = OVERRIDES) -> Path:
    path = folder / "overrides.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_an_override_says_what_it_changes(tmp_path: Path) -> None:
    ruleset = load_rules(None, overrides(tmp_path))
    changed = ruleset.xids.of(63)
    assert changed.changes == ("severity: warning -> critical",)
    assert changed.provenance == "override: site policy"
    switch = ruleset.sxids.of(20_012)
    assert switch.changes == ("class: non_fatal -> partition", "severity: info -> critical")
    explained = explain_sxid(ruleset.sxids, 20_012).as_json()
    assert (explained["overridden"], explained["provenance"]) == (list(switch.changes), "override: bad cables")
    assert shipped_catalogue().of(63).changes == ()


def test_overrides_decide_which_rule_a_number_falls_under(tmp_path: Path) -> None:
    seen = [Event(EventKind.SXID, "", "node-1", instant(0), 20_012)]
    for path, expected in ((None, "nvswitch_error"), (overrides(tmp_path), "nvswitch_partition_fatal")):
        run = Run(load_rules(None, path))
        run.step(0, events=seen)
        assert run.active == [expected]


def test_the_file_of_overrides_outranks_the_rule_file(tmp_path: Path) -> None:
    own = tmp_path / "rules.toml"
    own.write_text('defaults = true\n[[xid]]\ncode = 63\nseverity = "info"\nreason = "first"\n', encoding="utf-8")
    spec = load_rules(own, overrides(tmp_path)).xids.of(63)
    assert spec.changes == ("severity: warning -> info", "severity: info -> critical")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[xid]]\ncode = 1\nreason = "x"\ncolour = 1', "xid 1: colour = 1: unknown key"),
        ('[[sxid]]\ncode = 20012\nclass = "fabrik"\nreason = "x"', "did you mean fabric"),
        ('[[sxid]]\ncode = 20012\nclass = "fabric"', "sxid 20012: reason = None: is missing"),
        ('[[xid]]\ncode = 1\nclass = "memori"\nreason = "x"', "xid 1: class = 'memori': no such XID class"),
        ('[[xid]]\ncode = 31\naction = "drain"\nreason = "x"', "never condemns a GPU"),
        ("[[rules]]\n", "rules = [{}]: unknown key"),
        ("[[xid", "is not TOML"),
    ],
)
def test_a_bad_file_of_overrides_is_one_clear_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        load_rules(None, overrides(tmp_path, text))
    assert message in str(raised.value)


def test_a_missing_file_of_overrides(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_rules(None, tmp_path / "none.toml")


def sxid(code: int, minute: float, host: str = "node-1") -> Event:
    return Event(EventKind.SXID, "", host, instant(minute), code, f"SXid {code}")


def test_the_condition_sxid_counts_holds_and_ends() -> None:
    made = rule('all = [{ kind = "sxid", classes = ["non_fatal"], except_codes = [11012], count = 2, hold = "10m" }]')
    run = Run(made)
    run.step(0, events=[sxid(11_012, 0), sxid(11_021, 0)])
    assert run.active == []
    run.step(1, events=[sxid(20_001, 1), sxid(20_001, 1, "node-2")])
    assert [finding.subject.name for finding in run.last.active] == ["node-1"]
    run.step(9)
    assert run.active == ["r"]
    run.step(11)
    assert run.active == []
    run.step(12, events=[sxid(20_001, 12), sxid(20_001, 12.1)])
    assert run.active == ["r"]
    run.step(13, events=[Event(EventKind.DRIVER_RELOAD, "", "node-1", instant(13))])
    assert run.active == []


def test_of_several_sxids_the_cause_speaks() -> None:
    alert = "{where}: {code} {name}; {codes}; {count}; {remedy}; {help}"
    run = Run(rule('all = [{ kind = "sxid", classes = ["fabric"], codes = [20034] }]', alert=alert))
    (finding,) = run.step(1, events=[sxid(20_034, 0), sxid(22_003, 0.5)]).active
    assert finding.sentence == (
        "node-1: 22003 Minion halt; 20034, 22003; 2; restart host or reset fabric; "
        "The micro-controller of the links has halted"
    )
    assert [item.name for item in finding.evidence] == ["sxid:22003", "sxid:20034", "burst"]


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ('{ kind = "sxid" }', "neither classes nor codes are given"),
        ('{ kind = "sxid", classes = ["fabrik"] }', "no such SXid class; did you mean fabric"),
    ],
)
def test_a_bad_condition_is_named(condition: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        rule(f"all = [{condition}]")
    assert message in str(raised.value)


def test_a_switch_that_fails_explains_the_gpus_that_lose_their_links() -> None:
    from tocsin.rules.incidents import collapse
    from tocsin_testing.builders import xid

    run = Run(parse_rules("defaults = true", "x"))
    run.step(1, events=[sxid(22_003, 0), xid(74, at_ms=instant(0.1))])
    (incident,) = collapse(run.last.active)
    assert incident.root.rule == "nvswitch_fabric_fatal"
    assert {member.rule for member in incident.members} == {"nvswitch_fabric_fatal", "xid_nvlink"}
