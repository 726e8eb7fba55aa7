"""What a mistake in a rule file is answered with, word for word."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.domain.errors import InputError
from tocsin.rules.load import load_rules, parse_rules

GOOD = """
[[rules]]
name = "hot"
severity = "warning"
category = "thermal"
action = "throttle"
alert = "{where}: {value}"
all = [{ kind = "threshold", metric = "gpu_temperature_celsius", above = 85 }]
"""

CONDITION = '{ kind = "threshold", metric = "gpu_temperature_celsius", above = 85 }'


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def condition(text: str) -> str:
    return changed(CONDITION, text)


CASES = {
    "unknown metric": (
        condition('{ kind = "threshold", metric = "gpu_temprature_celsius", above = 85 }'),
        "rule hot: all.0.metric = 'gpu_temprature_celsius': no such metric; did you mean gpu_temperature_celsius?",
    ),
    "unknown metric in a level": (
        condition('{ kind = "threshold", metric = "gpu_temperature_celsius", above = { metric = "gpu_slowdown" } }'),
        "rule hot: all.0.above.metric = 'gpu_slowdown': no such metric; did you mean gpu_clocks_hw_slowdown?",
    ),
    "label that the metric does not have": (
        condition('{ kind = "threshold", metric = "gpu_temperature_celsius{pid}", above = 85 }'),
        "rule hot: all.0.metric = 'gpu_temperature_celsius{pid}': no such label; "
        "write gpu_temperature_celsius: it has no variants",
    ),
    "wrong label": (
        condition('{ kind = "threshold", metric = "gpu_nvlink_up{pid}", below = 1 }'),
        "rule hot: all.0.metric = 'gpu_nvlink_up{pid}': no such label; write gpu_nvlink_up{link}",
    ),
    "unknown key of a rule": (
        changed('severity = "warning"', 'severity = "warning"\nserverity = "info"'),
        "rule hot: serverity = 'info': unknown key; did you mean severity?",
    ),
    "unknown key of a condition": (
        condition('{ kind = "threshold", metric = "gpu_temperature_celsius", abov = 85 }'),
        "rule hot: all.0.abov = 85: unknown key; did you mean above?",
    ),
    "unknown key of a level": (
        condition(
            '{ kind = "threshold", metric = "gpu_power_watts", above = { metric = "gpu_power_limit_watts", of = 1 } }'
        ),
        "rule hot: all.0.above.of = 1: unknown key; did you mean offset?",
    ),
    "unknown key of a scope": (
        changed("all =", 'scope = { model = ["*A100*"] }\nall ='),
        "rule hot: scope.model = ['*A100*']: unknown key; did you mean models?",
    ),
    "unknown key of the file": (
        "rulez = 1\n" + GOOD,
        "rulez = 1: unknown key; did you mean rules?",
    ),
    "unknown kind": (
        condition('{ kind = "treshold", metric = "gpu_temperature_celsius", above = 85 }'),
        "rule hot: all.0.kind = 'treshold': no such kind of condition; did you mean threshold?",
    ),
    "kind forgotten": (
        condition('{ metric = "gpu_temperature_celsius", above = 85 }'),
        "rule hot: all.0.kind = None: is missing; "
        "add one of drift, elastic, event_count, forecast, frozen, growth, missing_family, peer, rate, risk, silent, "
        "stuck, sxid, threshold, xid",
    ),
    "percent in place of a ratio": (
        condition('{ kind = "threshold", metric = "gpu_memory_used_ratio", above = 90 }'),
        "rule hot: all.0.above = 90.0: is outside the metric's 0 to 1 ratio; write 0.9 for 90 %",
    ),
    "level that is out of bounds": (
        condition('{ kind = "threshold", metric = "gpu_temperature_celsius", above = 358 }'),
        "rule hot: all.0.above = 358.0: is outside the metric's -100 to 150 celsius; give it in celsius",
    ),
    "level that can never be passed": (
        condition('{ kind = "threshold", metric = "gpu_memory_used_ratio", above = 1 }'),
        "rule hot: all.0.above = 1.0: can never hold: the metric ends there; use at_least",
    ),
    "clear on the wrong side": (
        condition('{ kind = "threshold", metric = "gpu_temperature_celsius", above = 85, clear = 90 }'),
        "rule hot: all.0.clear = 90.0: is higher than above = 85; clear on the safe side of it",
    ),
    "level as text": (
        condition('{ kind = "threshold", metric = "gpu_temperature_celsius", above = "85" }'),
        "rule hot: all.0.above = '85': should be a valid number; correct above",
    ),
    "two comparisons": (
        condition('{ kind = "threshold", metric = "gpu_temperature_celsius", above = 85, below = 20 }'),
        "rule hot: all.0.below = 20.0: stands beside above; give one comparison",
    ),
    "no comparison": (
        condition('{ kind = "threshold", metric = "gpu_temperature_celsius" }'),
        "rule hot: all.0.above = None: no comparison; give one of above, at_least, below, at_most",
    ),
    "duration without a unit": (
        changed("all =", "for = 15\nall ="),
        "rule hot: for = 15: is no duration; write it with a unit, such as '90s', '15m', '24h' or '7d'; correct for",
    ),
    "missing key": (
        changed('category = "thermal"\n', ""),
        "rule hot: category = None: is missing; add category",
    ),
    "rule without a name": (
        changed('name = "hot"\n', ""),
        "rule number 1: name = None: is missing; add name",
    ),
    "name with a blank": (
        changed('"hot"', '"too hot"'),
        "rule too hot: name = 'too hot': String should match pattern '^[a-z][a-z0-9_]*$'; correct name",
    ),
    "no condition": (
        changed(CONDITION, ""),
        "rule hot: all = None: the rule has no condition; add [[rules.all]] or [[rules.any]]",
    ),
    "same name twice": (
        GOOD + GOOD,
        "rule hot: name = 'hot': two rules have this name; rename one of them",
    ),
    "unknown word in the sentence": (
        changed("{value}", "{valeu}"),
        "rule hot: alert = '{valeu}': no such word; did you mean value?",
    ),
    "unpaired brace": (
        changed("{value}", "{value"),
        "rule hot: alert = '{where}: {value': expected '}' before end of string; double a brace that is meant",
    ),
    "subjects mixed": (
        condition(CONDITION + ', { kind = "threshold", metric = "pool_utilization_ratio", above = 0.9 }'),
        "rule hot: all = ['gpu', 'pool']: conditions are about different kinds of subject; split the rule",
    ),
    "unknown XID class": (
        condition('{ kind = "xid", classes = ["memmory"] }'),
        "rule hot: all.0.classes = 'memmory': no such XID class; did you mean memory?",
    ),
    "a program's fault condemns a GPU": (
        changed("throttle", "drain").replace(CONDITION, '{ kind = "xid", codes = [31] }'),
        "rule hot: action = 'drain': XID 31 is a program's own fault and never condemns a GPU; "
        "use notify, or leave the number out",
    ),
    "a count of program faults condemns a GPU": (
        condition('{ kind = "event_count", event = "xid", codes = [79, 43], within = "1h" }'),
        "rule hot: action = 'throttle': XID 43 is a program's own fault and never condemns a GPU; "
        "use notify, or leave the number out",
    ),
    "action of the catalogue without an XID": (
        changed('"throttle"', '"catalogue"'),
        "rule hot: action = 'catalogue': the first condition is about no XID; name an action",
    ),
    "unknown family": (
        condition('{ kind = "missing_family", families = ["termal"] }'),
        "rule hot: all.0.families = 'termal': no such family; did you mean thermal?",
    ),
    "variants for a condition that needs them": (
        condition('{ kind = "rate", metric = "gpu_nvlink_up", over = "1h", above = 0, only_one = true }'),
        "rule hot: all.0.only_one = True: the metric is read without variants; write gpu_nvlink_up{link}",
    ),
    "model scope of a pool": (
        changed("all =", 'scope = { models = ["x"] }\nall =').replace(
            CONDITION, '{ kind = "threshold", metric = "pool_utilization_ratio", above = 0.9 }'
        ),
        "rule hot: scope.models = ['x']: a rule about the pool has none; remove it",
    ),
    "mode of an unknown rule": (
        'modes = { hott = "act" }\n' + GOOD,
        "modes.hott = 'act': no such rule; did you mean hot?",
    ),
    "unknown mode": (
        changed("all =", 'mode = "auto"\nall ='),
        "rule hot: mode = 'auto': should be 'observe', 'propose' or 'act'; correct mode",
    ),
    "correction without a reason": (
        '[[xid]]\ncode = 109\nseverity = "warning"\n' + GOOD,
        "xid 109: reason = None: is missing; add reason",
    ),
    "correction to an unknown class": (
        '[[xid]]\ncode = 109\nclass = "hangs"\nreason = "x"\n' + GOOD,
        "xid 109: class = 'hangs': no such XID class; did you mean hang?",
    ),
    "correction that condemns for a program's fault": (
        '[[xid]]\ncode = 31\naction = "drain"\nreason = "x"\n' + GOOD,
        "xid 31: action = 'drain': class application is a program's own fault and never condemns a GPU; "
        "use notify, or give it another class",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_message(case: str) -> None:
    text, message = CASES[case]
    with pytest.raises(InputError) as caught:
        parse_rules(text, "rules.toml")
    assert str(caught.value) == message


def test_the_file_that_the_cases_change_is_sound() -> None:
    assert [rule.name for rule in parse_rules(GOOD, "rules.toml")] == ["hot"]


def test_broken_toml_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text("[[rules]\n")
    with pytest.raises(InputError) as caught:
        load_rules(path)
    assert str(caught.value).startswith(f"rule file = {str(path)!r}: is not TOML: Expected ']]'")
    assert "line 1" in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file or directory; name a readable UTF-8 file"):
        load_rules(tmp_path / "none.toml")
