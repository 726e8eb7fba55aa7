"""docs/rules.md says what code, catalogue and rule file say."""

from __future__ import annotations

from pathlib import Path

from tocsin.rules.conditions.base import kinds
from tocsin.rules.load import load_rules, parse_rules
from tocsin_grafana.rules_page import generated, rules_table

PAGE = Path(__file__).parents[3] / "docs" / "rules.md"


def test_the_generated_part_is_what_the_code_says() -> None:
    text = PAGE.read_text(encoding="utf-8")
    begin, end = "<!-- generated: begin -->\n\n", "\n\n<!-- generated: end -->"
    written = text[text.index(begin) + len(begin) : text.index(end)]
    assert written == generated(load_rules()), "run make grafana"


def test_every_shipped_rule_has_a_row_and_a_summary() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for rule in load_rules():
        assert f"| `{rule.name}` | {rule.table.summary} |" in text
        assert rule.table.summary.endswith(".")


def test_every_kind_of_condition_is_described() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in kinds() if f"### Condition `{name}`" not in text] == []
    for kind in kinds().values():
        assert all(field.description for name, field in kind.model_fields.items() if name != "kind")


def test_a_rule_of_ones_own_is_described_too() -> None:
    ruleset = parse_rules(
        '[[rules]]\nname = "own"\nseverity = "info"\ncategory = "thermal"\naction = "notify"\nalert = "x"\nfor = "5m"\n'
        'samples = 2\nclear_for = "1m"\nall = [{ kind = "threshold", metric = "gpu_power_watts", above = 300 }]',
        "x",
    )
    about = "info | note | thermal | `notify`"
    when = "for 5 min, 2 readings, clears after 1 min | gpu_power_watts &gt; 300 W"
    assert rules_table(ruleset).splitlines()[-1] == f"| `own` |  | {about} | {when} |"
