"""Rule files beside the shipped one."""

from __future__ import annotations

from pathlib import Path

from tocsin.domain.clock import DAY, MINUTE
from tocsin.domain.decision import Mode
from tocsin.domain.finding import Severity
from tocsin.rules.load import load_rules, parse_rules
from tocsin_testing.rule_runs import HEAD, rules

OWN = f"""
[[rules]]
name = "temperature_high"
{HEAD}
alert = "{{where}}"
all = [{{ kind = "threshold", metric = "gpu_temperature_celsius", above = 70 }}]
"""


def names(text: str) -> list[str]:
    return [rule.name for rule in rules(text)]


def test_a_file_stands_alone_unless_it_asks_for_the_defaults() -> None:
    assert names(OWN) == ["temperature_high"]
    assert sorted(names("defaults = true\n" + OWN)) == sorted(rule.name for rule in load_rules())


def test_a_rule_of_the_same_name_replaces_the_shipped_one() -> None:
    ruleset = rules("defaults = true\n" + OWN)
    (own,) = [rule for rule in ruleset if rule.name == "temperature_high"]
    assert own.meaning() == "gpu_temperature_celsius > 70 °C"


def test_a_rule_can_be_switched_off() -> None:
    off = OWN.replace("alert", "enabled = false\nalert")
    assert "temperature_high" not in names("defaults = true\n" + off)
    assert "temperature_high" not in names('modes = { temperature_high = "act" }\ndefaults = true\n' + off)


def test_modes_are_set_by_name() -> None:
    ruleset = rules('defaults = true\nmodes = { temperature_high = "act" }')
    modes = {rule.name: rule.table.mode for rule in ruleset}
    assert modes.pop("temperature_high") is Mode.ACT
    assert modes["memory_full"] is Mode.OBSERVE
    assert set(modes.values()) == {Mode.OBSERVE}


def test_engine_options_come_from_the_file_that_has_them() -> None:
    assert rules("defaults = true").engine == load_rules().engine
    changed = rules('defaults = true\n[engine]\nstale_min = "5m"')
    assert (changed.engine.stale_min, changed.engine.forget) == (5 * MINUTE, 7 * DAY)


def test_a_file_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(OWN, encoding="utf-8")
    ruleset = load_rules(path)
    assert len(ruleset) == len(ruleset.rules) == 1
    assert ruleset.rules[0].table.severity is Severity.WARNING


def test_an_empty_file_is_an_empty_set() -> None:
    assert list(parse_rules("", "x")) == []
