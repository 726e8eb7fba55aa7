"""The condition ``drift`` and the rules that use it, over time."""

from __future__ import annotations

import pytest

from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import MINUTE
from tocsin.domain.errors import InputError
from tocsin.domain.finding import Finding, Subject, SubjectKind
from tocsin.domain.reading import Gpu, Reading
from tocsin.domain.versions import VersionBefore
from tocsin.rules.engine import Evaluation, Inputs, RuleEngine
from tocsin.rules.incidents import collapse
from tocsin.rules.load import load_rules
from tocsin.rules.symptoms import Symptom, symptom_of
from tocsin_testing.rule_runs import instant, rule, rules

MODEL = "NVIDIA H100 80GB HBM3"
DRIVER = "550.163.01"


def host(n: int, driver: str = DRIVER, *, pool: str = "training", model: str = MODEL, **labels: str) -> list[Gpu]:
    """Two GPUs of one host."""
    known = {"driver_version": driver, **labels} if driver else dict(labels)
    return [Gpu(f"{pool}-{n}-{i}", f"{pool}-{n}", i, model, pool=pool, labels=known) for i in range(2)]


def hosts(count: int, **more: str) -> list[Gpu]:
    return [gpu for n in range(count) for gpu in host(n, **more)]


class Fleet:
    """An engine that sees the same GPUs again and again."""

    def __init__(self, conditions: str = "", *, extra: str = "") -> None:
        text = conditions or 'all = [{ kind = "drift" }]'
        alert = "{where}: {component} {odd}; {most} of {total} with {group} have {common}"
        self.engine = RuleEngine(rule(text, alert=alert, extra=extra))

    def step(self, minute: float, gpus: list[Gpu], before: tuple[VersionBefore, ...] = ()) -> Evaluation:
        now = instant(minute)
        readings = [Reading(gpu, now, {"gpu_power_watts": 300.0}) for gpu in gpus]
        return self.engine.step(Inputs(now, readings, versions=before))


def said(evaluation: Evaluation) -> list[str]:
    return [finding.sentence for finding in evaluation.active]


def test_one_finding_names_the_hosts_that_differ() -> None:
    gpus = [*hosts(6), *host(6, "535.1"), *host(7, "535.1")]
    (found,) = Fleet().step(0, gpus).active
    assert found.sentence == (
        f"pool training: driver 535.1 on training-6, training-7; 6 of 8 hosts with {MODEL} have {DRIVER}"
    )
    assert found.subject == Subject(SubjectKind.POOL, "training", pool="training", detail=f"driver {MODEL}")
    assert found.value == 2
    assert [item.text for item in found.evidence] == [
        f"{DRIVER} on 6 hosts, 6 a day ago",
        "535.1 on 2 hosts, 2 a day ago",
    ]


def test_of_many_hosts_the_first_are_named() -> None:
    gpus = [*hosts(40), *(gpu for n in range(40, 45) for gpu in host(n, "535.1"))]
    assert "535.1 on training-40, training-41, training-42 and 2 more" in said(Fleet().step(0, gpus))[0]


def test_equal_hosts_and_small_groups_say_nothing() -> None:
    assert Fleet().step(0, hosts(8)).active == []
    assert Fleet().step(0, [*hosts(2), *host(2, "535.1")]).active == []
    assert Fleet('all = [{ kind = "drift", hosts = 3, share = 0.4 }]').step(0, [*hosts(2), *host(2, "535.1")]).active


def test_hosts_of_another_pool_model_or_role_are_no_measure() -> None:
    for more in ({"pool": "batch"}, {"model": "NVIDIA L4"}, {"role": "decode"}):
        gpus = [*hosts(6), *(gpu for n in range(10, 13) for gpu in host(n, "535.1", **more))]
        assert Fleet().step(0, gpus).active == []


def test_each_component_of_each_group_is_a_finding_of_its_own() -> None:
    gpus = [
        *hosts(6, kernel_version="5.15"),
        *host(6, "535.1", kernel_version="6.8"),
        *[gpu for n in range(4) for gpu in host(n, pool="batch")],
        *host(4, "535.1", pool="batch"),
    ]
    found = Fleet().step(0, gpus).active
    assert [one.subject.key for one in found] == [
        f"pool:batch:driver {MODEL}",
        f"pool:training:driver {MODEL}",
        f"pool:training:kernel {MODEL}",
    ]
    shipped = found_of(gpus)
    assert {symptom_of(one) for one in shipped} == {Symptom.DRIFT}
    assert len(collapse(shipped)) == 3


def found_of(gpus: list[Gpu]) -> list[Finding]:
    """What the shipped rules find after an hour."""
    engine = RuleEngine(load_rules())
    found: list[Finding] = []
    for minute in (0, 30, 61):
        now = instant(minute)
        step = engine.step(Inputs(now, [Reading(gpu, now, {"gpu_power_watts": 300.0}) for gpu in gpus]))
        found = [one for one in step.active if one.rule.endswith("_drift")]
    return found


def test_the_shipped_rules_wait_an_hour_and_wake_nobody() -> None:
    gpus = [*hosts(6, nccl_version="2.21.5"), *host(6, "535.1", nccl_version="2.19.3")]
    found = {one.rule: one for one in found_of(gpus)}
    assert {name: one.alert_level for name, one in found.items()} == {
        "version_drift": AlertLevel.WARNING,
        "library_drift": AlertLevel.NOTE,
    }
    assert found["version_drift"].sentence_zh == (
        f"资源池 training：驱动 535.1（training-6）与资源池不一致：{MODEL} 的 7 台主机中有 6 台为 {DRIVER}。"
    )
    engine = RuleEngine(load_rules())
    now = instant(0)
    assert not engine.step(Inputs(now, [Reading(gpu, now, {}) for gpu in gpus])).active


def test_a_page_is_no_level_of_it() -> None:
    ruleset = rules(
        '[[rules]]\nname = "r"\nseverity = "critical"\nlevel = "page"\ncategory = "versions"\naction = "notify"\n'
        'alert = "{where}"\nall = [{ kind = "drift" }]\n'
    )
    assert next(iter(ruleset)).level is AlertLevel.WARNING


def test_a_roll_out_is_none_until_it_stands_still_for_a_day() -> None:
    fleet = Fleet()
    gpus = [*hosts(6), *host(6, "570.1"), *host(7, "570.1")]
    before = tuple(VersionBefore(f"training-{n}", MODEL, "driver", DRIVER) for n in (6, 7))
    assert fleet.step(0, gpus, before).active == []
    assert fleet.step(1, gpus, before).active == []
    assert len(fleet.step(2, gpus, ()).active) == 1
    again = (VersionBefore("training-7", MODEL, "driver", DRIVER),)
    assert fleet.step(3, gpus, again).cleared


def test_it_clears_when_the_host_has_the_version_of_its_pool() -> None:
    fleet = Fleet()
    fleet.step(0, [*hosts(6), *host(6, "535.1")])
    after = fleet.step(1, hosts(7))
    assert (len(after.cleared), after.active) == (1, [])


def test_it_ends_with_its_group() -> None:
    fleet = Fleet()
    fleet.step(0, [*hosts(6), *host(6, "535.1")])
    moved = [*(gpu for n in range(6) for gpu in host(n, model="NVIDIA H200")), *host(6, "535.1", model="NVIDIA H200")]
    after = fleet.step(1, moved)
    assert [one.subject.detail for one in after.cleared] == [f"driver {MODEL}"]
    assert [one.subject.detail for one in after.active] == ["driver NVIDIA H200"]
    assert len(fleet.step(2, moved).active) == 1


def test_hosts_that_fell_silent_for_a_day_count_no_more() -> None:
    fleet = Fleet()
    fleet.step(0, [*hosts(6), *host(6, "535.1")])
    after = fleet.step(24 * 60 + 10, hosts(6))
    assert after.active == []


def test_hosts_that_do_not_tell_are_left_out() -> None:
    gpus = [*hosts(3), *(gpu for n in range(3, 9) for gpu in host(n, "")), *host(9, "535.1")]
    (found,) = Fleet().step(0, gpus).active
    assert "3 of 4 hosts" in found.sentence


def test_simulated_groups_are_marked() -> None:
    gpus = [
        Gpu(gpu.uuid, gpu.host, gpu.index, gpu.model, pool=gpu.pool, labels=gpu.labels, simulated=True)
        for gpu in [*hosts(6), *host(6, "535.1")]
    ]
    assert Fleet().step(0, gpus).active[0].simulated


@pytest.mark.parametrize(
    ("condition", "field"),
    [
        ('{ kind = "drift", components = ["drivers"] }', "components"),
        ('{ kind = "drift", components = [] }', "components"),
        ('{ kind = "drift", share = 0.5 }', "share"),
        ('{ kind = "drift", hosts = 2 }', "hosts"),
    ],
)
def test_what_cannot_be_is_refused(condition: str, field: str) -> None:
    with pytest.raises(InputError) as refused:
        rule(f"all = [{condition}]")
    assert refused.value.field.endswith(field)


def test_it_stands_with_no_other_kind_of_subject_and_has_a_scope_of_groups() -> None:
    with pytest.raises(InputError, match="different kinds of subject"):
        rule('all = [{ kind = "drift" }, { kind = "threshold", metric = "gpu_power_watts", above = 1 }]')
    with pytest.raises(InputError, match="has none"):
        rule('all = [{ kind = "drift" }]', extra='scope = { hosts = ["a*"] }')
    gpus = [*hosts(6), *host(6, "535.1")]
    for scope, count in (('pools = ["train*"]', 1), ('pools = ["b*"]', 0), ('models = ["*h100*"]', 1)):
        assert len(Fleet(extra=f"scope = {{ {scope} }}").step(0, gpus).active) == count


def test_time_that_goes_back_does_no_harm() -> None:
    fleet = Fleet()
    gpus = [*hosts(6), *host(6, "535.1")]
    fleet.step(600, gpus)
    assert len(fleet.step(0, gpus).active) == 1
    assert instant(1) - instant(0) == MINUTE


def test_the_order_of_gpus_changes_nothing() -> None:
    gpus = [*hosts(6), *host(6, "535.1"), *host(7, "")]
    one, other = Fleet().step(0, gpus), Fleet().step(0, gpus[::-1])
    assert one.active == other.active
