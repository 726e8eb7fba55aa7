"""What every kind of condition keeps to, those of other packages too."""

from __future__ import annotations

import math
import pkgutil
import tomllib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tocsin.domain.errors import InputError
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Gpu, Reading
from tocsin.plugins import Kind, plugins
from tocsin.rules import conditions
from tocsin.rules.conditions.base import kinds
from tocsin_testing.builders import gpu, xid
from tocsin_testing.rule_runs import Run, Values, instant, rule

EXAMPLES = {
    "acme_above": "celsius = 80",
    "drift": 'components = ["driver"], hosts = 3',
    "elastic": "",
    "event_count": 'event = "xid", count = 2, within = "1h"',
    "forecast": 'metric = "gpu_temperature_celsius", within = "1h"',
    "frozen": "",
    "growth": 'metrics = ["gpu_pcie_replay_total"], times = 3',
    "missing_family": 'families = ["thermal", "power"]',
    "peer": 'metric = "gpu_temperature_celsius", above = 10, peers = 2',
    "rate": 'metric = "gpu_pcie_replay_total", above = 1, over = "10m"',
    "risk": "probability = 0.1",
    "silent": 'after = "3m"',
    "stuck": 'metrics = ["gpu_temperature_celsius"], over = "5m"',
    "sxid": "codes = [20034]",
    "threshold": 'metric = "gpu_temperature_celsius", above = 80',
    "xid": "codes = [79]",
}
"""The keys that each kind needs, as in a rule file."""

FLEET = tuple(gpu(index) for index in range(3))
VALUES = ("temperature_celsius", "utilization_ratio", "pcie_replay_total", "power_watts", "memory_used_ratio")
NUMBERS = st.floats(min_value=0, max_value=120, allow_nan=False)
READ = st.dictionaries(st.sampled_from(VALUES), NUMBERS, max_size=len(VALUES))
HAPPENED = st.sampled_from(((79, EventKind.XID), (63, EventKind.XID), (20034, EventKind.SXID)))
READINGS = st.dictionaries(st.sampled_from(FLEET), READ, max_size=3)
STEPS = st.lists(st.tuples(st.integers(1, 30), READINGS, st.lists(HAPPENED, max_size=2)), max_size=8)


def _keys(kind: str) -> str:
    return ", ".join(part for part in (f'kind = "{kind}"', EXAMPLES[kind]) if part)


def _rule(kind: str) -> Run:
    return Run(rule(f"all = [{{ {_keys(kind)} }}]", alert="{where}"))


def _play(run: Run, steps: list[tuple[int, dict[Gpu, Values], list[tuple[int, EventKind]]]]) -> list[object]:
    minute, seen = 0, []
    for passed, values, happened in steps:
        minute += passed
        events = [
            Event(kind, FLEET[0].uuid, FLEET[0].host, instant(minute), code, source="law") for code, kind in happened
        ]
        readings = [
            Reading(which, instant(minute), {f"gpu_{name}": value for name, value in found.items()})
            for which, found in values.items()
        ]
        seen.append(run.step(minute, readings=readings, events=events))
    return seen


every_kind = pytest.mark.parametrize("kind", list(plugins(Kind.CONDITION)))


def test_every_file_of_conditions_is_in_the_registry() -> None:
    files = {module.name for module in pkgutil.iter_modules(conditions.__path__)} - {"base"}
    listed = {one.target.partition(":")[0].rpartition(".")[2] for one in plugins(Kind.CONDITION).values()}
    assert files <= listed


@every_kind
def test_it_says_what_it_is(kind: str) -> None:
    model = kinds()[kind]
    keys = tomllib.loads(f"keys = {{ {_keys(kind)} }}")["keys"]
    condition = model.model_validate(keys)
    assert condition.kind == kind
    assert (model.__doc__ or "").strip()
    meaning = condition.meaning()
    assert meaning
    assert "\n" not in meaning


@every_kind
def test_a_key_that_it_does_not_know_is_refused(kind: str) -> None:
    with pytest.raises(InputError) as refused:
        rule(f'all = [{{ kind = "{kind}", no_such_key = 1 }}]')
    assert refused.value.field.startswith("rule r: ")
    assert refused.value.remedy


@every_kind
def test_an_empty_fleet_says_nothing(kind: str) -> None:
    run = _rule(kind)
    for minute in (0, 10, 600):
        assert run.step(minute).active == []


@every_kind
@given(steps=STEPS)
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_comes_it_raises_nothing_and_says_the_same_again(
    kind: str, steps: list[tuple[int, dict[Gpu, Values], list[tuple[int, EventKind]]]]
) -> None:
    run = _rule(kind)
    first = _play(run, steps)
    assert _play(_rule(kind), steps) == first
    for finding in (*run.opened, *run.cleared):
        assert finding.value is None or math.isfinite(finding.value)
        assert finding.threshold is None or math.isfinite(finding.threshold)
        assert finding.sentence
        assert "{" not in finding.sentence
        assert finding.started_ms <= finding.last_ms


def test_the_laws_open_findings_at_all() -> None:
    hot = _rule("threshold")
    assert hot.step(0, {FLEET[0]: {"temperature_celsius": 90.0}}).opened
    assert _rule("xid").step(0, {FLEET[0]: {"temperature_celsius": 40.0}}, events=[xid(79)]).opened
