"""Findings name the processes on their GPU."""

from __future__ import annotations

from tocsin.domain.finding import Finding
from tocsin.domain.reading import Missing, Owner, Reading
from tocsin.rules.engine import Inputs, RuleEngine
from tocsin.rules.load import parse_rules
from tocsin_testing.builders import T0, gpu

RULES = """
[[rules]]
name = "hot"
severity = "warning"
category = "thermal"
action = "notify"
alert = "{where} is hot"
any = [
    { kind = "threshold", metric = "gpu_temperature_celsius", above = 85 },
    { kind = "threshold", metric = "gpu_row_remap_failure", above = 0 },
]

[[rules]]
name = "scattered"
severity = "warning"
category = "fragmentation"
action = "notify"
alert = "{where} is scattered"
all = [{ kind = "threshold", metric = "gpu_allocator_external_fragmentation_ratio{pid}", above = 0.3 }]
"""
TRAIN, SERVE = Owner(11, "train", pod="p", namespace="n"), Owner(12, "serve", slurm_job="7.0")
HOT = {"gpu_temperature_celsius": 90.0}


def findings(*readings: Reading) -> dict[str, Finding]:
    engine = RuleEngine(parse_rules(RULES, "test"))
    for reading in readings:
        active = engine.step(Inputs(reading.at_ms, [reading])).active
    return {finding.rule: finding for finding in active}


def test_a_finding_has_the_owners_of_its_gpu() -> None:
    assert findings(Reading(gpu(0), T0, HOT, owners=(TRAIN, SERVE)))["hot"].owners == (TRAIN, SERVE)


def test_a_finding_of_a_process_has_that_one() -> None:
    values = {'gpu_allocator_external_fragmentation_ratio{pid="12"}': 0.5}
    assert findings(Reading(gpu(0), T0, values, owners=(TRAIN, SERVE)))["scattered"].owners == (SERVE,)


def test_owners_that_left_are_no_longer_named() -> None:
    before = Reading(gpu(0), T0, HOT, owners=(TRAIN,))
    assert findings(before, Reading(gpu(0), T0 + 10_000, HOT))["hot"].owners == ()


def test_who_was_on_a_lost_gpu_stays_known() -> None:
    before = Reading(gpu(0), T0, HOT, owners=(TRAIN,))
    lost = Reading(gpu(0), T0 + 10_000, {}, {"gpu_temperature_celsius": Missing.LOST})
    assert findings(before, lost)["hot"].owners == (TRAIN,)
