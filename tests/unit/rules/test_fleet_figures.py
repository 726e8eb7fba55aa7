"""Fleet fragmentation as the rules see it, by the task mix of the settings or of the jobs that run."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from pydantic import ValidationError

from tocsin.config.settings import FragmentationSettings
from tocsin.domain.clock import MINUTE, to_minute
from tocsin.domain.finding import Finding
from tocsin.domain.fragmentation import FleetFragmentation, TaskClass
from tocsin.domain.metrics import METRICS
from tocsin.domain.reading import Owner, Reading
from tocsin.queries.fleet_state import running_mix
from tocsin.rules.engine import Inputs, RuleEngine
from tocsin.rules.load import load_rules, parse_rules
from tocsin_testing.builders import T0, gpu
from tocsin_testing.rule_runs import HEAD

NAMES = (
    "fleet_free_gpus",
    "fleet_fragmented_gpus",
    "fleet_fgd_ratio",
    "fleet_stranded_gpus",
    "fleet_unusable_gpus",
    "fleet_fragmentation_ratio",
)


def readings(free_by_host: list[int], owners: tuple[Owner, ...] = ()) -> list[Reading]:
    """Hosts of eight GPUs of which so many are idle; the others are busy and `owners`'."""
    return [
        Reading(
            gpu(8 * host + n, host=f"node-{host}"),
            T0,
            {"gpu_utilization_ratio": 0.0 if n < free else 0.9, "gpu_processes": 0.0 if n < free else 1.0},
            owners=() if n < free else owners,
        )
        for host, free in enumerate(free_by_host)
        for n in range(8)
    ]


def engine_on_all_fleet_metrics() -> RuleEngine:
    rules = "\n".join(
        f'[[rules]]\nname = "r_{name}"\n{HEAD}alert = "{{where}}: {{value}}"\n'
        f'all = [{{ kind = "threshold", metric = "{name}", below = {METRICS[name].maximum} }}]'
        for name in NAMES
    )
    return RuleEngine(parse_rules(rules, "x"))


def figures(free_by_host: list[int], mix: tuple[TaskClass, ...] = ()) -> dict[str, float | None]:
    found = engine_on_all_fleet_metrics().step(Inputs(T0, readings(free_by_host), mix=mix))
    return {finding.metric: finding.value for finding in found.active}


def test_rules_can_look_at_every_figure() -> None:
    mix = (TaskClass(1, 0.5), TaskClass(4, 0.25), TaskClass(8, 0.25))
    assert figures([8, 5, 2], mix) == {
        "fleet_free_gpus": 15.0,
        "fleet_fragmented_gpus": 0.25 * 2 + 0.25 * 7,
        "fleet_fgd_ratio": pytest.approx(2.25 / 15),
        "fleet_stranded_gpus": 7.0,
        "fleet_unusable_gpus": 0.0,
        "fleet_fragmentation_ratio": pytest.approx(7 / 15),
    }


def test_without_a_mix_the_reference_job_decides() -> None:
    found = figures([8, 5, 2])
    assert (found["fleet_fragmented_gpus"], found["fleet_unusable_gpus"]) == (7.0, 7.0)


def test_the_shipped_rules_keep_the_figures_for_the_service() -> None:
    engine = RuleEngine(load_rules())
    assert engine.fleet is None
    engine.step(Inputs(T0, readings([8, 3]), mix=(TaskClass(2, 1.0), TaskClass(4, 1.0))))
    assert engine.fleet == FleetFragmentation(11, 1.5, 0, 3)


def test_unknown_utilisation_is_no_figure() -> None:
    engine = engine_on_all_fleet_metrics()
    blind = [Reading(gpu(n), T0, {"gpu_power_watts": 1.0}) for n in range(8)]
    assert engine.step(Inputs(T0, blind)).active == []
    assert engine.fleet is None


def test_running_jobs_show_the_mix() -> None:
    one = readings([7], (Owner(1, slurm_job="12.0"),))
    many = readings([0, 0], (Owner(2, slurm_job="7.1"), Owner(3, slurm_job="7.0")))[8:]
    pods = [
        Reading(gpu(100, host="node-9"), T0, {}, owners=(Owner(4, pod_uid="a", pod="x"),)),
        Reading(gpu(101, host="node-9"), T0, {}, owners=(Owner(5, pod_uid="a", pod="x"), Owner(6))),
        Reading(gpu(102, host="node-9", parent="GPU-1"), T0, {}, owners=(Owner(7),)),
    ]
    assert running_mix([*one, *many, *pods]) == (TaskClass(1, 0.5), TaskClass(2, 0.25), TaskClass(8, 0.25))
    assert running_mix(readings([8])) == ()


def test_the_mix_of_the_settings_is_checked() -> None:
    made = FragmentationSettings.model_validate({"task_mix": [{"gpus": 8, "share": 1}, {"gpus": 0.5, "share": 2}]})
    assert [task.gpus for task in made.task_mix] == [8, 0.5]
    for wrong in ({"gpus": 1.5, "share": 1}, {"gpus": 0, "share": 1}, {"gpus": 1, "share": 0}):
        with pytest.raises(ValidationError):
            FragmentationSettings.model_validate({"task_mix": [wrong]})


def test_what_is_back_within_the_hour_is_the_same_finding_and_says_when_it_does_not_hold() -> None:
    engine = RuleEngine(load_rules())
    at = iter(range(1, 1000))

    def go_on(free: list[int], minutes: int) -> list[Finding]:
        found: list[Finding] = []
        for minute in itertools.islice(at, minutes):
            now_ms = T0 + minute * MINUTE
            seen = [replace(one, at_ms=now_ms) for one in readings(free)]
            found = [one for one in engine.step(Inputs(now_ms, seen)).active if one.rule == "fleet_fragmented"]
        return found

    (first,) = go_on([5, 2, 3], 12)
    assert first.sentence.endswith("above 30 %.")
    (rested,) = go_on([0, 0, 8], 50)
    rests, ends = (to_minute(T0 + minutes * MINUTE) for minutes in (13, 73))
    assert rested.sentence == f"{first.sentence} No longer since {rests}; over at {ends} unless it comes back."
    assert rested.sentence_zh == f"{first.sentence_zh}自 {rests} 起已不再如此；若不再出现，{ends} 结束。"
    assert rested.id == first.id
    (back,) = go_on([5, 2, 3], 3)
    assert (back.id, back.sentence) == (first.id, first.sentence)
    assert len(go_on([0, 0, 8], 60)) == 1
    assert go_on([0, 0, 8], 1) == []
